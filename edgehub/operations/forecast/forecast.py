"""The queues of the hub as they are shown, with what is to be expected of them.

Owns the samples of rates and backlogs, and the watch over rows that are about to expire; asks
only the store and the pumps. Invariant: what is shown of a queue is the same wherever it is
shown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from edgehub.operations.documents import queue_document
from edgehub.operations.forecast.drain import DrainForecast
from edgehub.operations.forecast.expiry import ExpiryWatch, OldestRow
from edgehub.operations.forecast.queues import (
    Drain,
    DrainState,
    LinkRate,
    QueueLoad,
    drains,
    leaves,
)
from edgehub.operations.forecast.rates import QueueRates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.message import EndpointId, QueueId
    from edgehub.operations.forecast.rates import Rate
    from edgehub.operations.served import ServedEndpoints
    from edgehub.pump.pumped_queue import PumpedQueue
    from edgehub.store.queue import Queue
    from edgehub.store.store import Store

RECENT_S: Final = 60.0
"""What has taken in nothing for so long takes in nothing."""
_UNSERVED = Drain(state=DrainState.UNSERVED)


class QueueForecast:
    """The queues as they are shown, and their forecast.

    Args:
        store: The queues.
        endpoints: The pumps.
        clock: Timers.
    """

    __slots__ = ("_clock", "_drain", "_endpoints", "_rates", "_store", "_watch")

    def __init__(
        self,
        store: Store,
        endpoints: ServedEndpoints,
        clock: Clock,
    ) -> None:
        self._store = store
        self._endpoints = endpoints
        self._clock = clock
        self._rates = QueueRates(clock, self._totals)
        self._drain = DrainForecast(clock, endpoints.waiting_bytes)
        self._watch = ExpiryWatch(
            clock,
            now_ms=store.hub_time.now_ms,
            heads=self._heads,
            describe=self._describe,
        )

    async def run(self) -> None:
        """Take samples and watch until cancelled.

        Raises:
            ExceptionGroup: The database file is damaged.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rates.run(), name="forecast[rates]")
            group.create_task(self._drain.run(), name="forecast[drain]")
            group.create_task(self._watch.run(), name="forecast[expiry]")

    def rates(self) -> Mapping[QueueId, Rate]:
        """Return what queues take in; empty = not measured yet."""
        return self._rates.rates()

    def endpoint_documents(self) -> list[dict[str, Any]]:
        """Describe all endpoints."""
        return self._endpoints.endpoint_documents(self._drain.seconds())

    async def refresh(self) -> None:
        """Look at the oldest rows of queues if one of them is another than at the last look."""
        for queue in self._store.queues.all():
            head = self._watch.head(queue.id)
            oldest_ms = queue.statistics().oldest_enqueued_ms
            if oldest_ms is not None and (head is None or head.enqueued_ms != oldest_ms):
                await self._watch.look()
                return

    def queue_documents(self) -> list[dict[str, Any]]:
        """Describe all queues, by endpoint and priority."""
        orphans = self._endpoints.orphans()
        now_ms = self._store.hub_time.now_ms()
        rates = self._inflows()
        expected: dict[QueueId, Drain] = {}
        documents: list[dict[str, Any]] = []
        for queue in self._store.queues.all():
            if queue.id not in expected:
                loads, link = self._loads(queue.endpoint_id, rates), self._link(queue.endpoint_id)
                expected |= drains(loads, link)
            pumped = self._pumped(queue)
            known = queue_document(
                queue,
                now_ms=now_ms,
                pump=self._endpoints.pump(queue.endpoint_id),
                orphaned=queue.endpoint_id in orphans,
            )
            # The watch looks every few seconds; what it saw may have left since.
            head = self._watch.head(queue.id) if known["depth"] else None
            documents.append(
                {
                    **known,
                    "unserved_s": self._unserved_s(pumped),
                    "oldest_ttl_s": None if head is None else head.ttl_s,
                    "oldest_expires_in_s": None if head is None else head.left_s(now_ms),
                    "drain": to_builtins(expected.get(queue.id, _UNSERVED)),
                }
            )
        return documents

    def leaves(self, queue: Queue, before_bytes: int) -> Drain:
        """Return when a row will leave.

        Args:
            queue: Where it waits.
            before_bytes: What stands before it there, its own bytes included.
        """
        loads = self._loads(queue.endpoint_id, self._inflows())
        return leaves(loads, queue.id, before_bytes, self._link(queue.endpoint_id))

    def warnings(self) -> list[str]:
        """List what is about to expire or will before its endpoint opens."""
        near = set(self._watch.near())
        return [
            f"{queue.id}: its oldest message {self._near_text(queue)}"
            for queue in self._store.queues.all()
            if queue.id in near or self._missed_window_s(queue) is not None
        ]

    def _left_s(self, queue: Queue) -> float | None:
        head = self._watch.head(queue.id)
        return None if head is None else head.left_s(self._store.hub_time.now_ms())

    def _missed_window_s(self, queue: Queue) -> float | None:
        """Return the time to the next connection window, where the oldest row expires before it."""
        left_s = self._left_s(queue)
        if left_s is None or not queue.zones.depth:
            return None
        window_s = self._endpoints.next_window_s(queue.endpoint_id)
        return None if window_s is None or left_s >= window_s else window_s

    def _near_text(self, queue: Queue) -> str:
        text = f"expires in {max(0.0, self._left_s(queue) or 0.0):.0f} s"
        missed_s = self._missed_window_s(queue)
        if missed_s is not None:
            return f"{text}, before the next connection window in {missed_s:.0f} s"
        why = self._describe(queue.id)["drain"]
        if why == DrainState.NEVER:
            return f"{text}, and what comes in exceeds what the link has left for it"
        if why == DrainState.UNSERVED:
            return f"{text}, and nothing serves its endpoint"
        return f"{text}, the endpoint is not connected" if why == DrainState.OFFLINE else text

    def _totals(self) -> dict[QueueId, tuple[int, int]]:
        figures = [queue.statistics() for queue in self._store.queues.all()]
        return {each.id: (each.enqueued_total, each.enqueued_bytes_total) for each in figures}

    async def _heads(self) -> dict[QueueId, OldestRow]:
        found = await self._store.inspection.heads()
        return {
            queue.id: OldestRow(enqueued_ms=enqueued_ms, expires_ms=expires_ms)
            for queue, (enqueued_ms, expires_ms) in found.items()
        }

    def _describe(self, queue_id: QueueId) -> dict[str, object]:
        queue = next(queue for queue in self._store.queues.all() if queue.id == queue_id)
        unserved_s = self._unserved_s(self._pumped(queue))
        loads = self._loads(queue.endpoint_id, self._inflows())
        return {
            "waiting": queue.zones.depth,
            "unserved_s": None if unserved_s is None else round(unserved_s, 1),
            "drain": drains(loads, self._link(queue.endpoint_id))[queue_id].state.value,
        }

    def _pumped(self, queue: Queue) -> PumpedQueue | None:
        pump = self._endpoints.pump(queue.endpoint_id)
        return None if pump is None else pump.pumped(queue.id)

    def _unserved_s(self, pumped: PumpedQueue | None) -> float | None:
        return None if pumped is None else pumped.unserved_s(self._clock.monotonic())

    def _inflows(self) -> dict[QueueId, float]:
        """Return what queues take in, in bytes per second; a burst that is over does not count."""
        recent = self._rates.rates(RECENT_S)
        return {
            queue_id: min(rate.bytes_s, recent[queue_id].bytes_s)
            for queue_id, rate in self._rates.rates().items()
            if queue_id in recent
        }

    def _loads(self, endpoint_id: EndpointId, inflows: Mapping[QueueId, float]) -> list[QueueLoad]:
        return [
            QueueLoad(
                id=queue.id,
                bytes=queue.zones.bytes,
                inflow_bytes_s=inflows.get(queue.id),
            )
            for queue in self._store.queues.of(endpoint_id)
        ]

    def _link(self, endpoint_id: EndpointId) -> LinkRate:
        """Return what an endpoint carries, in bytes as the store counts them."""
        pump = self._endpoints.pump(endpoint_id)
        if pump is None:
            return LinkRate(is_up=False, bytes_s=None, is_served=False)
        figures = pump.statistics()
        is_up = figures.state == "up"
        rate = figures.rate_bytes_s
        if rate is not None and figures.rate_bytes_s_max is not None:
            rate = min(rate, figures.rate_bytes_s_max)
        if rate is None or not figures.sent_total:
            return LinkRate(is_up=is_up, bytes_s=None)
        stored = self._bytes_per_row(endpoint_id)
        sent = figures.sent_bytes_total / figures.sent_total
        return LinkRate(is_up=is_up, bytes_s=rate * stored / sent if stored else None)

    def _bytes_per_row(self, endpoint_id: EndpointId) -> float | None:
        figures = [queue.statistics() for queue in self._store.queues.of(endpoint_id)]
        rows = sum([each.enqueued_total for each in figures])
        size = sum([each.enqueued_bytes_total for each in figures])
        if not rows:
            # Nothing came in since the start; what waits is from before.
            rows = sum([each.depth for each in figures])
            size = sum([each.bytes for each in figures])
        return size / rows if rows else None
