"""Devices that several hubs hear: the parts that decide who speaks for one, put together.

Owns which coordinator, registry and flags there are, the tasks that keep them, and the way of
messages through them; the parts own their state. Invariants: a hub whose settings ask for nothing
of this elects no message; connections of devices are closed before the
group ends in which they live; Redis is imported only where the settings name it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins

from edgehub.devices.affinity.flags import Flags, Ownership, SoleOwnerFlags
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.affinity.notices import NoticeReader
from edgehub.devices.affinity.rules import AffinityRules
from edgehub.devices.affinity.stored_frames import StoredFrames
from edgehub.devices.affinity.stored_reports import StoredReports
from edgehub.devices.affinity.table import AffinityTable
from edgehub.devices.deadline import deadline
from edgehub.devices.device import DeviceDependencies
from edgehub.devices.devices import Devices
from edgehub.devices.election_queue import ElectionQueue
from edgehub.devices.faults import (
    CoordinatorUnreachableError,
    DeviceConnectionError,
    DeviceSourceError,
)
from edgehub.devices.hub_requests import HubRequests
from edgehub.devices.lorawan_registration import LorawanRegistration
from edgehub.devices.source import Activation, Deduplication, DeviceProfile
from edgehub.devices.state_registry import SCRIPT, StateRegistry
from edgehub.devices.upstream_sessions import UpstreamSessions
from edgehub.endpoints.device_session import SessionEnd, SessionError
from edgehub.hub.part import Part
from edgehub.hub.store import refusals
from edgehub.operations.arguments import PAGE_MAX
from edgehub.operations.devices import DeviceOperations
from edgehub.operations.lora import LorawanDeviceOperations
from edgehub.redis_link.faults import RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.affinity.coordinator import Coordinator
    from edgehub.devices.request_queues import RequestQueues
    from edgehub.devices.source import DeviceRegistry, DeviceSource, StoredDevice
    from edgehub.endpoints.device_sessions import DeviceSessions
    from edgehub.endpoints.device_twins import TwinAnswer
    from edgehub.heads.head import Submit
    from edgehub.hub.supervision import Supervision
    from edgehub.message import Message, Refusal
    from edgehub.operations.operation import Operation
    from edgehub.redis_link.link import RedisLink
    from edgehub.redis_link.write_probe import WriteProbe
    from edgehub.router import Router
    from edgehub.settings import Settings
    from edgehub.storage.state_file import StateFile
    from edgehub.store.store import Store

CATCH_UP_S: Final = 2.0
"""So long a start waits for the coordinator; without an answer the flags hold as they were."""

OWNER_S: Final = 2.0
"""So long an answer waits for the name of the owner of a device."""

log = structlog.get_logger(__name__)


async def load_flags(settings: Settings, store: Store) -> Flags:
    """Read what this hub knows of elections."""
    flags = Flags if settings.affinity.coordinator == "redis" else SoleOwnerFlags
    return await flags.open(AffinityTable(store))


class DevicesPart(Part):
    """The devices that several hubs hear: see the module.

    Args:
        settings: The hub's.
        flags: What this hub knows of elections.
        hub_id: Name of this hub.
        store: Keeps flags and ledger.
        state: Keeps the registry, where nothing else does.
        router: Takes messages.
        clock: For all timers.
        supervision: Of its tasks.

    Attributes:
        devices: Those in memory, through whose queues heads process frames.
        take: Takes messages of heads, through the queue of their device; see
            `edgehub.heads.head.Submit`.
        coordinator: Elects hubs.
        requests: The way to other hubs, None = there are none.
        frames: Stores messages of elected frames.
        registration: Of LoRaWAN devices.
    """

    name = "devices"

    def __init__(
        self,
        settings: Settings,
        flags: Flags,
        *,
        hub_id: str,
        store: Store,
        state: StateFile,
        router: Router,
        clock: Clock,
        supervision: Supervision,
    ) -> None:
        affinity = settings.affinity
        self._settings = settings
        self._flags = flags
        self._hub_id = hub_id
        self._store = store
        self._state = state
        self._clock = clock
        self._supervision = supervision
        self._tasks = asyncio.TaskGroup()
        self._table = AffinityTable(store)
        self._upstream: UpstreamSessions | None = None
        self._sessions: DeviceSessions | None = None
        self._link = self._redis() if "redis" in {affinity.coordinator, affinity.registry} else None
        self._probe = None if self._link is None else self._build_probe(self._link)
        self.frames = StoredFrames(store, router.submit)
        self._index = self._build_index()
        self._registry = None if self._index is not None else self._build_registry()
        self.coordinator, self._has_twin = self._build_coordinator()
        self.requests = self._build_requests()
        self._reports = StoredReports(hub_id, self.coordinator, clock)
        self.devices = Devices(
            DeviceDependencies(
                hub_id=hub_id,
                clock=clock,
                source=self._source(),
                coordinator=self.coordinator,
                flags=flags,
                rules=AffinityRules(
                    processing_delay_ms=affinity.processing_delay_ms,
                    answer_timeout_s=affinity.answer_timeout_s,
                ),
                link_of=lambda device_id: _SessionLink(device_id, lambda: self._sessions),
                tasks=self._tasks,
                reports=self._reports,
                frames=self.frames,
            ),
            devices_max=affinity.devices_max,
        )
        self.registration = LorawanRegistration(self._listed(), self.devices, self._common())
        self._submit: Submit = self.queues.submitter(router.submit)
        self._election_queue = ElectionQueue(
            self.devices,
            self._submit,
            frames=self.frames,
            tasks=self._tasks,
            rejected=refusals(store),
        )
        self.take: Submit = self._take_elected if self.elects else self._submit
        self._reader = None
        if affinity.coordinator == "redis":
            self._reader = NoticeReader(
                hub_id,
                coordinator=self.coordinator,
                flags=flags,
                devices=self.devices,
                clock=clock,
            )

    @property
    def queues(self) -> RequestQueues:
        """The request queues, through which all operations of a device go."""
        return self.devices.queues

    @property
    def elects(self) -> bool:
        """Whether numbered messages are elected."""
        return self._settings.affinity.coordinator != "off"

    async def other_owner(self, device_id: str) -> str | None:
        """Return the other hub that owns a device; None = this one, none, or not known now."""
        if self._flags.of(device_id) is Ownership.OWNER:
            return None
        try:
            async with deadline(self._clock, OWNER_S):
                owner = await self.coordinator.owner_of(device_id)
        except (TimeoutError, CoordinatorUnreachableError):
            return None
        return None if owner in {"", self._hub_id} else owner

    async def lorawan_devices(self) -> AsyncIterator[StoredDevice]:
        """Yield the registered LoRaWAN devices.

        Raises:
            DeviceSourceError: The registry cannot be read now.
        """
        after = ""
        registry = self._listed()
        while page := await registry.page(after, PAGE_MAX):
            for stored in page:
                if stored.profile.lora is not None:
                    yield stored
            after = page[-1].profile.device_id

    async def open(self) -> None:
        """Read what other hubs have taken, before any device is heard and any session opened."""
        await self._state.add(SCRIPT)
        if self._reader is None:
            return
        # What was stored last may not have been reported before this hub ended.
        for frame in await self.frames.newest():
            self._reports.add(frame)
        try:
            async with deadline(self._clock, CATCH_UP_S):
                await self._reader.catch_up()
                if self.requests is not None:
                    await self.requests.announce()
        except (TimeoutError, CoordinatorUnreachableError, RedisError) as exc:
            log.warning("affinity.started_on_old_flags", reason=str(exc) or "no answer in time")

    async def run(self) -> None:
        """Keep devices in step until cancelled; then close their connections."""
        async with self._tasks:
            running = [
                self._tasks.create_task(self._supervision.run(work, name), name=name)
                for name, work in self._work()
            ]
            try:
                await asyncio.Event().wait()
            finally:
                for task in running:
                    task.cancel()
                if self._upstream is not None:
                    await self._upstream.end()
                await self.devices.end()

    def _work(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        if self._probe is not None:
            yield "redis-writes", self._probe.run
        if self.elects or self._settings.lora.port is not None:
            yield "devices", self.devices.run
            yield "stored-reports", self._reports.run
        if self._reader is not None:
            yield "notices", self._reader.run
        if self.requests is not None:
            yield "hub-requests", self.requests.run

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._link is not None:
            await self._link.close()

    def _take_elected(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        if message.device_id == self._hub_id:
            # A topic of a broker that names no sender, for example: it is no device's.
            self._submit(message, settle, token)
        else:
            self._election_queue.submit(message, settle, token)

    def control(self, sessions: DeviceSessions) -> UpstreamSessions:
        """Return what decides over which of an endpoint's sessions rows leave, and when."""
        if self._upstream is not None:
            self._upstream.stop()
        self._sessions = sessions
        upstream = self._upstream = UpstreamSessions(
            self._hub_id,
            devices=self.devices,
            flags=self._flags,
            clock=self._clock,
            tasks=self._tasks,
            on_behalf=sessions.on_behalf,
            keep_alive_s=self._settings.affinity.keep_alive_s,
        )

        take_overs = {SessionEnd.TAKEN_OVER, SessionEnd.DROPPED}
        if self._settings.affinity.coordinator == "redis":
            # Another hub may have been elected, and this one not know yet.
            take_overs.add(SessionEnd.DROPPED_LATE)

        def ended(device_id: str, end: SessionEnd, _reason: str) -> None:
            upstream.session_ended(
                device_id,
                taken_over=end in take_overs,
                certain=end is SessionEnd.TAKEN_OVER,
            )

        sessions.over_hub = upstream.over_hub
        sessions.ended = ended
        sessions.link_changed = upstream.link_changed
        sessions.listening = upstream.listening
        sessions.may_open = upstream.may_open
        sessions.in_use = upstream.use
        return upstream

    def status(self) -> dict[str, Any]:
        """Return figures of elections, devices and their sessions."""
        statistics = self.devices.statistics()
        document: dict[str, Any] = {
            "coordinator": self._settings.affinity.coordinator,
            **to_builtins(statistics),
            "owned": self._flags.count(Ownership.OWNER),
            "lost": self._flags.count(Ownership.LOSER),
            "waiting_messages": self._election_queue.waiting if self.elects else 0,
        }
        if self._reader is not None:
            document["notices_unreachable_s"] = self._reader.unreachable_s()
        if self._upstream is not None and self._sessions is not None:
            document["upstream_sessions"] = to_builtins(self._upstream.statistics())
            document["sessions"] = self._sessions.open_sessions()
        return {"affinity": document, "requests": to_builtins(self.queues.statistics())}

    def warnings(self) -> list[str]:
        """List what keeps this hub from its share of the devices."""
        writes = [] if self._probe is None else self._probe.warnings()
        found = [f"affinity: {warning}" for warning in writes]
        if self._reader is not None and self._reader.unreachable_s() > 0:
            seconds = self._reader.unreachable_s()
            found.append(f"affinity: no answer from the coordinator for {seconds:.0f} s")
        if self._has_twin():
            found.append(
                f"affinity: another hub calls itself {self._hub_id} too; both send what one should"
            )
        paused = 0 if self._upstream is None else self._upstream.statistics().paused
        if paused:
            found.append(f"affinity: {paused} devices wait after their session was taken or lost")
        return found

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of devices."""
        devices = DeviceOperations(
            hub_id=self._hub_id,
            store=self._store,
            table=self._table,
            flags=self._flags,
            devices=self.devices,
            registry=self._registry,
            common=self._common(),
            coordinator=self._settings.affinity.coordinator,
        )
        lorawan = LorawanDeviceOperations(
            self._listed(),
            self.registration,
            self.devices,
            are_upstream=self._index is not None,
        )
        return (*devices.table(), *lorawan.table())

    def _common(self) -> DeviceProfile:
        affinity = self._settings.affinity
        return DeviceProfile(
            device_id="",
            deduplication=Deduplication(affinity.deduplication),
            keep_alive_s=affinity.keep_alive_s,
            # A device that numbers its messages begins again with 0 or 1 when it has forgotten, and
            # any number of them may have been lost before.
            activation=Activation.ABP,
            gap_max=None,
        )

    def _source(self) -> DeviceSource:
        if self._registry is not None:
            return self._registry
        from edgehub.devices.twin_source import TwinSource  # noqa: PLC0415 - only where configured

        twins = Twins(lambda: self._sessions)
        return TwinSource(twins, common=self._common(), index=self._listed())

    def _listed(self) -> DeviceRegistry:
        """Return where devices are listed: where they are kept, or what was read of twins."""
        listed = self._registry or self._index
        assert listed is not None, "there is one of them"
        return listed

    def _build_registry(self) -> DeviceRegistry:
        if self._link is None or self._settings.affinity.registry != "redis":
            return StateRegistry(self._state, common=self._common())
        from edgehub.devices.redis_registry import RedisRegistry  # noqa: PLC0415 - only where configured

        prefix = self._settings.redis.prefix
        return RedisRegistry(self._link, prefix=prefix, common=self._common())

    def _build_index(self) -> DeviceRegistry | None:
        """Return what finds LoRaWAN devices in twins, None = devices are not kept there."""
        if self._settings.affinity.registry != "twin":
            return None
        if self._link is None:
            return StateRegistry(self._state)
        from edgehub.devices.redis_registry import RedisRegistry  # noqa: PLC0415 - only where configured

        return RedisRegistry(self._link, prefix=f"{self._settings.redis.prefix}:twins")

    def _build_coordinator(self) -> tuple[Coordinator, Callable[[], bool]]:
        if self._link is None or self._settings.affinity.coordinator != "redis":
            return InProcessCoordinator(
                self._clock, incarnation=secrets.token_hex(4)
            ), lambda: False
        from edgehub.devices.affinity.redis_coordinator import RedisCoordinator  # noqa: PLC0415 - only where configured

        coordinator = RedisCoordinator(self._link, prefix=self._settings.redis.prefix)
        return coordinator, lambda: bool(coordinator.twin)

    def _build_requests(self) -> HubRequests | None:
        if self._link is None or self._settings.affinity.coordinator != "redis":
            return None
        prefix = self._settings.redis.prefix
        return HubRequests(self._link, prefix=prefix, hub_id=self._hub_id, clock=self._clock)

    def _build_probe(self, link: RedisLink) -> WriteProbe:
        from edgehub.redis_link.write_probe import WriteProbe  # noqa: PLC0415 - only where configured

        return WriteProbe(link, f"{{{self._settings.redis.prefix}}}:devices:probe", self._clock)

    def _redis(self) -> RedisLink:
        from edgehub.hub.redis import redis_link  # noqa: PLC0415 - only where configured

        name = f"edgehub-{self._hub_id}-devices"
        return redis_link(self._settings.redis, name=name)


class _SessionLink:
    """A device's session at the present endpoint; implements `DeviceLink`.

    Where the hub's one session carries all, there is none to open.
    """

    def __init__(self, device_id: str, sessions: Callable[[], DeviceSessions | None]) -> None:
        self._device_id = device_id
        self._sessions = sessions

    @property
    def is_open(self) -> bool:
        sessions = self._sessions()
        return sessions is not None and sessions.session(self._device_id).is_open

    async def open(self) -> None:
        sessions = self._sessions()
        if sessions is None:
            raise DeviceConnectionError(self._device_id, "no upstream has sessions of devices")
        try:
            await sessions.open(self._device_id)
        except SessionError as exc:
            raise DeviceConnectionError(self._device_id, str(exc)) from exc

    async def close(self) -> None:
        sessions = self._sessions()
        if sessions is not None:
            await sessions.session(self._device_id).close()


class Twins:
    """Twins at the present endpoint; implements `TwinAccess`."""

    def __init__(self, sessions: Callable[[], DeviceSessions | None]) -> None:
        self._sessions = sessions

    async def read(self, device_id: str) -> tuple[int, bytes]:
        """Return status and body of a twin."""
        answer = await self._ask(device_id, lambda sessions: sessions.twin(device_id))
        return answer.status, answer.body

    async def report(self, device_id: str, patch: bytes) -> int:
        """Send a patch of reported properties, and return the status."""
        answer = await self._ask(device_id, lambda sessions: sessions.report(device_id, patch))
        return answer.status

    async def _ask(
        self, device_id: str, question: Callable[[DeviceSessions], Awaitable[TwinAnswer]]
    ) -> TwinAnswer:
        sessions = self._sessions()
        if sessions is None:
            raise DeviceSourceError(device_id, "no upstream has sessions of devices")
        try:
            return await question(sessions)
        except SessionError as exc:
            raise DeviceSourceError(device_id, str(exc)) from exc
