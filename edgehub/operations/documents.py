"""Rows, dead letters and queues as they are shown.

Pure. Invariant: no payload and no value of a property, unless it was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgehub.clock import utc_text
from edgehub.message import NEVER_MS, body_members, queue_id
from edgehub.pump.poison import NextStep
from edgehub.store.statistics import QueueState, RowState

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Message, Row
    from edgehub.pump.poison import Suspicion
    from edgehub.pump.pump import Pump
    from edgehub.store import DeadLetter
    from edgehub.store.queue import Queue

    Utc = Callable[[int], int]


def seconds_left(expires_ms: int, now_ms: int) -> float | None:
    """Return the seconds until a time to live ends, None = never."""
    return None if expires_ms >= NEVER_MS else (expires_ms - now_ms) / 1000


def state_of(row: Row, queue: Queue, pump: Pump | None) -> tuple[RowState, Suspicion | None]:
    """Return what becomes of a row, and what speaks against it.

    Args:
        row: It was just read from the file.
        queue: It lies there.
        pump: Serves that queue, None = none does.
    """
    state = queue.row_state(row)
    suspicion = None if pump is None else pump.suspicion(row)
    if suspicion is not None and suspicion.next is NextStep.KEPT_OUT:
        state = RowState.KEPT_OUT
    return state, suspicion


def row_document(
    row: Row,
    state: RowState,
    suspicion: Suspicion | None,
    *,
    now_ms: int,
    utc_ms: Utc,
    payload: bool,
) -> dict[str, Any]:
    """Describe a row.

    Args:
        row: The row.
        state: What becomes of it.
        suspicion: What speaks against it, None = nothing does.
        now_ms: Hub time.
        utc_ms: Gives the UTC of a hub time.
        payload: Show body and values of properties.
    """
    return {
        "offset": row.offset,
        "id": row.message.message_id,
        "state": state,
        **message_document(row.message, body_bytes=len(row.message.body), payload=payload),
        "enqueued": utc_text(utc_ms(row.enqueued_ms)),
        "age_s": (now_ms - row.enqueued_ms) / 1000,
        "ttl_s": None if row.expires_ms >= NEVER_MS else (row.expires_ms - row.enqueued_ms) / 1000,
        "expires_in_s": seconds_left(row.expires_ms, now_ms),
        "attempts": row.attempts,
        "closes": 0 if suspicion is None else suspicion.closes,
        "routes": list(row.routes),
        "bytes": row.size,
    }


def letter_document(letter: DeadLetter, *, utc_ms: Utc, payload: bool) -> dict[str, Any]:
    """Describe a dead letter; see `row_document`."""
    return {
        "dead_letter": letter.id,
        "id": letter.message.message_id,
        "queue": queue_id(letter.endpoint_id, letter.priority),
        "endpoint": letter.endpoint_id,
        "priority": letter.priority,
        "kind": letter.kind,
        "reason": letter.reason,
        "dead": utc_text(utc_ms(letter.dead_ms)),
        "enqueued": utc_text(utc_ms(letter.enqueued_ms)),
        "attempts": letter.attempts + 1,  # the row counts those before the last
        "routes": list(letter.routes),
        "bytes": letter.size,
        **message_document(letter.message, body_bytes=letter.body_bytes, payload=payload),
    }


def message_document(message: Message, *, body_bytes: int, payload: bool) -> dict[str, Any]:
    """Describe a message.

    Args:
        message: The message.
        body_bytes: Size of its body, which may have been left out.
        payload: Show body and values of properties; else the names of properties are shown.
    """
    document: dict[str, Any] = {
        "device": message.device_id,
        "module": message.module_id,
        "source": message.source,
        "body_bytes": body_bytes,
    }
    if not payload:
        return document | {
            "properties": sorted(message.properties),
            "system_properties": sorted(message.system),
        }
    document |= {"properties": message.properties, "system_properties": message.system}
    return document | body_members(message.body)


def queue_document(
    queue: Queue, *, now_ms: int, pump: Pump | None, orphaned: bool
) -> dict[str, Any]:
    """Describe one queue.

    Args:
        queue: The queue.
        now_ms: Hub time, for the age of the oldest row.
        pump: Serves it, None = nothing does.
        orphaned: No endpoint of the settings or routes has its name any more.
    """
    figures = queue.statistics()
    pumped = None if pump is None else pump.pumped(queue.id)
    latency = None if pumped is None else pumped.latency.summary()
    kept_out = 0 if pump is None else pump.kept_out_rows(queue.id)
    state = figures.state
    if state is QueueState.SENDING and kept_out == figures.in_flight:
        state = QueueState.WAITING if queue.has_ready() else QueueState.DELAYED
    oldest = figures.oldest_enqueued_ms
    return {
        "id": queue.id,
        "endpoint": queue.endpoint_id,
        "priority": queue.priority,
        "state": state,
        "orphaned": orphaned,
        "depth": figures.depth,
        "bytes": figures.bytes,
        "in_flight": figures.in_flight,
        "kept_out": kept_out,
        "oldest_age_s": None if oldest is None else max(0, now_ms - oldest) / 1000,
        "checkpoint": figures.checkpoint,
        "enqueued": figures.enqueued_total,
        "sent": figures.sent_total,
        "expired": figures.expired_total,
        "dropped": figures.dropped_total,
        "moved": figures.moved_total,
        "dead_lettered": figures.dead_lettered_total,
        "purged": figures.purged_total,
        "requeued": figures.requeued_total,
        "latency_p50_s": None if latency is None else latency.p50_s,
        "latency_p99_s": None if latency is None else latency.p99_s,
    }
