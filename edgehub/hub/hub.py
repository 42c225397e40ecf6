"""A hub: builds its parts, starts them in order, stops them in reverse.

Owns which parts there are; each part owns its own state. They are opened from the inside out, so
that no pump starts in a hub whose listeners have no address, and run from the outside in: task
groups are nested by life time, the store around endpoints around heads around changes, so that
nothing outlives what it hands its work to. A part that fails asks for the orderly stop; the others
finish their work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import TYPE_CHECKING, Any, Final

import structlog

import edgehub
from edgehub.clock import Clock, SystemClock
from edgehub.devices.identities import Identities
from edgehub.endpoints.relays import Relays
from edgehub.entities.tables import load_entities
from edgehub.errors import EdgeHubError, first_of
from edgehub.hub.broker import BrokerPart
from edgehub.hub.control import ControlPart
from edgehub.hub.devices import DevicesPart, load_flags
from edgehub.hub.drain import drain
from edgehub.hub.endpoint_factory import EndpointFactory
from edgehub.hub.endpoints import EndpointsPart
from edgehub.hub.entities import EntitiesPart
from edgehub.hub.heads import HttpPart, MqttPart
from edgehub.hub.journal import JournalPart
from edgehub.hub.losses import LossesPart
from edgehub.hub.queues import QueuesPart
from edgehub.hub.reload import ReloadPart
from edgehub.hub.routes import RoutesPart, build_router
from edgehub.hub.status import status_document, summary
from edgehub.hub.store import FLUSH_TIMEOUT_S, StorePart, store_options
from edgehub.hub.supervision import Supervision
from edgehub.hub.web import WebPart
from edgehub.hub_id import load_hub_id
from edgehub.lifecycle import Phase
from edgehub.notify.reports import Reports
from edgehub.notify.service_manager import ServiceManager
from edgehub.settings import Settings
from edgehub.settings.configuration import Configuration, read_configuration
from edgehub.settings.effective import DATABASE_NAME
from edgehub.settings.origin import LoadedSettings
from edgehub.storage.state_file import STATE_NAME, StateFile
from edgehub.store.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from edgehub.hub.part import Part
    from edgehub.operations.operation import Operation

    Stages = tuple[Sequence[Part], Sequence[Part], tuple[RoutesPart, ReloadPart]]
    """The ways out, the heads, and what changes either: each runs inside of the one before."""

CLOSE_TIMEOUT_S: Final = 10.0
"""For closing links, heads and files at the end; then the service manager may end the process."""

log = structlog.get_logger(__name__)


class Hub:
    """One hub.

    Args:
        settings: Valid settings.
        reread: Reads the settings again for a reload, None = a reload finds them unchanged.
        clock: The system's clock, or a manual one in tests.
        rng: Randomness for jitter.
        service_manager: What started the daemon and is notified of it, None = nothing is.

    Attributes:
        started: Set once it serves.
        operations: What may be asked of it by name, empty before it serves.
    """

    def __init__(
        self,
        settings: Settings | LoadedSettings,
        *,
        reread: Callable[[], LoadedSettings] | None = None,
        service_manager: ServiceManager | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if isinstance(settings, Settings):
            settings = LoadedSettings(settings=settings, origins={})
        loaded = settings
        self._loaded = loaded
        self._reread = reread or (lambda: loaded)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._reports = Reports(
            service_manager or ServiceManager(None),
            clock=self._clock,
            summary=self._summary,
            stalled=self._stalled,
        )
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._reloading = asyncio.Event()
        self._supervision = Supervision(self.stop)
        self._phase = Phase.STARTING
        self._parts: list[Part] = []
        self.operations: dict[str, Operation] = {}
        self.started = asyncio.Event()

    @property
    def mqtt_port(self) -> int:
        """Return the port that the listener has; known once the hub has started."""
        port = self._ports()["mqtt_port"]
        assert port is not None, "there always is a listener"
        return port

    @property
    def http_port(self) -> int | None:
        """Return the port of the HTTP head, None = there is none; known once it has started."""
        return self._ports()["http_port"]

    def status(self) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        return status_document(self._phase, self._parts, self._reports.stalled)

    def stop(self) -> None:
        """Ask for the orderly stop."""
        self._stopping.set()

    def abort(self) -> None:
        """End the waiting of an orderly stop."""
        self._stopping.set()
        self._aborting.set()

    def reload(self) -> None:
        """Ask for settings, manifest and identities to be read again."""
        self._reloading.set()

    async def run(self) -> bool:
        """Open, serve until asked to stop, drain and close.

        Returns:
            True if no part failed on the way.

        Raises:
            StartupError: If the hub cannot start.
            ConfigError: If manifest, identities or files that the settings name are wrong.
        """
        refused: EdgeHubError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                work = self._supervision.run(self._reports.run, "reports")
                reports = group.create_task(work, name="reports")
                try:
                    await self._run()
                finally:
                    reports.cancel()
        except* EdgeHubError as group_of_errors:
            # The task groups wrap what a part refuses at the start; callers want its own type.
            refused = first_of(group_of_errors)
        finally:
            self._phase = Phase.STOPPED
        if refused is not None:
            raise refused
        return not self._supervision.failures

    async def _run(self) -> None:
        settings, clock = self._loaded.settings, self._clock
        hub_id = await asyncio.to_thread(load_hub_id, settings.data_dir, settings.hub_id)
        configuration = await asyncio.to_thread(read_configuration, self._loaded, hub_id=hub_id)
        for warning in configuration.all_warnings:
            log.warning("hub.config_warning", warning=warning)
        async with contextlib.AsyncExitStack() as files:
            store = await Store.open(
                settings.data_dir / DATABASE_NAME, clock=clock, options=store_options(settings)
            )
            files.push_async_callback(store.close)
            state = await StateFile.open(settings.data_dir / STATE_NAME)
            files.push_async_callback(state.close)
            journal = JournalPart(settings, hub_id=hub_id, store=store, clock=clock)
            kept = StorePart(hub_id, store)
            async with self._running((kept, journal)):
                stages = await self._build(configuration, hub_id, kept, journal, state)
                self._parts += [kept, journal, *(part for stage in stages for part in stage)]
                for part in self._parts:
                    self.operations |= {each.name: each for each in part.operations()}
                await self._serve(stages)
                await kept.drain(clock.monotonic())
                await journal.drain(clock.monotonic())
        log.info("hub.stopped", hub_id=hub_id, failures=self._supervision.failures)

    async def _serve(self, stages: Stages) -> None:
        async with contextlib.AsyncExitStack() as opened:
            for stage in reversed(stages):
                for part in stage:
                    opened.push_async_callback(part.close)
                    await part.open()
            ways_out, heads, changes = stages
            async with self._running(ways_out), self._running(heads):
                async with self._running(changes):
                    # All of them begin before any client has an answer.
                    await asyncio.sleep(0)
                    self._announce()
                    await self._stopping.wait()
                # No reload may start a pump that the drain does not know.
                timeout_s = changes[1].configuration.settings.drain_timeout_s
                await self._drain((heads, ways_out), timeout_s)

    @contextlib.asynccontextmanager
    async def _running(self, parts: Sequence[Part]) -> AsyncIterator[None]:
        """Run parts side by side, and end them one by one from the last."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._supervision.run(part.run, part.name), name=part.name)
                for part in parts
            ]
            try:
                yield
            finally:
                for task in reversed(tasks):
                    task.cancel()
                    await asyncio.wait({task})

    async def _build(
        self,
        configuration: Configuration,
        hub_id: str,
        kept: StorePart,
        journal: JournalPart,
        state: StateFile,
    ) -> Stages:
        settings, store, clock = configuration.settings, kept.store, self._clock
        identities = Identities()
        identities.apply(configuration.identities)
        router = build_router(configuration, store, identities=identities, clock=clock)
        relays = Relays()
        devices = DevicesPart(
            settings,
            await load_flags(settings, store),
            hub_id=hub_id,
            store=store,
            state=state,
            router=router,
            clock=clock,
            supervision=self._supervision,
        )
        mqtt = MqttPart(
            configuration,
            hub_id=hub_id,
            store=store,
            router=router,
            submit=devices.take,
            identities=identities,
            relays=relays,
            clock=clock,
        )
        listener = mqtt.head
        entities = EntitiesPart(
            settings,
            await store.database.run(load_entities),
            hub_id=hub_id,
            store=store,
            router=router,
            space=listener.context.space,
            clock=clock,
            takes_qos0=listener.context.takes_qos0,
        )
        endpoints = EndpointsPart(
            EndpointFactory(
                settings, hub_id=hub_id, store=store, listener=listener, clock=clock, rng=self._rng
            ),
            store=store,
            router=router,
            relays=relays,
            devices=devices,
            entities=entities,
            clock=clock,
            supervision=self._supervision,
        )
        routes = RoutesPart(
            configuration,
            hub_id=hub_id,
            router=router,
            state=state,
            endpoints=endpoints,
            clock=clock,
            rng=self._rng,
        )
        queues = QueuesPart(
            store=store,
            endpoints=endpoints,
            journal=journal,
            router=router,
            routes=routes,
            entities=entities,
            clock=clock,
            describe=self.status,
        )
        http = HttpPart(
            settings, store=store, submit=devices.take, identities=identities, clock=clock
        )
        broker = BrokerPart(
            settings,
            hub_id=hub_id,
            store=store,
            router=router,
            submit=devices.take,
            listener=listener,
            clock=clock,
            rng=self._rng,
        )
        web = WebPart(
            settings.web,
            configuration.tokens,
            clock,
            phase=lambda: self._phase,
            status=self.status,
            table=routes.table,
            operations=self.operations,
        )
        losses = LossesPart((routes, mqtt, http, entities, broker, endpoints), clock)
        reload = ReloadPart(
            configuration,
            hub_id=hub_id,
            parts=(routes, mqtt, http, web, kept, endpoints, broker),
            reread=self._reread,
            wanted=self._reloading,
            reports=self._reports,
        )
        control = ControlPart(
            settings.control_path, self.operations, lambda: reload.configuration.loaded.digest
        )
        return (
            (endpoints, devices, entities, queues, losses, control),
            (mqtt, http, broker, web),
            (routes, reload),
        )

    def _announce(self) -> None:
        self._phase = Phase.RUNNING
        self._reports.ready()
        self.started.set()
        settings = self._loaded.settings
        log.info(
            "hub.started",
            hub_id=self.status()["hub_id"],
            version=edgehub.__version__,
            pid=os.getpid(),
            upstream=settings.upstream is not None,
            mqtt_host=settings.mqtt.host,
            data_dir=str(settings.data_dir),
            **self._ports(),
        )

    async def _drain(self, stages: Sequence[Sequence[Part]], timeout_s: float) -> None:
        self._phase = Phase.DRAINING
        self._reports.stopping(timeout_s + FLUSH_TIMEOUT_S + CLOSE_TIMEOUT_S)
        await drain(stages, self._clock, timeout_s=timeout_s, aborted=self._aborting)
        waiting = sum(queue["depth"] for queue in self.status()["queues"])
        log.info("hub.drain_ended", waiting=waiting)

    def _ports(self) -> dict[str, int | None]:
        return {name: port for part in self._parts for name, port in part.ports().items()}

    def _summary(self) -> str:
        if self._phase is Phase.STARTING:
            return "recovers what is stored"
        [queues] = [part for part in self._parts if part.name == QueuesPart.name]
        return summary(self._phase, queues.status())

    def _stalled(self, seconds: float) -> dict[str, float]:
        return {name: s for part in self._parts for name, s in part.stalled(seconds).items()}
