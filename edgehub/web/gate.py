"""What every request passes on its way to a handler, and every answer on its way back.

Owns the order: who asks, then the body, then the handler; and the counts. Invariants: no byte of a
body is kept before it is known who sends it, and never more than `body_bytes_max`; a handler that
fails is logged and answered with 500, and affects no other request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.http1.rules import find_fault
from edgehub.operations.problem import ProblemError
from edgehub.telemetry.log_limit import LogLimit
from edgehub.web.answers import problem_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from edgehub.clock import Clock
    from edgehub.web.access import Access

ANSWER_TIMEOUT_S: Final = 60.0
"""Longest time for a handler; those that wait for something have a shorter one of their own."""

PARAMETERS_MAX: Final = 32
"""Parameters of one request; no path has more than a few."""

_REFUSED: Final = 400
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

log = structlog.get_logger(__name__)


class _GoneError(Exception):
    """The client closed the connection before its request was whole."""


class Gate:
    """An ASGI application around another one, which every request passes.

    Args:
        app: The handlers.
        access: Says who asks, and refuses.
        clock: For the date.
        body_bytes_max: Largest body.
        ending: Says whether the hub comes to its end, and nothing may be changed any more.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        clock: Clock,
        *,
        body_bytes_max: int,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._access = access
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._ending = ending
        self._log = LogLimit(clock)
        self.answers: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", "the server speaks nothing else"
        answer = _Answer(self, send)
        try:
            await self._serve(scope, receive, answer)
        except _GoneError:
            return
        except ProblemError as problem:
            await answer.give(problem)
        except Exception as error:  # noqa: BLE001 - see below
            # A supervision point: a fault of one handler is that request's alone.
            self._log.error(
                "web.request_failed",
                method=scope["method"],
                path=scope["path"][:200],
                exc_info=error,
            )
            await answer.give(_failed())

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        fault = find_fault(
            scope["http_version"], _values(scope, b"host"), _values(scope, b"transfer-encoding")
        )
        if fault is not None:
            raise ProblemError(fault.status, fault.status.name.lower(), fault.detail)
        if scope["query_string"].count(b"&") >= PARAMETERS_MAX:
            # The framework compares each of them with all others.
            raise ProblemError(
                HTTPStatus.BAD_REQUEST,
                "bad_request",
                f"a request has at most {PARAMETERS_MAX} parameters",
            )
        method, path = scope["method"], scope["path"]
        here = _over_loopback(scope.get("server"))
        principal = self._access.check(method, path, headers, from_here=here)
        changes = self._access.changes(method, path)
        if changes and self._ending():
            raise _too_late()
        body = await self._body(headers, receive)
        if method == "HEAD":
            # The server keeps the body of the answer back.
            method = "GET"
        inner: dict[str, Any] = {
            **scope,
            "method": method,
            "state": {**scope.get("state", {}), "principal": principal},
        }
        given = False

        async def receive_whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._app(inner, receive_whole, answer.send)
        except TimeoutError:
            self._log.warning("web.request_timed_out", method=method, path=path[:200])
            raise _too_slow() from None
        if changes and answer.status < _REFUSED:
            log.info(
                "web.change_made",
                token=principal.name,
                method=method,
                path=path[:200],
                status=answer.status,
            )

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        limit = self._body_bytes_max
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        if length == "0" and "transfer-encoding" not in headers:
            return b""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def head(self, status: int) -> list[tuple[bytes, bytes]]:
        """Count an answer, and give the headers that every one has."""
        self.answers[status] += 1
        date = formatdate(self._clock.wall_ms() / 1000, usegmt=True)
        return [(b"date", date.encode()), *_HEADERS]


class _Answer:
    """The answer to one request."""

    def __init__(self, gate: Gate, send: Send) -> None:
        self._gate = gate
        self._send = send
        self.status = 0

    async def send(self, message: Message) -> None:
        """Pass on what a handler sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), *self._gate.head(self.status)]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def give(self, problem: ProblemError) -> None:
        """Refuse, unless an answer has begun."""
        if self.status:
            return
        response = problem_response(problem)
        start = {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
        await self.send(start)
        await self.send({"type": "http.response.body", "body": bytes(response.body)})


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


def _over_loopback(server: Sequence[Any] | None) -> bool:
    """Return whether a connection came to an address that this machine alone reaches."""
    return server is not None and ip_address(server[0].partition("%")[0]).is_loopback


def _too_large(limit: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        f"the body has more than {limit} bytes",
        hint="web.body_bytes_max is the limit",
    )


def _too_late() -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not_ready",
        "the hub is stopping; nothing is changed any more",
        headers={"Retry-After": "10"},
    )


def _too_slow() -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "timed_out",
        f"this took more than {ANSWER_TIMEOUT_S:.0f} s; it may still be done",
        headers={"Retry-After": "10"},
    )


def _failed() -> ProblemError:
    return ProblemError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal_error",
        "the hub could not carry this out; its log says why",
    )
