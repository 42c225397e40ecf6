"""The hub and its queues, as operations return them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class DrainDocument(TypedDict):
    """When a queue will be empty.

    Attributes:
        state: `empty`, `drains`, `never`, `offline`, `unserved` or `unknown`.
        seconds: Time until then, null where it is not known.
    """

    state: str
    seconds: float | None


class QueueDocument(TypedDict):
    """One queue.

    Attributes:
        id: Such as `upstream_Pri0`.
        priority: 0 is the best; 2000000000 = the default one, behind 9.
        orphaned: No settings or route name its endpoint any more.
        depth: Messages on disk, those in flight included.
        in_flight: Messages that the pump has taken, on disk or not yet, those kept out included.
        kept_out: Messages that the pump has and does not send: the peer may have closed the
            connection over them.
        oldest_age_s: Age of the oldest message, null = the queue is empty.
        oldest_ttl_s: Its time to live, null = it has none.
        oldest_expires_in_s: What is left of that.
        checkpoint: Everything up to this offset has left.
        latency_p50_s: Median time from arrival to confirmation, of the newest messages.
        latency_p99_s: 99th percentile of it.
        unserved_s: Since the pump last took a batch, null = it has taken none.
    """

    id: str
    endpoint: str
    priority: int
    state: str
    orphaned: bool
    depth: int
    bytes: int
    in_flight: int
    kept_out: int
    oldest_age_s: float | None
    oldest_ttl_s: float | None
    oldest_expires_in_s: float | None
    checkpoint: int
    enqueued: int
    sent: int
    expired: int
    dropped: int
    moved: int
    dead_lettered: int
    purged: int
    requeued: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    unserved_s: float | None
    drain: DrainDocument


class EndpointDocument(TypedDict):
    """One endpoint and its pump.

    Attributes:
        reason: Why it does not send, empty = it does.
        mqtt_version: `3.1.1` or `5`, null = not connected, or another protocol.
        drain_eta_seconds: Time until nothing waits for it, null where it is not known.
    """

    id: str
    state: str
    reason: str
    mqtt_version: str | None
    in_flight_rows: int
    sent_total: int
    drain_eta_seconds: float | None


class StatusDocument(TypedDict):
    """The whole hub.

    Attributes:
        started: UTC of the start; counters count since then.
        phase: `starting`, `running`, `draining` or `stopped`.
        summary: In a few words, whether it delivers.
        degraded: The store is not as it should be.
        warnings: What an operator should look at.
        stalled: Endpoints whose pump does not progress.
        routes: Routes in force.
        unrouted: Messages that no route took.
    """

    hub_id: str
    version: str
    started: str
    phase: str
    summary: str
    degraded: bool
    warnings: list[str]
    stalled: list[str]
    routes: int
    unrouted: int
    store: dict[str, Any]
    endpoints: list[EndpointDocument]
    queues: list[QueueDocument]


class QueuesDocument(TypedDict):
    """All queues, by endpoint and priority.

    Attributes:
        started: UTC of the start; counters count since then.
    """

    started: str
    queues: list[QueueDocument]
