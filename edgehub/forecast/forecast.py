"""What another manifest would do: to the routes, to the queues that exist, and to the disk.

Pure: takes two checked manifests, the queues' statistics and their measured rates. Invariant: what
was not measured is called so, never guessed; where one queue's rate is shared by routes that part,
the figure is an upper bound and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgehub.message import QueueId, queue_id
from edgehub.routes.difference import compare, route_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from edgehub.forecast.rates import Rate
    from edgehub.message import EndpointId
    from edgehub.routes.difference import ManifestDifference, RouteLine
    from edgehub.routes.spec import Manifest
    from edgehub.store.statistics import QueueStatistics

KEPT: Final = "kept"
NEW: Final = "new"
DRAINS: Final = "drains"
ORPHANED: Final = "orphaned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What there is now.

    Attributes:
        manifest: In force.
        queues: All stored queues.
        rates: Measured rates by queue; empty = not measured yet.
        served: Endpoints that somebody serves.
        free_bytes: Free space where the database lies.
    """

    manifest: Manifest
    queues: Sequence[QueueStatistics]
    rates: Mapping[QueueId, Rate]
    served: Collection[EndpointId]
    free_bytes: int


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
        "warnings": [str(warning) for warning in after.warnings],
    }


class _Feeds:
    """Which routes feed which queue, before and after."""

    def __init__(
        self,
        before: Iterable[RouteLine],
        after: Iterable[RouteLine],
        difference: ManifestDifference,
    ) -> None:
        self.before = _by_queue(before)
        self.after = _by_queue(after)
        self.line_after = {line.name: line for lines in self.after.values() for line in lines}
        taking_other = [route.name for route in difference.changed if not route.takes_the_same]
        self.unmeasured = [*(line.name for line in difference.added), *taking_other]
        self.touched = {
            *(route.name for route in difference.changed),
            *(line.name for line in difference.removed),
        }

    def flows(self, source: QueueId) -> list[RouteLine]:
        """Give what becomes of the routes that feed a queue now."""
        lines = [self.line_after.get(line.name) for line in self.before.get(source, ())]
        return [line for line in lines if line is not None]

    def goes_as_one(self, source: QueueId) -> bool:
        """Tell whether all that feeds a queue now would feed one queue with one time to live."""
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
        routes = [
            line.name for line in feeds.before.get(queue.id, ()) if line.name in feeds.touched
        ]
        if queue.depth and routes:
            found.append(
                {"queue": queue.id, "rows": queue.depth, "bytes": queue.bytes, "routes": routes}
            )
    return found


def _queue_documents(feeds: _Feeds, present: Present) -> list[dict[str, Any]]:
    stored = {queue.id: queue for queue in present.queues}
    waiting = [name for name, queue in stored.items() if queue.depth]
    names = sorted({*waiting, *feeds.before, *feeds.after})
    return [_queue_document(name, stored.get(name), feeds, present) for name in names]


def _queue_document(
    name: QueueId, queue: QueueStatistics | None, feeds: _Feeds, present: Present
) -> dict[str, Any]:
    after = feeds.after.get(name, [])
    if after:
        fate = KEPT if name in feeds.before or queue is not None else NEW
    else:
        gone = queue is not None and queue.endpoint_id not in present.served
        fate = ORPHANED if gone else DRAINS
    sources = [source for source in feeds.before if _flows_into(feeds, source, name)]
    measured = [present.rates[source] for source in sources if source in present.rates]
    unmeasured = [line.name for line in after if line.name in feeds.unmeasured]
    ttl_ms = _longest(after)
    rate = sum(each.bytes_s for each in measured) if measured else None
    return {
        "id": name,
        "fate": fate,
        "rows": queue.depth if queue else 0,
        "bytes": queue.bytes if queue else 0,
        "routes_before": [line.name for line in feeds.before.get(name, ())],
        "routes_after": [line.name for line in after],
        "rate_bytes_s": rate,
        "rate_is": _rate_word(feeds, sources, measured=bool(measured), unmeasured=unmeasured),
        "ttl_s": _seconds(ttl_ms),
        "need_bytes": _need(rate, ttl_ms) if after else 0,
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
    """Say what has to fit if nothing can leave for a whole time to live."""
    stored = sum(queue.bytes for queue in present.queues)
    draining = sum(queue.bytes for queue in present.queues if queue.id not in feeds.after)
    need, endless = float(draining), False
    for source, rate in present.rates.items():
        lines = feeds.flows(source)
        if not lines or not rate.bytes_s:
            continue
        ttl_ms = _longest(lines)
        if ttl_ms is None:
            endless = True
        else:
            need += rate.bytes_s * ttl_ms / 1000
    # Where nothing has come in, nothing is known of what will.
    measured = any(rate.bytes_s for rate in present.rates.values())
    need_bytes = round(need) if measured and not endless else None
    room = present.free_bytes + stored
    fits = None if not measured else not endless and need <= room
    return {
        "measured_s": max((rate.measured_s for rate in present.rates.values()), default=None),
        "need_bytes": need_bytes,
        "endless": endless,
        "stored_bytes": stored,
        "free_bytes": present.free_bytes,
        "fits": fits,
        "unmeasured_routes": list(feeds.unmeasured),
    }


def _longest(lines: Collection[RouteLine]) -> int | None:
    """Give the longest time to live, None = one of them never ends, or there is none."""
    values = [line.ttl_ms for line in lines]
    finite = [value for value in values if value is not None]
    return max(finite) if finite and len(finite) == len(values) else None


def _need(rate_bytes_s: float | None, ttl_ms: int | None) -> int | None:
    return None if rate_bytes_s is None or ttl_ms is None else round(rate_bytes_s * ttl_ms / 1000)


def _seconds(ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else ttl_ms // 1000
