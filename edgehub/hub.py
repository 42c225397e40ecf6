"""The composition root: builds every object of a hub, starts them in order, stops in reverse.

Owns which parts exist; each part owns its own state. Invariant: task groups are nested by life
time, store around pumps around heads, so that a part never outlives what it hands its work to. A
part that fails records itself and asks for the orderly stop; the others finish their work.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import structlog

import edgehub
from edgehub import status
from edgehub.clock import Clock, SystemClock
from edgehub.control.server import ControlServer
from edgehub.devices.identities import Identities
from edgehub.egress import Egress, Surroundings
from edgehub.errors import ConfigError, EdgeHubError
from edgehub.heads.mqtt.listener import MqttListener
from edgehub.heads.mqtt.options import ListenerOptions
from edgehub.hub_id import load_hub_id
from edgehub.lifecycle import Phase
from edgehub.message import EndpointId
from edgehub.router import Router
from edgehub.routes.manifest import DEFAULT_MANIFEST, Manifest, load_manifest
from edgehub.routes.table import RouteTable
from edgehub.store.options import StoreOptions
from edgehub.store.sessions import SessionTable
from edgehub.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from edgehub.settings import Settings

# Time for what was taken to be committed after the drain; beyond it the process ends regardless:
# whatever was not committed was not acknowledged either.
FLUSH_TIMEOUT_S: Final = 5.0

log = structlog.get_logger(__name__)


class Hub:
    """One hub.

    Args:
        settings: Valid settings.
        clock: The system's clock, or a manual one in tests.
        rng: Randomness for jitter.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._reloading = asyncio.Event()
        self._failures: list[str] = []
        self._phase = Phase.STARTING
        self._hub_id = ""
        self._manifest = DEFAULT_MANIFEST
        self._store: Store
        self._router: Router
        self._egress: Egress
        self._identities: Identities
        self._listener: MqttListener
        self.started = asyncio.Event()

    @property
    def mqtt_port(self) -> int:
        """Give the port that the listener has; known once the hub has started."""
        return self._listener.addresses[0][1]

    def stop(self) -> None:
        """Ask for the orderly stop."""
        self._stopping.set()

    def abort(self) -> None:
        """End the waiting of an orderly stop."""
        self._stopping.set()
        self._aborting.set()

    def reload(self) -> None:
        """Ask for manifest and identities to be read again."""
        self._reloading.set()

    async def run(self) -> bool:
        """Open, serve until asked to stop, drain and close.

        Returns:
            True if no part failed on the way.

        Raises:
            StartupError: If the hub cannot start.
            ConfigError: If the manifest or the identities are wrong.
        """
        settings = self._settings
        self._hub_id = await asyncio.to_thread(load_hub_id, settings.data_dir, settings.hub_id)
        self._manifest = await self._read_manifest()
        self._store = await Store.open(
            settings.data_dir / "queue.db",
            clock=self._clock,
            options=StoreOptions(
                commit_linger_ms=settings.store.commit_linger_ms,
                check_entire_queue_on_cleanup=settings.store.check_entire_queue_on_cleanup,
                cache_bytes_max=settings.store.cache_bytes,
            ),
        )
        refused: EdgeHubError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                writer = self._spawn(group, self._store.run, "store")
                try:
                    await self._serve()
                    await self._flush()
                finally:
                    writer.cancel()
        except* EdgeHubError as group_of_errors:
            # The task groups wrap what a part refuses at the start; callers want its own type.
            refused = _first(group_of_errors)
        finally:
            await self._store.close()
            self._phase = Phase.STOPPED
        if refused is not None:
            raise refused
        log.info("hub.stopped", hub_id=self._hub_id, failures=self._failures)
        return not self._failures

    async def _serve(self) -> None:
        settings = self._settings
        self._identities = Identities(settings.mqtt.identities_file)
        await self._identities.load()
        self._router = Router(self._compile(self._manifest), self._store)
        self._listener = self._build_listener()
        control = ControlServer(settings.control_path, self._commands())
        await self._listener.open()
        await control.open()
        try:
            async with asyncio.TaskGroup() as pumps:
                self._egress = self._build_egress(pumps)
                self._egress.ensure()
                async with asyncio.TaskGroup() as heads:
                    listener = self._spawn(heads, self._listener.run, "listener")
                    reloader = self._spawn(heads, self._reload_when_asked, "reloader")
                    self._announce()
                    await self._stopping.wait()
                    await self._drain()
                    listener.cancel()
                    reloader.cancel()
                self._egress.cancel()
        finally:
            await control.close()
            await self._listener.close()
            self._identities.close()

    def _build_listener(self) -> MqttListener:
        mqtt = self._settings.mqtt
        return MqttListener(
            options=ListenerOptions(
                host=mqtt.host,
                port=mqtt.port,
                anonymous=mqtt.anonymous,
                clients_max=mqtt.clients_max,
                message_bytes_max=mqtt.message_bytes_max,
                connect_timeout_s=mqtt.connect_timeout_s,
                ack_timeout_s=mqtt.ack_timeout_s,
                store_qos0=mqtt.store_qos0,
            ),
            hub_id=self._hub_id,
            clock=self._clock,
            submit=self._router.submit,
            sessions=SessionTable(self._store),
            identities=self._identities,
            device_bound_interest=self._device_bound_interest,
            link_up=self._upstream_is_up,
        )

    # Clients are served only while the way out exists, which is built after the listener.

    def _device_bound_interest(self, device_id: str, wanted: bool) -> None:
        self._egress.device_bound_interest(device_id, wanted)

    def _upstream_is_up(self) -> bool:
        return self._egress.upstream_is_up()

    def _build_egress(self, group: asyncio.TaskGroup) -> Egress:
        return Egress(
            self._settings,
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

    def _announce(self) -> None:
        self._phase = Phase.RUNNING
        self.started.set()
        log.info(
            "hub.started",
            hub_id=self._hub_id,
            version=edgehub.__version__,
            pid=os.getpid(),
            upstream=self._egress.has_upstream,
            mqtt_host=self._settings.mqtt.host,
            mqtt_port=self.mqtt_port,
            data_dir=str(self._settings.data_dir),
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
        timeout_s = self._settings.drain_timeout_s
        log.info("hub.drain_started", timeout_s=timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        await self._unless_aborted(self._drain_parts(deadline), timeout_s)
        log.info("hub.drain_ended", waiting=self._store.statistics().rows)

    async def _drain_parts(self, deadline: float) -> None:
        await self._listener.drain()
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

    async def _read_manifest(self) -> Manifest:
        file = self._settings.manifest
        if file is None:
            return DEFAULT_MANIFEST
        return await asyncio.to_thread(load_manifest, file)

    def _compile(self, manifest: Manifest) -> RouteTable:
        named = [EndpointId(name) for name in self._settings.endpoints]
        return RouteTable.compile(manifest, endpoints=named, hub_id=self._hub_id)

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reloading.wait()
            self._reloading.clear()
            try:
                await self._reload()
            except ConfigError as error:
                faults = str(error).splitlines()
                log.error("hub.reload_refused", faults=faults)  # noqa: TRY400 - a file's fault

    async def _reload(self) -> None:
        manifest = await self._read_manifest()
        table = self._compile(manifest)
        await self._identities.load()
        self._listener.identities_changed()
        changed = manifest.fingerprint != self._manifest.fingerprint
        if changed:
            self._manifest = manifest
            self._router.replace(table)
            self._egress.ensure()
        # An operator who asks for a reload does not want to wait for a back-off.
        self._egress.retry_now()
        log.info("hub.reloaded", manifest_changed=changed, routes=len(manifest.routes))

    def _commands(self) -> Mapping[str, Any]:
        return {"status": self._status_command, "queue list": self._queues_command}

    async def _status_command(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.status()

    async def _queues_command(self, _arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self._egress.queue_documents()

    def status(self) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        queues = self._egress.queue_documents()
        endpoints = self._egress.endpoint_documents()
        return {
            "hub_id": self._hub_id,
            "version": edgehub.__version__,
            "phase": self._phase,
            "pid": os.getpid(),
            "summary": status.summary(
                self._phase, endpoints, queues, upstream=self._egress.has_upstream
            ),
            "warnings": status.warnings(
                self._egress.orphans(),
                map(str, self._manifest.warnings),
                self._router.unrouted_total,
            ),
            "routes": len(self._manifest.routes),
            "unrouted": self._router.unrouted_total,
            "mqtt": asdict(self._listener.statistics()),
            "store": asdict(self._store.statistics()),
            "endpoints": endpoints,
            "queues": queues,
        }


def _first(group: BaseExceptionGroup[EdgeHubError]) -> EdgeHubError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EdgeHubError)
    return error
