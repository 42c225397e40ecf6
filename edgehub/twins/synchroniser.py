"""Keeps twins equal to those of the peer upstream: reports go up, desired properties come down.

Owns what is due and the requests without an answer. Invariants: desired properties are the peer's,
whatever stood here before; what a client reported is sent until the peer has it, and only what has
changed since, unless the client reported something newer of the same property at another hub; what
it reported there is read before it is shown; one client is synchronised once at a time, and few at
once, so that what is sent here never holds up an alarm for long.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson
import structlog
from msgspec.structs import replace

from edgehub.devices.deadline import deadline
from edgehub.devices.ids import split_sender
from edgehub.errors import EdgeHubError
from edgehub.mqtt.client_topics import DESIRED, GET_TWIN, REPORT, TWIN_RESULT
from edgehub.twins.document import (
    REPORTED_AT,
    WHOLE_MAX,
    TwinError,
    check_patch,
    difference,
    is_same,
    merged,
    piece_of,
    without,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from edgehub.clock import Clock
    from edgehub.message import Refusal
    from edgehub.mqtt.client_topics import ClientPath
    from edgehub.twins.document import ClientTwin, Json
    from edgehub.twins.twins import ClientTwins

AT_ONCE: Final = 2
"""Requests without an answer; a thin link carries alarms at the same time."""

PIECE_BYTES: Final = 1_024
"""Of a report, as sizes of twins are counted; a longer one is sent in pieces."""

ANSWER_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 60.0
WAITERS_MAX: Final = 8
"""Requests of one client that wait for the peer; further ones get what is here."""

FRESH_MAX: Final = 100_000
NOT_MODIFIED: Final = 304
"""Between hubs: both sections still have the versions that the request names."""

OUTDATED: Final = 412
"""Between hubs: the reported properties no longer have the version that the report names."""

_NUMBER: Final = re.compile("[0-9]{1,16}").fullmatch
_OK: Final = 200
_SUCCESS: Final = range(200, 300)
_REFUSED: Final = frozenset({400, 413})
_UNKNOWN: Final = frozenset({403, 404})

log = structlog.get_logger(__name__)


class TwinPeer(Protocol):
    """The peer upstream."""

    @property
    def is_up(self) -> bool:
        """Return whether requests may be sent."""

    def speaks_for(self, client_id: str) -> bool:
        """Return whether it takes requests about a client at present."""

    def carries(self, client_id: str) -> bool:
        """Return whether one can be sent now, or once what carries it is open."""

    def is_shared(self, client_id: str) -> bool:
        """Return whether others may speak for a client there too."""

    def reach(self, client_id: str) -> AbstractAsyncContextManager[None]:
        """Keep open what carries requests about a client.

        Raises:
            EdgeHubError: It cannot be opened now.
        """

    def send(
        self,
        client_id: str,
        path: str,
        name: str = "",
        body: bytes = b"",
        *,
        rid: str | None = None,
        version: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Send a request."""


class PeerSilentError(EdgeHubError):
    """The peer has not answered."""


class _Answer(NamedTuple):
    """What the peer has answered: a status, a version if it names one, and a body."""

    status: int
    version: int
    body: bytes


class TwinSynchroniser:
    """Synchronises the twins of one hub.

    Args:
        twins: The twins of the hub's clients.
        peer: See `TwinPeer`.
        clock: For time-outs.
        is_wanted: Returns whether a client listens to its desired properties now.
    """

    def __init__(
        self,
        twins: ClientTwins,
        peer: TwinPeer,
        clock: Clock,
        *,
        is_wanted: Callable[[str], bool],
    ) -> None:
        self._twins = twins
        self._peer = peer
        self._clock = clock
        self._is_wanted = is_wanted
        self._numbers = itertools.count(1)
        # Answers to requests before a restart are no answers to those after it.
        self._mark = secrets.token_hex(3)
        self._requests: dict[str, tuple[str, asyncio.Future[_Answer]]] = {}
        self._fresh: set[str] = set()
        # Clients for which the hub may not speak at the peer; they are served from here alone.
        self._unknown: set[str] = set()
        self._due: dict[str, None] = {}
        self._busy: set[str] = set()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._wake = asyncio.Event()
        self.refused_total = 0

    def is_fresh(self, client_id: str) -> bool:
        """Return whether a twin need not, or cannot, be read from the peer before it is shown."""
        return (
            client_id in self._fresh
            or client_id in self._unknown
            or not self._peer.carries(client_id)
            or len(self._waiters.get(client_id, ())) >= WAITERS_MAX
        )

    async def run(self) -> None:
        """Synchronise what is due until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work())

    async def refreshed(self, client_id: str, timeout_s: float) -> None:
        """Wait until a twin is fresh, as long as that is possible."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(client_id, []).append(waiter)
        self.due(client_id)
        try:
            async with deadline(self._clock, timeout_s):
                await waiter
        except TimeoutError:
            log.debug("twins.peer_slow", client_id=client_id)

    def due(self, client_id: str) -> None:
        """Synchronise a twin soon."""
        self._due[client_id] = None
        self._wake.set()

    def link_changed(self, is_up: bool) -> None:
        """Record that the link upstream came or went."""
        self._fresh.clear()
        self._unknown.clear()
        if is_up:
            for client_id in self._twins.ids():
                if self._twins.is_unsent(client_id) or self._is_wanted(client_id):
                    self._due[client_id] = None
            self._wake.set()
            return
        self._fail_requests("the link upstream is down")
        for client_id in list(self._waiters):
            self._release(client_id)

    def left(self, client_id: str) -> None:
        """Record that a client has left: it may report elsewhere until it is back."""
        if self._peer.is_shared(client_id):
            self._fresh.discard(client_id)

    def session_changed(self, client_id: str, is_open: bool) -> None:
        """Record that the session that carries one client was opened, or has ended."""
        self._fresh.discard(client_id)
        self._unknown.discard(client_id)
        if not is_open:
            self._fail_requests("its session has ended", of=client_id)
        elif self._twins.is_unsent(client_id) or self._is_wanted(client_id):
            self.due(client_id)

    def _fail_requests(self, reason: str, *, of: str | None = None) -> None:
        for client_id, answer in self._requests.values():
            if of in {None, client_id} and not answer.done():
                answer.set_exception(PeerSilentError(reason))

    def take(self, client_id: str, path: ClientPath, body: bytes) -> None:
        """Handle what the peer sends about a twin."""
        if path.path == TWIN_RESULT:
            whose, answer = self._requests.get(path.parameters.get("$rid", ""), ("", None))
            if answer is not None and whose == client_id and not answer.done():
                version = whole_number(path.parameters.get("$version", ""))
                answer.set_result(_Answer(whole_number(path.name), version, body))
        elif path.path == DESIRED and split_sender(client_id) is not None:
            self._take_desired(client_id, whole_number(path.parameters.get("$version", "")), body)

    def _take_desired(self, client_id: str, number: int, body: bytes) -> None:
        known = self._twins.get(client_id).desired_version
        if number and number <= known:
            return  # it came again
        if number == known + 1:
            try:
                patch = _plain(_parsed(body))
                self._twins.desire(client_id, patch, _ignore, version=number)
            except TwinError as error:
                log.warning("twins.change_not_taken", client_id=client_id, reason=str(error))
            return
        self._fresh.discard(client_id)
        self.due(client_id)

    async def _work(self) -> None:
        while True:
            client_id = await self._next()
            self._busy.add(client_id)
            try:
                await self._synchronise(client_id)
            except PeerSilentError as error:
                log.info("twins.peer_silent", client_id=client_id, reason=str(error))
                self._again(client_id)
            except EdgeHubError as error:
                log.debug("twins.peer_not_reached", client_id=client_id, reason=str(error))
                self._again(client_id)
            finally:
                self._busy.discard(client_id)
                self._release(client_id)
                self._wake.set()

    async def _next(self) -> str:
        while True:
            if self._peer.is_up:
                for client_id in self._due:
                    if client_id not in self._busy:
                        del self._due[client_id]
                        return client_id
            self._wake.clear()
            await self._wake.wait()

    def _again(self, client_id: str) -> None:
        self._clock.call_later(RETRY_S, lambda: self.due(client_id))

    def _release(self, client_id: str) -> None:
        for waiter in self._waiters.pop(client_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def _synchronise(self, client_id: str) -> None:
        if not self._peer.speaks_for(client_id) or client_id in self._unknown:
            return
        async with self._peer.reach(client_id):
            if client_id not in self._fresh:
                await self._refresh(client_id)
            if self._twins.is_unsent(client_id) and client_id not in self._unknown:
                await self._push(client_id)

    async def _refresh(self, client_id: str) -> None:
        known = self._twins.get(client_id).peer_versions
        status, _, body = await self._request(client_id, GET_TWIN, version=known)
        if status == _OK:
            try:
                self._adopt(client_id, *_sections(body))
            except TwinError as error:
                log.warning("twins.change_not_taken", client_id=client_id, reason=str(error))
                return
        elif status in _UNKNOWN:
            self._unknown.add(client_id)
            return
        elif status != NOT_MODIFIED:
            raise PeerSilentError(f"status {status}")
        if len(self._fresh) >= FRESH_MAX:
            self._fresh.clear()
        self._fresh.add(client_id)

    def _adopt(self, client_id: str, desired: _Section, reported: _Section) -> None:
        twin = self._twins.get(client_id)
        patch = difference(twin.desired, desired.properties)
        adopted = twin.with_desired(desired.properties, desired.version)
        if twin.synced is not None:
            # What the client has reported since goes on top of what the peer has.
            unsent, at_ms = twin.unsent(), twin.reported_at_ms
            if at_ms is not None and reported.at_ms is not None and reported.at_ms > at_ms:
                # But what it has reported at another hub since then is newer.
                unsent = without(unsent, difference(twin.synced, reported.properties))
            if not unsent:
                at_ms = reported.at_ms
            mine = merged(reported.properties, unsent)
            adopted = _with_reported(replace(adopted, synced=reported.properties), mine)
        else:
            at_ms = reported.at_ms
            adopted = _with_reported(adopted, reported.properties)
        adopted = replace(adopted, peer_version=reported.version, reported_at_ms=at_ms)
        if adopted != twin:
            self._twins.put(client_id, adopted, _ignore, patch=patch)

    async def _push(self, client_id: str) -> None:
        twin = self._twins.get(client_id)
        patch = piece_of(twin.unsent(), PIECE_BYTES)
        status, version = _OK, 0
        if patch:
            known = twin.peer_version
            status, version, body = await self._request(
                client_id,
                REPORT,
                write_json(patch),
                version=None if known is None else str(known),
                at_ms=twin.reported_at_ms,
            )
            if status == OUTDATED:
                self._fresh.discard(client_id)
                self.due(client_id)
                return
            if status in _REFUSED:
                self.refused_total += 1
                reason = body[:200].decode(errors="replace")
                log.warning(
                    "twins.report_refused", client_id=client_id, status=status, reason=reason
                )
        if status not in _SUCCESS and status not in _REFUSED:
            raise PeerSilentError(f"status {status}")
        # What the peer refuses once it would refuse for ever; the next report is tried again.
        refused = status in _REFUSED
        has = twin.reported if refused else merged(twin.synced, patch)
        known = twin.peer_version
        if version:
            is_next = known is not None and version == known + 1
            known = version if is_next else None
            if not is_next:
                self._fresh.discard(client_id)  # others have reported too
                self.due(client_id)
        sent = self._twins.get(client_id).sent(has, known)
        try:
            self._twins.put(client_id, sent, _ignore)
        except TwinError as error:
            raise PeerSilentError(str(error)) from error
        if sent.synced is not None:
            self.due(client_id)

    async def _request(
        self,
        client_id: str,
        path: str,
        body: bytes = b"",
        *,
        version: str | None = None,
        at_ms: int | None = None,
    ) -> _Answer:
        request_id = f"{self._mark}{next(self._numbers)}"
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = client_id, answer
        try:
            async with deadline(self._clock, ANSWER_TIMEOUT_S):
                self._peer.send(
                    client_id, path, "", body, rid=request_id, version=version, at_ms=at_ms
                )
                return await answer
        except TimeoutError:
            raise PeerSilentError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            del self._requests[request_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have been set in the turn of the time-out


class _Section(NamedTuple):
    """A section of a twin of the peer.

    Attributes:
        properties: What it holds.
        version: Its version.
        at_ms: UTC of the newest report in it, None = not known.
    """

    properties: Json
    version: int
    at_ms: int | None


def _sections(body: bytes) -> tuple[_Section, _Section]:
    """Return desired and reported properties of a twin.

    Raises:
        TwinError: It is no twin.
    """
    document = _parsed(body)
    found = []
    for name in ("desired", "reported"):
        section = document.get(name) if isinstance(document, dict) else None
        if not isinstance(section, dict):
            raise TwinError(400, f"the peer's answer is no twin, it has no {name} properties")
        version = section.get("$version")
        if not isinstance(version, int) or not 1 <= version <= WHOLE_MAX:
            raise TwinError(400, f"the peer's twin has no version of {name} properties")
        at_ms = section.get(REPORTED_AT)
        is_time = isinstance(at_ms, int) and 0 < at_ms <= WHOLE_MAX
        found.append(_Section(_plain(section), version, at_ms if is_time else None))
    return found[0], found[1]


def whole_number(text: str) -> int:
    """Return a status, version or time, 0 = it is none; what a peer sends may be of any length."""
    found = _NUMBER(text)
    return int(text) if found and int(text) <= WHOLE_MAX else 0


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise TwinError(400, f"not JSON: {error}") from None


def _plain(section: Any) -> Json:
    """Return a section, or a patch of it, without versions and metadata, checked."""
    if isinstance(section, dict):
        section = {name: value for name, value in section.items() if name[:1] != "$"}
    return check_patch(section)


def _with_reported(twin: ClientTwin, reported: Json) -> ClientTwin:
    if is_same(twin.reported, reported):
        return twin
    version = twin.reported_version + 1
    return replace(twin, reported=reported, reported_version=version)


def _ignore(_token: int, _refusal: Refusal | None) -> None:
    """Ignore when a change is durable: the peer has it."""
