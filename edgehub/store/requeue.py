"""Dead letters that an operator requeues or purges.

A step between groups takes at most some hundred letters. A requeued row has its old offset, and
with it its place and its message id; its attempts are forgotten, and its time to live goes on where
it was when it became a dead letter. Invariant: a letter is deleted in the transaction that puts its
row into the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.journal.row_events import EventColumns, RowEvent
from edgehub.message import NEVER_MS, EndpointId, Priority
from edgehub.store.encoding import ROW_OVERHEAD_BYTES, make_message_id
from edgehub.store.row_records import read_records
from edgehub.store.transaction import json_list
from edgehub.store.zone_step import Target
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from edgehub.store.event_log import Depth, EventBatch
    from edgehub.store.maintenance.retention import Retention
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Job, Writer

LETTERS_MAX: Final = 200
"""Letters of one call: with the largest bodies about 50 MB, usually a fraction of one."""

_Letter = tuple[int, str, int, int, int]
"""id, endpoint, priority, offset, bytes."""


class Released(Struct):
    """The result of one call.

    Attributes:
        rows: Letters that were removed.
        bytes: Sum of their sizes as letters.
    """

    rows: int = 0
    bytes: int = 0


class Requeuer:
    """Requeues and purges dead letters."""

    def __init__(
        self, shared: SharedState, queues: Queues, writer: Writer, retention: Retention
    ) -> None:
        self._shared = shared
        self._queues = queues
        self._writer = writer
        self._dead_letters = shared.dead_letters
        self._retention = retention

    async def requeue(self, ids: Sequence[int]) -> Released:
        """Put dead letters back into their queues.

        Args:
            ids: Their numbers, at most `LETTERS_MAX`; those that do not exist are skipped.

        Raises:
            StoreBusyError: The disk or a lock prevents it; nothing has changed.
        """
        letters = await self._shared.database.run(lambda conn: _letters(conn, ids))
        keys = {(EndpointId(letter[1]), Priority(letter[2])) for letter in letters}
        released = Released()

        def prepare(batch: EventBatch | None) -> Job:
            zones = sorted({letter[3] // ZONE_OFFSETS for letter in letters})
            targets = {
                (queue.endpoint_id, queue.priority): Target(queue, zones)
                for queue in (self._queues.get(*key) for key in sorted(keys))
            }
            step = _Step(letters, targets, self._shared, batch)

            def apply(removed: list[Depth]) -> int:
                for target in targets.values():
                    target.apply(self._shared.offsets.committed)
                    target.queue.totals.requeued_total += target.rows
                if step.shortest_ttl_ms < self._retention.shortest_ttl_ms:
                    self._retention.ttl_seen(step.shortest_ttl_ms)
                return self._apply_removal(removed, released)

            return step.run, apply

        await self._writer.between(prepare)
        return released

    async def purge(self, ids: Sequence[int]) -> Released:
        """Delete dead letters.

        Args:
            ids: See `requeue`.

        Raises:
            StoreBusyError: See `requeue`.
        """
        released = Released()

        def prepare(batch: EventBatch | None) -> Job:
            def delete(connection: sqlite3.Connection) -> list[Depth]:
                removed = _depths(_letters(connection, ids))
                _delete(connection, ids)
                if batch is not None:
                    batch.dead_letters_left(removed, "command")
                return removed

            return delete, lambda removed: self._apply_removal(removed, released)

        await self._writer.between(prepare)
        return released

    def _apply_removal(self, removed: list[Depth], released: Released) -> int:
        self._dead_letters.committed([], removed)
        released.rows = sum([rows for *_, rows, _ in removed])
        released.bytes = sum([size for *_, size in removed])
        return 0


class _Step:
    """One step; runs as a transaction of its own."""

    def __init__(
        self,
        letters: Sequence[_Letter],
        targets: dict[tuple[EndpointId, Priority], Target],
        shared: SharedState,
        batch: EventBatch | None,
    ) -> None:
        self._letters = letters
        self._targets = targets
        self._now_ms = shared.hub_time.now_ms()
        self._empty_checkpoint = shared.offsets.committed
        self._labels = shared.labels
        self._store_id = shared.store_id
        self._batch = batch
        self.shortest_ttl_ms: int = NEVER_MS

    def run(self, connection: sqlite3.Connection) -> list[Depth]:
        """Put rows into their queues and delete the letters."""
        moved: list[_Letter] = []
        # Since they were listed, a number may have become that of another letter.
        same = set(_letters(connection, [letter[0] for letter in self._letters]))
        for letter in self._letters:
            if letter not in same:
                continue
            target = self._targets[EndpointId(letter[1]), Priority(letter[2])]
            target.register(connection)
            if self._insert(connection, letter, target):
                moved.append(letter)
        _delete(connection, [letter[0] for letter in moved])
        for target in self._targets.values():
            target.write(connection, self._empty_checkpoint)
        removed = _depths(moved)
        if self._batch is not None:
            self._record(connection, self._batch, moved)
            self._batch.dead_letters_left(removed, "requeued")
        return removed

    def _insert(self, connection: sqlite3.Connection, letter: _Letter, target: Target) -> bool:
        letter_id, _, _, offset, _ = letter
        row = connection.execute(
            f"INSERT OR IGNORE INTO q_{target.number} (offset, enqueued_ms, expires_ms, size,"  # noqa: S608 - our number
            " predecessor, creation, routes, message_id, header, body)"
            " SELECT offset, enqueued_ms, ?1 + max(0, expires_ms - dead_ms),"
            f" length(header) + length(body) + {ROW_OVERHEAD_BYTES}, predecessor, creation, routes,"
            " nullif(message_id, ?2), header, body FROM dead_letter WHERE id = ?3"
            f" RETURNING size, coalesce(expires_ms, {NEVER_MS}), creation",
            (self._now_ms, make_message_id(self._store_id, offset), letter_id),
        ).fetchone()
        if row is None:
            return False  # evicted since it was listed
        size, expires_ms, creation = row
        if creation is not None:
            target.creations.append((offset, size))
        if expires_ms < NEVER_MS:
            self.shortest_ttl_ms = min(self.shortest_ttl_ms, expires_ms - self._now_ms)
        target.join(offset // ZONE_OFFSETS, (1, size, offset, offset, expires_ms, expires_ms))
        return True

    def _record(
        self, connection: sqlite3.Connection, batch: EventBatch, moved: Sequence[_Letter]
    ) -> None:
        for (endpoint_id, priority), target in self._targets.items():
            offsets = [letter[3] for letter in moved if letter[1:3] == (endpoint_id, priority)]
            if not offsets:
                continue
            columns = EventColumns()
            where = "q.offset IN (SELECT value FROM json_each(?))"
            records = read_records(
                connection, target.number, where, (json_list(offsets),), self._labels
            )
            if batch.summed:
                size = sum([record[3] for record in records])
                columns.count(RowEvent.REQUEUED, len(records), size)
            else:
                columns.add_records(RowEvent.REQUEUED, records, self._now_ms)
            batch.queues.append((endpoint_id, priority, columns))


def _letters(connection: sqlite3.Connection, ids: Sequence[int]) -> list[_Letter]:
    return connection.execute(
        "SELECT id, endpoint_id, priority, offset, size FROM dead_letter"
        " WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (json_list(ids),),
    ).fetchall()


def _delete(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    connection.execute(
        "DELETE FROM dead_letter WHERE id IN (SELECT value FROM json_each(?))", (json_list(ids),)
    )


def _depths(letters: Sequence[_Letter]) -> list[Depth]:
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for _, endpoint_id, priority, _, size in letters:
        before = sums.get((endpoint_id, priority), (0, 0))
        sums[endpoint_id, priority] = (before[0] + 1, before[1] + size)
    return [(*key, *figures) for key, figures in sums.items()]
