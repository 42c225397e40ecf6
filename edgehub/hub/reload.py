"""Reload: the configuration is read anew and put in force while the hub runs, whole or not at all.

Owns the configuration in force and the list of what waits for a restart; hands the changes to the
parts it was given. Invariants: nothing changes before everything has been read and checked; reloads
run one after the other; a reload without changes touches no connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from edgehub.errors import ConfigError, EdgeHubError
from edgehub.hub.endpoints import EgressChange
from edgehub.hub.store import store_caps
from edgehub.settings.change import plan_change
from edgehub.settings.configuration import fault_documents, read_configuration
from edgehub.settings.named_files import changed_files
from edgehub.telemetry.log import set_level

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgehub.devices.identities import Identities
    from edgehub.devices.tokens import Tokens
    from edgehub.heads.http.head import HttpHead
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.hub.broker import Brokering
    from edgehub.hub.endpoints import Egress
    from edgehub.hub.routes import RouteTableAssembly
    from edgehub.hub.web import Serving
    from edgehub.notify.reports import Reports
    from edgehub.settings import Settings
    from edgehub.settings.change import PendingKey
    from edgehub.settings.configuration import Configuration
    from edgehub.settings.origin import LoadedSettings
    from edgehub.store.store import Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadParts:
    """What a reload reaches.

    Attributes:
        identities: Who may sign in.
        tokens: Who may ask the HTTP API.
        listener: The MQTT head.
        route_table: The routes.
        egress: Endpoints and pumps.
        store: The queues.
        serving: The HTTP API.
        http: The HTTP head, None = there is none.
        brokering: The broker head, None = there is none.
    """

    identities: Identities
    tokens: Tokens
    listener: MqttListener
    route_table: RouteTableAssembly
    egress: Egress
    store: Store
    serving: Serving
    http: HttpHead | None = None
    brokering: Brokering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a reload.

    Attributes:
        faults: Why it was refused; empty = it was not.
        applied: Keys of settings whose value in force changed.
        needs_restart: Settings that differ from those in force and wait for a restart.
        manifest_changed: Other routes are in force.
        identities_changed: Other identities are in force.
        tokens_changed: Other tokens of the API are in force.
        certificate_changed: The listener shows another certificate, or trusts others.
        files_changed: Keys of settings whose file holds something else, a password for one.
        routes: Number of routes in force.
        endpoints: What happened to the endpoints.
        warnings: What is accepted but hardly meant.
    """

    faults: tuple[dict[str, Any], ...] = ()
    applied: tuple[str, ...] = ()
    needs_restart: tuple[PendingKey, ...] = ()
    manifest_changed: bool = False
    identities_changed: bool = False
    tokens_changed: bool = False
    certificate_changed: bool = False
    files_changed: tuple[str, ...] = ()
    routes: int
    endpoints: EgressChange = field(default_factory=EgressChange)
    warnings: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """`refused`, `applied` or `unchanged`."""
        if self.faults:
            return "refused"
        switches = (
            self.manifest_changed,
            self.identities_changed,
            self.tokens_changed,
            self.certificate_changed,
        )
        changed = bool(self.applied) or bool(self.files_changed) or any(switches)
        return "applied" if changed else "unchanged"

    def document(self) -> dict[str, Any]:
        """Describe it; what `edgehub config reload --json` prints."""
        return {
            "outcome": self.word,
            "faults": list(self.faults),
            "applied": list(self.applied),
            "needs_restart": [asdict(entry) for entry in self.needs_restart],
            "manifest_changed": self.manifest_changed,
            "identities_changed": self.identities_changed,
            "tokens_changed": self.tokens_changed,
            "certificate_changed": self.certificate_changed,
            "files_changed": list(self.files_changed),
            "routes": self.routes,
            "endpoints": {name: list(ids) for name, ids in asdict(self.endpoints).items()},
            "warnings": list(self.warnings),
        }


class Reloader:
    """See the module.

    Args:
        configuration: What the hub started with.
        hub_id: Device id of the hub itself.
        parts: See `ReloadParts`.
        reread: Reads settings again; blocks on the disk.
        wanted: Set to ask for a reload without waiting for it, also before `run`.
        reports: Tells the service manager.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        parts: ReloadParts,
        reread: Callable[[], LoadedSettings],
        wanted: asyncio.Event,
        reports: Reports,
    ) -> None:
        self.configuration = configuration
        self.needs_restart: tuple[PendingKey, ...] = ()
        self._hub_id = hub_id
        self._parts = parts
        self._reread = reread
        self._wanted = wanted
        self._reports = reports
        self._waiters: list[asyncio.Future[Outcome]] = []
        self._served: list[asyncio.Future[Outcome]] = []
        self._ended = False

    async def run(self) -> None:
        """Reload whenever asked, until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                self._served, self._waiters = self._waiters, []
                with self._reports.reloading():
                    outcome = await self._reload()
                for waiter in self._served:
                    if not waiter.done():
                        waiter.set_result(outcome)
        finally:
            self._ended = True
            for waiter in (*self._served, *self._waiters):
                if not waiter.done():
                    waiter.set_exception(_stopping())

    async def reload(self) -> Outcome:
        """Reload and say what became of it.

        Raises:
            EdgeHubError: If the hub stops meanwhile.
        """
        if self._ended:
            raise _stopping()
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        return await waiter

    async def _reload(self) -> Outcome:
        try:
            wanted = await asyncio.to_thread(self._read)
            self._parts.route_table.check(wanted.manifest)
            if self._parts.http is not None:
                # The last of what may fail: a certificate is taken over as it is read.
                await self._parts.http.reload()
            await self._parts.serving.reload()
            outcome = await self._apply(wanted)
        except ConfigError as error:
            faults = str(error).splitlines()
            log.error("hub.reload_refused", faults=faults)  # noqa: TRY400 - a file's fault
            return Outcome(
                faults=tuple(fault_documents(error)),
                needs_restart=self.needs_restart,
                routes=len(self.configuration.manifest.routes),
            )
        log.info(
            "hub.reloaded",
            outcome=outcome.word,
            applied=list(outcome.applied),
            manifest_changed=outcome.manifest_changed,
            identities_changed=outcome.identities_changed,
            tokens_changed=outcome.tokens_changed,
            certificate_changed=outcome.certificate_changed,
            files_changed=list(outcome.files_changed),
            routes=outcome.routes,
            **{f"endpoints_{name}": list(ids) for name, ids in asdict(outcome.endpoints).items()},
        )
        for warning in outcome.warnings:
            log.warning("hub.configuration_doubtful", warning=warning)
        if outcome.needs_restart:
            keys = [entry.key for entry in outcome.needs_restart]
            log.warning("hub.reload_needs_restart", keys=keys)
        return outcome

    def _read(self) -> Configuration:
        return read_configuration(self._reread(), hub_id=self._hub_id, starts=False)

    async def _apply(self, wanted: Configuration) -> Outcome:
        old, parts = self.configuration, self._parts
        change = plan_change(old.loaded, wanted.loaded)
        settings = change.loaded.settings
        # Other files need a restart, as other ports do; what the files hold does not.
        tls = wanted.tls if _tls_files(settings) == _tls_files(wanted.settings) else old.tls
        new = replace(wanted, settings=settings, origins=change.loaded.origins, tls=tls)
        # First, since it may be refused still: an id may just have been added to the table.
        warnings = await parts.route_table.reload(new)
        self.configuration, self.needs_restart = new, change.needs_restart
        identities_changed = new.identities != old.identities
        if identities_changed:
            parts.identities.apply(new.identities)
            parts.listener.identities_changed()
        tokens_changed = new.tokens != old.tokens
        if tokens_changed:
            parts.tokens.apply(new.tokens)
        certificate_changed = False
        if new.tls is not None and old.tls is not None:
            certificate_changed = new.tls.fingerprint != old.tls.fingerprint
            if certificate_changed:
                await parts.listener.renew_certificate(new.tls.context)
        manifest_changed = new.manifest.fingerprint != old.manifest.fingerprint
        self._adjust(settings)
        endpoints = await parts.egress.apply(settings)
        # An operator who asks for a reload does not want to wait for a back-off.
        parts.egress.retry_now()
        if parts.brokering is not None:
            parts.brokering.retry_now()
        return Outcome(
            applied=change.applied,
            needs_restart=change.needs_restart,
            manifest_changed=manifest_changed,
            identities_changed=identities_changed,
            tokens_changed=tokens_changed,
            certificate_changed=certificate_changed,
            files_changed=changed_files(old.files, new.files),
            routes=len(new.manifest.routes),
            endpoints=endpoints,
            warnings=(*new.all_warnings, *warnings),
        )

    def _adjust(self, settings: Settings) -> None:
        set_level(settings.log.level)
        mqtt, store = settings.mqtt, settings.store
        self._parts.listener.adjust(
            clients_max=mqtt.clients_max,
            message_bytes_max=mqtt.message_bytes_max,
            connect_timeout_s=mqtt.connect_timeout_s,
            ack_timeout_s=mqtt.ack_timeout_s,
            store_qos0=mqtt.store_qos0,
        )
        self._parts.store.adjust(
            check_entire_queue_on_cleanup=store.check_entire_queue_on_cleanup,
            cache_bytes_max=store.cache_bytes,
            caps=store_caps(store),
        )


def _tls_files(settings: Settings) -> tuple[Path | None, ...]:
    mqtt = settings.mqtt
    return mqtt.certificate_file, mqtt.key_file, mqtt.client_ca_file


def _stopping() -> EdgeHubError:
    return EdgeHubError("the hub is stopping; the reload was not finished")
