"""Reload: the configuration is read again and put in force while the hub runs, whole or not at all.

Owns the configuration in force and the list of what waits for a restart; hands the changes to the
parts it was given. Invariants: nothing changes before everything has been read and checked; reloads
run one after the other; a reload without changes touches no connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins
from msgspec.structs import replace

from edgehub.errors import ConfigError, EdgeHubError
from edgehub.hub.part import Part
from edgehub.operations.operation import Operation
from edgehub.settings.change import plan_change
from edgehub.settings.configuration import fault_documents, read_configuration
from edgehub.settings.effective import effective_document
from edgehub.settings.named_files import changed_files
from edgehub.telemetry.log import set_level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgehub.notify.reports import Reports
    from edgehub.settings import Settings
    from edgehub.settings.change import PendingKey
    from edgehub.settings.configuration import Configuration
    from edgehub.settings.origin import LoadedSettings

log = structlog.get_logger(__name__)


_ENDPOINTS: Final[dict[str, list[str]]] = {
    "added": [],
    "replaced": [],
    "adjusted": [],
    "removed": [],
}
_NOTHING: Final = {
    "outcome": "unchanged",
    "faults": [],
    "applied": [],
    "needs_restart": [],
    "manifest_changed": False,
    "identities_changed": False,
    "tokens_changed": False,
    "certificate_changed": False,
    "files_changed": [],
    "routes": 0,
    "endpoints": _ENDPOINTS,
    "warnings": [],
}
"""The outcome of a reload that changed nothing; see `ReloadDocument`."""
_NOT_LOGGED: Final = frozenset({"faults", "needs_restart", "endpoints", "warnings"})


class ReloadPart(Part):
    """The configuration in force, and how another one takes its place.

    Args:
        configuration: What the hub started with.
        hub_id: Device id of the hub itself.
        parts: What a reload reaches, in this order.
        reread: Reads settings again; blocks on the disk.
        wanted: Set to ask for a reload without waiting for it, also before `run`.
        reports: Notifies the service manager.

    Attributes:
        configuration: What is in force.
    """

    name = "reload"

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        parts: Sequence[Part],
        reread: Callable[[], LoadedSettings],
        wanted: asyncio.Event,
        reports: Reports,
    ) -> None:
        self.configuration = configuration
        self._needs_restart: tuple[PendingKey, ...] = ()
        self._hub_id = hub_id
        self._parts = parts
        self._reread = reread
        self._wanted = wanted
        self._reports = reports
        self._next = _outcome()
        """The outcome of the next reload, for all that wait for it."""

    def status(self) -> dict[str, Any]:
        """Return the settings that wait for a restart."""
        return {"needs_restart": [entry.key for entry in self._needs_restart]}

    def warnings(self) -> list[str]:
        """List the settings that wait for a restart."""
        return [*map(str, self._needs_restart)]

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of the configuration."""
        return [
            Operation(
                name="config reload",
                about="Read settings, manifest, identities and tokens again.",
                handler=self.request,
                result="edgehub.operations.results.configuration:ReloadDocument",
                changes=True,
            ),
            Operation(
                name="config show",
                about="Show the settings in force, and where each came from.",
                handler=self._show,
                result="edgehub.operations.results.configuration:ConfigurationDocument",
            ),
        ]

    async def _show(self) -> dict[str, Any]:
        return effective_document(
            self.configuration.loaded,
            manifest=self.configuration.manifest,
            hub_id=self._hub_id,
            running=True,
        )

    async def run(self) -> None:
        """Reload whenever asked, until cancelled."""
        outcome = self._next
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                outcome, self._next = self._next, _outcome()
                with self._reports.reloading():
                    outcome.set_result(await self._reload())
        finally:
            for each in {outcome, self._next}:
                if not each.done():
                    each.set_exception(
                        EdgeHubError("the hub is stopping; the reload was not finished")
                    )
                    each.exception()  # perhaps nothing waits for it

    async def request(self) -> dict[str, Any]:
        """Reload, and return what became of it.

        Raises:
            EdgeHubError: If the hub stops before the end.
        """
        self._wanted.set()
        return await asyncio.shield(self._next)

    async def _reload(self) -> dict[str, Any]:
        try:
            wanted = await asyncio.to_thread(self._read)
            for part in self._parts:
                await part.check(wanted)
            outcome = await self._apply(wanted)
        except ConfigError as error:
            faults = str(error).splitlines()
            log.error("hub.reload_refused", faults=faults)  # noqa: TRY400 - a file's fault
            return _NOTHING | {
                "outcome": "refused",
                "faults": fault_documents(error),
                "needs_restart": list(map(to_builtins, self._needs_restart)),
                "routes": len(self.configuration.manifest.routes),
            }
        shown = {name: value for name, value in outcome.items() if name not in _NOT_LOGGED}
        endpoints = {f"endpoints_{name}": ids for name, ids in outcome["endpoints"].items()}
        log.info("hub.reloaded", **shown, **endpoints)
        for warning in outcome["warnings"]:
            log.warning("hub.config_warning", warning=warning)
        if self._needs_restart:
            keys = [entry.key for entry in self._needs_restart]
            log.warning("hub.reload_needs_restart", keys=keys)
        return outcome

    def _read(self) -> Configuration:
        return read_configuration(self._reread(), hub_id=self._hub_id, starts=False)

    async def _apply(self, wanted: Configuration) -> dict[str, Any]:
        old = self.configuration
        change = plan_change(old.loaded, wanted.loaded)
        settings = change.loaded.settings
        # Other files need a restart, as other ports do; what the files hold does not.
        now, then = _tls_files(settings), _tls_files(wanted.settings)
        tls = wanted.tls if now[0] == then[0] else old.tls
        http_tls = wanted.http_tls if now[1] == then[1] else old.http_tls
        new = replace(wanted, loaded=change.loaded, tls=tls, http_tls=http_tls)
        first, *others = self._parts
        # The first may still refuse it: an id may just have been added to the table.
        said = dict(await first.reload(new))
        self.configuration, self._needs_restart = new, change.needs_restart
        set_level(settings.log.level)
        for part in others:
            said |= await part.reload(new)
        changed = {
            "applied": list(change.applied),
            "manifest_changed": new.manifest.fingerprint != old.manifest.fingerprint,
            "identities_changed": new.identities != old.identities,
            "tokens_changed": new.tokens != old.tokens,
            "certificate_changed": new.certificate_changed(old),
            "files_changed": list(changed_files(old.files, new.files)),
        }
        return (
            _NOTHING
            | changed
            | {
                "outcome": "applied" if any(changed.values()) else "unchanged",
                "needs_restart": list(map(to_builtins, change.needs_restart)),
                "routes": len(new.manifest.routes),
                "endpoints": said.get("endpoints", _ENDPOINTS),
                "warnings": [*new.all_warnings, *said.get("warnings", ())],
            }
        )


def _tls_files(settings: Settings) -> list[tuple[Path | None, ...]]:
    return [
        (listener.certificate_file, listener.key_file, listener.client_ca_file)
        for listener in (settings.mqtt, settings.http)
    ]


def _outcome() -> asyncio.Future[dict[str, Any]]:
    return asyncio.get_running_loop().create_future()
