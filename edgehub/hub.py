"""The composition root: builds every object of a hub, starts them in order, stops in reverse.

Owns which parts exist; each part owns its own state. Invariant: task groups are nested by life
time, store around pumps around heads, so that a part never outlives what it hands its work to. A
part that fails records itself and asks for the orderly stop; the others finish their work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

import edgehub
from edgehub.brokering import Brokering
from edgehub.clock import Clock, SystemClock
from edgehub.commands import Commands
from edgehub.config.configuration import Configuration, read_configuration
from edgehub.config.effective import DATABASE_NAME
from edgehub.config.origin import LoadedSettings
from edgehub.control.server import ControlServer
from edgehub.destinations import Surroundings
from edgehub.devices.identities import Identities
from edgehub.devices.tokens import Tokens
from edgehub.drain import CLOSE_TIMEOUT_S, FLUSH_TIMEOUT_S, drain, flush
from edgehub.egress import Egress
from edgehub.errors import EdgeHubError, first_of
from edgehub.hub_id import load_hub_id
from edgehub.ingress import IngressParts, build_http, build_listener
from edgehub.journaling import Journaling
from edgehub.lifecycle import Phase
from edgehub.mapping.mapping import Mapping
from edgehub.notify.reports import Reports
from edgehub.notify.service_manager import ServiceManager
from edgehub.operating.commands import Operating
from edgehub.operating.outlook import Outlook
from edgehub.overview import Overview
from edgehub.packet_limits import PacketLimits
from edgehub.parts import HubParts
from edgehub.reload import Reloader, ReloadParts
from edgehub.roaming import Roaming
from edgehub.route_table import RouteTableAssembly, build_router
from edgehub.serving import Serving, Shown
from edgehub.settings import Settings
from edgehub.state_file import STATE_NAME, StateFile
from edgehub.store.store import Store
from edgehub.storing import store_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.control.server import Command
    from edgehub.heads.head import Head
    from edgehub.heads.http.head import HttpHead
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.router import Router

log = structlog.get_logger(__name__)


class Hub:
    """One hub.

    Args:
        settings: Valid settings.
        reread: Reads the settings again for a reload, None = a reload finds them unchanged.
        clock: The system's clock, or a manual one in tests.
        rng: Randomness for jitter.
        service_manager: Who started the daemon and hears of it, None = nobody.
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
        self._failures: list[str] = []
        self._phase = Phase.STARTING
        self._hub_id = ""
        self._limits = PacketLimits()
        self._configuration: Configuration
        self._store: Store
        self._journaling: Journaling
        self._router: Router
        self._route_table: RouteTableAssembly
        self._egress: Egress
        self._identities: Identities
        self._tokens: Tokens
        self._serving: Serving
        self._listener: MqttListener
        self._http: HttpHead | None = None
        self._brokering: Brokering
        self._mapping: Mapping
        self._roaming: Roaming
        self._state: StateFile
        self._reloader: Reloader
        self._overview: Overview
        self._commands: dict[str, Command] = {}
        self.started = asyncio.Event()

    @property
    def mqtt_port(self) -> int:
        """Give the port that the listener has; known once the hub has started."""
        return self._listener.addresses[0][1]

    @property
    def http_port(self) -> int | None:
        """Give the port of the HTTP head, None = there is none; known once the hub has started."""
        return None if self._http is None else self._http.addresses[0][1]

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
                reports = self._spawn(group, self._reports.run, "reports")
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
        log.info("hub.stopped", hub_id=self._hub_id, failures=self._failures)
        return not self._failures

    async def _run(self) -> None:
        settings = self._loaded.settings
        self._hub_id = await asyncio.to_thread(load_hub_id, settings.data_dir, settings.hub_id)
        self._configuration = await asyncio.to_thread(
            read_configuration, self._loaded, hub_id=self._hub_id
        )
        for warning in self._configuration.all_warnings:
            log.warning("hub.configuration_doubtful", warning=warning)
        async with contextlib.AsyncExitStack() as files:
            self._store = await Store.open(
                settings.data_dir / DATABASE_NAME,
                clock=self._clock,
                options=store_options(settings),
            )
            files.push_async_callback(self._store.close)
            self._state = await StateFile.open(settings.data_dir / STATE_NAME)
            files.push_async_callback(self._state.close)
            self._journaling = Journaling(
                settings, hub_id=self._hub_id, store=self._store, clock=self._clock
            )
            async with asyncio.TaskGroup() as group:
                writer = self._spawn(group, self._store.run, "store")
                journal = self._spawn(group, self._journaling.run, "journal")
                try:
                    await self._serve()
                    await flush(self._store)
                    await self._journaling.end()
                finally:
                    journal.cancel()
                    writer.cancel()

    async def _serve(self) -> None:
        self._admit()
        self._router = build_router(
            self._configuration,
            self._store,
            identities=self._identities,
            limits=self._limits,
            clock=self._clock,
        )
        self._route_table = await self._open_table()
        self._roaming = self._build_roaming()
        self._build_heads()
        control = ControlServer(self._loaded.settings.control_path, self._commands)
        await self._listen()
        self._mapping = await self._open_mapping()
        try:
            async with asyncio.TaskGroup() as pumps:
                await self._roaming.open(pumps, partial(self._spawn, pumps), self._state)
                # A hub that cannot have the socket starts no pump. From here on to the commands
                # nothing waits, so nobody meets a hub that knows none.
                await control.open()
                self._egress = self._build_egress(pumps)
                self._egress.ensure()
                self._route_table.attach(self._egress)
                self._reloader = self._build_reloader()
                parts = self._parts()
                self._answer_for(parts)
                async with asyncio.TaskGroup() as heads:
                    serving = [
                        self._spawn(heads, head.run, type(head).__name__) for head in self._heads()
                    ]
                    reloader = self._spawn(heads, self._reloader.run, "reloader")
                    table = self._spawn(heads, self._route_table.run, "route table")
                    outlook = self._spawn(heads, parts.outlook.run, "outlook")
                    self._announce()
                    serving.append(self._spawn(heads, self._serving.run, "web"))
                    await self._stopping.wait()
                    # No reload may start a pump that the drain does not know.
                    reloader.cancel()
                    table.cancel()
                    await asyncio.wait({reloader, table})
                    await self._drain()
                    for head_task in serving:
                        head_task.cancel()
                    outlook.cancel()
                await self._roaming.end()
                self._egress.cancel()
        finally:
            self._mapping.close()
            await control.close()
            await self._route_table.close()
            await self._fall_silent()

    def _answer_for(self, parts: HubParts) -> None:
        self._overview = Overview(parts)
        self._commands.update(Commands(parts, self.status).table())

    async def _listen(self) -> None:
        for head in self._heads():
            await head.open()
        self._serving = self._build_serving()
        await self._serving.open()

    async def _fall_silent(self) -> None:
        await self._serving.close()
        for head in self._heads():
            await head.close()
        self._identities.close()

    def _admit(self) -> None:
        self._identities = Identities()
        self._identities.apply(self._configuration.identities)
        self._tokens = Tokens()
        self._tokens.apply(self._configuration.tokens)

    async def _open_table(self) -> RouteTableAssembly:
        table = RouteTableAssembly(
            self._configuration,
            hub_id=self._hub_id,
            router=self._router,
            state=self._state,
            clock=self._clock,
            rng=self._rng,
        )
        await table.open()
        return table

    def _build_roaming(self) -> Roaming:
        return Roaming(
            self._loaded.settings,
            hub_id=self._hub_id,
            store=self._store,
            router=self._router,
            clock=self._clock,
        )

    def _build_heads(self) -> None:
        settings, tls = self._loaded.settings, self._configuration.tls
        parts = IngressParts(
            hub_id=self._hub_id,
            store=self._store,
            router=self._router,
            submit=self._roaming.take,
            identities=self._identities,
            clock=self._clock,
        )
        self._listener = build_listener(
            settings,
            parts,
            device_bound_interest=self._device_bound_interest,
            link_up=self._upstream_is_up,
            tls=None if tls is None else tls.context,
        )
        self._http = build_http(settings, parts)
        self._brokering = Brokering(
            settings,
            hub_id=self._hub_id,
            store=self._store,
            submit=self._roaming.take,
            space=self._listener.space,
            takes_qos0=self._listener.takes_qos0,
            clock=self._clock,
            rng=self._rng,
        )
        self._brokering.follow(self._router)

    def _build_serving(self) -> Serving:
        return Serving(
            self._loaded.settings.web,
            tokens=self._tokens,
            clock=self._clock,
            shown=Shown(
                phase=lambda: self._phase,
                status=self.status,
                table=self._route_table.table,
                desk=lambda: self._mapping.desk,
            ),
        )

    async def _open_mapping(self) -> Mapping:
        mapping = Mapping(
            self._loaded.settings,
            hub_id=self._hub_id,
            store=self._store,
            router=self._router,
            space=self._listener.space,
            clock=self._clock,
            takes_qos0=self._listener.takes_qos0,
        )
        await mapping.open()
        return mapping

    def _heads(self) -> list[Head]:
        heads = (self._listener, self._http, self._brokering.head)
        return [head for head in heads if head is not None]

    # Clients are served only while the way out exists, which is built after the listener.

    def _device_bound_interest(self, device_id: str, wanted: bool) -> None:
        self._egress.device_bound_interest(device_id, wanted)

    def _upstream_is_up(self) -> bool:
        return self._egress.upstream_is_up()

    def _build_egress(self, group: asyncio.TaskGroup) -> Egress:
        return Egress(
            self._loaded.settings,
            Surroundings(
                hub_id=self._hub_id,
                store=self._store,
                sessions=self._listener,
                device_bound=self._listener.deliver_device_bound,
                table=lambda: self._router.table,
                clock=self._clock,
                rng=self._rng,
                spawn=lambda work, name: self._spawn(group, work, name),
                succession=self._mapping,
                lanes_of=self._roaming.lanes_of,
                limits=self._limits,
                publish_local=self._listener.space.publish,
                cloud_prefix=self._loaded.settings.mapper.topic_prefix,
                cloud_id=self._loaded.settings.mapper.external_id or self._hub_id,
                broker=self._loaded.settings.broker,
            ),
        )

    def _build_reloader(self) -> Reloader:
        return Reloader(
            self._configuration,
            hub_id=self._hub_id,
            parts=ReloadParts(
                identities=self._identities,
                tokens=self._tokens,
                listener=self._listener,
                route_table=self._route_table,
                egress=self._egress,
                store=self._store,
                serving=self._serving,
                http=self._http,
                brokering=self._brokering,
            ),
            reread=self._reread,
            wanted=self._reloading,
            reports=self._reports,
        )

    def _parts(self) -> HubParts:
        losing = (self._router, self._listener, self._mapping, self._brokering)
        lost = [part.losses for part in losing]
        if self._http is not None:
            lost.append(self._http.losses)
        outlook = Outlook(self._store, self._egress, self._clock, lost)
        return HubParts(
            hub_id=self._hub_id,
            clock=self._clock,
            store=self._store,
            router=self._router,
            route_table=self._route_table,
            egress=self._egress,
            listener=self._listener,
            http=self._http,
            outlook=outlook,
            operating=Operating(
                store=self._store,
                egress=self._egress,
                outlook=outlook,
                journaling=self._journaling,
                router=self._router,
                rows_changed=self._mapping.rows_changed,
            ),
            reloader=self._reloader,
            reports=self._reports,
            assemblies=[
                self._journaling,
                self._route_table,
                self._mapping,
                self._serving,
                self._brokering,
                self._roaming,
            ],
        )

    def _announce(self) -> None:
        self._phase = Phase.RUNNING
        self._reports.ready()
        self.started.set()
        log.info(
            "hub.started",
            hub_id=self._hub_id,
            version=edgehub.__version__,
            pid=os.getpid(),
            upstream=self._egress.has_upstream,
            mqtt_host=self._loaded.settings.mqtt.host,
            mqtt_port=self.mqtt_port,
            mqtt_tls_port=next((port for _, port in self._listener.tls_addresses), None),
            http_port=self.http_port,
            data_dir=str(self._loaded.settings.data_dir),
        )

    def _spawn(
        self, group: asyncio.TaskGroup, work: Callable[[], Awaitable[None]], name: str
    ) -> asyncio.Task[None]:
        return group.create_task(self._supervised(work, name), name=name)

    async def _supervised(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        # A supervision point: whatever fails here has been let through by its own part, so the hub
        # stops in order and the service manager starts it again.
        try:
            await work()
        except Exception as error:
            self._failures.append(f"{name}: {error!r}")
            log.exception("hub.part_failed", part=name)
            self.stop()

    async def _drain(self) -> None:
        self._phase = Phase.DRAINING
        timeout_s = self._reloader.configuration.settings.drain_timeout_s
        self._reports.stopping(timeout_s + FLUSH_TIMEOUT_S + CLOSE_TIMEOUT_S)
        await drain(
            self._heads(),
            self._egress,
            clock=self._clock,
            timeout_s=timeout_s,
            aborted=self._aborting,
        )
        log.info("hub.drain_ended", waiting=self._store.statistics().rows)

    def _summary(self) -> str:
        if self._phase is Phase.STARTING:
            return "recovers what is stored"
        return self._overview.summary(self._phase)

    def _stalled(self, seconds: float) -> dict[str, float]:
        return {} if self._phase is Phase.STARTING else self._egress.stalled(seconds)

    def status(self) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        return self._overview.document(self._phase)
