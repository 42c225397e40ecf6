"""What a hub says of itself: one document from the statistics of its parts.

Owns nothing; reads the frozen statistics that every stateful part gives. Invariant: the command
line, the demo and later the web page show the same figures, because they all come from here.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgehub.lifecycle import Phase
from edgehub.message import UPSTREAM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from edgehub.message import EndpointId
    from edgehub.pump.pump import Pump
    from edgehub.store.queue import Queue


def queue_document(
    queue: Queue, *, now_ms: int, pump: Pump | None, orphaned: bool
) -> dict[str, Any]:
    """Describe one queue.

    Args:
        queue: The queue.
        now_ms: Hub time, for the age of the oldest row.
        pump: The pump that serves it, None = nobody does.
        orphaned: No endpoint of the settings or routes has its name any more.
    """
    figures = queue.statistics()
    latency = pump.latency(queue.priority) if pump else None
    oldest = figures.oldest_enqueued_ms
    return {
        "id": queue.id,
        "endpoint": queue.endpoint_id,
        "priority": queue.priority,
        "state": figures.state,
        "orphaned": orphaned,
        "depth": figures.depth,
        "bytes": figures.bytes,
        "in_flight": figures.in_flight,
        "oldest_age_s": None if oldest is None else max(0, now_ms - oldest) / 1000,
        "checkpoint": figures.checkpoint,
        "enqueued": figures.enqueued_total,
        "sent": figures.sent_total,
        "expired": figures.expired_total,
        "dead_lettered": figures.dead_lettered_total,
        "latency_p50_s": None if latency is None else latency[0],
        "latency_p99_s": None if latency is None else latency[1],
    }


def endpoint_document(pump: Pump) -> dict[str, Any]:
    """Describe one endpoint and its pump."""
    figures = asdict(pump.statistics())
    latency = figures.pop("latency")
    return {
        "id": pump.endpoint.id,
        **figures,
        "latency": {str(priority): summary for priority, summary in latency.items()},
    }


def summary(
    phase: Phase,
    endpoints: Iterable[Mapping[str, Any]],
    queues: Iterable[Mapping[str, Any]],
    *,
    upstream: bool,
) -> str:
    """Say in a few words whether the hub delivers."""
    waiting = sum(queue["depth"] for queue in queues)
    if phase is not Phase.RUNNING:
        return f"takes no messages, {waiting} waiting"
    states = {endpoint["id"]: endpoint["state"] for endpoint in endpoints}
    if not upstream:
        return f"collecting, no upstream named, {waiting} waiting"
    if states.get(UPSTREAM) != "up":
        return f"collecting, not sending, {waiting} waiting"
    return f"delivering, {waiting} waiting"


def warnings(
    orphans: Collection[EndpointId], manifest_warnings: Iterable[str], unrouted: int
) -> list[str]:
    """List what a person should look at.

    Args:
        orphans: Endpoints of stored rows that nobody names.
        manifest_warnings: What the manifest in force was accepted with.
        unrouted: Messages that no route took.
    """
    found = []
    if unrouted:
        found.append(
            f"{unrouted} messages were acknowledged and dropped, because no route takes them "
            "(edgehub route explain says why)"
        )
    found += [
        f"rows of endpoint {name!r} are parked: no settings or route name it any more"
        for name in sorted(orphans)
    ]
    return [*found, *manifest_warnings]
