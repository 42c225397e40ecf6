"""The server of the HTTP API, in the hub's loop, with an end for everything.

Owns the connections with their transports, the requests that are being answered, and one timer for
all. Invariants: every task belongs to the group of `run`; one request of a connection at a time is
answered; nothing is read of a socket while earlier bytes wait to be parsed; every phase of a
connection has an end.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, cast

from edgehub.clock import Clock, Timer
from edgehub.http1.parser import RequestParser
from edgehub.http1.refusal import RequestError
from edgehub.http1.unparsed import Unparsed
from edgehub.operations.problem import ProblemError
from edgehub.web.answers import problem_answer
from edgehub.web.gate import ANSWER_TIMEOUT_S
from edgehub.web.request import ApiRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from edgehub.heads.binding import ListeningPort
    from edgehub.settings import WebSettings
    from edgehub.web.answers import ApiAnswer
    from edgehub.web.gate import Gate

SWEEP_S: Final = 1.0
"""How exact the times of connections are; one timer serves them all, while there are any."""

HEADER_BYTES_MAX: Final = 16_384
"""Request line and headers."""

IDLE_TIMEOUT_S: Final = 30.0
"""Between two requests of a connection."""

LINGER_S: Final = 2.0
"""So long a refused client may go on sending, or it would lose the answer to a reset."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CODES: Final = {HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large"}


class WebServer:
    """The connections of the HTTP API.

    Args:
        gate: What answers requests.
        settings: Limits and times.
        clock: For all timers.
    """

    def __init__(self, gate: Gate, settings: WebSettings, clock: Clock) -> None:
        self.gate = gate
        self.settings = settings
        self.clock = clock
        self.connections: set[Connection] = set()
        self.accepted_total = 0
        self._timer = Timer(clock, self._sweep)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, port: ListeningPort, tls: ssl.SSLContext | None) -> None:
        """Accept and serve until cancelled; what is unanswered then is cut off.

        Args:
            port: Bound and listening; closed at the end.
            tls: Certificate, None = plain HTTP.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await port.accept(lambda: Connection(self), tls)
                await asyncio.Event().wait()
            finally:
                port.close()
                for connection in list(self.connections):
                    connection.close()
                self._timer.cancel()

    def add(self, connection: Connection) -> None:
        """Record a new connection, and check it from time to time."""
        self.accepted_total += 1
        self.connections.add(connection)
        self._timer.start(SWEEP_S)

    def spawn(self, request: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Answer a request."""
        assert self._tasks is not None, "connections exist only while the server runs"
        return self._tasks.create_task(request, name="web[request]")

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self.connections):
            connection.check(now)
        if self.connections:
            self._timer.start(SWEEP_S)


class Phase(Enum):
    """What the connection waits for."""

    IDLE = auto()  # the next request
    READING = auto()  # the end of a request
    ANSWERING = auto()  # the handler
    WRITING = auto()  # the client to read an answer
    ENDING = auto()  # the client to read the last answer, or to stop sending


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        server: The server that has accepted it.
    """

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser(
            ApiRequest,
            header_bytes_max=HEADER_BYTES_MAX,
            on_head=self._check_head,
            on_piece=server.gate.check_piece,
        )
        self._unparsed = Unparsed()
        self._current: ApiRequest | None = None
        self._answering: asyncio.Task[None] | None = None
        self._fault: ProblemError | None = None
        """Of bytes that are no request, behind the requests that are not answered yet."""
        self._from_here = False
        self._is_paused = False
        self._is_stalled = False
        """The client does not read what is written."""
        self._saw_end = False
        self._wait(Phase.IDLE, server.settings.request_timeout_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and refuse it if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("sockname")[0]
        self._from_here = ip_address(address.partition("%")[0]).is_loopback
        server = self._server
        server.add(self)
        if len(server.connections) > server.settings.connections_max:
            self._refuse(
                ProblemError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "too_many_connections",
                    "too many connections",
                    headers={"Retry-After": "10"},
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a handler in progress goes on to its end."""
        del exc
        self._transport = None
        self._current = None
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._phase is Phase.ENDING or self._fault is not None:
            return
        self._unparsed.add(data)
        self._go_on()

    def eof_received(self) -> bool:
        """Answer what has come, then close; TLS closes by itself."""
        if self._phase is Phase.ENDING or self._transport is None:
            return False
        self._saw_end = True
        self._go_on()
        return self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Answer no further request until the client has read the last answer."""
        self._is_stalled = True

    def resume_writing(self) -> None:
        """Go on with the next request."""
        self._is_stalled = False
        if self._phase is Phase.WRITING:
            self._wait(Phase.IDLE, IDLE_TIMEOUT_S)
            self._go_on()

    def check(self, now: float) -> None:
        """End a phase that takes too long; called about once a second."""
        transport, request = self._transport, self._current
        if now < self._due or transport is None:
            return
        if self._phase is Phase.READING:
            limit_s = self._server.settings.request_timeout_s
            self._refuse(
                ProblemError(
                    HTTPStatus.REQUEST_TIMEOUT,
                    "too_slow",
                    f"the request took more than {limit_s:g} s",
                )
            )
        elif request is not None and self._answering is not None:
            self._answering.cancel()
            self._answer(request, self._server.gate.too_slow(request))
        elif self._phase is Phase.IDLE:
            self._end()
        else:
            transport.abort()

    def close(self) -> None:
        """Close after what was written."""
        if self._transport is not None:
            self._transport.close()

    def _check_head(self, request: ApiRequest) -> None:
        self._server.gate.check_head(request, from_here=self._from_here)

    def _go_on(self) -> None:
        """Answer the next request, and parse up to it."""
        ready, unparsed = self._parser.ready, self._unparsed
        while not ready and unparsed and self._is_free:
            try:
                self._parser.feed(unparsed.take())
            except RequestError as error:
                unparsed.clear()
                code = _CODES.get(error.status, error.status.name.lower())
                self._fault = ProblemError(error.status, code, error.detail)
        if ready and self._is_free:
            self._begin(ready.popleft())
        elif self._is_free:
            self._look_at_rest()
        self._read_on(not unparsed and not ready)

    @property
    def _is_free(self) -> bool:
        """Whether the next request may be answered."""
        return self._current is None and not self._is_stalled and self._phase is not Phase.ENDING

    def _begin(self, request: ApiRequest) -> None:
        self._current = request
        self._wait(Phase.ANSWERING, ANSWER_TIMEOUT_S)
        self._answering = self._server.spawn(self._serve(request))

    async def _serve(self, request: ApiRequest) -> None:
        answer = await self._server.gate.answer(request)
        if self._current is request:
            self._answer(request, answer)

    def _answer(self, request: ApiRequest, answer: ApiAnswer) -> None:
        """Write an answer, and go on behind it."""
        assert self._transport is not None, "a request is forgotten with its connection"
        self._current = self._answering = None
        is_last = request.is_old or not request.keep_alive
        has_body = request.verb != "HEAD"
        self._transport.write(self._server.gate.written(answer, has_body=has_body, is_last=is_last))
        if is_last:
            self._end()
        elif self._is_stalled:
            self._wait(Phase.WRITING, self._server.settings.request_timeout_s)
            self._read_on(False)
        else:
            self._wait(Phase.IDLE, IDLE_TIMEOUT_S)
            if self._unparsed or self._parser.ready or self._parser.reading or self._saw_end:
                # Not from inside the task of a request, whose fault would be everybody's.
                asyncio.get_running_loop().call_soon(self._go_on)

    def _look_at_rest(self) -> None:
        """Handle what is no whole request, once all before it is answered."""
        request = self._parser.reading
        if self._fault is not None:
            self._refuse(self._fault)
        elif request is None:
            if self._saw_end:
                self._end()
        elif request.problem is not None and (request.refuse_now or request.expects_continue):
            self._refuse(request.problem)
        elif self._saw_end:
            self._end()
        else:
            if self._phase is not Phase.READING:
                self._wait(Phase.READING, self._server.settings.request_timeout_s)
            if request.has_head and request.expects_continue:
                request.expects_continue = False
                assert self._transport is not None
                self._transport.write(_CONTINUE)

    def _refuse(self, problem: ProblemError) -> None:
        """Refuse what is not whole; what still comes is passed over until the client is done."""
        assert self._transport is not None
        written = self._server.gate.written(problem_answer(problem), is_last=True)
        self._transport.write(written)
        self._end_with(LINGER_S)
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        self._read_on(True)

    def _end(self) -> None:
        """Close once the client has read what was written."""
        self._end_with(self._server.settings.request_timeout_s)
        self.close()

    def _end_with(self, seconds: float) -> None:
        self._current = None
        self._unparsed.clear()
        self._parser.ready.clear()
        self._wait(Phase.ENDING, seconds)

    def _wait(self, phase: Phase, seconds: float) -> None:
        self._phase = phase
        self._due = self._server.clock.monotonic() + seconds

    def _read_on(self, reads: bool) -> None:
        if self._transport is None or self._transport.is_closing() or reads is not self._is_paused:
            return
        self._is_paused = not reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
