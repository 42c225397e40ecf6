"""Use of the upstream sessions of devices: over which session rows may leave, and when.

Owns the state of each session: open, being opened, or paused. A device with rows to send, or one
that this hub owns and that listens for messages, is an activity of its connection, which opens with
the first of them. Invariants: at most `LISTENING_MAX` are open for devices that only listen; no row
leaves over the session of a device that another hub owns; a session that was taken over pauses this
device alone, for a time that doubles; an election that gives this hub the device ends the pause,
one that leaves it here only shortens it, the less the more often the session was taken over in a
row; rows in flight are settled before the connection closes.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct, field

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.faults import DeviceConnectionError, DeviceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.devices import Devices

LOST_PAUSE_S: Final = (1.0, 60.0)
"""First and longest pause after a session that could not be opened, or was lost."""

TAKEN_OVER_PAUSE_S: Final = (60.0, 3600.0)
"""The same after a take-over: the hub that did it would be taken over in turn."""

REELECTED_PAUSE_S: Final = (1.0, 60.0)
"""The same if this hub is elected again during the pause: another hub may have taken the session
only to read the device. A client that takes it each time does not get it contested per message."""

TAKE_OVER_CHECK_S: Final = 1.0
"""MQTT 3.1.1 has no reason code for a take-over, and not all brokers send that of MQTT 5. If the
hub's own session ends within this time too, the link or the peer has failed."""

LISTENING_MAX: Final = 2_000
"""Sessions for devices that listen, 14 KB of memory each without TLS; others wait for a place."""

STABLE_S: Final = 30.0
"""A session that lasted so long makes the next pause the first one again."""

_DOUBLINGS_MAX: Final = 10

log = structlog.get_logger(__name__)


class SendState(StrEnum):
    """Whether rows of a device may leave now."""

    OPEN = "open"  # over its session, or the hub's
    OPENING = "opening"  # its session is being opened
    BLOCKED = "blocked"  # not before something changes


class _Session(Struct, eq=False):
    device_id: str
    staged: int = 0
    in_flight: int = 0
    is_ready: bool = False
    listens: bool = False
    """Whether it is kept open for messages to the device."""
    is_paused: bool = False
    was_lost: bool = False
    epoch: int | None = None
    """Number of the election that had given this hub the device when the pause began."""
    was_reelected: bool = False
    """Whether this hub was elected again since then."""
    pauses: int = 0
    take_overs: int = 0
    """How often in a row it was taken over."""
    opened_s: float = 0.0
    ended_s: float = 0.0
    timer: TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_unused(self) -> bool:
        """Return whether nothing has to be remembered of it."""
        is_used = self.staged or self.in_flight or self.listens or self.task or self.is_paused
        return not (is_used or self.pauses or self.take_overs)

    def reset_pauses(self) -> None:
        """Make the next pause the first one again."""
        self.pauses = self.take_overs = 0

    def reset_if_stable(self, now_s: float) -> None:
        """Reset the pauses if the session has lasted."""
        if self.opened_s and now_s - self.opened_s >= STABLE_S:
            self.reset_pauses()


class UpstreamSessionsStatistics(Struct, frozen=True, kw_only=True):
    """The sessions at one moment.

    Attributes:
        open: Sessions over which rows leave.
        opening: Sessions that are being opened for rows.
        paused: Sessions that are not opened for now, after a take-over or a loss.
        take_overs: Sessions that others took over while this hub owned the device.
        losses: Sessions that ended otherwise, or could not be opened.
        listening: Devices that listen for messages here.
        listening_waiting: Of them, those without a session because of the bound.
    """

    open: int
    opening: int
    paused: int
    take_overs: int
    losses: int
    listening: int
    listening_waiting: int


class UpstreamSessions:
    """The states of the upstream sessions of devices.

    Args:
        hub_id: Rows of the hub itself go over the hub's session.
        devices: Own the connections.
        flags: Which hub owns a device.
        clock: For pauses.
        tasks: Where activities run.
        on_behalf: The peer takes rows of devices from the hub's session too.
        keep_alive_s: See `DeviceProfile`; for devices that were never loaded.
    """

    def __init__(
        self,
        hub_id: str,
        *,
        devices: Devices,
        flags: Flags,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        on_behalf: bool,
        keep_alive_s: int = 0,
    ) -> None:
        self._hub_id = hub_id
        self._devices = devices
        self._flags = flags
        self._clock = clock
        self._tasks = tasks
        self._on_behalf = on_behalf
        self._keep_alive_s = keep_alive_s
        self._sessions: dict[str, _Session] = {}
        self._blocked: set[str] = set()
        self._listeners: list[Callable[[str], None]] = []
        self._is_up = False
        self._is_ending = False
        self._listening: dict[str, None] = {}
        self._take_overs = self._losses = 0
        flags.add_listener(self._ownership_changed)

    def send_state(self, device_id: str) -> SendState:
        """Return whether rows of a device may leave now."""
        state = self._send_state(device_id)
        if state is SendState.BLOCKED:
            self._blocked.add(device_id)
        return state

    def over_hub(self, device_id: str) -> bool | None:
        """Return whether a row of a device leaves over the hub's session, None = it may not."""
        if self._send_state(device_id) is not SendState.OPEN:
            return None
        session = self._sessions.get(device_id)
        return device_id == self._hub_id or session is None or not session.is_ready

    def may_open(self, device_id: str) -> bool:
        """Return whether the device's own session is open, or may be opened now."""
        session = self._sessions.get(device_id)
        if session is None:
            return self._send_state(device_id) is SendState.OPENING
        return session.is_ready or self._is_opening(session)

    @asynccontextmanager
    async def use(self, device_id: str) -> AsyncIterator[None]:
        """Keep the device's own session open for the length of the block, as rows would.

        Raises:
            DeviceConnectionError: It cannot be opened now.
        """
        self.count_staged(device_id, 1)
        try:
            await self._ready(device_id)
            yield
        finally:
            self.count_staged(device_id, -1)

    async def _ready(self, device_id: str) -> None:
        session = self._session(device_id)
        changed = asyncio.Event()

        def notified(other: str) -> None:
            if other == device_id:
                changed.set()

        self.add_listener(notified)
        try:
            while not session.is_ready:
                if self._is_ending or not self._is_opening(session):
                    raise DeviceConnectionError(device_id, "its session cannot be opened now")
                changed.clear()
                await changed.wait()
        finally:
            self.remove_listener(notified)

    def _is_opening(self, session: _Session) -> bool:
        return not session.is_paused and self._send_state(session.device_id) is SendState.OPENING

    def count_staged(self, device_id: str, rows: int) -> None:
        """Count rows that were read for a device; negative = they were sent, or put back.

        The first one makes its session be opened.
        """
        if device_id == self._hub_id:
            return
        session = self._session(device_id)
        session.staged += rows
        assert session.staged >= 0, device_id
        if rows > 0:
            self._start(session)
        self._check_rows(session)

    def count_in_flight(self, device_id: str, rows: int) -> None:
        """Count rows in flight; negative = they were settled."""
        if device_id == self._hub_id:
            return
        session = self._session(device_id)
        session.in_flight += rows
        assert session.in_flight >= 0, device_id
        if not session.in_flight:
            session.settled.set()
        self._check_rows(session)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with a device whenever its send state may have changed."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        """Call it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def listening(self, device_id: str, listens: bool) -> None:
        """Record that a device begins or ceases to listen for messages here."""
        if device_id == self._hub_id:
            return
        if listens:
            self._listening[device_id] = None
            if len(self._listening) <= LISTENING_MAX:
                self._keep_for_messages(device_id)
        elif device_id in self._listening:
            del self._listening[device_id]
            session = self._session(device_id)
            was_kept, session.listens = session.listens, False
            self._check_rows(session)
            if was_kept and len(self._listening) >= LISTENING_MAX:
                waiting = (each for each in self._listening if not self._session(each).listens)
                self._keep_for_messages(next(waiting))

    def link_changed(self, is_up: bool) -> None:
        """Record whether the hub's own session is open; without it nothing is sent."""
        self._is_up = is_up
        for session in list(self._sessions.values()):
            if is_up and session.was_lost:
                self._end_pause(session)
            elif is_up:
                self._start_if_wanted(session)
            session.changed.set()
        blocked, self._blocked = self._blocked, set()
        for device_id in {*blocked, *self._sessions}:
            self._notify(device_id)

    def session_ended(self, device_id: str, *, taken_over: bool, certain: bool) -> None:
        """Record that a session ended that this hub did not close.

        Args:
            device_id: Id of the device.
            taken_over: Another session took its place.
            certain: The peer said so.
        """
        session = self._session(device_id)
        session.ended_s = self._clock.monotonic()
        session.reset_if_stable(session.ended_s)
        if self._flags.of(device_id) is Ownership.LOSER:
            session.changed.set()  # the hub that took it owns the device
            self._check_rows(session)
        elif not taken_over:
            self._pause_lost(session, "the session was lost")
        elif certain:
            self._pause_taken_over(session)
        else:
            confirm = partial(self._confirm_take_over, session)
            self._pause(session, TAKE_OVER_CHECK_S, confirm)
            session.was_lost = True

    def stop(self) -> set[asyncio.Task[None]]:
        """Start nothing any more, and cancel what runs; returns the tasks that end."""
        self._is_ending = True
        self._flags.remove_listener(self._ownership_changed)
        for device_id, session in self._sessions.items():
            _cancel_timer(session)
            self._notify(device_id)
        tasks = {session.task for session in self._sessions.values() if session.task is not None}
        for task in tasks:
            task.cancel()
        return tasks

    async def end(self) -> None:
        """Stop, and wait until no activity is left; connections are closed by their owner."""
        if tasks := self.stop():
            await asyncio.wait(tasks)

    def statistics(self) -> UpstreamSessionsStatistics:
        """Return the sessions as they are now."""
        sessions = self._sessions.values()
        return UpstreamSessionsStatistics(
            open=sum(session.is_ready for session in sessions),
            opening=sum(session.task is not None and not session.is_ready for session in sessions),
            paused=sum(session.is_paused for session in sessions),
            take_overs=self._take_overs,
            losses=self._losses,
            listening=len(self._listening),
            listening_waiting=max(0, len(self._listening) - LISTENING_MAX),
        )

    def _send_state(self, device_id: str) -> SendState:
        if not self._is_up:
            return SendState.BLOCKED
        if device_id == self._hub_id:
            return SendState.OPEN
        session = self._sessions.get(device_id)
        is_lost = self._flags.of(device_id) is Ownership.LOSER
        if is_lost or (session is not None and session.is_paused):
            return SendState.OPEN if self._on_behalf else SendState.BLOCKED
        is_ready = session is not None and session.is_ready
        return SendState.OPEN if is_ready else SendState.OPENING

    def _session(self, device_id: str) -> _Session:
        session = self._sessions.get(device_id)
        if session is None:
            session = self._sessions[device_id] = _Session(device_id)
        return session

    def _start(self, session: _Session) -> None:
        is_opening = self._send_state(session.device_id) is SendState.OPENING
        if session.task is not None or self._is_ending or not is_opening:
            return
        session.changed.clear()
        session.task = self._tasks.create_task(
            self._run(session), name=f"session[{session.device_id}]"
        )

    def _keep_for_messages(self, device_id: str) -> None:
        session = self._session(device_id)
        session.listens = True
        self._start_if_wanted(session)

    def _start_if_wanted(self, session: _Session) -> None:
        if session.staged or self._is_kept(session):
            self._start(session)

    def _is_kept(self, session: _Session) -> bool:
        """Return whether a session is open without rows: messages go to the owner."""
        return session.listens and self._flags.of(session.device_id) is Ownership.OWNER

    def _check_rows(self, session: _Session) -> None:
        if not session.staged and not session.in_flight:
            session.changed.set()
            if session.is_unused:
                self._sessions.pop(session.device_id, None)

    async def _run(self, session: _Session) -> None:
        try:
            await self._keep_open(session)
        except DeviceError as exc:
            if self._flags.of(session.device_id) is not Ownership.LOSER:
                self._pause_lost(session, str(exc))
        finally:
            session.task = None
            session.is_ready = False
            if not session.is_paused:
                session.reset_if_stable(self._clock.monotonic())
            if not self._is_ending:
                if not session.is_paused:
                    self._start_if_wanted(session)
                self._notify(session.device_id)
                if session.is_unused:
                    self._sessions.pop(session.device_id, None)

    async def _keep_open(self, session: _Session) -> None:
        device = await self._devices.get(session.device_id)
        connection = device.connection
        if device.stored is None:
            connection.set_keep_alive(self._keep_alive_s)
        async with connection.activity():
            # A device that was never elected has its session for as long as it has rows.
            entitled = self._flags.of(session.device_id) is Ownership.UNKNOWN
            if not connection.is_open:
                session.opened_s = 0.0
            await connection.ensure_open(entitled=entitled)
            session.opened_s = session.opened_s or self._clock.monotonic()
            session.is_ready = self._may_send(session)
            self._notify(session.device_id)
            while session.is_ready and (
                session.staged or session.in_flight or self._is_kept(session)
            ):
                session.changed.clear()
                await session.changed.wait()
                session.is_ready = connection.is_open and self._may_send(session)
            session.is_ready = False
            while session.in_flight:
                session.settled.clear()
                await session.settled.wait()

    def _may_send(self, session: _Session) -> bool:
        return self._is_up and self._flags.of(session.device_id) is not Ownership.LOSER

    def _ownership_changed(self, device_id: str) -> None:
        session = self._sessions.get(device_id)
        if session is not None:
            if self._flags.of(device_id) is Ownership.OWNER:
                self._elected(session)
                self._start_if_wanted(session)
            elif self._flags.of(device_id) is Ownership.LOSER:
                session.is_ready = False
                session.reset_pauses()
                self._end_pause(session)
            self._check_rows(session)
            session.changed.set()
        if session is not None or device_id in self._blocked:
            self._blocked.discard(device_id)
            self._notify(device_id)

    def _elected(self, session: _Session) -> None:
        if not session.is_paused:
            return
        if self._epoch(session.device_id) != session.epoch:
            session.reset_pauses()
            self._end_pause(session)
            return
        session.was_reelected = True
        if session.take_overs and not session.was_lost:
            self._shorten_pause(session)

    def _epoch(self, device_id: str) -> int | None:
        is_owner = self._flags.of(device_id) is Ownership.OWNER
        return self._flags.flag(device_id).epoch if is_owner else None

    def _shorten_pause(self, session: _Session) -> None:
        pause_s = _pause_s(REELECTED_PAUSE_S, session.take_overs - 1)
        left_s = session.ended_s + pause_s - self._clock.monotonic()
        if left_s <= 0:
            self._pause_over(session)
            return
        _cancel_timer(session)
        session.timer = self._clock.call_later(left_s, partial(self._pause_over, session))

    def _pause_lost(self, session: _Session, reason: str) -> None:
        self._losses += 1
        if not session.pauses:
            log.warning("device.session_lost", device_id=session.device_id, reason=reason)
        pause_s = _pause_s(LOST_PAUSE_S, session.pauses)
        session.pauses += 1
        self._pause(session, pause_s, partial(self._pause_over, session))
        session.was_lost = True

    def _pause_taken_over(self, session: _Session) -> None:
        self._take_overs += 1
        session.take_overs += 1
        pause_s, was_reelected = _pause_s(TAKEN_OVER_PAUSE_S, session.pauses), session.was_reelected
        session.pauses += 1
        log.warning("device.session_taken_over", device_id=session.device_id, retry_s=pause_s)
        self._flags.record_take_over(session.device_id)
        self._pause(session, pause_s, partial(self._pause_over, session))
        if was_reelected:
            self._elected(session)

    def _confirm_take_over(self, session: _Session) -> None:
        session.timer = None
        if self._is_up:
            self._pause_taken_over(session)
        else:
            self._pause_lost(session, "the session was lost")

    def _pause(self, session: _Session, seconds: float, then: Callable[[], None]) -> None:
        _cancel_timer(session)
        session.timer = self._clock.call_later(seconds, then)
        session.is_paused = True
        session.epoch = self._epoch(session.device_id)
        session.was_lost = session.was_reelected = False
        session.is_ready = False
        session.changed.set()
        self._notify(session.device_id)

    def _pause_over(self, session: _Session) -> None:
        self._end_pause(session)
        self._blocked.discard(session.device_id)
        self._notify(session.device_id)

    def _end_pause(self, session: _Session) -> None:
        _cancel_timer(session)
        session.is_paused = session.was_lost = False
        self._start_if_wanted(session)

    def _notify(self, device_id: str) -> None:
        for listener in list(self._listeners):
            listener(device_id)


def _cancel_timer(session: _Session) -> None:
    if session.timer is not None:
        session.timer.cancel()
        session.timer = None


def _pause_s(bounds: tuple[float, float], earlier: int) -> float:
    first, longest = bounds
    return float(min(longest, first * 2.0 ** min(earlier, _DOUBLINGS_MAX)))
