"""Connections of the HTTP API: uvicorn's protocol in the hub's loop, with an end for everything.

Owns the listening sockets, the connections and their one timer. uvicorn parses and speaks HTTP; its
own server is not used, since it takes the process's signals and wakes ten times a second. What it
has no bound for is bounded here: connections, headers, the time of a request and of reading an
answer. Invariant: every task belongs to the group of `run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from edgehub.clock import Clock, Timer, TimerHandle
from edgehub.http1.rules import allow_versions
from edgehub.http1.unparsed import Unparsed
from edgehub.operations.encoding import encoded
from edgehub.operations.problem import ProblemError
from edgehub.telemetry.log_limit import LogLimit
from edgehub.web.answers import PROBLEM_TYPE

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp

    from edgehub.heads.binding import ListeningPort
    from edgehub.settings import WebSettings

SWEEP_S: Final = 1.0
"""How exact the times of connections are; one timer serves them all, while there are any."""

HEADER_BYTES_MAX: Final = 16_384
"""Request line and headers."""

IDLE_TIMEOUT_S: Final = 30
"""Between two requests of a connection."""

LINGER_S: Final = 2.0
"""So long a refused client may go on sending, or it would lose the answer to a reset."""


class WebServer:
    """The connections of the HTTP API.

    Args:
        app: What answers requests.
        settings: Limits and times.
        clock: For all timers.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.accepted_total = 0
        # One for each server, which has the clock.
        self.logger = logging.Logger(__name__)  # noqa: LOG001 - see above
        self.logger.addHandler(_Forward(LogLimit(clock)))
        self.state = ServerState()
        self.config = Config(
            app=app,
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_TIMEOUT_S,
        )
        self.config.load()
        self._timer = Timer(clock, self._sweep)
        self.tasks: asyncio.TaskGroup | None = None

    @property
    def connections(self) -> set[Connection]:
        """Return the open connections."""
        return cast("set[Connection]", self.state.connections)

    async def run(self, port: ListeningPort, tls: ssl.SSLContext | None) -> None:
        """Accept and serve until cancelled; what is unanswered then is cut off.

        Args:
            port: Bound and listening; closed at the end.
            tls: Certificate, None = plain HTTP.
        """
        async with asyncio.TaskGroup() as tasks:
            self.tasks = tasks
            try:
                await port.accept(lambda: Connection(self), tls)
                await asyncio.Event().wait()
            finally:
                port.close()
                for connection in list(self.connections):
                    connection.shutdown()
                for request in list(self.state.tasks):
                    request.cancel()
                self._timer.cancel()

    def watch(self) -> None:
        """Check the connections, as long as there are any."""
        self._timer.start(SWEEP_S)

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self.connections):
            connection.check(now)
        if self.connections:
            self.watch()


class _Loop:
    """The loop as uvicorn's protocol sees it: tasks belong to the server's group."""

    __slots__ = ("_server",)

    def __init__(self, server: WebServer) -> None:
        self._server = server

    def create_task(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._server.tasks is not None, "connections exist only while the server runs"
        return self._server.tasks.create_task(request, name="web[request]")

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return self._server.clock.call_later(delay_s, callback)


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's, with bounds."""

    def __init__(self, server: WebServer) -> None:
        loop = cast("asyncio.AbstractEventLoop", _Loop(server))
        super().__init__(server.config, server.state, {}, _loop=loop)
        self.logger = server.logger
        self._web = server
        allow_versions(self.parser)
        self.unparsed = Unparsed()
        self._unanswered = 0
        # Of the request that is being read: it has a cycle, which its answer belongs to.
        self._has_cycle = False
        self._last = False
        self._head_bytes = 0
        self._refusal: ProblemError | None = None
        self._refused = False
        self._whole = True
        self._due: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """A client has connected."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        web = self._web
        web.accepted_total += 1
        web.watch()
        self._wait(web.settings.request_timeout_s)
        if len(web.connections) > web.settings.connections_max:
            self._refuse(
                ProblemError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "too_many_connections",
                    "too many connections",
                    headers={"Retry-After": "10"},
                )
            )

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if not self._refused and self._refusal is None:
            self.unparsed.add(data)
            self._read()

    def _read(self) -> None:
        """Parse what has come, up to the first request that is whole and not answered."""
        while self.unparsed and not (self._whole and self._unanswered):
            if self._refusal is not None or self._last or self.transport.is_closing():
                self.unparsed.clear()
                break
            super().data_received(self.unparsed.take())
        if self.unparsed:
            self.flow.pause_reading()
            return
        # While a handler has enough of a body to read, that goes on when it has read it.
        busy = self._unanswered and len(self.cycle.body) > HIGH_WATER_LIMIT
        if not (self.pipeline or busy):
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = 0
        self._whole = self._has_cycle = False
        self._wait(self._web.settings.request_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Take a piece of its target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to serve the request, or let it wait for those before it."""
        super().on_headers_complete()
        self._has_cycle = True
        self._unanswered += 1
        if self.parser.should_upgrade():
            # The parser reads no further; the request is answered as if it had not asked.
            self._last = True
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The request is whole; from here on the handler has its own time."""
        super().on_message_complete()
        self._whole = True
        self._due = None

    def on_response_complete(self) -> None:
        """Serve the next request, or refuse what is wrong behind the last one."""
        self._unanswered -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._refusal is None:
            self._read()
        elif not self._unanswered and not self._refused:
            self._refuse(self._refusal)

    def pause_writing(self) -> None:
        """The client does not read its answer fast enough."""
        super().pause_writing()
        self._wait(self._web.settings.request_timeout_s)

    def resume_writing(self) -> None:
        """Record that the client reads again."""
        super().resume_writing()
        if self._whole:
            self._due = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too long headers, once all before it is answered."""
        del msg
        detail = "this is no valid HTTP/1.1 request"
        self._end(self._refusal or ProblemError(HTTPStatus.BAD_REQUEST, "bad_request", detail))

    def check(self, now: float) -> None:
        """End what takes too long."""
        if self._due is None or now < self._due or self.transport is None:
            return
        unread = self.flow.write_paused
        # uvicorn has no request in hand before the first one, whatever it declares.
        begun = bool(self.cycle) and self.cycle.response_started
        if self._refused or self._whole or unread or begun:
            # No request, or no client that reads.
            self.transport.abort()
            return
        self._end(
            ProblemError(
                HTTPStatus.REQUEST_TIMEOUT,
                "too_slow",
                f"the request took more than {self._web.settings.request_timeout_s:g} s",
            )
        )

    def _wait(self, seconds: float) -> None:
        self._due = self._web.clock.monotonic() + seconds

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADER_BYTES_MAX:
            self._refusal = ProblemError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers_too_large",
                f"request line and headers have at most {HEADER_BYTES_MAX} bytes",
            )
            # Ends the parser, whose error comes back as `send_400_response`.
            raise ValueError(self._refusal.detail)

    def _end(self, problem: ProblemError) -> None:
        """Refuse the request that is being read, behind the answers to those before it."""
        self._refusal = problem
        if not self._whole and self._has_cycle:
            if self.cycle.response_complete:
                self.transport.close()
                return
            if self.cycle.response_started:
                self.cycle.keep_alive = False
                return
            # No handler answers it.
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._has_cycle = False
            self._unanswered -= 1
        if not self._unanswered:
            self._refuse(problem)

    def _refuse(self, problem: ProblemError) -> None:
        """Answer without a handler; what still comes is passed over until the client is done."""
        self._refused = True
        body = encoded(problem.document())
        lines = [
            f"HTTP/1.1 {problem.status.value} {problem.status.phrase}",
            f"content-type: {PROBLEM_TYPE}",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name.lower()}: {value}" for name, value in problem.headers.items()),
        ]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):
                self.transport.write_eof()
        self._wait(LINGER_S)


class _Flow(FlowControl):
    """Reads no more from a client while what it has sent is not parsed."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Read on, unless something is held."""
        if not self._connection.unparsed:
            super().resume_reading()


class _Forward(logging.Handler):
    """Passes on what uvicorn finds wrong with an answer; the rest are problems."""

    def __init__(self, log: LogLimit) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, asyncio.CancelledError):
            self._log.error("web.answer_failed", reason=record.getMessage(), error=repr(error))
