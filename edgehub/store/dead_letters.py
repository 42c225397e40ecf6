"""Rows that will never be sent: kept with the reason, bounded, the oldest are evicted first.

Owns the table `dead_letter` and its counts in memory. A row becomes a dead letter in the
transaction that removes it from its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.message import NEVER_MS, EndpointId, FailureKind, Message, Priority, queue_id
from edgehub.store.encoding import ROW_OVERHEAD_BYTES, decode_message, encode_header
from edgehub.store.transaction import evict_dead_letters

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from edgehub.message import QueueId, Row
    from edgehub.store.encoding import Params
    from edgehub.store.event_log import Depth
    from edgehub.store.labels import Labels
    from edgehub.store.options import StoreOptions

REASON_CHARS_MAX: Final = 1000
VOLUME_SHARE: Final = 10


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One dead letter.

    Attributes:
        id: Its number, in the order of arrival.
        body_bytes: Size of its body, which a listing leaves out.
        dead_ms: Hub time at which it became one.
        offset: Offset of the row.
    """

    id: int
    dead_ms: int
    endpoint_id: EndpointId
    priority: Priority
    kind: FailureKind
    reason: str
    offset: int
    enqueued_ms: int
    expires_ms: int
    attempts: int
    routes: tuple[str, ...]
    size: int
    body_bytes: int
    message: Message


class DeadLetters:
    """Counts, bounds, encoding and reading of dead letters."""

    def __init__(self, labels: Labels, options: StoreOptions, *, stored: list[Depth]) -> None:
        self._labels = labels
        self._options = options
        self._bytes_max = options.dead_letter_bytes_max
        self._by_queue = {(endpoint, number): rows for endpoint, number, rows, _ in stored}
        self.rows = sum(self._by_queue.values())
        self.bytes = sum([size for *_, size in stored])

    def by_queue(self) -> dict[QueueId, int]:
        """Return how many there are of each queue that has any."""
        return {
            queue_id(EndpointId(endpoint), Priority(number)): rows
            for (endpoint, number), rows in sorted(self._by_queue.items())
        }

    def encode(
        self,
        row: Row,
        endpoint_id: EndpointId,
        priority: Priority,
        *,
        now_ms: int,
        failure: tuple[FailureKind, str],
    ) -> Params:
        """Return the columns of a dead letter; the peer's reason is cut and made storable."""
        message = row.message
        kind, reason = failure
        text = reason[:REASON_CHARS_MAX].encode("utf-8", "replace").decode()
        header = encode_header(message, self._labels)
        # A body of its own now, however many queues shared it.
        size = len(header) + len(message.body) + ROW_OVERHEAD_BYTES + len(text)
        return (
            size,
            now_ms,
            endpoint_id,
            priority,
            kind.value,
            text,
            row.offset,
            row.enqueued_ms,
            None if row.expires_ms >= NEVER_MS else row.expires_ms,
            row.attempts,
            message.message_id,
            row.predecessor,
            1 if row.creation else None,
            self._labels.intern_routes(row.routes),
            header,
            message.body,
        )

    def excess(self, added: list[Params]) -> tuple[int, int]:
        """Return rows and bytes by which the bounds are exceeded once `added` are stored."""
        return (
            self.rows + len(added) - self._options.dead_letter_rows_max,
            self.bytes + bytes_of(added) - self._bytes_max,
        )

    def bound(self, volume_bytes: int) -> None:
        """Limit the bytes to a share of a small volume: rows that wait are worth more."""
        self._bytes_max = min(self._options.dead_letter_bytes_max, volume_bytes // VOLUME_SHARE)

    def committed(self, added: list[Params], evicted: list[Depth]) -> None:
        """Count what a transaction has added and evicted."""
        self.rows += len(added) - sum([rows for *_, rows, _ in evicted])
        self.bytes += bytes_of(added) - sum([size for *_, size in evicted])
        changes: list[tuple[Any, Any, int]] = [(letter[2], letter[3], 1) for letter in added]
        changes += [(endpoint, number, -rows) for endpoint, number, rows, _ in evicted]
        for endpoint, number, rows in changes:
            left = self._by_queue.pop((endpoint, number), 0) + rows
            if left:
                self._by_queue[endpoint, number] = left
        assert self.rows >= 0
        assert self.bytes >= 0

    def evict_older(self, connection: sqlite3.Connection, now_ms: int) -> list[Depth]:
        """Delete those beyond the age bound; return their number and bytes by queue."""
        oldest_ms = now_ms - self._options.dead_letter_age_s_max * 1000
        return evict_dead_letters(connection, 0, 0, older_than_ms=oldest_ms)

    def page(
        self,
        connection: sqlite3.Connection,
        after: int,
        limit: int,
        queue: tuple[str, int] | None,
    ) -> list[DeadLetter]:
        """Read up to `limit` with an id above `after`, without bodies, of one queue or of all."""
        where, chosen = "id > ?", (after, *(queue or ()))
        if queue is not None:
            where += " AND endpoint_id = ? AND priority = ?"
        return self._select(connection, f"x'' FROM dead_letter WHERE {where}", (*chosen, limit))

    def of(self, connection: sqlite3.Connection, message_id: str) -> list[DeadLetter]:
        """Read those of a message, by the hub's id or the sender's, without bodies."""
        needle = b'"messageId":' + orjson.dumps(message_id)
        where = "message_id = ? OR instr(header, ?)"
        letters = self._select(
            connection, f"x'' FROM dead_letter WHERE {where}", (message_id, needle, -1)
        )
        return [
            letter
            for letter in letters
            if message_id in (letter.message.message_id, letter.message.system.get("messageId"))
        ]

    def find(self, connection: sqlite3.Connection, letter_id: int) -> DeadLetter | None:
        """Read one dead letter with its body, None = there is none of that number."""
        found = self._select(connection, "body FROM dead_letter WHERE id = ?", (letter_id, 1))
        return found[0] if found else None

    def _select(
        self, connection: sqlite3.Connection, rest: str, chosen: tuple[Any, ...]
    ) -> list[DeadLetter]:
        records = connection.execute(
            f"SELECT {_COLUMNS}, {rest} ORDER BY id LIMIT ?",
            chosen,
        ).fetchall()
        return [self._decode(record) for record in records]

    def _decode(self, record: tuple[Any, ...]) -> DeadLetter:
        expires_ms, header, message_id, body_bytes, body = record[8], *record[12:]
        return DeadLetter(
            id=record[0],
            dead_ms=record[1],
            endpoint_id=EndpointId(record[2]),
            priority=Priority(record[3]),
            kind=FailureKind(record[4]),
            reason=record[5],
            offset=record[6],
            enqueued_ms=record[7],
            expires_ms=NEVER_MS if expires_ms is None else expires_ms,
            attempts=record[9],
            routes=self._labels.routes(record[10]),
            size=record[11],
            body_bytes=body_bytes,
            message=decode_message(header, body, message_id, self._labels),
        )


def bytes_of(letters: list[Params]) -> int:
    """Sum the sizes of dead letters."""
    total = 0
    for letter in letters:
        size = letter[0]
        assert isinstance(size, int)
        total += size
    return total


def dead_ms_of(letter: Params) -> int:
    """Return the hub time at which a dead letter became one."""
    at_ms = letter[1]
    assert isinstance(at_ms, int)
    return at_ms


_COLUMNS: Final = (
    "id, dead_ms, endpoint_id, priority, kind, reason, offset, enqueued_ms, expires_ms, attempts,"
    " routes, size, header, message_id, length(body)"
)


def dead_offsets(connection: sqlite3.Connection, offsets: Collection[int]) -> set[int]:
    """Return which of some rows are dead letters."""
    found = connection.execute(
        "SELECT offset FROM dead_letter WHERE offset IN (SELECT value FROM json_each(?))",
        (orjson.dumps(sorted(offsets)).decode(),),
    )
    return {offset for (offset,) in found}
