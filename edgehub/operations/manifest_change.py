"""What another manifest would do: to the routes, to the queues that exist, and to the disk.

Pure: takes two checked manifests, the queues' statistics and their measured rates. Invariant: what
was not measured is called so, never guessed; where one queue's rate is shared by routes that part,
the figure is an upper bound and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.message import QueueId, queue_id
from edgehub.operations.room import Demand, exceeded
from edgehub.routes.catch_all import is_catch_all, lost_warnings
from edgehub.routes.difference import compare, route_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from edgehub.message import EndpointId
    from edgehub.operations.forecast.rates import Rate
    from edgehub.operations.room import Room
    from edgehub.routes.difference import ManifestDifference, RouteLine
    from edgehub.routes.spec import Manifest, RouteSpec
    from edgehub.store.statistics import QueueStatistics

KEPT: Final = "kept"
NEW: Final = "new"
DRAINS: Final = "drains"
ORPHANED: Final = "orphaned"


class Present(Struct, frozen=True, kw_only=True):
    """What there is now.

    Attributes:
        manifest: In force.
        queues: All stored queues.
        rates: Measured rates by queue; empty = not measured yet.
        served: Endpoints that have a pump.
        room: What may wait.
        others: Routes in force that no manifest changes.
    """

    manifest: Manifest
    queues: Sequence[QueueStatistics]
    rates: Mapping[QueueId, Rate]
    served: Collection[EndpointId]
    room: Room
    others: Sequence[RouteSpec] = ()


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Describe a manifest; what `edgehub manifest show --json` prints."""
    ttl_ms = manifest.global_ttl_ms
    return {
        "file": manifest.file,
        "schema_version": manifest.schema_version,
        "fingerprint": manifest.fingerprint,
        "global_ttl_s": None if ttl_ms is None else ttl_ms // 1000,
        "routes": [_route_document(line) for line in route_lines(manifest)],
        "warnings": [str(warning) for warning in manifest.warnings],
    }


def difference_document(present: Present, after: Manifest) -> dict[str, Any]:
    """Describe what `after` would change; what `edgehub manifest diff --json` prints."""
    difference = compare(present.manifest, after)
    feeds = _Feeds(route_lines(present.manifest), route_lines(after), difference)
    return {
        "in_force": _head(present.manifest),
        "new": _head(after),
        "same": present.manifest.fingerprint == after.fingerprint,
        "routes": _routes_document(difference),
        "class_changes": _class_changes(difference, present),
        "snapshots": _snapshots(feeds, present),
        "queues": _queue_documents(feeds, present),
        "disk": _disk(feeds, present),
        "warnings": [*map(str, after.warnings), *_lost_catch_all(present, after)],
    }


def _lost_catch_all(present: Present, after: Manifest) -> tuple[str, ...]:
    had = any(is_catch_all(spec.route) for spec in present.manifest.routes)
    has = any(is_catch_all(spec.route) for spec in (*after.routes, *present.others))
    return lost_warnings(had, has)


class _Feeds:
    """Which routes feed which queue, before and after."""

    def __init__(
        self,
        before: Iterable[RouteLine],
        after: Iterable[RouteLine],
        difference: ManifestDifference,
    ) -> None:
        before, after = list(before), list(after)
        self.before = _by_queue(before)
        self.after = _by_queue(after)
        self.fallback_before = _by_fallback_queue(before)
        self.fallback_after = _by_fallback_queue(after)
        self.line_after = {line.name: line for lines in self.after.values() for line in lines}
        taking_other = [route.name for route in difference.changed if not route.takes_the_same]
        self.unmeasured = [*(line.name for line in difference.added), *taking_other]
        self.touched = {
            *(route.name for route in difference.changed),
            *(line.name for line in difference.removed),
        }

    def flows(self, source: QueueId) -> list[RouteLine]:
        """Return what becomes of the routes that feed a queue now."""
        lines = [self.line_after.get(line.name) for line in self.before.get(source, ())]
        return [line for line in lines if line is not None]

    def goes_as_one(self, source: QueueId) -> bool:
        """Return whether all that feeds a queue now would feed one queue with one time to live."""
        lines = self.flows(source)
        names = {line.name for line in self.before.get(source, ())}
        targets = {(_queue_of(line), line.ttl_ms) for line in lines}
        return (
            len(targets) == 1
            and len(lines) == len(names)
            and not names.intersection(self.unmeasured)
        )


def _by_queue(lines: Iterable[RouteLine]) -> dict[QueueId, list[RouteLine]]:
    queues: dict[QueueId, list[RouteLine]] = {}
    for line in lines:
        queues.setdefault(_queue_of(line), []).append(line)
    return queues


def _by_fallback_queue(lines: Iterable[RouteLine]) -> dict[QueueId, list[RouteLine]]:
    """Group by the queue to which rows go that are too old for their own; see recency."""
    queues: dict[QueueId, list[RouteLine]] = {}
    for line in lines:
        if line.fallback_priority not in (None, line.priority):
            queues.setdefault(queue_id(line.endpoint_id, line.fallback_priority), []).append(line)
    return queues


def _queue_of(line: RouteLine) -> QueueId:
    return queue_id(line.endpoint_id, line.priority)


def _head(manifest: Manifest) -> dict[str, Any]:
    return {
        "file": manifest.file,
        "fingerprint": manifest.fingerprint,
        "routes": len(manifest.routes),
    }


def _route_document(line: RouteLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "route": line.text,
        "endpoint": line.endpoint_id,
        "priority": line.priority,
        "queue": _queue_of(line),
        "ttl_s": _seconds(line.ttl_ms),
    }


def _routes_document(difference: ManifestDifference) -> dict[str, Any]:
    return {
        "added": [_route_document(line) for line in difference.added],
        "removed": [_route_document(line) for line in difference.removed],
        "changed": [
            {
                "name": route.name,
                "changes": {
                    part: {"before": old, "after": new}
                    for part, (old, new) in route.changes.items()
                },
            }
            for route in difference.changed
        ],
        "unchanged": [line.name for line in difference.unchanged],
    }


def _class_changes(difference: ManifestDifference, present: Present) -> list[dict[str, Any]]:
    depths = {queue.id: queue.depth for queue in present.queues}
    return [
        {
            "route": route.name,
            "before": route.before.priority,
            "after": route.after.priority,
            "old_queue": _queue_of(route.before),
            "new_queue": _queue_of(route.after),
            "rows_in_old_queue": depths.get(_queue_of(route.before), 0),
        }
        for route in difference.changed
        if "priority" in route.changes
    ]


def _snapshots(feeds: _Feeds, present: Present) -> list[dict[str, Any]]:
    """List the rows that keep priority and time to live of a route that changes or goes."""
    found: list[dict[str, Any]] = []
    for queue in present.queues:
        lines = (*feeds.before.get(queue.id, ()), *feeds.fallback_before.get(queue.id, ()))
        routes = [name for name in dict.fromkeys(map(_name, lines)) if name in feeds.touched]
        if queue.depth and routes:
            found.append(
                {"queue": queue.id, "rows": queue.depth, "bytes": queue.bytes, "routes": routes}
            )
    return found


def _queue_documents(feeds: _Feeds, present: Present) -> list[dict[str, Any]]:
    stored = {queue.id: queue for queue in present.queues}
    waiting = [name for name, queue in stored.items() if queue.depth]
    fallbacks = (*feeds.fallback_before, *feeds.fallback_after)
    names = sorted({*waiting, *feeds.before, *feeds.after, *fallbacks})
    return [_queue_document(name, stored.get(name), feeds, present) for name in names]


def _queue_document(
    name: QueueId, queue: QueueStatistics | None, feeds: _Feeds, present: Present
) -> dict[str, Any]:
    after, aged = feeds.after.get(name, []), feeds.fallback_after.get(name, [])
    if after or aged:
        was = name in feeds.before or name in feeds.fallback_before or queue is not None
        fate = KEPT if was else NEW
    else:
        is_orphan = queue is not None and queue.endpoint_id not in present.served
        fate = ORPHANED if is_orphan else DRAINS
    sources = [source for source in feeds.before if _flows_into(feeds, source, name)]
    measured = [present.rates[source] for source in sources if source in present.rates]
    unmeasured = [line.name for line in after if line.name in feeds.unmeasured]
    ttl_ms = _longest([*after, *aged])
    rate = sum(each.bytes_s for each in measured) if measured else None
    rows_s = sum(each.rows_s for each in measured) if measured else None
    need = _need(rate, ttl_ms) if after else 0
    demand = Demand(queue=name, bytes=need, rows=_need(rows_s, ttl_ms) if after else 0)
    return {
        "id": name,
        "fate": fate,
        "rows": queue.depth if queue else 0,
        "bytes": queue.bytes if queue else 0,
        "routes_before": [line.name for line in feeds.before.get(name, ())],
        "routes_after": [line.name for line in after],
        "older_rows_of": [line.name for line in aged],
        "rate_bytes_s": rate,
        "rate_is": _rate_word(feeds, sources, measured=bool(measured), unmeasured=unmeasured),
        "ttl_s": _seconds(ttl_ms),
        "need_bytes": need,
        "exceeds": exceeded(present.room, demand, stored_bytes=0),
    }


def _flows_into(feeds: _Feeds, source: QueueId, name: QueueId) -> bool:
    return any(_queue_of(line) == name for line in feeds.flows(source))


def _rate_word(
    feeds: _Feeds, sources: Iterable[QueueId], *, measured: bool, unmeasured: Collection[str]
) -> str:
    if not measured:
        return "not measured yet"
    if unmeasured:
        return f"without {', '.join(unmeasured)}, not measured yet"
    return "measured" if all(feeds.goes_as_one(source) for source in sources) else "at most"


def _disk(feeds: _Feeds, present: Present) -> dict[str, Any]:
    """Return what has to fit if nothing can leave for a whole time to live."""
    stored = sum(queue.bytes for queue in present.queues)
    # What is too old for its own queue is a part of what its route takes in.
    filled = feeds.after.keys() | feeds.fallback_after.keys()
    draining = [queue for queue in present.queues if queue.id not in filled]
    size, rows = float(sum(q.bytes for q in draining)), float(sum(q.depth for q in draining))
    measured = endless = False
    for source, rate in present.rates.items():
        lines = feeds.flows(source)
        if not lines or not rate.bytes_s:
            continue
        measured = True
        ttl_ms = _longest(lines)
        if ttl_ms is None:
            endless = True
        else:
            size += rate.bytes_s * ttl_ms / 1000
            rows += rate.rows_s * ttl_ms / 1000
    # Where nothing has come in by these routes, nothing is known of what will.
    is_known = measured and not endless
    demand = Demand(queue=None, bytes=size if is_known else None, rows=rows if is_known else None)
    over = exceeded(present.room, demand, stored_bytes=stored)
    room = present.room
    return {
        "measured_s": max((rate.measured_s for rate in present.rates.values()), default=None),
        "need_bytes": round(size) if is_known else None,
        "endless": endless,
        "stored_bytes": stored,
        "free_bytes": room.free_bytes,
        "floor_bytes": room.floor_bytes,
        "cap_bytes": room.hub_bytes,
        "exceeds": over,
        "fits": None if not measured else not endless and not over,
        "unmeasured_routes": list(feeds.unmeasured),
    }


def _longest(lines: Collection[RouteLine]) -> int | None:
    """Return the longest time to live, None = one of them never ends, or there is none."""
    values = [line.ttl_ms for line in lines]
    finite = [value for value in values if value is not None]
    return max(finite) if finite and len(finite) == len(values) else None


def _need(rate_s: float | None, ttl_ms: int | None) -> int | None:
    return None if rate_s is None or ttl_ms is None else round(rate_s * ttl_ms / 1000)


def _name(line: RouteLine) -> str:
    return line.name


def _seconds(ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else ttl_ms // 1000
