"""What a deployment manifest is to the routing table.

On a hub of its own the file keeps its routes: they run in addition to those of the table, a reload
replaces them and no others. In a shared table a file is imported once, into a table that never was;
later an operator applies it, and only to the revision that the operator has seen.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from msgspec import structs

from edgehub.errors import ManifestError, ManifestFault
from edgehub.routes.content import InvalidRouteError, content_hash, content_of
from edgehub.routes.live import BuildError
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.faults import ConflictError
from edgehub.sync.storage import DEFAULTS, IMPORT, Change, StoredRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.routes.content import RouteContent
    from edgehub.routes.live import RouteHost
    from edgehub.routes.spec import Manifest
    from edgehub.sync.options import TableOptions
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import TableStorage

SHARED_NAME = "shared routing table"

log = structlog.get_logger(__name__)


def contents_of(manifest: Manifest) -> dict[RouteKey, RouteContent]:
    """Return the routes of a manifest as those of the default tenant."""
    return {
        RouteKey(DEFAULT_TENANT, spec.name): content_of(spec, DEFAULT_TENANT)
        for spec in manifest.routes
    }


def shared_head(manifest: Manifest) -> Manifest:
    """Return the defaults of a shared table until it has a row of its own."""
    return structs.replace(manifest, file=SHARED_NAME, routes=(), warnings=())


def taken_ids(manifest: Manifest, reconciler: Reconciler) -> ManifestError | None:
    """Return which routes of a hub's manifest have the id of a route of its table; None = none."""
    taken = [
        spec for spec in manifest.routes if RouteKey(DEFAULT_TENANT, spec.name) in reconciler.rows
    ]
    if not taken:
        return None
    return ManifestError(
        manifest.file,
        [
            ManifestFault(
                path=f"routes.{spec.name}",
                route=spec.name,
                message="its name is the id of a route that was added to the routing table",
                hint=f"choose another name, or `edgehub route remove {spec.name}`",
            )
            for spec in taken
        ],
    )


class SharedManifest:
    """The manifest of a hub with a shared table.

    Args:
        storage: Of the table.
        reconciler: What this hub knows of it.
        host: Says whether a route could run here.
        options: For quotas.
        manifest: What this hub's settings name.
    """

    def __init__(
        self,
        storage: TableStorage,
        reconciler: Reconciler,
        host: RouteHost,
        options: TableOptions,
        manifest: Manifest,
    ) -> None:
        self._storage = storage
        self._reconciler = reconciler
        self._host = host
        self._options = options
        self._present: dict[RouteKey, str] = {}
        self._present_at = -1
        self.follow(manifest)

    def follow(self, manifest: Manifest) -> None:
        """Take the manifest that the settings name now."""
        self.manifest = manifest
        self._own = {change.key: change.hash for change in self._puts(manifest)}

    async def import_once(self) -> None:
        """Put the manifest into a table that never was.

        Raises:
            StorageUnavailableError: The storage does not answer.
        """
        try:
            puts = self._puts(self.manifest)
            await self._storage.write(puts, session=IMPORT, expected=0)
        except ConflictError:
            # Another hub was quicker; what it imported holds for all.
            return
        log.info("sync.manifest_imported", file=self.manifest.file)

    @property
    def own_keys(self) -> Collection[RouteKey]:
        """Return the keys of its rows."""
        return self._own.keys()

    def differs(self) -> bool:
        """Return whether the file differs from the table's routes of a manifest."""
        reconciler = self._reconciler
        # Each status asks, and a table may have thousands of rows.
        if self._present_at != reconciler.taken_total:
            self._present_at = reconciler.taken_total
            self._present = {
                key: row.hash
                for key, row in reconciler.rows.items()
                if isinstance(row, StoredRow) and row.origin == "manifest"
            }
        return self._present != self._own

    def read(self, text: str, file: str) -> Manifest:
        """Read a manifest that is to be applied.

        Raises:
            InvalidRouteError: With every fault, also of routes that could not run here.
        """
        try:
            manifest = parse_manifest(text, file=file)
        except ManifestError as error:
            raise InvalidRouteError(error.faults) from error
        faults: list[ManifestFault] = []
        for key, content in contents_of(manifest).items():
            try:
                self._host.check(content)
            except BuildError as error:
                fault = error.fault or ManifestFault(path="", message=str(error))
                path = f"routes.{key.id}"
                faults.append(replace(fault, path=path, route=key.id))
        if faults:
            raise InvalidRouteError(faults)
        return manifest

    def plan(self, manifest: Manifest) -> list[Change]:
        """Return the changes that make the table's routes of a manifest be those of this one.

        Raises:
            ConflictError: A route of the API has one of its names.
        """
        rows = self._reconciler.rows
        puts = self._puts(manifest)
        for change in puts:
            row = rows.get(change.key)
            if isinstance(row, StoredRow) and row.origin != "manifest":
                raise ConflictError(
                    f"route {change.key.id!r} was added by the API; remove it first",
                    revision=row.revision,
                )
        wanted = {change.key for change in puts}
        removed = [
            key
            for key, row in rows.items()
            if isinstance(row, StoredRow) and row.origin == "manifest" and key not in wanted
        ]
        return [*puts, *(Change(key=key, delete=True) for key in sorted(removed))]

    def _puts(self, manifest: Manifest) -> list[Change]:
        seconds = -1 if manifest.global_ttl_ms is None else manifest.global_ttl_ms // 1000
        defaults = json.dumps({"timeToLiveSecs": seconds}, separators=(",", ":"))
        changes = [
            Change(
                key=DEFAULTS,
                hash=content_hash(defaults, DEFAULT_TENANT),
                text=defaults,
                origin="manifest",
            )
        ]
        quota = self._options.quota(DEFAULT_TENANT)
        changes += [
            Change(key=key, hash=content.hash, text=content.text, origin="manifest", quota=quota)
            for key, content in contents_of(manifest).items()
        ]
        return changes
