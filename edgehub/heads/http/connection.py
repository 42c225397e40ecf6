"""One connection of the HTTP head: requests in, one response for each, in order.

Owns the transport and the current request. Invariants: one request at a time is submitted, and at
most one read of the socket is buffered in the meantime; every phase has a timeout; a response of
204 is written after the commit of all messages of its request.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from edgehub.devices.server_tls import ClientCertificate
from edgehub.heads.binding import peer_of
from edgehub.heads.http.calls import call_method, check_caller
from edgehub.heads.http.checks import check_head, check_piece, messages_of
from edgehub.heads.http.context import CLOSE, CONTINUE, KEEP_ALIVE, KEEP_ALIVE_1_0
from edgehub.heads.http.limits import (
    BODY_RATE_MIN,
    CALL_TIMEOUT_S,
    COMMIT_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    HEADER_BYTES_MAX,
    IDLE_TIMEOUT_S,
    LINGER_S,
)
from edgehub.heads.http.problem import BUSY_RETRY_S, not_stored, unavailable
from edgehub.heads.http.request import MessageRequest
from edgehub.heads.http.sign_in import certified, check_anonymous, may_be_right, sign_in
from edgehub.heads.http.submission import Submission
from edgehub.http1.parser import RequestParser
from edgehub.http1.refusal import RequestError
from edgehub.http1.unparsed import Unparsed
from edgehub.mqtt.hub_path import LoopError

if TYPE_CHECKING:
    from edgehub.heads.http.context import HttpContext
    from edgehub.heads.http.sign_in import VerifiedClient

_REFUSED_AS: Final = {
    HTTPStatus.BAD_REQUEST: "malformed",
    HTTPStatus.UNAUTHORIZED: "not_authorized",
    HTTPStatus.FORBIDDEN: "foreign_identity",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too_large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "malformed",
}
"""Reasons in the journal of refused messages, by status; others may be sent again."""

TURN_S: Final = 0.002
"""Longest time for which pipelined requests of a client are served at once."""

_RECORDED_BYTES_MAX: Final = 1 << 32
"""Bound of announced sizes, so that sums in the journal do not overflow."""


class Phase(Enum):
    """What the connection waits for; each has its own timeout."""

    FIRST = "first request"
    IDLE = "next request"
    HEAD = "end of the headers"
    BODY = "end of the body"
    COMMIT = "sign-in and commit"
    CALL = "the answer of a method"
    WRITING = "the client to read its responses"
    ENDING = "the client to stop sending"


class HttpConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_calling",
        "_certificate",
        "_client",
        "_connections",
        "_context",
        "_continued",
        "_current",
        "_due",
        "_ends",
        "_host",
        "_is_last",
        "_parser",
        "_paused",
        "_peer",
        "_phase",
        "_saw_end",
        "_signing_in",
        "_submission",
        "_transport",
        "_unparsed",
        "_usage",
        "_waits_for_check",
        "_yields",
    )

    def __init__(self, context: HttpContext, connections: dict[HttpConnection, None]) -> None:
        self._context = context
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser(
            MessageRequest,
            header_bytes_max=HEADER_BYTES_MAX,
            on_head=self._look_at_head,
            on_piece=lambda request, size: check_piece(context, request, size),
        )
        self._peer = ""
        self._certificate: ClientCertificate | None = None
        self._client: VerifiedClient | None = None
        # Whether the request in progress is the last one, as its certificate may not be trusted.
        self._is_last = False
        self._current: MessageRequest | None = None
        self._submission: Submission | None = None
        self._host = ""
        self._signing_in: asyncio.Task[None] | None = None
        self._calling: asyncio.Task[None] | None = None
        self._waits_for_check = False
        self._unparsed = Unparsed()
        self._yields = False
        self._paused = False
        self._saw_end = False
        self._ends = False
        self._continued: MessageRequest | None = None
        self._usage = context.clients.anonymous
        self._phase = Phase.FIRST
        self._due = context.clock.monotonic() + HEAD_TIMEOUT_S

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and refuse it if there are too many."""
        context = self._context
        self._transport = cast("asyncio.Transport", transport)
        self._host, self._peer = peer_of(transport)
        self._certificate = ClientCertificate.of(transport.get_extra_info("ssl_object"))
        self._connections[self] = None
        context.counters.accepted_total += 1
        self._usage.used += 1
        if self._usage.used > self._usage.limit and not self._close_oldest():
            self._refuse(None, unavailable("too many connections", BUSY_RETRY_S))

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the requests; submitted messages are still counted until they are settled."""
        del exc
        for task in (self._signing_in, self._calling):
            if task is not None:
                task.cancel()
        if self._connections.pop(self, self) is None:
            self._usage.used -= 1
        self._transport = None
        self._submission = None
        current, self._current = self._current, None
        for request in (current, *self._parser.ready, self._parser.reading):
            if request is not None:
                self._context.release(request)

    def data_received(self, data: bytes) -> None:
        """Parse and serve requests."""
        if self._ends:
            return
        self._unparsed.add(data)
        if not self._yields:
            self._read()

    def eof_received(self) -> bool:
        """Serve the received requests, then close; TLS closes by itself."""
        self._saw_end = True
        transport = self._transport
        if self._ends or self._waits_for_check or not self._has_work:
            # A client whose password check waits counts as disconnected.
            return False
        return transport is not None and transport.can_write_eof()

    def pause_writing(self) -> None:
        """Stop reading a client that does not read its responses."""
        if self._current is None and not self._ends:
            self._wait(Phase.WRITING, COMMIT_TIMEOUT_S)
        self._pause()

    def resume_writing(self) -> None:
        """Read on: the client has caught up."""
        if self._phase is Phase.WRITING:
            self._go_on()

    def _close_oldest(self) -> bool:
        """Close the oldest connection that is not signed in and waits for its client.

        Returns:
            Whether there was one; without identities there never is.
        """
        context = self._context
        if not len(context.identities):
            return False
        return any(each is not self and each.gives_way() for each in self._connections)

    # Called by the head, and by other connections.

    def gives_way(self) -> bool:
        """Close if the client has not signed in and is not served; returns whether it closed."""
        if self._usage is not self._context.clients.anonymous or self._has_work or self._ends:
            return False
        assert self._transport is not None
        self._ends = True
        self._transport.abort()
        return True

    def check(self, now: float) -> None:
        """End a phase that takes too long; called about once a second."""
        if now < self._due or self._transport is None:
            return
        if self._phase is Phase.BODY:
            request = self._parser.reading
            assert request is not None
            allowed_s = self._context.settings.body_timeout_s + request.size / BODY_RATE_MIN
            self._due = request.body_began + allowed_s
            if now < self._due:
                return
        if self._phase is Phase.COMMIT:
            self._give_up_waiting()
            return
        if self._phase not in {Phase.IDLE, Phase.ENDING}:
            self._context.counters.timed_out_total += 1
        if self._phase in {Phase.HEAD, Phase.BODY}:
            detail = f"waited too long for the {self._phase.value}"
            self._refuse(self._parser.reading, RequestError(HTTPStatus.REQUEST_TIMEOUT, detail))
        elif self._phase is Phase.WRITING or self._transport.is_closing():
            # A client that reads nothing would also block the orderly close.
            self._transport.abort()
        else:
            self._end(unread=False)

    def drain(self) -> None:
        """Close if no request is in progress; later ones are refused."""
        if not self._has_work and self._parser.reading is None:
            self._end(unread=False)

    def distrust(self) -> None:
        """Close after the request in progress, if the client has shown a certificate."""
        if self._certificate is not None:
            self._is_last = True
            self.drain()

    def close(self) -> None:
        """Close after sending what was written."""
        if self._transport is not None:
            self._transport.close()

    # Reading.

    @property
    def _has_work(self) -> bool:
        return self._current is not None or bool(self._parser.ready or self._unparsed)

    def _read(self) -> None:
        """Parse and serve received bytes, one request at a time and one turn at once."""
        clock = self._context.clock
        until = clock.monotonic() + TURN_S
        while self._unparsed and self._may_serve():
            if self._yields:
                self._pause()
                asyncio.get_running_loop().call_soon(self._next_turn)
                return
            self._feed(self._unparsed.take())
            self._yields = clock.monotonic() >= until
        self._yields = False
        if self._unparsed:
            self._pause()

    def _next_turn(self) -> None:
        self._yields = False
        self._go_on()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except RequestError as problem:
            if self._parser.reading is not None:
                self._context.release(self._parser.reading)
            broken = MessageRequest()
            broken.refuse(problem)
            broken.refuse_now = True
            self._parser.reading = broken
        self._advance()

    def _look_at_head(self, request: MessageRequest) -> None:
        check_head(self._context, request)
        request.reading = self._context.reading.of_kind(anonymous=not self._may_sign_in(request))

    def _may_sign_in(self, request: MessageRequest) -> bool:
        # The password is checked once the body is complete; until then only what needs no hash.
        identities, authorization = self._context.identities, request.authorization
        if request.target is None:
            return False
        if authorization is None:
            return self._certified(request.target.sender) is not None
        if self._client is not None and self._client.is_in_force(authorization, identities):
            return True
        return may_be_right(authorization, request.target.sender, identities)

    # Serving.

    def _advance(self) -> None:
        """Serve complete requests, one at a time, then wait for the next one."""
        ready = self._parser.ready
        while ready and self._may_serve():
            request = ready.popleft()
            self._serve(request)
        if not self._may_serve():
            return
        reading = self._parser.reading
        if reading is None:
            self._wait(Phase.IDLE, IDLE_TIMEOUT_S)
            if self._saw_end and not self._unparsed:
                self._end(unread=False)
        elif reading.problem is not None and (reading.refuse_now or reading.expects_continue):
            self._refuse(reading, reading.problem)
        elif reading.has_head:
            if reading.expects_continue and self._continued is not reading:
                self._continued = reading
                self._write(CONTINUE)
            if self._phase is not Phase.BODY:
                self._wait(Phase.BODY, self._context.settings.body_timeout_s)
        elif self._phase is not Phase.HEAD:
            self._wait(Phase.HEAD, HEAD_TIMEOUT_S)

    def _may_serve(self) -> bool:
        return (
            self._current is None
            and not self._ends
            and self._transport is not None
            and self._phase is not Phase.WRITING
        )

    def _serve(self, request: MessageRequest) -> None:
        context = self._context
        problem = request.problem
        if problem is None and context.draining:
            problem = unavailable("the hub is shutting down", BUSY_RETRY_S)
        if problem is not None:
            self._refuse(request, problem)
            return
        assert request.target is not None
        authorization = request.authorization
        try:
            if authorization is None:
                self._client = self._certified(request.target.sender)
                if self._client is None:
                    check_anonymous(
                        request,
                        request.target.sender,
                        context.identities,
                        anonymous=context.anonymous,
                        host_names=context.settings.host_names,
                    )
                self._take(request, self._client)
                return
            client = self._client
            if client is not None and client.is_in_force(authorization, context.identities):
                self._take(request, client)
                return
        except RequestError as refused:
            self._refuse(request, refused)
            return
        self._begin(request)
        self._pause()
        self._signing_in = context.spawn(
            self._sign_in(request, authorization), f"http[{self._peer}]"
        )

    def _certified(self, sender: str) -> VerifiedClient | None:
        if self._certificate is None:
            return None
        return certified(self._certificate, sender, self._context.identities)

    async def _sign_in(self, request: MessageRequest, authorization: bytes) -> None:
        assert request.target is not None
        try:
            client = await sign_in(
                authorization,
                request.target.sender,
                self._context.identities,
                address=self._host,
                waits=self._wait_for_check,
            )
            self._waits_for_check = False
            if self._current is request:
                self._client = client
                self._take(request, client)
        except RequestError as problem:
            if self._current is request:
                self._refuse(request, problem)
        self._signing_in = None
        self._waits_for_check = False
        if self._current is None:
            self._go_on()

    def _wait_for_check(self) -> None:
        # Read on, to notice a client that leaves before its password is checked.
        self._waits_for_check = True
        self._resume()

    def _take(self, request: MessageRequest, client: VerifiedClient | None) -> None:
        context = self._context
        assert request.target is not None
        if client is not None:
            self._count_as_identified()
            client.check_sender(request.target.sender)
        if request.target.called:
            check_caller(client, request.target.called)
            self._begin(request)
            self._wait(Phase.CALL, CALL_TIMEOUT_S)
            self._pause()
            self._calling = context.spawn(self._call(request), f"http[{self._peer}]")
            return
        usage = context.backlog.of_kind(anonymous=client is None)
        if usage.is_full:
            raise unavailable("too much waits for the disk", BUSY_RETRY_S)
        self._begin(request)
        may_be_hub = client is not None and client.scope is not None
        try:
            messages = messages_of(context, request, may_be_hub=may_be_hub)
        except LoopError:
            self._drop_loop(request)
            return
        self._submission = Submission(messages, context.backlog, usage, self._settled)
        self._hand_in(request, self._submission)

    async def _call(self, request: MessageRequest) -> None:
        """Call a method and answer with what it answers."""
        context = self._context
        assert request.target is not None
        body = bytes(request.body)
        context.release(request)
        try:
            answer = await call_method(context.methods, request.target.called, body)
        except RequestError as problem:
            if self._current is request:
                self._refuse(request, problem)
        else:
            if self._current is request:
                connection = self._connection_header(request)
                self._finish(request, context.answer(answer, connection))
        self._calling = None
        self._go_on()

    def _drop_loop(self, request: MessageRequest) -> None:
        """Respond as if the messages were stored: refused, they would be sent again."""
        context, client = self._context, self._client
        assert client is not None
        assert request.target is not None
        size = len(request.body)
        context.counters.count_loop(client.identity.id, request.target.sender)
        context.refused(client.identity.id, size, "loop")
        context.release(request)
        self._finish(request, context.no_content(self._connection_header(request)))

    def _hand_in(self, request: MessageRequest, submission: Submission) -> None:
        """Build and submit messages of a request for one turn.

        Raises:
            RequestError: If anything in it is malformed.
        """
        context = self._context
        monotonic = context.clock.monotonic
        until = monotonic() + TURN_S
        if not submission.go_on(context.submit, lambda: monotonic() >= until):
            self._pause()
            asyncio.get_running_loop().call_soon(self._hand_in_more, request, submission)
            return
        context.release(request)
        if submission.is_settled:
            self._answer(request, submission)
        else:
            self._pause()

    def _count_as_identified(self) -> None:
        identified = self._context.clients.identified
        if self._usage is not identified and self._transport is not None:
            self._usage.used -= 1
            self._usage = identified
            identified.used += 1

    def _hand_in_more(self, request: MessageRequest, submission: Submission) -> None:
        if submission is not self._submission:
            # The client has left, or got a response after a timeout.
            return
        try:
            self._hand_in(request, submission)
        except RequestError as problem:
            self._refuse(request, problem)
        if self._current is None:
            self._go_on()

    def _begin(self, request: MessageRequest) -> None:
        self._current = request
        self._wait(Phase.COMMIT, COMMIT_TIMEOUT_S)

    def _settled(self, submission: Submission) -> None:
        # Not from inside the commit: a write to the socket must not delay the other rows.
        asyncio.get_running_loop().call_soon(self._committed, submission)

    def _committed(self, submission: Submission) -> None:
        if submission is self._submission and self._current is not None:
            self._answer(self._current, submission)
            self._go_on()

    def _answer(self, request: MessageRequest, submission: Submission) -> None:
        if submission.refused is not None:
            # The store has recorded each message.
            problem = not_stored(*submission.refused, submission.stored)
            self._refuse(request, problem, recorded=True)
            return
        self._context.counters.messages_total += submission.stored
        self._finish(request, self._context.no_content(self._connection_header(request)))

    def _finish(self, request: MessageRequest, response: bytes) -> None:
        self._current = None
        self._submission = None
        self._write(response)
        if self._connection_header(request) is CLOSE:
            self._end(unread=False)

    def _give_up_waiting(self) -> None:
        request = self._current
        if request is None:
            return
        if self._signing_in is not None:
            self._signing_in.cancel()
            self._signing_in = None
            self._waits_for_check = False
            self._refuse(request, unavailable("too many sign-ins wait", BUSY_RETRY_S))
            self._go_on()
            return
        self._refuse(
            request,
            unavailable(
                f"not stored after {COMMIT_TIMEOUT_S:g} s, but it may still be; send it again,"
                " under the same message id",
                round(COMMIT_TIMEOUT_S),
            ),
        )
        self._go_on()

    def _refuse(
        self, request: MessageRequest | None, problem: RequestError, *, recorded: bool = False
    ) -> None:
        """Respond with a problem; an incomplete request ends the connection."""
        context = self._context
        if request is not None and not recorded:
            self._record_refused(request, problem)
        self._current = None
        self._submission = None
        unread = request is None or request is self._parser.reading
        connection = CLOSE if request is None or unread else self._connection_header(request)
        has_body = request is None or request.method != b"HEAD"
        if request is not None:
            self._context.release(request)
        context.log.warning(
            "http.request_refused",
            address=self._peer,
            sender=request.target.sender if request is not None and request.target else None,
            status=problem.status.value,
            detail=problem.detail,
        )
        self._write(context.refusal(problem, connection, has_body=has_body))
        if connection is CLOSE:
            self._end(unread=unread)

    def _record_refused(self, request: MessageRequest, problem: RequestError) -> None:
        reason = _REFUSED_AS.get(problem.status)
        if reason is not None and request.target is not None:
            size = min(max(request.length or 0, request.body_bytes), _RECORDED_BYTES_MAX)
            device = self._known_sender(request, request.target.sender)
            self._context.refused(device, size, reason)
            if problem.status is HTTPStatus.FORBIDDEN and request.authorization is not None:
                counters = self._context.counters
                counters.foreign_total += 1
                counters.newest_foreign = problem.detail

    def _known_sender(self, request: MessageRequest, sender: str) -> str:
        """Return the verified sender of a request, empty = not verified."""
        context, client = self._context, self._client
        authorization = request.authorization
        if authorization is None:
            known = context.identities.get(sender) is not None
            return sender if context.anonymous and not known else ""
        if client is None or not client.is_in_force(authorization, context.identities):
            return ""
        return sender if client.may_speak_for(sender) else client.identity.id

    def _connection_header(self, request: MessageRequest) -> bytes:
        if not request.keep_alive or self._is_last or self._context.draining:
            return CLOSE
        return KEEP_ALIVE_1_0 if request.is_old else KEEP_ALIVE

    def _go_on(self) -> None:
        """Serve requests received in the meantime."""
        if self._phase is Phase.WRITING:
            self._wait(Phase.IDLE, IDLE_TIMEOUT_S)
        self._advance()
        self._read()
        if self._may_serve() and not self._yields:
            self._resume()

    # The transport.

    def _wait(self, phase: Phase, seconds: float) -> None:
        self._phase = phase
        self._due = self._context.clock.monotonic() + seconds

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _end(self, *, unread: bool) -> None:
        # A close with unread bytes resets the connection, and the client may not read the response:
        # wait for it for a moment.
        self._ends = True
        self._unparsed.clear()
        transport = self._transport
        if transport is None:
            return
        if not unread:
            self._wait(Phase.ENDING, COMMIT_TIMEOUT_S)
            transport.close()
            return
        self._wait(Phase.ENDING, LINGER_S)
        if transport.can_write_eof():
            transport.write_eof()
        self._resume()
