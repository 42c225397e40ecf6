"""Evicts rows to make room for a group that is about to be committed, oldest first.

Runs before the transaction that deletes them. Rows are picked by offset from the heads of their
queues, so nothing is scanned and no body is read. Invariants: a row in flight is never evicted, nor
one that creates an entity; an evicted row leaves as any other row that has a result.
"""

from __future__ import annotations

import heapq
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.store.caps import Overflow
from edgehub.store.row_records import record_of, select_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Sequence

    from edgehub.journal.row_events import Record
    from edgehub.store.group import Group
    from edgehub.store.labels import Labels
    from edgehub.store.limits import Excess, Limits
    from edgehub.store.maintenance.retention import Retention, RunJob
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState

PICK_ROWS_MAX: Final = 4096
"""Rows of one pick; then the excess is computed again."""

Source = tuple[int, int, str]
"""Number of a queue, its rank (the lowest is evicted first), offsets that stay, as JSON."""
Picked = list[tuple[int, "Record"]]
"""Number of the queue, and the row; its routes are still a label."""


class Evictor:
    """Evicts rows.

    Args:
        shared: What the parts of the store share.
        queues: Of the store.
        limits: Compute what is too much.
        retention: Deletes expired rows, which leave first.
    """

    def __init__(
        self, shared: SharedState, queues: Queues, limits: Limits, retention: Retention
    ) -> None:
        self._queues = queues
        self._limits = limits
        self._retention = retention
        self._database = shared.database
        self._labels = shared.labels

    async def make_room(
        self, group: Group, run_job: RunJob, *, is_last: Callable[[], bool]
    ) -> None:
        """Evict rows with the next transaction, until `group` fits.

        Args:
            group: Written by that transaction.
            run_job: Runs a transaction at once.
            is_last: Returns whether no other rows wait behind it.

        Raises:
            StoreError: The rows cannot be read.
        """
        limits = self._limits
        if not self._fits(group):
            await self._retention.make_room(run_job, lambda: self._fits(group))
        for queue in group.rows_of:
            while (excess := limits.queue_excess(queue, group)).is_any:
                if not await self._evict([queue], excess, queue):
                    break
        while (excess := limits.hub_excess(group)).is_any:
            if not await self._evict(self._candidates(), excess, None):
                break
        if is_last() and self._fits(group):
            # Otherwise rows were sent during the reads; they may be given back.
            limits.room_made()

    def _fits(self, group: Group) -> bool:
        limits = self._limits
        if limits.hub_excess(group).is_any:
            return False
        return not any(limits.queue_excess(queue, group).is_any for queue in group.rows_of)

    def _candidates(self) -> list[Queue]:
        limits = self._limits
        queues = [queue for queue in self._queues.all() if queue.zones.depth]
        if limits.caps.overflow is Overflow.DROP_OLDEST:
            return queues
        return [queue for queue in queues if queue.priority >= limits.best_newcomer]

    async def _evict(self, queues: Sequence[Queue], excess: Excess, full: Queue | None) -> int:
        """Evict rows; return how many, 0 = none is left that may be."""
        by_value = self._limits.caps.overflow is Overflow.BY_VALUE
        sources = [
            (
                queue.number,
                -queue.priority if by_value else 0,
                orjson.dumps(queue.checkpointer.busy(attempted=True)).decode(),
            )
            for queue in queues
            if queue.registered
        ]
        job = partial(_pick, sources, excess, self._labels)
        picked = await self._database.run(job)
        reason = f"{self._limits.caps.overflow.value}: {excess.cap.value}"
        by_number = {queue.number: queue for queue in queues}
        records: dict[int, list[Record]] = {}
        for number, record in picked:
            records.setdefault(number, []).append(record)
        rows = sum([by_number[number].evict(each, reason) for number, each in records.items()])
        self._limits.evicted(excess.cap, full, rows)
        return rows


def _pick(
    sources: Sequence[Source],
    excess: Excess,
    labels: Labels,
    connection: sqlite3.Connection,
) -> Picked:
    """Read the rows to evict first, as many as are too many in rows or bytes."""
    rows_left, bytes_left = excess.rows, excess.bytes
    picked: Picked = []
    streams = [_oldest(connection, *source) for source in sources]
    try:
        for _, _, number, record in heapq.merge(*streams):
            picked.append((number, record_of(record, labels)))
            rows_left -= 1
            bytes_left -= record[3]
            if (rows_left <= 0 and bytes_left <= 0) or len(picked) >= PICK_ROWS_MAX:
                break
    finally:
        for stream in streams:
            stream.close()
    return picked


def _oldest(
    connection: sqlite3.Connection, number: int, rank: int, busy: str
) -> Generator[tuple[int, int, int, Any], None, None]:
    where = "q.creation IS NULL AND q.offset NOT IN (SELECT value FROM json_each(?))"
    with closing(connection.execute(select_records(number, where), (busy,))) as cursor:
        for record in cursor:
            yield rank, record[0], number, record
