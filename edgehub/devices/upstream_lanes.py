"""The lanes of devices that have their own upstream sessions: who may send over what, and when.

Owns which lane is open, opening or parked. A lane that has rows is an activity of its device's
connection, which opens with the first of them. Invariants: nothing of a device that another hub
speaks for leaves over the device's session; a session that was taken over parks its lane alone, for
a time that doubles; an election that gives this hub the device ends that time, one that leaves it
here only shortens it, the less the more often the session was taken in a row; what is under way
settles before the connection closes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.faults import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.devices import Devices

LOST_PAUSE_S: Final = (1.0, 60.0)
"""First and longest pause after a session that could not be opened, or was lost."""

TAKEN_PAUSE_S: Final = (60.0, 3600.0)
"""The same after a take-over: the hub that did it would be taken over in turn."""

REELECTED_PAUSE_S: Final = (1.0, 60.0)
"""The same where this hub is elected again meanwhile: its session may have gone to a hub that only
read the device. Somebody who takes it each time is not fought for it with each message."""

DOUBT_S: Final = 1.0
"""MQTT 3.1.1 has no word for a take-over, and not all brokers use that of MQTT 5. When the hub's
own session ends within this time too, it was none: the link or the peer has gone."""

STABLE_S: Final = 30.0
"""A session that lasted so long makes the next pause the first one again."""

log = structlog.get_logger(__name__)


class Way(StrEnum):
    """How rows of a device may leave now."""

    OPEN = "open"  # over its session, or the hub's
    OPENING = "opening"  # a moment more
    SHUT = "shut"  # not before something changes


class Carrier(StrEnum):
    """Whose session takes a row now."""

    DEVICE = "device"
    HUB = "hub"
    NONE = "none"


class _Lane:
    __slots__ = (
        "changed",
        "ended_s",
        "epoch",
        "is_parked",
        "is_ready",
        "is_wanted",
        "opened_s",
        "pauses",
        "settled",
        "staged",
        "taken",
        "task",
        "timer",
        "under_way",
        "was_lost",
    )

    def __init__(self) -> None:
        self.staged = 0
        self.under_way = 0
        self.is_ready = False
        self.is_parked = False
        self.was_lost = False
        self.epoch: int | None = None
        """Number of the election that had given this hub the device when the lane was parked."""
        self.is_wanted = False
        """Whether this hub was elected again since then."""
        self.pauses = 0
        self.taken = 0
        """How often in a row its session was taken over."""
        self.opened_s = self.ended_s = 0.0
        self.timer: TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        self.settled = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing holds the lane any more."""
        is_used = self.staged or self.under_way or self.task or self.is_parked
        return not (is_used or self.pauses or self.taken)

    def forgive(self) -> None:
        """Hold no loss and no take-over against it any more."""
        self.pauses = self.taken = 0

    def note_time(self, now_s: float) -> None:
        """Forgive what lies before a session that has lasted."""
        if self.opened_s and now_s - self.opened_s >= STABLE_S:
            self.forgive()


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesStatistics:
    """The lanes at one moment.

    Attributes:
        open: Lanes whose session takes rows.
        opening: Lanes with rows whose session is being opened.
        parked: Lanes that wait after a take-over or a loss.
        take_overs: Sessions that others took over while this hub spoke for the device.
        losses: Sessions that ended otherwise, or could not be opened.
    """

    open: int
    opening: int
    parked: int
    take_overs: int
    losses: int


class UpstreamLanes:
    """See the module; it is the pump's `DeviceWays`.

    Args:
        hub_id: Rows of the hub itself go over the hub's session.
        devices: Have the connections.
        flags: Tell who speaks for a device.
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
        self._lanes: dict[str, _Lane] = {}
        self._shut: set[str] = set()
        self._followers: list[Callable[[str], None]] = []
        self._is_up = False
        self._is_ending = False
        self._take_overs = self._losses = 0
        flags.follow(self._judged)

    def way(self, device_id: str) -> Way:
        """See `DeviceWays`."""
        way = self._way(device_id)
        if way is Way.SHUT:
            self._shut.add(device_id)
        return way

    def carrier(self, device_id: str) -> Carrier:
        """Return whose session takes a row of a device now."""
        if self._way(device_id) is not Way.OPEN:
            return Carrier.NONE
        lane = self._lanes.get(device_id)
        if device_id == self._hub_id or lane is None or not lane.is_ready:
            return Carrier.HUB
        return Carrier.DEVICE

    def staged(self, device_id: str, rows: int) -> None:
        """See `DeviceWays`."""
        if device_id == self._hub_id:
            return
        lane = self._lane(device_id)
        lane.staged += rows
        assert lane.staged >= 0, device_id
        if rows > 0:
            self._begin(device_id, lane)
        self._look(device_id, lane)

    def handed_over(self, device_id: str, rows: int) -> None:
        """See `DeviceWays`."""
        if device_id == self._hub_id:
            return
        lane = self._lane(device_id)
        lane.under_way += rows
        assert lane.under_way >= 0, device_id
        if not lane.under_way:
            lane.settled.set()
        self._look(device_id, lane)

    def follow(self, told: Callable[[str], None]) -> None:
        """See `DeviceWays`."""
        self._followers.append(told)

    def unfollow(self, told: Callable[[str], None]) -> None:
        """See `DeviceWays`."""
        if told in self._followers:
            self._followers.remove(told)

    def link_changed(self, *, is_up: bool) -> None:
        """Take note that the hub's own session came, or went; without it nobody sends."""
        self._is_up = is_up
        for device_id, lane in list(self._lanes.items()):
            if is_up and lane.was_lost:
                self._unpark(device_id, lane)
            lane.changed.set()
        shut, self._shut = self._shut, set()
        for device_id in {*shut, *self._lanes}:
            self._tell(device_id)

    def session_ended(self, device_id: str, *, taken_over: bool, certain: bool) -> None:
        """Take note that a session ended that this hub did not close.

        Args:
            device_id: Whose.
            taken_over: Another session took its place.
            certain: The peer said so.
        """
        lane = self._lane(device_id)
        lane.ended_s = self._clock.monotonic()
        lane.note_time(lane.ended_s)
        if self._flags.of(device_id) is Ownership.LOSER:
            lane.changed.set()  # whoever took it speaks for the device
            self._look(device_id, lane)
        elif not taken_over:
            self._park_lost(device_id, lane, "the session was lost")
        elif certain:
            self._park_taken(device_id, lane)
        else:
            self._park(device_id, lane, DOUBT_S, lambda: self._after_doubt(device_id, lane))
            lane.was_lost = True

    def stop(self) -> set[asyncio.Task[None]]:
        """Begin nothing any more, and end what runs; gives the tasks that end."""
        self._is_ending = True
        self._flags.unfollow(self._judged)
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
        tasks = {lane.task for lane in self._lanes.values() if lane.task is not None}
        for task in tasks:
            task.cancel()
        return tasks

    async def end(self) -> None:
        """Stop, and wait until no activity is left; connections are closed by their owner."""
        if tasks := self.stop():
            await asyncio.wait(tasks)

    def statistics(self) -> LanesStatistics:
        """Return the lanes as they are now."""
        lanes = self._lanes.values()
        return LanesStatistics(
            open=sum(lane.is_ready for lane in lanes),
            opening=sum(lane.task is not None and not lane.is_ready for lane in lanes),
            parked=sum(lane.is_parked for lane in lanes),
            take_overs=self._take_overs,
            losses=self._losses,
        )

    def _way(self, device_id: str) -> Way:
        if not self._is_up:
            return Way.SHUT
        if device_id == self._hub_id:
            return Way.OPEN
        lane = self._lanes.get(device_id)
        is_lost = self._flags.of(device_id) is Ownership.LOSER
        if is_lost or (lane is not None and lane.is_parked):
            return Way.OPEN if self._on_behalf else Way.SHUT
        return Way.OPEN if lane is not None and lane.is_ready else Way.OPENING

    def _lane(self, device_id: str) -> _Lane:
        lane = self._lanes.get(device_id)
        if lane is None:
            lane = self._lanes[device_id] = _Lane()
        return lane

    def _begin(self, device_id: str, lane: _Lane) -> None:
        if lane.task is not None or self._is_ending or self._way(device_id) is not Way.OPENING:
            return
        lane.changed.clear()
        lane.task = self._tasks.create_task(self._serve(device_id, lane), name=f"lane[{device_id}]")

    def _look(self, device_id: str, lane: _Lane) -> None:
        if not lane.staged and not lane.under_way:
            lane.changed.set()
            if lane.is_over:
                self._lanes.pop(device_id, None)

    async def _serve(self, device_id: str, lane: _Lane) -> None:
        try:
            await self._send(device_id, lane)
        except DeviceError as exc:
            if self._flags.of(device_id) is not Ownership.LOSER:
                self._park_lost(device_id, lane, str(exc))
        finally:
            lane.task = None
            lane.is_ready = False
            if not lane.is_parked:
                lane.note_time(self._clock.monotonic())
            if not self._is_ending:
                if lane.staged and not lane.is_parked:
                    self._begin(device_id, lane)
                self._tell(device_id)
                if lane.is_over:
                    self._lanes.pop(device_id, None)

    async def _send(self, device_id: str, lane: _Lane) -> None:
        device = await self._devices.hold(device_id)
        connection = device.connection
        if device.stored is None:
            connection.set_keep_alive(self._keep_alive_s)
        async with connection.activity():
            # A device that was never judged has its session for as long as rows are there.
            entitled = self._flags.of(device_id) is Ownership.UNKNOWN
            if not connection.is_open:
                lane.opened_s = 0.0
            await connection.ensure_open(entitled=entitled)
            lane.opened_s = lane.opened_s or self._clock.monotonic()
            lane.is_ready = self._is_up and self._flags.of(device_id) is not Ownership.LOSER
            self._tell(device_id)
            while lane.is_ready and (lane.staged or lane.under_way):
                lane.changed.clear()
                await lane.changed.wait()
                lane.is_ready = (
                    connection.is_open
                    and self._is_up
                    and self._flags.of(device_id) is not Ownership.LOSER
                )
            lane.is_ready = False
            while lane.under_way:
                lane.settled.clear()
                await lane.settled.wait()

    def _judged(self, device_id: str) -> None:
        lane = self._lanes.get(device_id)
        if lane is not None:
            if self._flags.of(device_id) is Ownership.OWNER:
                self._elected(device_id, lane)
            elif self._flags.of(device_id) is Ownership.LOSER:
                lane.is_ready = False
                lane.forgive()
                self._unpark(device_id, lane)
            self._look(device_id, lane)
            lane.changed.set()
        if lane is not None or device_id in self._shut:
            self._shut.discard(device_id)
            self._tell(device_id)

    def _elected(self, device_id: str, lane: _Lane) -> None:
        if not lane.is_parked:
            return
        if self._epoch(device_id) != lane.epoch:
            lane.forgive()
            self._unpark(device_id, lane)
            return
        lane.is_wanted = True
        if lane.taken and not lane.was_lost:
            self._hasten(device_id, lane)

    def _epoch(self, device_id: str) -> int | None:
        is_owner = self._flags.of(device_id) is Ownership.OWNER
        return self._flags.flag(device_id).epoch if is_owner else None

    def _hasten(self, device_id: str, lane: _Lane) -> None:
        first, longest = REELECTED_PAUSE_S
        pause_s = min(longest, first * 2.0 ** min(lane.taken - 1, 10))
        left_s = lane.ended_s + pause_s - self._clock.monotonic()
        if left_s <= 0:
            self._over(device_id, lane)
            return
        if lane.timer is not None:
            lane.timer.cancel()
        lane.timer = self._clock.call_later(left_s, partial(self._over, device_id, lane))

    def _park_lost(self, device_id: str, lane: _Lane, reason: str) -> None:
        self._losses += 1
        if not lane.pauses:
            log.warning("device.session_lost", device_id=device_id, reason=reason)
        self._park(
            device_id, lane, _pause(lane, LOST_PAUSE_S), partial(self._over, device_id, lane)
        )
        lane.was_lost = True

    def _park_taken(self, device_id: str, lane: _Lane) -> None:
        self._take_overs += 1
        lane.taken += 1
        pause_s, is_wanted = _pause(lane, TAKEN_PAUSE_S), lane.is_wanted
        log.warning("device.session_taken_over", device_id=device_id, retry_s=pause_s)
        self._flags.note_take_over(device_id)
        self._park(device_id, lane, pause_s, partial(self._over, device_id, lane))
        if is_wanted:
            self._elected(device_id, lane)

    def _after_doubt(self, device_id: str, lane: _Lane) -> None:
        lane.timer = None
        if self._is_up:
            self._park_taken(device_id, lane)
        else:
            self._park_lost(device_id, lane, "the session was lost")

    def _park(self, device_id: str, lane: _Lane, seconds: float, then: Callable[[], None]) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        lane.timer = self._clock.call_later(seconds, then)
        lane.is_parked = True
        lane.epoch = self._epoch(device_id)
        lane.was_lost = lane.is_wanted = False
        lane.is_ready = False
        lane.changed.set()
        self._tell(device_id)

    def _over(self, device_id: str, lane: _Lane) -> None:
        self._unpark(device_id, lane)
        self._shut.discard(device_id)
        self._tell(device_id)

    def _unpark(self, device_id: str, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        lane.is_parked = lane.was_lost = False
        if lane.staged:
            self._begin(device_id, lane)

    def _tell(self, device_id: str) -> None:
        for told in list(self._followers):
            told(device_id)


def _pause(lane: _Lane, bounds: tuple[float, float]) -> float:
    first, longest = bounds
    pause_s = min(longest, first * 2.0 ** min(lane.pauses, 10))
    lane.pauses += 1
    return float(pause_s)
