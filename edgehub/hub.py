"""The composition root: builds every object of a hub, starts them in order, stops in reverse.

Owns which parts exist; each part owns its own state. Invariant: task groups are nested by life
time, store around pumps around heads, so that a part never outlives what it hands its work to. A
part that fails records itself and asks for the orderly stop; the others finish their work.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any, Final

import structlog

import edgehub
from edgehub.clock import Clock, SystemClock
from edgehub.commands import Commands
from edgehub.config.configuration import Configuration, read_configuration
from edgehub.config.effective import DATABASE_NAME
from edgehub.config.origin import LoadedSettings
from edgehub.control.server import ControlServer
from edgehub.destinations import Surroundings
from edgehub.devices.identities import Identities
from edgehub.egress import Egress
from edgehub.errors import EdgeHubError
from edgehub.hub_id import load_hub_id
from edgehub.ingress import IngressParts, build_http, build_listener
from edgehub.journaling import Journaling
from edgehub.lifecycle import Phase
from edgehub.notify.reports import Reports
from edgehub.notify.service_manager import ServiceManager
from edgehub.operating.commands import Operating
from edgehub.operating.outlook import Outlook
from edgehub.overview import Overview
from edgehub.parts import HubParts
from edgehub.reload import Reloader, ReloadParts, store_caps
from edgehub.router import Router
from edgehub.settings import Settings
from edgehub.store.options import ClockTrust, StoreOptions, TtlWhileOff
from edgehub.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from edgehub.control.server import Command
    from edgehub.heads.head import Head
    from edgehub.heads.http.head import HttpHead
    from edgehub.heads.mqtt.listener import MqttListener

# Time for what was taken to be committed after the drain; beyond it the process ends regardless:
# whatever was not committed was not acknowledged either.
FLUSH_TIMEOUT_S: Final = 5.0

# For closing links, heads and files after that; then the service manager may end the process.
CLOSE_TIMEOUT_S: Final = 10.0

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
        self._configuration: Configuration
        self._store: Store
        self._journaling: Journaling
        self._router: Router
        self._egress: Egress
        self._identities: Identities
        self._listener: MqttListener
        self._http: HttpHead | None = None
        self._reloader: Reloader
        self._overview: Overview
        # The control socket opens before pumps start, so that a hub that cannot have it starts
        # none; its commands come with the parts that carry them out.
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
            refused = _first(group_of_errors)
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
        self._store = await Store.open(
            settings.data_dir / DATABASE_NAME,
            clock=self._clock,
            options=StoreOptions(
                durable=settings.store.durable,
                commit_linger_ms=settings.store.commit_linger_ms,
                check_entire_queue_on_cleanup=settings.store.check_entire_queue_on_cleanup,
                cache_bytes_max=settings.store.cache_bytes,
                clock_trust=ClockTrust(settings.clock.trust),
                ttl_while_off=TtlWhileOff(settings.clock.ttl_while_off),
                journal=settings.journal.enabled,
                caps=store_caps(settings.store),
            ),
        )
        self._journaling = Journaling(
            settings, hub_id=self._hub_id, store=self._store, clock=self._clock
        )
        try:
            async with asyncio.TaskGroup() as group:
                writer = self._spawn(group, self._store.run, "store")
                journal = self._spawn(group, self._journaling.run, "journal")
                try:
                    await self._serve()
                    await self._flush()
                    await self._journaling.end()
                finally:
                    journal.cancel()
                    writer.cancel()
        finally:
            await self._store.close()

    async def _serve(self) -> None:
        self._identities = Identities()
        self._identities.apply(self._configuration.identities)
        self._router = Router(self._configuration.table, self._store)
        self._build_heads()
        control = ControlServer(self._loaded.settings.control_path, self._commands)
        for head in self._heads():
            await head.open()
        await control.open()
        try:
            async with asyncio.TaskGroup() as pumps:
                self._egress = self._build_egress(pumps)
                self._egress.ensure()
                self._reloader = self._build_reloader()
                parts = self._parts()
                self._overview = Overview(parts)
                self._commands.update(Commands(parts, self.status).table())
                async with asyncio.TaskGroup() as heads:
                    serving = [
                        self._spawn(heads, head.run, type(head).__name__) for head in self._heads()
                    ]
                    reloader = self._spawn(heads, self._reloader.run, "reloader")
                    outlook = self._spawn(heads, parts.outlook.run, "outlook")
                    self._announce()
                    await self._stopping.wait()
                    # No reload may start a pump that the drain does not know.
                    reloader.cancel()
                    await asyncio.wait({reloader})
                    await self._drain()
                    for head_task in serving:
                        head_task.cancel()
                    outlook.cancel()
                self._egress.cancel()
        finally:
            await control.close()
            for head in self._heads():
                await head.close()
            self._identities.close()

    def _build_heads(self) -> None:
        settings, tls = self._loaded.settings, self._configuration.tls
        parts = IngressParts(
            hub_id=self._hub_id,
            store=self._store,
            router=self._router,
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

    def _heads(self) -> list[Head]:
        return [self._listener] if self._http is None else [self._listener, self._http]

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
            ),
        )

    def _build_reloader(self) -> Reloader:
        return Reloader(
            self._configuration,
            hub_id=self._hub_id,
            parts=ReloadParts(
                identities=self._identities,
                listener=self._listener,
                router=self._router,
                egress=self._egress,
                store=self._store,
                http=self._http,
            ),
            reread=self._reread,
            wanted=self._reloading,
            reports=self._reports,
        )

    def _parts(self) -> HubParts:
        outlook = Outlook(self._store, self._egress, self._clock)
        return HubParts(
            hub_id=self._hub_id,
            clock=self._clock,
            store=self._store,
            router=self._router,
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
            ),
            reloader=self._reloader,
            reports=self._reports,
            assemblies=[self._journaling],
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
        log.info("hub.drain_started", timeout_s=timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        await self._unless_aborted(self._drain_parts(deadline), timeout_s)
        log.info("hub.drain_ended", waiting=self._store.statistics().rows)

    async def _drain_parts(self, deadline: float) -> None:
        async with asyncio.TaskGroup() as group:
            for head in self._heads():
                group.create_task(head.drain(), name=f"drain[{type(head).__name__}]")
        await self._egress.drain(deadline)

    async def _unless_aborted(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name="drain")
            watch = group.create_task(self._aborting.wait(), name="abort")
            await asyncio.wait(
                {task, watch}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            watch.cancel()
            if not task.done():
                log.warning("hub.drain_cut_short", aborted=self._aborting.is_set())
                task.cancel()

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._store.flush()
        except TimeoutError:
            log.warning("hub.flush_cut_short", failing=self._store.statistics().failing)

    def _summary(self) -> str:
        if self._phase is Phase.STARTING:
            return "recovers what is stored"
        return self._overview.summary(self._phase)

    def _stalled(self, seconds: float) -> dict[str, float]:
        return {} if self._phase is Phase.STARTING else self._egress.stalled(seconds)

    def status(self) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        return self._overview.document(self._phase)


def _first(group: BaseExceptionGroup[EdgeHubError]) -> EdgeHubError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EdgeHubError)
    return error
