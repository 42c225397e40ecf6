"""A data frame of a device: local checks, wait, election, handling.

Acts on a `Device` inside its queue and owns nothing. Invariants: with deduplication `drop` at most
one hub handles a counter; a hub that lost waits before it asks; no answer of the coordinator
changes nothing; a frame whose handling failed does not count as processed; a hub that lost keeps
its copy until the frame is stored. The device's turn ends when the message is appended to the open
group, and its counter is written after the commit.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from edgehub.devices.affinity.coordinator import ElectedFrame, ElectionRequest
from edgehub.devices.affinity.counters import CounterCheck, check_counter
from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.affinity.outcome import FrameOutcome, Handling, Reason, Result
from edgehub.devices.affinity.recent_frames import Reception
from edgehub.devices.request_queue import RequestKind
from edgehub.devices.source import Deduplication

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.devices.affinity.coordinator import ElectionResult
    from edgehub.devices.affinity.stored_frames import Commit
    from edgehub.devices.device import Device
    from edgehub.devices.source import StoredDevice

    Handle = Callable[[Handling], Awaitable[Commit | None]]
    """Handles an elected frame; returns the commit that its message waits for, if any."""


OPEN_PAUSE_S: Final = 0.05
OPEN_PAUSE_S_MAX: Final = 1.0
"""After such pauses a hub that lost asks whether the frame is stored."""


class Uplink(Struct, frozen=True, kw_only=True):
    """A data frame as a head received it.

    Attributes:
        address: DevAddr, or the id of another device.
        confirmed: Whether the device wants an answer.
        station: Station of this hub that received it.
        key: What all copies of the frame have in common, and no other frame.
        counter: Returns its frame counter of 32 bits, None = it is not of the device as it is
            stored (its MIC).
    """

    address: str
    confirmed: bool
    station: str
    key: str
    counter: Callable[[StoredDevice], int | None]

    def fits(self, stored: StoredDevice) -> bool:
        """Return whether it is of a device as it is stored."""
        return self.counter(stored) is not None


async def process_data(
    device: Device, uplink: Uplink, handle: Handle, *, waited: bool
) -> FrameOutcome:
    """Process a frame in the device's queue.

    Args:
        device: Loaded, and the frame fits it.
        uplink: The frame.
        handle: Called for an elected frame, while the device's connection is open if it is needed.
        waited: This hub has waited as a loser for this frame already.

    Raises:
        DeviceError: It failed, by the coordinator, the source, the connection or the handling.
    """
    copy = device.copies.classify(uplink.key, uplink.station)
    if copy is Reception.OTHER_STATION and device.profile.deduplication is Deduplication.DROP:
        return _refused(device, Result.DROPPED, Reason.SECOND_STATION)

    async def run(*, takes_over: bool = False) -> FrameOutcome:
        has_waited = await device.ensure_loaded(uplink.fits, uplink.address) or waited
        f_cnt = None if device.stored is None else uplink.counter(device.stored)
        if f_cnt is None:
            return _refused(device, Result.REJECTED, Reason.NO_DEVICE_BY_MIC)
        work = _DataRun(device, uplink, f_cnt, handle, copy)
        return await work.take_over() if takes_over else await work.run(waited=has_waited)

    pause_s = OPEN_PAUSE_S
    try:
        outcome = await device.queue.run(RequestKind.DATA, run)
        while outcome.is_open:
            await device.shared.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, OPEN_PAUSE_S_MAX)
            elected_ms = outcome.elected_ms
            outcome = await device.queue.run(RequestKind.DATA, partial(run, takes_over=True))
            if outcome.result is Result.DROPPED:
                outcome = replace(outcome, elected_ms=elected_ms)
    except BaseException:
        device.copies.forget(uplink.key)
        raise
    return replace(outcome, repeated=copy is not Reception.FIRST, commit=device.commit)


class _DataRun:
    """One frame while it is its device's turn."""

    def __init__(
        self, device: Device, uplink: Uplink, f_cnt: int, handle: Handle, copy: Reception
    ) -> None:
        self._device = device
        self._uplink = uplink
        self._f_cnt = f_cnt
        self._handle = handle
        self._copy = copy
        self._frame = device.frame(f_cnt, uplink.key)
        self._has_waited = False

    async def run(self, *, waited: bool) -> FrameOutcome:
        """Check, elect and handle it."""
        device = self._device
        gateway_id = device.profile.gateway_id
        if gateway_id not in (None, device.shared.hub_id):
            return _refused(device, Result.REJECTED, Reason.BELONGS_TO_ANOTHER_GATEWAY)
        check = self._check()
        if check is CounterCheck.INVALID:
            return _refused(device, Result.REJECTED, Reason.INVALID_FRAME_COUNTER)
        if check is CounterCheck.REPEATED_TOO_OFTEN:
            return _refused(device, Result.REJECTED, Reason.RESUBMIT_LIMIT)
        verdict, elected_ms = await self._ask(check, waited=waited)
        drops = device.profile.deduplication is Deduplication.DROP
        if drops and verdict is not None and not verdict.won:
            self._lose(verdict)
            return _duplicate(device, verdict, elected_ms)
        former = "" if verdict is None else verdict.former
        # The hub that had it may have changed it since it was read, also if it never lost it here.
        regained = device.ownership is Ownership.LOSER or bool(former)
        epoch = 0 if verdict is None else verdict.epoch
        device.connection.keep()
        device.shared.flags.set(
            device.device_id, Ownership.OWNER, epoch, cause=self._cause(former), other=former
        )
        handling = self._handling(check, verdict)
        saved = await self._process(check, handling, regained=regained)
        if verdict is not None:
            self._report()
        return _processed(device, handling, elected_ms, saved=saved)

    async def take_over(self) -> FrameOutcome:
        """Ask for a frame whose election was lost, and handle it if its winner does not."""
        device = self._device
        shared = device.shared
        if device.has_stored(self._frame):
            return _refused(device, Result.DROPPED, Reason.DUPLICATE)
        verdict = await device.ask(shared.coordinator.take_over(self._elected, shared.hub_id))
        elected_ms = shared.clock.boottime_ms()
        if not verdict.won:
            return _duplicate(device, verdict, elected_ms)
        regained = False
        if verdict.owner == shared.hub_id:
            regained = device.ownership is Ownership.LOSER or bool(verdict.former)
            device.connection.keep()
            shared.flags.set(
                device.device_id,
                Ownership.OWNER,
                verdict.epoch,
                cause=Cause.OWNER_SILENT,
                other=verdict.former,
            )
        # Its windows are over.
        handling = Handling(upstream=True, duplicate=False, answer=False, frame=self._frame)
        saved = await self._process(CounterCheck.NEW, handling, regained=regained)
        self._report()
        return _processed(device, handling, elected_ms, saved=saved)

    @property
    def _elected(self) -> ElectedFrame:
        device = self._device
        return ElectedFrame(device.device_id, self._frame.generation, self._f_cnt)

    def _report(self) -> None:
        """Report the frame as stored once it is."""
        frame, commit, reports = self._elected, self._device.commit, self._device.shared.reports
        if commit is None:
            reports.add(frame)
            return

        def committed(commit: Commit) -> None:
            if not commit.cancelled() and commit.result() is None:
                reports.add(frame)

        commit.add_done_callback(committed)

    def _check(self) -> CounterCheck:
        device, uplink = self._device, self._uplink
        if self._copy is Reception.OTHER_STATION:
            return CounterCheck.REPEATED
        # The device's source may not have its counter yet if this hub was started again since.
        is_stored = device.has_stored(self._frame)
        return check_counter(
            self._f_cnt,
            self._f_cnt if is_stored else device.session.f_cnt_up,
            device.profile,
            confirmed=uplink.confirmed,
            heard=device.heard or is_stored,
            copied=self._copy is not Reception.FIRST or is_stored,
            repeats=device.repeats,
            is_loser=device.ownership is Ownership.LOSER,
        )

    async def _ask(
        self, check: CounterCheck, *, waited: bool
    ) -> tuple[ElectionResult | None, int | None]:
        device, mode = self._device, self._device.profile.deduplication
        if device.profile.gateway_id is not None or self._copy is Reception.OTHER_STATION:
            return None, None
        if mode is Deduplication.NONE and not self._uplink.confirmed:
            return None, None
        self._has_waited = waited or await device.wait_as_loser()
        shared = device.shared
        ballot = ElectionRequest(
            device_id=device.device_id,
            hub_id=shared.hub_id,
            f_cnt=self._f_cnt,
            generation=device.session.generation,
            restarted=check is CounterCheck.RESTARTED,
        )
        verdict = await device.ask(shared.coordinator.elect(ballot))
        return verdict, shared.clock.boottime_ms()

    def _lose(self, verdict: ElectionResult) -> None:
        device = self._device
        if not device.shared.rules.is_sticky or verdict.owner == device.shared.hub_id:
            return  # an old counter at the owner makes no other hub the owner
        device.shared.flags.set(
            device.device_id,
            Ownership.LOSER,
            verdict.epoch,
            cause=Cause.REFUSED,
            other=verdict.owner,
        )
        device.connection.request_close()

    def _cause(self, former: str) -> Cause:
        if not former:
            regained = self._device.ownership is Ownership.LOSER
            return Cause.REGAINED if regained else Cause.FIRST
        return Cause.OWNER_SILENT if self._has_waited else Cause.HEARD_FIRST

    def _handling(self, check: CounterCheck, verdict: ElectionResult | None) -> Handling:
        mode = self._device.profile.deduplication
        is_copy = self._copy is Reception.OTHER_STATION
        repeated = check is CounterCheck.REPEATED and not is_copy
        lost = verdict is not None and not verdict.won
        marked = mode is Deduplication.MARK and (lost or is_copy)
        return Handling(
            # A repetition asks for the answer again; with `drop` the reading is upstream already.
            upstream=not repeated or mode is not Deduplication.DROP,
            duplicate=marked or (repeated and mode is not Deduplication.DROP),
            answer=not lost and not is_copy,
            frame=self._frame,
        )

    async def _process(self, check: CounterCheck, handling: Handling, *, regained: bool) -> bool:
        device, f_cnt = self._device, self._f_cnt
        session = device.session.session
        async with device.connection.activity():
            if regained:
                await device.reread_as_owner()
            if handling.upstream and device.shared.frames is None:
                await device.connection.ensure_open(entitled=True)
            commit = await self._handle(handling)
            if handling.upstream:
                device.note_stored(handling.frame)
            if device.session.session != session:
                return False  # another hub gave it a new session; this counter is not of that one
            if check is CounterCheck.REPEATED:
                device.repeats += self._copy is not Reception.OTHER_STATION
                return False
            if check is CounterCheck.RESTARTED:
                device.copies.clear()
                device.copies.classify(self._uplink.key, self._uplink.station)
            if check is CounterCheck.NEW and f_cnt < device.session.f_cnt_up:
                return False  # it was taken over late
            device.heard = True
            device.repeats = 0
            restarted = check is CounterCheck.RESTARTED
            if restarted and commit is not None:
                # The written counter is high: the next frame would be an old one after a crash.
                await commit
            return await device.save(f_cnt, commit, restarted=restarted)


def _processed(
    device: Device, handling: Handling, elected_ms: int | None, *, saved: bool
) -> FrameOutcome:
    return FrameOutcome(
        device_id=device.device_id,
        result=Result.PROCESSED,
        elected_ms=elected_ms,
        upstream=handling.upstream,
        duplicate=handling.duplicate,
        answer=handling.answer,
        saved=saved,
    )


def _duplicate(device: Device, verdict: ElectionResult, elected_ms: int | None) -> FrameOutcome:
    refused = _refused(device, Result.DROPPED, Reason.DUPLICATE, elected_ms)
    return replace(refused, is_open=verdict.is_open)


def _refused(
    device: Device, result: Result, reason: Reason, elected_ms: int | None = None
) -> FrameOutcome:
    return FrameOutcome(
        device_id=device.device_id, result=result, reason=reason, elected_ms=elected_ms
    )
