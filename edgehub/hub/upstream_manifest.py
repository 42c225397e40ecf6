"""A manifest from above: of the gateway's own twin, or of a topic of the peer upstream.

Owns the copy of the manifest that was applied last, so that a hub which starts without its uplink
routes as before. Invariants: a manifest is applied whole or not at all, and what is refused changes
nothing; a file that the settings name, and a shared table, are never changed from here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog
from msgspec import to_builtins

from edgehub.errors import ManifestError, ManifestFault
from edgehub.hub.manifest_sources import TopicManifest, TwinManifest
from edgehub.hub.part import Part
from edgehub.routes.manifest import parse_manifest
from edgehub.settings.configuration import compile_table, endpoint_names
from edgehub.settings.derived import is_edge_hub_module, manifest_topic
from edgehub.storage.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgehub.endpoints.manifest_topic import ManifestUplink
    from edgehub.hub.manifest_sources import ManifestSource
    from edgehub.hub.routes import RoutesPart
    from edgehub.routes.spec import Manifest
    from edgehub.settings.configuration import Configuration
    from edgehub.twins.document import Json
    from edgehub.twins.twins import ClientTwins

FILE_NAME: Final = "upstream-manifest.json"
"""File of the data folder: the manifest that was applied last, and its version."""

_APPLIED: Final = 200
_REFUSED: Final = 400
_FAULTS_SHOWN: Final = 10
_TEXT_MAX: Final = 500

log = structlog.get_logger(__name__)


class UpstreamManifestPart(Part):
    """Applies manifests from above.

    Args:
        configuration: What the hub starts with.
        hub_id: The gateway's own client id.
        twins: Its twin is among them.
        uplink: The way to the topic.
        routes: Applies manifests.
    """

    name = "upstream-manifest"

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        twins: ClientTwins,
        uplink: ManifestUplink,
        routes: RoutesPart,
    ) -> None:
        self._configuration = configuration
        self._hub_id = hub_id
        self._routes = routes
        self._due = asyncio.Event()
        self._twin = TwinManifest(
            twins,
            hub_id,
            is_module=lambda: is_edge_hub_module(self._configuration.settings),
            changed=self._due.set,
        )
        self._topic = TopicManifest(uplink, changed=self._due.set)
        self._applied: Json | None = None
        self._applied_version = 0
        self._refused: tuple[ManifestFault, ...] = ()

    async def open(self) -> None:
        """Put the manifest that was applied last in force, before any head takes a message."""
        stored = await asyncio.to_thread(_read, self._file)
        self._source.begin(stored)
        wanted, _ = self._source.desired()
        if stored is None or self._owner():
            if wanted is not None:
                self._due.set()
            return
        self._applied, self._applied_version = stored
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
        before = self._configuration
        same = configuration.manifest.fingerprint == before.manifest.fingerprint
        self._configuration = configuration
        if not same or self._refused:
            self._applied = None
            self._due.set()
        if manifest_topic(before.settings) != manifest_topic(configuration.settings):
            self._due.set()
        return {}

    def status(self) -> dict[str, Any]:
        """Return which manifest from above is in force."""
        document = {
            "source": self._source.name,
            "desired": self._source.desired()[0] is not None,
            "applied_version": None if self._applied is None else self._applied_version,
            "refused": None if not self._refused else str(self._refused[0]),
        }
        return {"upstream_manifest": document}

    def warnings(self) -> list[str]:
        """Return why the manifest that is desired is not in force."""
        if not self._refused:
            return []
        return [f"the manifest of the {self._source.name} is refused: {self._refused[0]}"]

    @property
    def _file(self) -> Path:
        return self._configuration.settings.data_dir / FILE_NAME

    @property
    def _source(self) -> ManifestSource:
        has_topic = manifest_topic(self._configuration.settings) is not None
        return self._topic if has_topic else self._twin

    def _owner(self) -> str:
        """Return what keeps a manifest from above from being applied; empty = nothing."""
        settings = self._configuration.settings
        if settings.manifest is not None:
            return f"the settings name a manifest of their own, {settings.manifest}"
        if settings.routing_table.storage == "redis":
            return "the routes are those of a shared routing table"
        return ""

    async def _apply(self) -> None:
        wanted, version = self._source.desired()
        if wanted is None and self._applied is None and not self._refused:
            return
        owner = self._owner()
        if owner and wanted is not None:
            hint = f"remove it there, or {self._source.removal}"
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
                log.info("hub.upstream_manifest_applied", version=version)
        self._report(version)

    async def _put_in_force(self, document: Any) -> None:
        manifest = self._configuration.manifest
        if document is not None:
            manifest = self._checked(document)
        await self._routes.table.follow_file(manifest)

    def _checked(self, document: Any) -> Manifest:
        settings = self._configuration.settings
        manifest = parse_manifest(
            document, file=self._source.name, endpoints=endpoint_names(settings)
        )
        # Its conditions too, so that no route of it fails later.
        return compile_table(manifest, settings, hub_id=self._hub_id).manifest

    def _refuse(self, faults: tuple[ManifestFault, ...]) -> None:
        self._refused = faults
        log.warning("hub.upstream_manifest_refused", reason=str(faults[0]), faults=len(faults))

    def _report(self, version: int) -> None:
        """Report the outcome as Edge Hub does, with the first faults."""
        code = _REFUSED if self._refused else _APPLIED
        text = str(self._refused[0])[:_TEXT_MAX] if self._refused else ""
        self._source.report(
            {
                "lastDesiredVersion": version,
                "lastDesiredStatus": {"code": code, "description": text},
                "faults": [_fault(each) for each in self._refused[:_FAULTS_SHOWN]],
            }
        )


def _fault(fault: ManifestFault) -> Json:
    members = to_builtins(fault) | {"message": fault.message[:_TEXT_MAX], "hint": None}
    return {name: value for name, value in members.items() if value is not None}


def _read(file: Path) -> tuple[Any, int] | None:
    try:
        document = orjson.loads(file.read_bytes())
        return document["manifest"], int(document["version"])
    except (OSError, ValueError, TypeError, KeyError):
        # Without a copy the hub routes by its settings until another one comes.
        return None


def _write(file: Path, manifest: Any, version: int) -> None:
    if manifest is None:
        file.unlink(missing_ok=True)
    else:
        replace_file(file, orjson.dumps({"version": version, "manifest": manifest}))
