"""Reads single rows and dead letters for operators: by place, by message, by the sender's id.

Only reads, in short jobs between groups; a message is found before its commit, too. Invariant: no
job reads more than some thousand rows, and a search has a limit that its result reports.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.message import NEVER_MS
from edgehub.store.dead_letters import dead_offsets
from edgehub.store.encoding import decode_row
from edgehub.store.row_reading import read_rows
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Sequence

    from edgehub.message import Row
    from edgehub.store.dead_letters import DeadLetter
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState

COPIES_MAX: Final = 1000
"""Rows of one message have consecutive offsets; so many are read from the first on."""
SEARCH_ROWS_MAX: Final = 500_000
"""Rows that a search for a sender's id reads, oldest first, best priority first."""


class Copy(Struct, frozen=True, kw_only=True):
    """One row that is in the file or not committed yet, and the queue that it waits in."""

    queue: Queue
    row: Row


class Found(Struct, frozen=True, kw_only=True):
    """The result of a search.

    Attributes:
        copies: Rows that match.
        looked_at: Rows that were searched.
        complete: All rows were searched.
    """

    copies: list[Copy]
    looked_at: int
    complete: bool


class Inspection:
    """Reads rows and dead letters."""

    def __init__(self, shared: SharedState, queues: Queues) -> None:
        self._database = shared.database
        self._dead_letters = shared.dead_letters
        self._decode = partial(decode_row, labels=shared.labels, store_id=shared.store_id)
        self._store_id = shared.store_id
        self._queues = queues

    def offset_of(self, message_id: str) -> int | None:
        """Return the offset in a message id of this store, None = it is not one."""
        prefix, _, digits = message_id.rpartition("-")
        if prefix != self._store_id or not digits or set(digits) - set("0123456789abcdef"):
            return None
        return int(digits, 16) if len(digits) <= 15 else None  # noqa: PLR2004 - what SQLite can hold

    async def peek(self, queue: Queue, *, after: int, rows_max: int) -> list[Row]:
        """Read rows of a queue in their order, those in flight too; at most about 1 MiB.

        Args:
            queue: The queue.
            after: Offset behind which to begin.
            rows_max: Rows at most.

        Raises:
            StoreError: The disk or a lock prevents it, or the file is damaged.
        """
        if not queue.registered:
            return []
        return await self._read(queue, "q.offset > ? ORDER BY q.offset LIMIT ?", (after, rows_max))

    async def find(self, offset: int) -> list[Copy]:
        """Find the rows of a message by the offset of its first one: one query per queue.

        Raises:
            StoreError: See `peek`.
        """
        where = "q.offset BETWEEN ?1 AND ?2 AND coalesce(q.body_id, q.offset) = ?1"
        copies: list[Copy] = []
        for queue in self._queues.all():
            if queue.registered:
                rows = await self._read(queue, where, (offset, offset + COPIES_MAX))
                copies += [Copy(queue=queue, row=row) for row in rows]
        return self._with_uncommitted(copies, lambda row: (row.message_key or row.offset) == offset)

    async def search(self, sender_id: str, *, rows_max: int = SEARCH_ROWS_MAX) -> Found:
        """Search rows by the `messageId` that their sender set.

        Raises:
            StoreError: See `peek`.
        """
        needle = b'"messageId":' + orjson.dumps(sender_id)
        copies: list[Copy] = []
        looked_at = 0
        queues = [queue for queue in self._queues.all() if queue.registered]
        for queue in queues:
            for zone, *_, rows, _, _ in list(queue.zones):
                if looked_at >= rows_max:
                    return Found(copies=copies, looked_at=looked_at, complete=False)
                looked_at += rows
                low = zone * ZONE_OFFSETS
                where = "q.offset BETWEEN ? AND ? AND instr(coalesce(q.header, b.header), ?)"
                rows_found = await self._read(queue, where, (low, low + ZONE_OFFSETS - 1, needle))
                copies += [
                    Copy(queue=queue, row=row)
                    for row in rows_found
                    if row.message.system.get("messageId") == sender_id
                ]
        copies = self._with_uncommitted(
            copies, lambda row: row.message.system.get("messageId") == sender_id
        )
        return Found(copies=copies, looked_at=looked_at, complete=True)

    async def before(self, queue: Queue, offset: int) -> tuple[int, int]:
        """Return the number and bytes of the rows before an offset in a queue.

        Raises:
            StoreError: See `peek`.
        """
        own = offset // ZONE_OFFSETS
        rows = size = 0
        for zone, *_, zone_rows, zone_bytes, _ in queue.zones:
            if zone >= own:
                break
            rows += zone_rows
            size += zone_bytes
        sql = f"SELECT count(*), coalesce(sum(size), 0) FROM q_{queue.number}"  # noqa: S608 - our number
        where = " WHERE offset >= ? AND offset < ?"

        def count(connection: sqlite3.Connection) -> tuple[int, int]:
            found: tuple[int, int] = connection.execute(
                sql + where, (own * ZONE_OFFSETS, offset)
            ).fetchone()
            return found

        in_zone = await self._database.run(count)
        return rows + in_zone[0], size + in_zone[1]

    async def heads(self) -> dict[Queue, tuple[int, int]]:
        """Return enqueue time and expiry of the oldest row of each queue that has rows.

        Raises:
            StoreError: See `peek`.
        """
        queues = [queue for queue in self._queues.all() if queue.registered and queue.zones.depth]
        found = await self._database.run(partial(_heads, [queue.number for queue in queues]))
        return {queue: head for queue, head in zip(queues, found, strict=True) if head is not None}

    async def dead_letter(self, letter_id: int) -> DeadLetter | None:
        """Read one dead letter with its body, None = there is none of that number.

        Raises:
            StoreError: See `peek`.
        """
        return await self._database.run(lambda conn: self._dead_letters.find(conn, letter_id))

    async def dead_among(self, offsets: Collection[int]) -> set[int]:
        """Return which of some rows are dead letters, by their offsets.

        Raises:
            StoreError: See `peek`.
        """
        if not offsets:
            return set()
        return await self._database.run(lambda conn: dead_offsets(conn, offsets))

    async def dead_letters(
        self, after: int = 0, limit: int = 100, *, queue: tuple[str, int] | None = None
    ) -> list[DeadLetter]:
        """Read up to `limit` dead letters with an id above `after`, oldest first, without bodies.

        Raises:
            StoreError: See `peek`.
        """
        page = self._dead_letters.page
        return await self._database.run(lambda conn: page(conn, after, limit, queue))

    async def dead_letters_of(self, message_id: str) -> list[DeadLetter]:
        """Read the dead letters of a message, by the hub's id or the sender's, without bodies.

        Raises:
            StoreError: See `peek`.
        """
        return await self._database.run(lambda conn: self._dead_letters.of(conn, message_id))

    def _with_uncommitted(self, copies: list[Copy], wanted: Callable[[Row], bool]) -> list[Copy]:
        """Add rows that are not committed yet, unless they were just read from the file.

        What was committed since then is missed, so callers flush before.
        """
        found = {copy.row.offset for copy in copies}
        return copies + [
            Copy(queue=queue, row=row)
            for queue in self._queues.all()
            for row in queue.reader.uncommitted_rows()
            if row.offset not in found and wanted(row)
        ]

    async def _read(self, queue: Queue, where: str, chosen: Sequence[Any]) -> list[Row]:
        rows, _ = await self._database.run(
            partial(read_rows, queue.number, where, chosen, self._decode)
        )
        queue.checkpointer.count_unstored(rows)
        return rows


def _heads(numbers: Iterable[int], connection: sqlite3.Connection) -> list[tuple[int, int] | None]:
    return [
        connection.execute(
            f"SELECT enqueued_ms, coalesce(expires_ms, {NEVER_MS}) FROM q_{number}"  # noqa: S608 - our numbers
            " ORDER BY offset LIMIT 1"
        ).fetchone()
        for number in numbers
    ]
