"""The coordinator of one process: for a hub alone, and for simulations of several.

Owns the records of devices, the claims of joins and the streams of notices. Every decision is made
without an await in between, so it is atomic. Invariants: epochs only grow, also over a forgotten
record; a cleared counter keeps its owner; the former owner's notice stands in its stream before the
answer leaves.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from edgehub.devices.affinity.coordinator import (
    OPEN_MAX,
    TAKE_OVER_S,
    ElectionResult,
    Notice,
    NoticeBatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.affinity.coordinator import (
        DownlinkClaim,
        ElectedFrame,
        ElectionRequest,
        JoinClaim,
    )

RECORDS_MAX: Final = 100_000
"""Devices remembered; beyond it the one that was silent longest is forgotten."""

NOTICES_MAX: Final = 10_000
"""Notices kept per hub; a hub that comes later than that learns that it missed some."""

CLAIMS_MAX: Final = 10_000
CLAIM_S: Final = 300.0
"""A join request repeated after so long is a new one to the coordinator; nonces catch replays."""

F_CNT_MAX: Final = 2**32 - 1
"""Counters have 32 bits; a session whose downlink counters are used up answers no more."""

FIRST_RESTART_COUNTER: Final = 1
"""A device that starts again sends 0 or 1; a record up to it is not cleared a second time."""

RESTART_PAUSE_S: Final = 60.0
"""Within this time after a restart, a 0 or 1 at another hub than the owner is a late copy.

At the owner it is none: each hub receives a device's frames in their order.
"""


class _Open(Struct):
    hub_id: str
    since_s: float


class Record(Struct, kw_only=True):
    """What the coordinator knows of a device.

    Attributes:
        f_cnt: Highest counter seen, None = cleared.
        owner: Hub to which the device belongs.
        epoch: Number of the election that gave it the device.
        generation: Number of the session of the counter.
        f_cnt_down: Last downlink counter that was granted in that session.
        begun_s: When it was elected with a counter of 0 or 1, None = never.
        open: Frames that are not known to be stored, by generation and counter.
    """

    f_cnt: int | None
    owner: str
    epoch: int
    generation: int = 0
    f_cnt_down: int = 0
    begun_s: float | None = None
    open: dict[tuple[int, int], _Open] = field(default_factory=dict)

    def may_begin(self, now_s: float) -> bool:
        """Return whether a hub that does not own the device may have received its restart."""
        return self.begun_s is None or now_s - self.begun_s >= RESTART_PAUSE_S

    def clear(self, generation: int) -> None:
        """Begin a session, or restart the same one; the owner stays."""
        self.f_cnt, self.generation, self.f_cnt_down = None, generation, 0

    def begin(self, ballot: ElectionRequest, now_s: float) -> None:
        """Open a frame for the hub that has won it."""
        if ballot.f_cnt <= FIRST_RESTART_COUNTER:
            self.begun_s = now_s
        self.open[ballot.generation, ballot.f_cnt] = _Open(ballot.hub_id, now_s)
        if len(self.open) > OPEN_MAX:
            self.open.pop(next(iter(self.open)))

    def grant(self, f_cnt_down: int) -> int | None:
        """Return a downlink counter that was never granted before, None = they are used up."""
        granted = max(f_cnt_down, self.f_cnt_down) + 1
        if granted > F_CNT_MAX:
            return None
        self.f_cnt_down = granted
        return granted


class _Stream(Struct, eq=False):
    kept: deque[Notice]
    count: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class InProcessCoordinator:
    """A coordinator in memory; implements `Coordinator`.

    Args:
        clock: For the age of join claims.
        incarnation: Names this coordinator's memory, so that a position of another one is known
            for what it is.
        records_max: Devices remembered.
        notices_max: Notices kept per hub.
        notified: Called with each notice and the hub it is for.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        incarnation: str,
        records_max: int = RECORDS_MAX,
        notices_max: int = NOTICES_MAX,
        notified: Callable[[str, Notice], None] | None = None,
    ) -> None:
        self._clock = clock
        self._incarnation = incarnation
        self._records_max = records_max
        self._notices_max = notices_max
        self._notified = notified
        self._epoch = 0
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._claims: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._streams: dict[str, _Stream] = {}

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """Elect the hub that handles one message."""
        record, now = self._records.get(ballot.device_id), self._clock.monotonic()
        if record is None:
            record = self.record(
                ballot.device_id, ballot.f_cnt, ballot.hub_id, generation=ballot.generation
            )
            record.begin(ballot, now)
            return self._verdict(record, ballot, won=True)
        self._records.move_to_end(ballot.device_id)
        if ballot.generation < record.generation:
            return self._verdict(record, ballot, won=False)
        may_have_restarted = (
            ballot.restarted
            and (record.f_cnt or 0) > FIRST_RESTART_COUNTER
            and (record.owner == ballot.hub_id or record.may_begin(now))
        )
        if ballot.generation > record.generation or may_have_restarted:
            record.clear(ballot.generation)
        if record.f_cnt is None or ballot.f_cnt > record.f_cnt:
            record.f_cnt = ballot.f_cnt
            record.begin(ballot, now)
            former = self._give(record, ballot.device_id, ballot.hub_id)
            return self._verdict(record, ballot, won=True, former=former)
        repeated = ballot.f_cnt == record.f_cnt and record.owner == ballot.hub_id
        return self._verdict(record, ballot, won=repeated)

    async def owner_of(self, device_id: str) -> str:
        """Return the hub that owns a device, "" = none is known."""
        record = self._records.get(device_id)
        return "" if record is None else record.owner

    async def take_over(self, frame: ElectedFrame, hub_id: str) -> ElectionResult:
        """Ask for a frame that was open when the election was lost."""
        record, now = self._records.get(frame.device_id), self._clock.monotonic()
        opened = None if record is None else record.open.get((frame.generation, frame.f_cnt))
        if record is None or opened is None:
            owner, epoch = ("", 0) if record is None else (record.owner, record.epoch)
            return ElectionResult(won=False, owner=owner, epoch=epoch)
        won, former = now - opened.since_s >= TAKE_OVER_S, ""
        if won:
            opened.hub_id, opened.since_s = hub_id, now
            if (record.generation, record.f_cnt) == (frame.generation, frame.f_cnt):
                former = self._give(record, frame.device_id, hub_id)
        return ElectionResult(
            won=won,
            owner=record.owner,
            epoch=record.epoch,
            former=former,
            is_open=not won,
        )

    async def report_stored(self, hub_id: str, frames: Sequence[ElectedFrame]) -> None:
        """Record that frames which a hub won are stored."""
        for frame in frames:
            record, key = self._records.get(frame.device_id), (frame.generation, frame.f_cnt)
            if record is not None and key in record.open and record.open[key].hub_id == hub_id:
                del record.open[key]

    async def claim_join(self, claim: JoinClaim) -> bool:
        """Claim a join request; False = another hub (or this one) has claimed it before."""
        now = self._clock.monotonic()
        while self._claims and next(iter(self._claims.values())) <= now - CLAIM_S:
            self._claims.popitem(last=False)
        if (claim.device_id, claim.key) in self._claims:
            return False
        if len(self._claims) >= CLAIMS_MAX:
            self._claims.popitem(last=False)
        self._claims[claim.device_id, claim.key] = now
        return True

    async def finish_join(self, claim: JoinClaim, *, generation: int | None) -> None:
        """Clear the device's counter and keep its owner; or withdraw the claim."""
        if generation is None:
            self._claims.pop((claim.device_id, claim.key), None)
        elif record := self._records.get(claim.device_id):
            record.clear(generation)

    async def grant_downlink(self, claim: DownlinkClaim) -> int | None:
        """Return the next downlink counter to the owner of a device; None = another hub owns it."""
        record = self._records.get(claim.device_id)
        asks_for = (claim.hub_id, claim.generation)
        if record is None or (record.owner, record.generation) != asks_for:
            return None
        return record.grant(claim.f_cnt_down)

    async def notices(self, hub_id: str, after: str, *, wait: bool = True) -> NoticeBatch:
        """Read the notices to a hub behind a position."""
        stream = self._stream(hub_id)
        read, of_this_memory = self._place(after)
        while wait and after and of_this_memory and stream.count <= read:
            stream.arrived.clear()
            await stream.arrived.wait()
        dropped = stream.count - len(stream.kept)
        skip = max(0, read - dropped)
        return NoticeBatch(
            notices=tuple(stream.kept)[skip:],
            position=self.position(hub_id),
            missed=not of_this_memory or read < dropped,
        )

    def position(self, hub_id: str) -> str:
        """Return the newest place in a hub's stream."""
        return f"{self._incarnation}-{self._stream(hub_id).count}"

    def record(self, device_id: str, f_cnt: int | None, owner: str, *, generation: int) -> Record:
        """Record a device again; no hub is notified."""
        if device_id not in self._records and len(self._records) >= self._records_max:
            self._records.popitem(last=False)
        self._epoch += 1
        record = Record(f_cnt=f_cnt, owner=owner, epoch=self._epoch, generation=generation)
        self._records[device_id] = record
        return record

    def forget(self, device_id: str) -> None:
        """Forget a device, as if it had never been heard."""
        self._records.pop(device_id, None)

    def known(self, device_id: str) -> Record | None:
        """Return what is known of a device, None = nothing."""
        return self._records.get(device_id)

    def _give(self, record: Record, device_id: str, hub_id: str) -> str:
        if record.owner == hub_id:
            return ""
        former, record.owner = record.owner, hub_id
        self._epoch += 1
        record.epoch = self._epoch
        stream = self._stream(former)
        stream.count += 1
        notice = Notice(
            position=f"{self._incarnation}-{stream.count}",
            device_id=device_id,
            epoch=record.epoch,
            owner=record.owner,
        )
        stream.kept.append(notice)
        stream.arrived.set()
        if self._notified is not None:
            self._notified(former, notice)
        return former

    def _verdict(
        self, record: Record, ballot: ElectionRequest, *, won: bool, former: str = ""
    ) -> ElectionResult:
        opened = record.open.get((ballot.generation, ballot.f_cnt))
        return ElectionResult(
            won=won,
            owner=record.owner,
            epoch=record.epoch,
            former=former,
            is_open=not won and opened is not None and opened.hub_id != ballot.hub_id,
        )

    def _stream(self, hub_id: str) -> _Stream:
        stream = self._streams.get(hub_id)
        if stream is None:
            stream = self._streams[hub_id] = _Stream(deque(maxlen=self._notices_max))
        return stream

    def _place(self, position: str) -> tuple[int, bool]:
        incarnation, _, count = position.rpartition("-")
        if not position:
            return 0, True
        return (int(count), True) if incarnation == self._incarnation else (0, False)
