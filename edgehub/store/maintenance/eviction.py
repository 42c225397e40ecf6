"""Makes room for a group that is about to be committed: which rows give way, oldest first.

Runs in the writer's turn, before the transaction that the deletions ride in. Rows are picked by
offset from the heads of their queues, so nothing is scanned and no body is read. Invariants: a row
in flight never gives way, nor does one that creates an entity; what was picked leaves as any other
row that has its result.
"""

from __future__ import annotations

import heapq
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.message import NEVER_MS
from edgehub.store.caps import Overflow
from edgehub.store.encoding import decode_sender

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Sequence

    from edgehub.journal.row_events import Record
    from edgehub.store.database import Database
    from edgehub.store.group import Group
    from edgehub.store.labels import Labels
    from edgehub.store.limits import Excess, Limits
    from edgehub.store.maintenance.retention import Retention, RunJob
    from edgehub.store.queue import Queue
    from edgehub.store.registry import Registry

PICK_ROWS_MAX: Final = 4096
"""Rows of one pick; then it is looked again how many are too many."""

Source = tuple[int, int, str]
"""Number of a queue, its rank (the lowest gives way first), offsets that stay, as JSON."""
Picked = list[tuple[int, "Record"]]
"""Number of the queue, and the row; its routes are still a label."""


class Evictor:
    """See the module.

    Args:
        limits: Say what is too much.
        registry: The queues.
        retention: Clears away what has expired, which goes first.
        database: Gives the rows.
        labels: Names of routes.
    """

    def __init__(
        self,
        limits: Limits,
        registry: Registry,
        retention: Retention,
        *,
        database: Database,
        labels: Labels,
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._retention = retention
        self._database = database
        self._labels = labels

    async def make_room(
        self, group: Group, run_job: RunJob, *, is_last: Callable[[], bool]
    ) -> None:
        """Let rows leave with the next transaction, until `group` fits.

        Args:
            group: What that transaction writes.
            run_job: Runs a transaction at once.
            is_last: Tells whether no other rows wait behind it.

        Raises:
            StoreError: The rows cannot be read.
        """
        limits = self._limits
        if not self._fits(group):
            await self._retention.make_way(run_job, lambda: self._fits(group))
        for queue in [part.queue for part in group.parts]:
            while (excess := limits.queue_excess(queue, group)).is_any:
                if not await self._evict([queue], excess, queue):
                    break
        while (excess := limits.hub_excess(group)).is_any:
            if not await self._evict(self._candidates(), excess, None):
                break
        if is_last() and self._fits(group):
            # Otherwise rows were taken for sending meanwhile; they may come back.
            limits.settled()

    def _fits(self, group: Group) -> bool:
        limits = self._limits
        if limits.hub_excess(group).is_any:
            return False
        return not any(limits.queue_excess(part.queue, group).is_any for part in group.parts)

    def _candidates(self) -> list[Queue]:
        limits = self._limits
        queues = [queue for queue in self._registry.queues() if queue.zones.depth]
        if limits.caps.overflow is Overflow.DROP_OLDEST:
            return queues
        return [queue for queue in queues if queue.priority >= limits.best_newcomer]

    async def _evict(self, queues: Sequence[Queue], excess: Excess, full: Queue | None) -> int:
        """Let rows leave; returns how many, 0 = none is left that may."""
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
    """Read as many of the rows that give way first as are too many, in rows and in bytes."""
    rows_left, bytes_left = excess.rows, excess.bytes
    picked: Picked = []
    streams = [_oldest(connection, *source) for source in sources]
    try:
        for _, _, number, record in heapq.merge(*streams):
            *numbers, routes, key, header = record
            picked.append((number, (*numbers, labels.routes(routes), key, decode_sender(header))))
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
    sql = (
        f"SELECT q.offset, q.enqueued_ms, coalesce(q.expires_ms, {NEVER_MS}), q.size, q.attempts,"  # noqa: S608 - our numbers
        " q.routes, coalesce(q.message_id, q.body_id, 0), coalesce(q.header, b.header)"
        f" FROM q_{number} q LEFT JOIN body b ON b.id = q.body_id"
        " WHERE q.creation IS NULL AND q.offset NOT IN (SELECT value FROM json_each(?))"
        " ORDER BY q.offset"
    )
    with closing(connection.execute(sql, (busy,))) as cursor:
        for record in cursor:
            yield rank, record[0], number, record
