"""All queues of a store: which exist, in which order, and who watches them.

Invariant: a queue that was ever stored is here, whether a route names it or not, so its rows drain
or expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.queue import Queue, QueueHost, QueueRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.message import EndpointId, Priority

    Wake = Callable[[Queue], None]


class Registry:
    """Queues by endpoint and priority."""

    __slots__ = ("_by_endpoint", "_host", "_queues", "_wakes")

    def __init__(self, host: QueueHost, records: Iterable[QueueRecord]) -> None:
        self._host = host
        self._queues: dict[tuple[EndpointId, Priority], Queue] = {}
        self._by_endpoint: dict[EndpointId, list[Queue]] = {}
        self._wakes: dict[EndpointId, list[Wake]] = {}
        for record in records:
            self._add(record, registered=True)

    def queue(self, endpoint_id: EndpointId, priority: Priority) -> Queue:
        """Return the queue of an endpoint and a priority, a new one if need be."""
        queue = self._queues.get((endpoint_id, priority))
        if queue is None:
            number = 1 + max([queue.number for queue in self._queues.values()], default=0)
            record = QueueRecord(number, endpoint_id, priority)
            queue = self._add(record, registered=False)
        return queue

    def queues(self) -> list[Queue]:
        """List all queues, by endpoint, best priority first."""
        return [
            queue
            for endpoint_id in sorted(self._by_endpoint)
            for queue in self._by_endpoint[endpoint_id]
        ]

    def queues_of(self, endpoint_id: EndpointId) -> list[Queue]:
        """List the queues of one endpoint, best priority first."""
        return list(self._by_endpoint.get(endpoint_id, ()))

    def watch(self, endpoint_id: EndpointId, wake: Wake) -> None:
        """Call `wake` whenever rows of that endpoint can be read."""
        self._wakes.setdefault(endpoint_id, []).append(wake)

    def unwatch(self, endpoint_id: EndpointId, wake: Wake) -> None:
        """End a `watch`."""
        self._wakes[endpoint_id].remove(wake)

    def _add(self, record: QueueRecord, *, registered: bool) -> Queue:
        wakes = self._wakes.setdefault(record.endpoint_id, [])
        queue = Queue(self._host, record, registered=registered, wakes=wakes)
        self._queues[record.endpoint_id, record.priority] = queue
        queues = self._by_endpoint.setdefault(record.endpoint_id, [])
        queues.append(queue)
        queues.sort(key=lambda queue: queue.priority)
        return queue
