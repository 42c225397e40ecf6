"""What the connections of the HTTP head share, and the bytes of its responses.

Owns the count of bytes being read. Invariant: a response has the header
Connection wherever the default of the client's version of HTTP is not meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.devices.bounds import Bound
from edgehub.heads.http.limits import WAITING_BYTES_MAX
from edgehub.heads.http.statistics import HttpCounters
from edgehub.heads.mqtt.backlog import Backlog
from edgehub.http1.date import DateHeader
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.heads.head import Refused, Submit
    from edgehub.heads.http.request import MessageRequest
    from edgehub.http1.refusal import RequestError
    from edgehub.methods.methods import Methods
    from edgehub.mqtt.hub_path import HubPath
    from edgehub.settings import HttpSettings

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
KEEP_ALIVE: Final = b""
KEEP_ALIVE_1_0: Final = b"Connection: keep-alive\r\n"
CLOSE: Final = b"Connection: close\r\n"


class HttpContext:
    """Shared by the connections of the head.

    Args:
        settings: Of the section `[http]`.
        clock: For all timers, and the time of day.
        submit: The router.
        refused: Records messages that are refused for their content.
        identities: Clients that may sign in.
        hub_path: Finds messages that have passed this hub before.
        methods: Calls those of devices and modules.

    Attributes:
        tasks: The head's task group, None = it does not run.
        anonymous: Whether clients without a password may send.
        draining: Whether the hub shuts down and takes nothing more.
        reading: Bytes of bodies that are not handed in yet.
        clients: Open connections; those without a sign-in count as anonymous.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Clock,
        submit: Submit,
        refused: Refused,
        identities: Identities,
        hub_path: HubPath,
        methods: Methods,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.submit = submit
        self.refused = refused
        self.identities = identities
        self.hub_path = hub_path
        self.methods = methods
        self.tasks: asyncio.TaskGroup | None = None
        self.counters = HttpCounters()
        self.log = LogLimit(clock)
        self.backlog = Backlog("unacknowledged bytes", WAITING_BYTES_MAX, identities)
        self.anonymous = False
        self.draining = False
        self.reading = Bound("bytes being read", WAITING_BYTES_MAX, identities)
        self.clients = Bound("connections", settings.connections_max, identities)
        self._date = DateHeader(clock)

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in the head's task group."""
        assert self.tasks is not None, "connections exist only while the head runs"
        return self.tasks.create_task(coroutine, name=name)

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of requests that are being read or committed."""
        return self.backlog.used + self.reading.used

    def has_room(self, request: MessageRequest, size: int) -> bool:
        """Return whether so many more bytes of a body may be kept."""
        if self.waiting_bytes + size > self.reading.limit:
            return False
        if request.reading is not self.reading.anonymous:
            return True
        kept = self.reading.anonymous.used + self.backlog.anonymous.used
        return kept + size <= self.reading.anonymous_limit

    def release(self, request: MessageRequest) -> None:
        """Release the body of a request; harmless when that was done before."""
        if request.reading is not None:
            request.reading.used -= request.size
        request.size = 0
        request.body.clear()

    def no_content(self, connection: bytes) -> bytes:
        """Return a 204; `connection` is one of `KEEP_ALIVE`, `KEEP_ALIVE_1_0` and `CLOSE`."""
        self._count(204)
        return b"HTTP/1.1 204 No Content\r\n" + self._date.line() + connection + b"\r\n"

    def answer(self, document: bytes, connection: bytes) -> bytes:
        """Return a 200 with a JSON document."""
        self._count(200)
        lines = f"Content-Type: application/json\r\nContent-Length: {len(document)}\r\n"
        head = b"HTTP/1.1 200 OK\r\n" + lines.encode("ascii")
        return head + self._date.line() + connection + b"\r\n" + document

    def refusal(self, problem: RequestError, connection: bytes, *, has_body: bool) -> bytes:
        """Return the response to a request that is refused."""
        self._count(problem.status)
        document = problem.document()
        lines = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in problem.headers]
        lines += ["Content-Type: application/problem+json", f"Content-Length: {len(document)}", ""]
        head = "\r\n".join(lines).encode("ascii") + self._date.line() + connection + b"\r\n"
        return head + document if has_body else head

    def _count(self, status: int) -> None:
        answers = self.counters.answers
        answers[status] = answers.get(status, 0) + 1
