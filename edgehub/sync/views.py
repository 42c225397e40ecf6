"""Views of the routing table for operators and programs, and their documents."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from edgehub.clock import utc_text
from edgehub.routes.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from edgehub.routes.tenant import RouteKey

LISTED_MAX: Final = 100
"""Ids in a report; their number is reported in addition."""


class RouteState(StrEnum):
    """What a route does on one hub."""

    RUNNING = "running"
    FAILED = "failed"  # it cannot run as it should; what ran before under its id goes on
    DISABLED = "disabled"
    PENDING = "pending"  # it is about to be applied
    BEHIND = "behind"  # the hub does not know of its latest change


class RouteView(Struct, frozen=True, kw_only=True):
    """One route as this hub knows it.

    Attributes:
        key: What it is called.
        members: As in a manifest, and `description`; empty = it cannot be read.
        enabled: Whether it is to run.
        hash: Of its content.
        revision: Of its latest change; 0 = it is kept in a manifest's file.
        origin: `api` or `manifest`.
        file: That file, None = it is kept in the table.
        created_ms: UTC, None = not known.
        modified_ms: Likewise.
        state: What it does here.
        reason: Why it failed, None = it did not.
        live_hash: Hash of what runs under its id, None = nothing does.
        shared_with: Ids of others that share its live route.
    """

    key: RouteKey
    members: dict[str, Any]
    enabled: bool
    hash: str
    revision: int = 0
    origin: str = "api"
    file: str | None = None
    created_ms: int | None = None
    modified_ms: int | None = None
    state: RouteState
    reason: str | None
    live_hash: str | None
    shared_with: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Describe it."""
        tenant = self.key.tenant
        return {
            "id": self.key.id,
            **({} if tenant == DEFAULT_TENANT else {"tenant": str(tenant)}),
            **self.members,
            "enabled": self.enabled,
            "hash": self.hash,
            "revision": self.revision,
            "origin": self.origin,
            "file": self.file,
            "created": _time(self.created_ms),
            "modified": _time(self.modified_ms),
            "state": self.state.value,
            "reason": self.reason,
            "live_hash": self.live_hash,
            "shared_with": list(self.shared_with),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Who has applied a change.

    Attributes:
        result: `complete` = all hubs; `failed` = all hubs have read it, some cannot run it;
            `timeout` = some did not say so in time.
        by: Instances that have.
        behind: Those that have not said so.
        failed: `instance` and `reason` of those that cannot.
    """

    result: str
    by: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    failed: tuple[dict[str, str], ...] = ()


class Written(Struct, frozen=True, kw_only=True):
    """What became of a write.

    Attributes:
        view: The route, None = it was deleted.
        created: It is new.
        changed: Something was stored; False = it was like that.
        revision: Of the table after it.
        applied: Who has applied it, None = not asked for.
        warnings: What is allowed but hardly meant.
    """

    view: RouteView | None
    created: bool
    changed: bool
    revision: int
    applied: Applied | None = None
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "route": None if self.view is None else self.view.document(),
            "created": self.created,
            "changed": self.changed,
            "revision": self.revision,
            "applied": None if self.applied is None else asdict(self.applied),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestApplied:
    """What a manifest changed.

    Attributes:
        added: Ids.
        updated: Ids.
        removed: Ids.
        unchanged: Their number.
        revision: Of the table after it.
        applied: Who has applied it, None = not asked for.
        warnings: What is allowed but hardly meant.
    """

    added: tuple[str, ...]
    updated: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int
    revision: int
    applied: Applied | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One running hub.

    Attributes:
        instance: Names the running hub; another one after each start.
        hub_id: The hub.
        revision: It has applied everything up to here.
        epoch: Of the table.
        routes: Routes of the table there.
        failed: Number of those that cannot run.
        stale: Why its table may be old, empty = it is not.
        age_s: Since it said so.
        own: It is this hub.
    """

    instance: str
    hub_id: str
    revision: int
    epoch: int
    routes: int
    failed: int
    stale: str
    age_s: float
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStatus:
    """What one hub makes of one route.

    Attributes:
        instance: The running hub.
        hub_id: The hub.
        state: See `RouteState`.
        reason: Why it failed, None = it did not.
    """

    instance: str
    hub_id: str
    state: RouteState
    reason: str | None


class DriftReport(Struct, frozen=True, kw_only=True):
    """What a comparison with the storage found.

    Attributes:
        at_ms: UTC.
        revision: Of the table.
        compared: Rows.
        missing: Routes that should run and did not.
        extra: Routes that ran and should not.
        changed: Routes that ran otherwise than they should.
        failed: Routes that cannot be built; they were tried again.
        total: Number of the first three.
        repaired: Ids whose live route was changed by this.
        restored: Rows that this hub has put back into the storage since the comparison before,
            because it had lost them.
        duration_ms: It took so long.
    """

    at_ms: int
    revision: int
    compared: int
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    changed: tuple[str, ...]
    failed: tuple[str, ...]
    total: int
    repaired: int
    restored: int
    duration_ms: int

    def document(self) -> dict[str, Any]:
        """Describe it."""
        return {**structs.asdict(self), "at": _time(self.at_ms)}


class TableStatistics(Struct, frozen=True, kw_only=True):
    """Figures of the table on this hub; the metrics are made of them.

    Attributes:
        storage: `sqlite`, `redis` or `memory`.
        instance: Names this running hub.
        epoch: Of the table.
        revision: It knows of changes up to here.
        applied_revision: It has applied them up to here.
        routes: Ids, those of a manifest's file included.
        live_routes: Routes that run.
        failed: Routes that cannot be built or read.
        disabled: Routes that are not to run.
        stale: The table may be old.
        stale_reason: Why.
        sources: Sources that are listened to.
        endpoints: Endpoints that routes send to.
        compared_total: Comparisons.
        drift_found_total: Ids that were not as they should be.
        drift_repaired_total: Ids whose live route was changed by that.
        reloads_total: The table was read whole.
        gaps_total: A notice had been missed.
        losses_total: The storage became unreachable.
        restored_total: It had lost the table, which this hub put back.
        notices_total: Entries of the log that were read.
        notices_malformed_total: Those that made no sense.
        routes_started_total: Live routes.
        routes_stopped_total: Live routes.
        last_compare_ms: UTC, None = never.
        manifest_difference: The manifest's file differs from the shared table.
    """

    storage: str
    instance: str
    epoch: int
    revision: int
    applied_revision: int
    routes: int
    live_routes: int
    failed: int
    disabled: int
    stale: bool
    stale_reason: str
    sources: int
    endpoints: int
    compared_total: int
    drift_found_total: int
    drift_repaired_total: int
    reloads_total: int
    gaps_total: int
    losses_total: int
    restored_total: int
    notices_total: int
    notices_malformed_total: int
    routes_started_total: int
    routes_stopped_total: int
    last_compare_ms: int | None
    manifest_difference: bool


def cut(ids: list[str]) -> tuple[str, ...]:
    """Return the first ids, sorted."""
    return tuple(sorted(ids)[:LISTED_MAX])


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        return utc_text(milliseconds)
    except (OverflowError, ValueError, OSError):
        # Edited by hand in the storage; not a time.
        return None
