"""The routing table of one hub: queries, changes, start and stop.

Owns the parts: storage, live routes, and those that synchronise the two. Invariants: an error means
that nothing was stored, unless it says that the outcome is unknown; a change that was stored runs
on this hub when its caller is answered, or the answer has the reason why not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from edgehub.routes.catch_all import lost_warnings
from edgehub.routes.live import LiveRoutes
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.bootstrap import Bootstrap
from edgehub.sync.comparison import Comparison
from edgehub.sync.faults import ConflictError
from edgehub.sync.follower import Follower
from edgehub.sync.manifest_import import SharedManifest, contents_of, shared_head, taken_ids
from edgehub.sync.mutations import Mutations
from edgehub.sync.presence import Presence
from edgehub.sync.queries import LIST_MAX, Queries
from edgehub.sync.rebuild import Rebuild
from edgehub.sync.reconciler import Reconciler
from edgehub.sync.storage import DEFAULTS, StoredRow
from edgehub.sync.views import (
    InstanceView,
    ManifestApplied,
    RouteState,
    RouteStatus,
    RouteView,
    TableStatistics,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.routes.live import RouteHost
    from edgehub.routes.spec import Manifest
    from edgehub.routes.tenant import Tenant
    from edgehub.sync.disk_copy import DiskCopy
    from edgehub.sync.options import TableOptions
    from edgehub.sync.storage import Report, TableStorage
    from edgehub.sync.views import DriftReport

STALE_S: Final = 10.0
"""A storage may be unreachable for this time before the table is called stale."""

RETRY_LOOK_S: Final = 1.0
BEAT_S: Final = (1.0, 30.0)
"""Least and most time between two reports to the other hubs."""

log = structlog.get_logger(__name__)


class RoutingTable(Mutations):
    """The routing table of one hub.

    Args:
        storage: Where the rows are.
        host: What live routes need from the hub.
        options: See `TableOptions`.
        manifest: What the settings name, or the built-in one.
        clock: For all waits and times.
        rng: Jitter.
    """

    def __init__(
        self,
        storage: TableStorage,
        host: RouteHost,
        options: TableOptions,
        manifest: Manifest,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        head = shared_head(manifest) if options.shared else manifest
        self.live = LiveRoutes(host, head, hub_id=options.hub_id)
        reconciler = Reconciler(storage, self.live, clock, head)
        rebuild = Rebuild(storage, reconciler, clock)
        follower = Follower(
            storage,
            reconciler,
            rebuild,
            instance=options.instance,
            clock=clock,
            rng=rng,
            # A hub's own table has no other writers.
            check_s=options.check_s if options.shared else options.compare_s,
        )
        beat_s = min(max(BEAT_S[0], options.check_s / 2), BEAT_S[1])
        presence = Presence(
            storage,
            reconciler,
            instance=options.instance,
            hub_id=options.hub_id,
            clock=clock,
            beat_s=beat_s,
            stale=lambda: self.stale_reason,
            may_lack_reports=lambda: rebuild.has_begun(1.5 * beat_s),
        )
        super().__init__(
            storage,
            host,
            options,
            reconciler=reconciler,
            rebuild=rebuild,
            follower=follower,
            presence=presence,
            queries=Queries(reconciler, self.live),
        )
        self._manifest = manifest
        self._clock = clock
        self._comparison = Comparison(
            storage,
            reconciler,
            rebuild,
            follower,
            self.live,
            clock=clock,
            rng=rng,
            every_s=options.compare_s,
        )
        self._shared = SharedManifest(storage, reconciler, host, options, manifest)
        shared = self._shared if options.shared else None
        self._bootstrap = Bootstrap(storage, reconciler, follower, rebuild, shared, clock)
        self._reconciler.on_applied.append(self._applied)

    def copy_to(self, make: Callable[[Reconciler], DiskCopy]) -> None:
        """Keep a copy of a shared table on the disk."""
        self._bootstrap.copy = make(self._reconciler)
        self._reconciler.on_applied.append(self._bootstrap.copy.changed)

    async def open(self) -> None:
        """Load the table and run its routes.

        Raises:
            ManifestError: Routes of the manifest have ids that the hub's own table has as well.
            StorageUnavailableError: The hub's own table cannot be read.
        """
        await self._bootstrap.open()
        if not self._bootstrap.reason:
            await self._presence.join()
        if not self._options.shared:
            await self.follow_file(self._manifest)

    async def run(self) -> None:
        """Synchronise the table until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, work in (
                ("follower", self._follower.run),
                ("reconciler", self._reconciler.run),
                ("comparison", self._comparison.run),
                ("presence", self._presence.run),
                ("retries", self._retry),
                ("bootstrap", self._bootstrap.run),
            ):
                group.create_task(work(), name=f"table[{name}]")
            if self._bootstrap.copy is not None:
                group.create_task(self._bootstrap.copy.run(), name="table[copy]")

    async def close(self) -> None:
        """Stop all routes, after `run` has ended; the storage is not touched."""
        await self._reconciler.stop_all()
        if self._bootstrap.copy is not None:
            await self._bootstrap.copy.write()
        await self._presence.leave()
        await self._storage.close()

    async def list(
        self, *, tenant: Tenant = DEFAULT_TENANT, after: str | None = None, limit: int = LIST_MAX
    ) -> dict[str, Any]:
        """Return some routes, sorted by id, as the operation returns them.

        Args:
            tenant: Tenant of the routes.
            after: Id behind which the page begins, None = from the first on.
            limit: At most so many, 1 to 1 000.

        Raises:
            UnknownTenantError: There is no such tenant.
        """
        self._known(tenant)
        return await self._queries.page(tenant, after, limit)

    async def get(self, route_id: str, *, tenant: Tenant = DEFAULT_TENANT) -> RouteView:
        """Return one route.

        Raises:
            RouteNotFoundError: There is none.
            UnknownTenantError: There is no such tenant.
        """
        self._known(tenant)
        return self._queries.view(RouteKey(tenant, route_id))

    async def instances(self) -> tuple[InstanceView, ...]:
        """Return the running hubs, this one first.

        Raises:
            StorageUnavailableError: Their reports cannot be read.
        """
        return tuple(
            InstanceView(
                instance=report.instance,
                hub_id=report.hub_id,
                revision=report.revision,
                epoch=report.epoch,
                routes=report.routes,
                failed=report.failed_total,
                stale=report.stale,
                age_s=report.age_ms / 1000,
                own=report.instance == self._options.instance,
            )
            for report in await self._presence.all_reports()
        )

    async def route_status(
        self, route_id: str, *, tenant: Tenant = DEFAULT_TENANT
    ) -> tuple[RouteStatus, ...]:
        """Return the state of a route on each running hub.

        Raises:
            RouteNotFoundError: There is none.
            StorageUnavailableError: The reports of the others cannot be read.
        """
        view = await self.get(route_id, tenant=tenant)
        reports = await self._presence.all_reports()
        return tuple(self._status(view, report) for report in reports)

    async def drift(self, *, repair: bool = True) -> DriftReport:
        """Compare this hub's table with the storage now.

        Args:
            repair: Also fix what differs, and try again what failed.

        Raises:
            StorageUnavailableError: It cannot be read.
        """
        return await self._comparison.compare(repair=repair)

    @property
    def last_drift(self) -> DriftReport | None:
        """Return the latest report of drift, None = there was no comparison yet."""
        return self._comparison.last

    def check_file(self, manifest: Manifest) -> None:
        """Check that `follow_file` would accept a manifest.

        Raises:
            ManifestError: It has ids that the hub's own table has as well.
        """
        if not self._options.shared:
            error = taken_ids(manifest, self._reconciler)
            if error is not None:
                raise error

    async def follow_file(self, manifest: Manifest) -> None:
        """Apply the manifest that the settings name, after a start or reload.

        Raises:
            ManifestError: See `check_file`; nothing has changed.
        """
        if self._options.shared:
            self._manifest = manifest
            self._shared.follow(manifest)
            self.settings_changed()
            return
        async with self._writing:
            self.check_file(manifest)
            self._manifest = manifest
            self._queries.file = manifest.file
            await self._reconciler.take_file(manifest, contents_of(manifest))
        self.settings_changed()

    async def apply_manifest(
        self,
        text: str,
        file: str,
        *,
        expected_revision: int | None = None,
        wait: bool = False,
        timeout_s: float = 5.0,
    ) -> ManifestApplied:
        """Make the routes of a manifest those of the shared table, in one step.

        Args:
            text: The manifest.
            file: Its name, for messages.
            expected_revision: Revision that the table must have, None = the one known here.
            wait: Also wait for the other hubs.
            timeout_s: Longest wait.

        Raises:
            InvalidRouteError: With all faults.
            ConflictError: The table is not shared, has changed, or has one of the ids by the API.
            StorageUnavailableError: The storage does not answer.
        """
        if not self._options.shared:
            raise ConflictError(
                f"this hub's table is its own: change {self._manifest.file} and reload it"
            )
        manifest = await asyncio.to_thread(self._shared.read, text, file)
        changes = self._shared.plan(manifest)
        had_catch_all = self._queries.has_catch_all()
        if expected_revision is None:
            expected_revision = self._reconciler.applied.revision
        result = await self._write(changes, expected=expected_revision, timeout_s=timeout_s)
        outcomes = [
            (change.key, stored)
            for change, stored in zip(changes, result.stored, strict=True)
            if change.key != DEFAULTS
        ]
        changed = [(key, stored) for key, stored in outcomes if stored.changed]
        applied = None
        if wait:
            applied = await self._presence.applied([k for k, _ in changed], result, timeout_s)
        lost = lost_warnings(had_catch_all, self._queries.has_catch_all())
        warnings = [*map(str, manifest.warnings), *lost]
        return ManifestApplied(
            added=tuple(key.id for key, stored in changed if stored.created),
            updated=tuple(k.id for k, s in changed if not s.created and s.row is not None),
            removed=tuple(key.id for key, stored in changed if stored.row is None),
            unchanged=len(outcomes) - len(changed),
            revision=result.revision,
            applied=applied,
            warnings=tuple(warnings),
        )

    def manifest_in_force(self) -> Manifest:
        """Return the routes in force that belong to a manifest."""
        rows, own = self._reconciler.rows, self._reconciler.file_routes
        ours = {key.name for key in own}
        ours |= {
            key.name
            for key, row in rows.items()
            if isinstance(row, StoredRow) and row.origin == "manifest"
        }
        present = self.live.table.manifest
        routes = tuple(spec for spec in present.routes if spec.name in ours)
        return replace(present, routes=routes)

    def settings_changed(self) -> None:
        """Try again what could not be built: there may be other endpoints now."""
        self._reconciler.retry_failed()

    @property
    def stale_reason(self) -> str:
        """Return why the table may be old; empty = it is not."""
        if self._bootstrap.reason:
            return self._bootstrap.reason
        away_since = self._follower.away_since
        if away_since is None:
            return ""
        away_s = self._clock.monotonic() - away_since
        if away_s < STALE_S:
            return ""
        return f"the storage has been unreachable for {away_s:.0f} s: {self._follower.away_reason}"

    @property
    def ready(self) -> tuple[bool, str]:
        """Return whether the table is as the storage has it, and why not."""
        reason = self.stale_reason
        return (True, "") if not reason else (False, f"table stale: {reason}")

    def warnings(self) -> Sequence[str]:
        """Return the warnings for the operator."""
        found = []
        if self.stale_reason:
            found.append(f"the routing table may be old: {self.stale_reason}")
        if self._reconciler.failures:
            names = sorted(key.name for key in self._reconciler.failures)
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")  # noqa: PLR2004 - a line
            found.append(f"{len(names)} routes cannot run here: {shown}")
        if self._rebuild.warning:
            found.append(self._rebuild.warning)
        if self._options.shared and not self._reconciler.rows.keys() - {DEFAULTS}:
            hint = "`edgehub manifest apply` or `route add` fills it"
            found.append(f"the shared routing table is empty, every message is dropped; {hint}")
        if self._presence.duplicate_hub:
            found.append(
                f"another running hub is called {self._options.hub_id} as well: which of the "
                "two has applied a change is unknown; set another hub_id there"
            )
        if self._manifest_differs():
            found.append(
                f"{self._manifest.file} differs from the shared routing table; "
                "`edgehub manifest apply` would make it count"
            )
        return found

    def statistics(self) -> TableStatistics:
        """Return the figures of this hub's table."""
        rows, failures = self._reconciler.rows, self._reconciler.failures
        follower, comparison, live = self._follower, self._comparison, self.live
        last = comparison.last
        keys = (rows.keys() | self._reconciler.file_routes.keys()) - {DEFAULTS}
        return TableStatistics(
            storage=self._storage.kind,
            instance=self._options.instance,
            epoch=follower.position.epoch,
            revision=follower.position.revision,
            applied_revision=self._reconciler.applied.revision,
            routes=len(keys),
            live_routes=live.live_count,
            failed=len(failures),
            disabled=sum(isinstance(row, StoredRow) and not row.enabled for row in rows.values()),
            stale=bool(self.stale_reason),
            stale_reason=self.stale_reason,
            sources=live.source_count,
            endpoints=live.endpoint_count,
            compared_total=comparison.compared_total,
            drift_found_total=comparison.found_total,
            drift_repaired_total=comparison.repaired_total,
            reloads_total=follower.reloads_total,
            gaps_total=follower.gaps_total,
            losses_total=follower.losses_total,
            restored_total=self._rebuild.restored_total,
            notices_total=follower.notices_total,
            notices_malformed_total=follower.malformed_total,
            routes_started_total=live.started_total,
            routes_stopped_total=live.stopped_total,
            last_compare_ms=None if last is None else last.at_ms,
            manifest_difference=self._manifest_differs(),
        )

    @property
    def busy(self) -> bool:
        """Whether rows wait to be applied."""
        return self._reconciler.busy

    def _status(self, view: RouteView, report: Report) -> RouteStatus:
        reason = report.failed.get(str(view.key))
        is_known = report.epoch == self._follower.position.epoch
        if report.instance == self._options.instance:
            state, reason = view.state, view.reason
        elif reason is not None:
            state = RouteState.FAILED
        elif not is_known or report.revision < view.revision:
            state = RouteState.BEHIND
        else:
            state = RouteState.RUNNING if view.enabled else RouteState.DISABLED
        return RouteStatus(
            instance=report.instance, hub_id=report.hub_id, state=state, reason=reason
        )

    def _manifest_differs(self) -> bool:
        return self._options.shared and not self._bootstrap.reason and self._shared.differs()

    def _applied(self, keys: frozenset[RouteKey]) -> None:
        del keys
        self._bootstrap.applied()
        self._presence.report_soon()

    async def _retry(self) -> None:
        while True:
            await self._clock.sleep(RETRY_LOOK_S)
            self._reconciler.retry_failed(at_once=False)
