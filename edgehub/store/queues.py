"""All queues of a store: which there are, their order, and their watchers.

Invariant: a queue that was ever stored is here, whether a route names it or not, so its rows are
sent or expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.queue import Queue, QueueRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.message import EndpointId, Priority
    from edgehub.store.queue import Wake
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Writer


class Queues:
    """Queues by endpoint and priority."""

    def __init__(self, shared: SharedState, writer: Writer, records: Iterable[QueueRecord]) -> None:
        self._shared = shared
        self._writer = writer
        self._by_key: dict[tuple[EndpointId, Priority], Queue] = {}
        self._by_endpoint: dict[EndpointId, list[Queue]] = {}
        self._wakes: dict[EndpointId, list[Wake]] = {}
        for record in records:
            self._add(record, registered=True)

    def get(self, endpoint_id: EndpointId, priority: Priority) -> Queue:
        """Return the queue of an endpoint and a priority, a new one if there is none."""
        queue = self._by_key.get((endpoint_id, priority))
        if queue is None:
            number = 1 + max([queue.number for queue in self._by_key.values()], default=0)
            queue = self._add(QueueRecord(number, endpoint_id, priority), registered=False)
        return queue

    def all(self) -> list[Queue]:
        """Return all queues, by endpoint, best priority first."""
        return [
            queue
            for endpoint_id in sorted(self._by_endpoint)
            for queue in self._by_endpoint[endpoint_id]
        ]

    def of(self, endpoint_id: EndpointId) -> list[Queue]:
        """Return the queues of one endpoint, best priority first."""
        return list(self._by_endpoint.get(endpoint_id, ()))

    def watch(self, endpoint_id: EndpointId, wake: Wake) -> None:
        """Call `wake` after each commit that made rows of the endpoint readable, once per queue."""
        self._wakes.setdefault(endpoint_id, []).append(wake)

    def unwatch(self, endpoint_id: EndpointId, wake: Wake) -> None:
        """End a `watch`."""
        self._wakes[endpoint_id].remove(wake)

    def _add(self, record: QueueRecord, *, registered: bool) -> Queue:
        queue = Queue(
            self._shared,
            record,
            changed=self._writer.changed,
            withdraw=self._writer.withdraw,
            registered=registered,
            wakes=self._wakes.setdefault(record.endpoint_id, []),
        )
        self._by_key[record.endpoint_id, record.priority] = queue
        queues = self._by_endpoint.setdefault(record.endpoint_id, [])
        queues.append(queue)
        queues.sort(key=lambda queue: queue.priority)
        return queue
