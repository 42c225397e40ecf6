"""One device at this hub: its state, its queue, its connection.

Owns what is in memory of a device. May call its source, its link and the flags; the flows of data
and joins (`affinity/`) act on it inside its queue. Invariants: there is one object per device from
the moment its loading starts; one load runs at a time, whatever caused it; a load ends with a
close, a refresh only where this hub does not own the device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.affinity.recent_frames import RecentFrames
from edgehub.devices.affinity.stored_frames import StoredFrame, frame_key
from edgehub.devices.connection import DeviceConnection
from edgehub.devices.deadline import deadline
from edgehub.devices.faults import CoordinatorUnreachableError, DeviceError, DeviceUnknownError
from edgehub.devices.request_queue import RequestKind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock
    from edgehub.devices.affinity.coordinator import Coordinator
    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.affinity.rules import AffinityRules
    from edgehub.devices.affinity.stored_frames import Commit, StoredFrames
    from edgehub.devices.affinity.stored_reports import StoredReports
    from edgehub.devices.connection import DeviceLink
    from edgehub.devices.request_queue import DeviceRequestQueue
    from edgehub.devices.source import DeviceProfile, DeviceSource, SessionState, StoredDevice
    from edgehub.lora.device import LorawanSession

T = TypeVar("T")

SAVE_EVERY = 10
"""Frames after which a counter is written; a hub that takes over may be behind by as many, and by
those that were in one commit."""

log = structlog.get_logger(__name__)


class DeviceDependencies(Struct, frozen=True, kw_only=True):
    """What all devices of a hub share.

    Attributes:
        hub_id: Name of this hub.
        clock: Timers and times.
        source: Where devices are kept.
        coordinator: Elects hubs.
        flags: What this hub remembers of elections.
        rules: Figures of the affinity.
        link_of: Returns the session of a device.
        tasks: Where closes run.
        reports: Reports of what is stored.
        frames: Stored ones of messages that are sent later over the connection, which is opened
            then; None = handling a message sends it, and opens the connection.
    """

    hub_id: str
    clock: Clock
    source: DeviceSource
    coordinator: Coordinator
    flags: Flags
    rules: AffinityRules
    link_of: Callable[[str], DeviceLink]
    tasks: asyncio.TaskGroup
    reports: StoredReports
    frames: StoredFrames | None = None


class _Durable(Struct):
    """The highest counter in one session whose message is durable."""

    f_cnt: int


class Device:
    """One device; created by `Devices`."""

    __slots__ = (
        "_commit",
        "_durable",
        "_frame",
        "_loaded_s",
        "_reread_s",
        "_saved_f_cnt",
        "connection",
        "copies",
        "device_id",
        "heard",
        "is_known",
        "join_copies",
        "queue",
        "repeats",
        "seen_s",
        "shared",
        "stored",
    )

    def __init__(
        self, device_id: str, shared: DeviceDependencies, queue: DeviceRequestQueue
    ) -> None:
        self.device_id = device_id
        self.shared = shared
        self.queue = queue
        self.connection = DeviceConnection(
            device_id,
            shared.link_of(device_id),
            owns=lambda: self.ownership is Ownership.OWNER,
            clock=shared.clock,
            tasks=shared.tasks,
        )
        self.copies = RecentFrames(shared.clock)
        self.join_copies = RecentFrames(shared.clock)
        self.heard = False
        """Whether a frame of this session was processed here."""
        self.repeats = 0
        """How often the last frame was answered again."""
        self.is_known = False
        """Whether it was loaded once, or another hub answered its join."""
        self.seen_s = shared.clock.monotonic()
        self.stored: StoredDevice | None = None
        """What was loaded of it, None = nothing yet."""
        self._frame: StoredFrame | None = None
        """The one of it that was stored last, as far as it may repeat it."""
        self._loaded_s = 0.0
        self._reread_s: dict[RequestKind, float] = {}
        """When frames of a kind had it read again."""
        self._saved_f_cnt = 0
        self._commit: Commit | None = None
        self._durable = _Durable(0)

    @property
    def commit(self) -> Commit | None:
        """Return the commit of its newest message, None = it is over."""
        return None if self._commit is None or self._commit.done() else self._commit

    @property
    def ownership(self) -> Ownership:
        """Return which hub owns it."""
        return self.shared.flags.of(self.device_id)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing runs, waits, is committed or uses its connection."""
        return self.queue.is_idle and self.connection.is_idle and self.commit is None

    @property
    def profile(self) -> DeviceProfile:
        """Return its settings; it must be loaded."""
        assert self.stored is not None, self.device_id
        return self.stored.profile

    @property
    def session(self) -> SessionState:
        """Return its session; it must be loaded."""
        assert self.stored is not None, self.device_id
        return self.stored.session

    def adopt(self, stored: StoredDevice, *, f_cnt_up: int | None = None) -> None:
        """Replace what is known of it by a state that was loaded or saved.

        Args:
            stored: What its source has.
            f_cnt_up: The counter of the same session as it was counted here, None = as stored.
        """
        if self.stored is None or self.stored.session.session != stored.session.session:
            self.heard = False
            self.repeats = 0
            self.copies.clear()
            self._durable = _Durable(stored.session.f_cnt_up)
        self._saved_f_cnt = stored.session.f_cnt_up
        if f_cnt_up is not None:
            stored = replace(stored, session=replace(stored.session, f_cnt_up=f_cnt_up))
        self.stored = stored
        self.is_known = True
        self._loaded_s = self.shared.clock.monotonic()
        self.connection.set_keep_alive(stored.profile.keep_alive_s)

    def forget(self) -> None:
        """Load it again before its next frame: another hub gave it another session."""
        self.is_known = True
        self.stored = None

    def silent_s(self) -> float:
        """Return the seconds since it was heard last."""
        return self.shared.clock.monotonic() - self.seen_s

    def loaded_age_s(self) -> float:
        """Return the seconds since it was read."""
        return self.shared.clock.monotonic() - self._loaded_s

    async def ask(self, question: Awaitable[T]) -> T:
        """Wait for an answer of the coordinator, as long as the rules allow.

        Raises:
            CoordinatorUnreachableError: There is none.
        """
        timeout_s = self.shared.rules.answer_timeout_s
        try:
            async with deadline(self.shared.clock, timeout_s):
                return await question
        except TimeoutError as exc:
            raise CoordinatorUnreachableError(
                self.device_id, f"no answer within {timeout_s:g} s"
            ) from exc

    async def wait_as_loser(self) -> bool:
        """Wait so that the owner asks first; return whether this hub lost the device and waited."""
        rules = self.shared.rules
        if not rules.is_sticky or self.ownership is not Ownership.LOSER:
            return False
        await self.shared.clock.sleep(rules.processing_delay_ms / 1000)
        return True

    async def ensure_loaded(
        self, fits: Callable[[StoredDevice], bool] | None = None, address: str = ""
    ) -> bool:
        """Load it unless it is loaded and fits; inside its queue.

        Args:
            fits: Returns whether a frame is of its present session, None = any frame is.
            address: At which the frame came.

        Returns:
            Whether this hub has waited as a loser.

        Raises:
            DeviceError: It could not be loaded.
        """
        if self.stored is not None and (
            fits is None
            or fits(self.stored)
            or not self.may_reread(RequestKind.DATA, has_moved=self.session.address != address)
        ):
            return False
        waited = await self.wait_as_loser()
        await self.load()
        return waited

    def may_reread(self, kind: RequestKind, *, has_moved: bool = False) -> bool:
        """Return whether a frame that does not fit may have it read again, which begins a pause.

        Args:
            kind: Of the frame; forged ones of one kind do not delay those of another.
            has_moved: Its source has it at another address: another hub has answered its join.
        """
        rules, now = self.shared.rules, self.shared.clock.monotonic()
        pause_s = rules.reload_pause_s
        is_owner = self.ownership is Ownership.OWNER and not has_moved
        if self.shared.source.needs_connection and is_owner:
            pause_s = rules.owner_reload_pause_s
        if now - self._reread_s.get(kind, -math.inf) < pause_s:
            return False
        self._reread_s[kind] = now
        return True

    async def load(self) -> None:
        """Read it from its source, and close its connection; inside its queue.

        Raises:
            DeviceError: It could not be read.
        """
        async with self.connection.activity():
            self.connection.request_close()
            stored = await self._read()
        known, frames = self.stored, self.shared.frames
        f_cnt_up = None
        if known is not None and known.session.session == stored.session.session:
            # What was counted here may be newer than what was written last.
            f_cnt_up = max(known.session.f_cnt_up, stored.session.f_cnt_up)
        elif known is None and self._frame is None and frames is not None:
            self._frame = await frames.load(self.device_id)
            f_cnt_up = self._counted_before(stored.session)
        self.adopt(stored, f_cnt_up=f_cnt_up)
        if known is None:
            self._durable = _Durable(self.session.f_cnt_up)

    def frame(self, f_cnt: int, key: str) -> StoredFrame:
        """Return a frame of it, to be stored."""
        return StoredFrame(
            device_id=self.device_id,
            session=self.session.session,
            generation=self.session.generation,
            f_cnt=f_cnt,
            saved_f_cnt=self._saved_f_cnt,
            key=frame_key(key),
        )

    def has_stored(self, frame: StoredFrame) -> bool:
        """Return whether a frame is the one of it that was stored last."""
        last = self._frame
        return last is not None and (last.session, last.f_cnt, last.key) == (
            frame.session,
            frame.f_cnt,
            frame.key,
        )

    def note_stored(self, frame: StoredFrame) -> None:
        """Record a frame that was stored; inside its queue."""
        self._frame = frame

    async def refresh(self) -> bool:
        """Read settings again; False = nothing was read, as another hub owns the device.

        Raises:
            DeviceError: It could not be read; what is known stays in force.
        """
        return await self.queue.run(RequestKind.REFRESH, self._refresh)

    async def take_over_settings(self) -> None:
        """Reload settings that were changed; a hub that lost the device does so at its next frame.

        Raises:
            DeviceError: They could not be read; what is known stays in force.
        """

        async def run() -> None:
            if not await self._refresh():
                self.stored = None

        await self.queue.run(RequestKind.REFRESH, run)

    async def start_over(self) -> None:
        """Read it again before its next frame, without the counters of this hub; in its turn."""

        async def run() -> None:
            self.stored = self._frame = None

        await self.queue.run(RequestKind.REFRESH, run)

    async def downlink(self, send: Callable[[], Awaitable[None]]) -> bool:
        """Send a message to the device between its own, False = another hub owns it.

        Raises:
            DeviceError: It could not be sent.
        """

        async def run() -> bool:
            if self.ownership is not Ownership.OWNER:
                return False
            await self.ensure_loaded()
            async with self.connection.activity():
                await self.connection.ensure_open()
                await send()
            return True

        return await self.queue.run(RequestKind.DOWNLINK, run)

    async def close(self) -> None:
        """Close its connection as soon as it is unused, at the latest in its turn."""
        self.connection.request_close()

        await self.queue.run(RequestKind.CLOSE, self.connection.settled)

    async def reread_as_owner(self) -> None:
        """Read it when ownership is regained, as another hub has changed it; inside its queue.

        If the source cannot be read, the message is handled with what is known.
        """
        try:
            stored = await self._read()
        except DeviceError as exc:
            log.warning("device.reread_failed", device_id=self.device_id, reason=exc.reason)
            return
        self.adopt(stored)

    async def save(self, f_cnt: int, commit: Commit | None, *, restarted: bool) -> bool:
        """Count a processed frame, and write the counter every few frames; inside its queue.

        What is written is the counter up to which messages are durable: with a higher one, a
        message that a crash took would pass for a repetition when it is sent again.

        Args:
            f_cnt: Its counter.
            commit: Of its message, None = it waits for none of its own.
            restarted: The device counts from the start again; `commit` is over.

        Returns:
            Whether it was written.
        """
        stored = self.stored
        assert stored is not None
        self.stored = stored = replace(stored, session=replace(stored.session, f_cnt_up=f_cnt))
        if restarted:
            self._durable = _Durable(f_cnt)
        else:
            self._follow(f_cnt, commit)
        if self.ownership is not Ownership.OWNER:
            return False  # the new owner writes
        session = self._durable_session()
        if not restarted and session.f_cnt_up - self._saved_f_cnt < SAVE_EVERY:
            return False
        try:
            if self.shared.source.needs_connection:
                await self.connection.ensure_open()
            await self.shared.source.save(self.device_id, session)
        except DeviceError as exc:
            log.warning("device.save_failed", device_id=self.device_id, reason=exc.reason)
            return False
        self._saved_f_cnt = session.f_cnt_up
        return True

    async def change_session(self, change: Callable[[SessionState], SessionState]) -> SessionState:
        """Change its session and write it; inside its queue. Returns what it was.

        Raises:
            DeviceError: It could not be read or written; nothing has changed.
        """
        await self.ensure_loaded()
        before = self.session
        await self._write(change(self._durable_session()), entitled=True)
        return before

    def note_lora(self, lora: LorawanSession) -> None:
        """Record what is written with the next change of the session; inside its queue."""
        assert self.stored is not None
        self.stored = replace(self.stored, session=replace(self.session, lora=lora))

    async def save_lora(self, lora: LorawanSession) -> None:
        """Write keys and counters of a LoRaWAN session; inside its queue.

        Raises:
            DeviceError: They could not be written; nothing has changed.
        """
        assert self.stored is not None
        await self._write(replace(self._durable_session(), lora=lora))

    async def _write(self, session: SessionState, *, entitled: bool = False) -> None:
        """Write a session, which keeps the counter of this hub in memory."""
        assert self.stored is not None
        async with self.connection.activity():
            if self.shared.source.needs_connection:
                await self.connection.ensure_open(entitled=entitled)
            await self.shared.source.save(self.device_id, session)
        kept = replace(session, f_cnt_up=self.session.f_cnt_up)
        self.stored = replace(self.stored, session=kept)
        self._saved_f_cnt = session.f_cnt_up

    def _follow(self, f_cnt: int, commit: Commit | None) -> None:
        """Count a frame as durable after its commit; one without is as durable as those before."""
        durable = self._durable

        def committed(_: object = None) -> None:
            durable.f_cnt = max(durable.f_cnt, f_cnt)

        if commit is not None:
            self._commit = commit
        pending = self.commit
        if pending is None:
            committed()
        else:
            pending.add_done_callback(committed)

    def _durable_session(self) -> SessionState:
        session = self.session
        return replace(session, f_cnt_up=min(session.f_cnt_up, self._durable.f_cnt))

    async def _refresh(self) -> bool:
        if self.stored is None or self.ownership is Ownership.LOSER:
            return False
        if self.ownership is Ownership.UNKNOWN:
            await self.load()
            return True
        known = self.stored.session
        async with self.connection.activity():
            stored = await self._read()
        if stored.session.session == known.session and self.ownership is Ownership.OWNER:
            # The owner's counters are newer than what it wrote last.
            self.adopt(stored, f_cnt_up=known.f_cnt_up)
        else:
            self.adopt(stored)
        return True

    def _counted_before(self, session: SessionState) -> int | None:
        """Return the counter of what was stored before this hub ended, None = it says no more."""
        frame = self._frame
        if frame is None or frame.session != session.session:
            return None
        # If the source was written since, its counter is newer, perhaps by another hub.
        return frame.f_cnt if frame.saved_f_cnt == session.f_cnt_up else None

    async def _read(self) -> StoredDevice:
        source = self.shared.source
        if source.needs_connection:
            await self.connection.ensure_open(entitled=True)
        stored = await source.load(self.device_id)
        if stored.profile.device_id != self.device_id:
            raise DeviceUnknownError(self.device_id, f"{stored.profile.device_id} was read instead")
        self._durable = _Durable(stored.session.f_cnt_up)
        return stored
