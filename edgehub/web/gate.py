"""What every request passes on its way to a handler, and every answer on its way back.

Owns the order: who asks, then the body, then the handler; and the counts. Invariants: no byte of a
body is kept before it is known who sends it, and never more than `body_bytes_max`; a handler that
fails is logged and answered with 500, and affects no other request.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

import httptools
import structlog

from edgehub.errors import EdgeHubError
from edgehub.http1.date import DateHeader
from edgehub.http1.rules import find_fault
from edgehub.operations.problem import ProblemError, problem_of
from edgehub.telemetry.log_limit import LogLimit
from edgehub.web.answers import ApiAnswer, problem_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock
    from edgehub.web.access import Access
    from edgehub.web.request import ApiRequest
    from edgehub.web.routes import ApiRoutes, Handler

ANSWER_TIMEOUT_S: Final = 60.0
"""Longest time for a handler; those that wait for something have a shorter one of their own."""

PARAMETERS_MAX: Final = 32
"""Parameters of one request; no path has more than a few."""

PASSED_OVER_MAX: Final = 65_536
"""A refused body up to this size is read, so that the connection can stay open."""

log = structlog.get_logger(__name__)


class Gate:
    """What stands between connections and handlers.

    Args:
        routes: The handlers.
        access: Who may do what.
        clock: For the date, and the rate of log lines.
        body_bytes_max: Longest body.
        ending: Returns whether the hub stops, so that nothing may be changed any more.

    Attributes:
        answers: Number of answers by status.
    """

    def __init__(
        self,
        routes: ApiRoutes,
        access: Access,
        clock: Clock,
        *,
        body_bytes_max: int,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._routes = routes
        self._access = access
        self._body_bytes_max = body_bytes_max
        self._ending = ending
        self._date = DateHeader(clock)
        self._log = LogLimit(clock)
        self.answers: Counter[int] = Counter()

    def check_head(self, request: ApiRequest, *, from_here: bool) -> None:
        """Check a request whose headers are complete, and refuse it if they are reason enough.

        Args:
            request: The request.
            from_here: It came in over loopback.
        """
        try:
            self._read_head(request)
            method, path = request.verb, request.path
            access = self._access
            request.principal = access.check(method, path, request.fields, from_here=from_here)
            request.changes = access.changes(method, path)
            if request.length is not None and request.length > self._body_bytes_max:
                raise _too_large(self._body_bytes_max)
        except ProblemError as problem:
            request.refuse(problem)
            request.refuse_now = request.length is None or request.length > PASSED_OVER_MAX

    def check_piece(self, request: ApiRequest, size: int) -> None:
        """Check the next piece of a body, and refuse the request if it is too long."""
        if request.size + size > self._body_bytes_max:
            request.refuse(_too_large(self._body_bytes_max))
            request.refuse_now = True

    async def answer(self, request: ApiRequest) -> ApiAnswer:
        """Return the answer to a request that is whole."""
        try:
            answer = await self._handler(request)(request)
        except Exception as error:  # noqa: BLE001 - see below
            # A supervision point: a fault of one handler is that request's alone.
            problem = problem_of(error) if isinstance(error, EdgeHubError) else None
            if problem is None:
                self._log.error(
                    "web.request_failed",
                    method=request.verb,
                    path=request.path[:200],
                    exc_info=error,
                )
                problem = ProblemError(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "internal_error",
                    "the hub could not carry this out; its log says why",
                )
            return problem_answer(problem)
        if request.changes:
            log.info(
                "web.change_made",
                token=request.principal.name,
                method=request.verb,
                path=request.path[:200],
                status=int(answer.status),
            )
        return answer

    def _handler(self, request: ApiRequest) -> Handler:
        if request.problem is not None:
            raise request.problem
        if request.changes and self._ending():
            raise _unavailable("not_ready", "the hub is stopping; nothing is changed any more")
        return self._routes.find(request)

    def too_slow(self, request: ApiRequest) -> ApiAnswer:
        """Return the answer to a request that its handler did not answer in time."""
        self._log.warning("web.request_timed_out", method=request.verb, path=request.path[:200])
        detail = f"this took more than {ANSWER_TIMEOUT_S:.0f} s; it may still be done"
        return problem_answer(_unavailable("timed_out", detail))

    def written(self, answer: ApiAnswer, *, has_body: bool = True, is_last: bool) -> bytes:
        """Count an answer, and return it as it is sent."""
        self.answers[answer.status] += 1
        return answer.written(self._date.line(), has_body=has_body, is_last=is_last)

    def _read_head(self, request: ApiRequest) -> None:
        request.verb = request.method.decode("ascii")
        request.fields = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in request.headers
        }
        fault = find_fault(request.version, request.hosts, request.transfer_encodings)
        if fault is not None:
            raise ProblemError(fault.status, fault.status.name.lower(), fault.detail)
        try:
            url = httptools.parse_url(request.url)
            path = (url.path or b"/").decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise _bad_request("the target of the request is no path of ASCII characters") from None
        request.path = unquote(path) if "%" in path else path
        if url.query:
            if url.query.count(b"&") >= PARAMETERS_MAX:
                raise _bad_request(f"a request has at most {PARAMETERS_MAX} parameters")
            request.query = parse_qsl(url.query.decode("latin-1"), keep_blank_values=True)


def _bad_request(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, "bad_request", detail)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        f"the body has more than {limit} bytes",
        hint="web.body_bytes_max is the limit",
    )


def _unavailable(code: str, detail: str) -> ProblemError:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return ProblemError(status, code, detail, headers={"Retry-After": "10"})
