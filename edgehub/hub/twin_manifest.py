"""A manifest from above: the desired property `edgeHub` of the gateway's own twin.

Where the hub signs in upstream as the module `$edgeHub`, its own twin is that of the module, and
its desired properties are the manifest as a whole.

Owns the copy of the manifest that was applied last, so that a hub which starts without its uplink
routes as before. Invariants: a manifest is applied whole or not at all, and what is refused changes
nothing; a file that the settings name, and a shared table, are never changed from here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.errors import ManifestError, ManifestFault
from edgehub.hub.part import Part
from edgehub.local_message import ignore_result
from edgehub.routes.manifest import parse_manifest
from edgehub.settings.configuration import compile_table, endpoint_names
from edgehub.settings.derived import is_edge_hub_module
from edgehub.storage.durable_files import replace_file
from edgehub.twins.document import TwinError, difference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgehub.hub.routes import RoutesPart
    from edgehub.routes.spec import Manifest
    from edgehub.settings.configuration import Configuration
    from edgehub.twins.document import Json
    from edgehub.twins.twins import ClientTwins

FILE_NAME: Final = "twin-manifest.json"
"""File of the data folder: the manifest that was applied last, and its version."""

PROPERTY: Final = "edgeHub"
_APPLIED: Final = 200
_REFUSED: Final = 400
_FAULTS_SHOWN: Final = 10
_TEXT_MAX: Final = 500

log = structlog.get_logger(__name__)


class TwinManifestPart(Part):
    """Applies manifests of the gateway's twin.

    Args:
        configuration: What the hub starts with.
        hub_id: The gateway's own client id.
        twins: Its twin is among them.
        routes: Applies manifests.
    """

    name = "twin-manifest"

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        twins: ClientTwins,
        routes: RoutesPart,
    ) -> None:
        self._configuration = configuration
        self._hub_id = hub_id
        self._twins = twins
        self._routes = routes
        self._due = asyncio.Event()
        self._applied: Json | None = None
        self._applied_version = 0
        self._refused: tuple[ManifestFault, ...] = ()
        twins.desired_changed.append(self._desired_changed)

    async def open(self) -> None:
        """Put the manifest that was applied last in force, before any head takes a message."""
        stored = await asyncio.to_thread(_read, self._file)
        wanted = self._wanted()
        if stored is None or self._owner():
            if wanted is not None:
                self._due.set()
            return
        self._applied_version, self._applied = stored
        try:
            await self._put_in_force(self._applied)
        except ManifestError as error:
            # Other settings since, such as an endpoint less.
            self._applied = None
            self._refuse(error.faults)
        if wanted != self._applied:
            self._due.set()

    async def run(self) -> None:
        """Apply what is desired whenever it changes, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self._apply()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Apply it again, since a reload has put that of the settings in force."""
        same = configuration.manifest.fingerprint == self._configuration.manifest.fingerprint
        self._configuration = configuration
        if not same or self._refused:
            self._applied = None
            self._due.set()
        return {}

    def status(self) -> dict[str, Any]:
        """Return which manifest from above is in force."""
        document = {
            "desired": self._wanted() is not None,
            "applied_version": None if self._applied is None else self._applied_version,
            "refused": None if not self._refused else str(self._refused[0]),
        }
        return {"twin_manifest": document}

    def warnings(self, shown: Mapping[str, Any]) -> list[str]:
        """Return why the manifest that is desired is not in force."""
        del shown
        if not self._refused:
            return []
        return [f"the manifest of the twin of {self._hub_id} is refused: {self._refused[0]}"]

    @property
    def _file(self) -> Path:
        return self._configuration.settings.data_dir / FILE_NAME

    def _wanted(self) -> Any:
        """Return what is desired; None = nothing."""
        desired = self._twins.get(self._hub_id).desired
        return desired or None if self._is_module else desired.get(PROPERTY)

    @property
    def _is_module(self) -> bool:
        return is_edge_hub_module(self._configuration.settings)

    def _desired_changed(self, client_id: str, _patch: Json, _version: int) -> None:
        if client_id == self._hub_id:
            self._due.set()

    def _owner(self) -> str:
        """Return what keeps the twin from being applied; empty = nothing."""
        settings = self._configuration.settings
        if settings.manifest is not None:
            return f"the settings name a manifest of their own, {settings.manifest}"
        if settings.routing_table.storage == "redis":
            return "the routes are those of a shared routing table"
        return ""

    async def _apply(self) -> None:
        wanted, version = self._wanted(), self._twins.get(self._hub_id).desired_version
        if wanted is None and self._applied is None and not self._refused:
            return
        owner = self._owner()
        if owner and wanted is not None:
            hint = "remove it there, or `edgeHub` from the desired properties"
            self._refuse((ManifestFault(path="", message=owner, hint=hint),))
        elif wanted != self._applied or self._refused:
            try:
                await self._put_in_force(wanted)
            except ManifestError as error:
                self._refuse(error.faults)
            else:
                self._refused = ()
                self._applied, self._applied_version = wanted, version
                await asyncio.to_thread(_write, self._file, wanted, version)
                log.info("hub.twin_manifest_applied", version=version)
        self._report(version)

    async def _put_in_force(self, document: Any) -> None:
        manifest = self._configuration.manifest
        if document is not None:
            manifest = self._checked(document)
        await self._routes.table.follow_file(manifest)

    def _checked(self, document: Any) -> Manifest:
        settings = self._configuration.settings
        file = f"twin of {self._hub_id}"
        manifest = parse_manifest(document, file=file, endpoints=endpoint_names(settings))
        # Its conditions too, so that no route of it fails later.
        return compile_table(manifest, settings, hub_id=self._hub_id).manifest

    def _refuse(self, faults: tuple[ManifestFault, ...]) -> None:
        self._refused = faults
        log.warning("hub.twin_manifest_refused", reason=str(faults[0]), faults=len(faults))

    def _report(self, version: int) -> None:
        """Report the outcome as Edge Hub does, with every fault."""
        code = _REFUSED if self._refused else _APPLIED
        text = str(self._refused[0])[:_TEXT_MAX] if self._refused else ""
        after: Json = {
            "lastDesiredVersion": version,
            "lastDesiredStatus": {"code": code, "description": text},
            "faults": [_fault(each) for each in self._refused[:_FAULTS_SHOWN]],
        }
        reported = self._twins.get(self._hub_id).reported
        before = reported if self._is_module else reported.get(PROPERTY)
        known = before if isinstance(before, dict) else {}
        patch = difference({name: known[name] for name in after if name in known}, after)
        if not patch:
            return
        patch = patch if self._is_module else {PROPERTY: patch}
        try:
            self._twins.report(self._hub_id, patch, ignore_result)
        except TwinError as error:
            log.warning("hub.twin_manifest_not_reported", reason=str(error))


def _fault(fault: ManifestFault) -> Json:
    members = {
        "path": fault.path,
        "message": fault.message[:_TEXT_MAX],
        "route": fault.route,
        "line": fault.line,
        "column": fault.column,
    }
    return {name: value for name, value in members.items() if value is not None}


def _read(file: Path) -> tuple[int, Any] | None:
    try:
        document = orjson.loads(file.read_bytes())
        return int(document["version"]), document["manifest"]
    except (OSError, ValueError, TypeError, KeyError):
        # Without a copy the hub routes by its settings until its twin says otherwise.
        return None


def _write(file: Path, manifest: Any, version: int) -> None:
    if manifest is None:
        file.unlink(missing_ok=True)
    else:
        replace_file(file, orjson.dumps({"version": version, "manifest": manifest}))
