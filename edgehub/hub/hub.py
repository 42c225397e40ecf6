"""A hub: starts its parts in order, stops them in reverse.

Owns their life; each part owns its own state. They are opened from the inside out, so
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
from edgehub.errors import EdgeHubError, first_of
from edgehub.hub.drain import drain
from edgehub.hub.journal import JournalPart
from edgehub.hub.parts import build_parts
from edgehub.hub.status import HubStatus
from edgehub.hub.store import FLUSH_TIMEOUT_S, StorePart, store_options
from edgehub.hub.supervision import Supervision
from edgehub.hub_id import load_hub_id
from edgehub.lifecycle import Phase
from edgehub.notify.service_manager import ServiceManager
from edgehub.settings import Settings
from edgehub.settings.configuration import read_configuration
from edgehub.settings.effective import DATABASE_NAME
from edgehub.settings.origin import LoadedSettings
from edgehub.storage.state_file import STATE_NAME, StateFile
from edgehub.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgehub.hub.part import Part
    from edgehub.hub.parts import Stages
    from edgehub.operations.operation import Operation

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
        opened: Called once all parts are open, before any client has an answer.

    Attributes:
        started: Set once it serves.
    """

    def __init__(
        self,
        settings: Settings | LoadedSettings,
        *,
        reread: Callable[[], LoadedSettings] | None = None,
        service_manager: ServiceManager | None = None,
        opened: Callable[[], None] = lambda: None,
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
        self._shown = HubStatus(service_manager or ServiceManager(None), self._clock)
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._reloading = asyncio.Event()
        self._supervision = Supervision(self.stop)
        self._opened = opened
        self.started = asyncio.Event()

    @property
    def mqtt_port(self) -> int:
        """Return the port that the listener has; known once the hub has started."""
        port = self._shown.ports()["mqtt_port"]
        assert port is not None, "there always is a listener"
        return port

    @property
    def http_port(self) -> int | None:
        """Return the port of the HTTP head, None = there is none; known once it has started."""
        return self._shown.ports()["http_port"]

    @property
    def operations(self) -> Mapping[str, Operation]:
        """Return what may be asked of it by name; empty before it serves."""
        return self._shown.operations

    @property
    def parts(self) -> Sequence[Part]:
        """Return all of it in order; empty before it is built."""
        return self._shown.parts

    def status(self) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        return self._shown.document()

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
        refused: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                work = self._supervision.run(self._shown.reports.run, "reports")
                reports = group.create_task(work, name="reports")
                try:
                    await self._run()
                finally:
                    reports.cancel()
        except* EdgeHubError as group_of_errors:
            # The task groups wrap what a part refuses at the start; callers want its own type.
            refused = first_of(group_of_errors)
        finally:
            self._shown.phase = Phase.STOPPED
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
            async with self._supervision.running((kept, journal)):
                stages = await build_parts(
                    configuration,
                    hub_id=hub_id,
                    kept=kept,
                    journal=journal,
                    state=state,
                    shown=self._shown,
                    supervision=self._supervision,
                    reread=self._reread,
                    reload_wanted=self._reloading,
                    clock=clock,
                    rng=self._rng,
                )
                self._shown.add([kept, journal, *(part for stage in stages for part in stage)])
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
            self._opened()
            ways_out, heads, changes = stages
            running = self._supervision.running
            async with running(ways_out), running(heads):
                async with running(changes):
                    # All of them begin before any client has an answer.
                    await asyncio.sleep(0)
                    self._announce()
                    await self._stopping.wait()
                # No reload may start a pump that the drain does not know.
                timeout_s = changes[1].configuration.settings.drain_timeout_s
                self._shown.draining(timeout_s + FLUSH_TIMEOUT_S + CLOSE_TIMEOUT_S)
                await drain(
                    (heads, ways_out), self._clock, timeout_s=timeout_s, aborted=self._aborting
                )
                waiting = sum(queue["depth"] for queue in self.status()["queues"])
                log.info("hub.drain_ended", waiting=waiting)

    def _announce(self) -> None:
        self._shown.running()
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
            **self._shown.ports(),
        )
