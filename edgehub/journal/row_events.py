"""What became of rows, in columns: how the store hands events to the journal.

Owns the packed form in which the events of one commit wait in the database file. The store packs,
the journal unpacks (`edgehub.journal.events`), neither knows the other. Invariant: nothing is lost
in packing; of small messages in busy commits, an event takes about 3 bytes.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from itertools import chain, compress, groupby, islice, repeat
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson
from msgspec import Struct
from msgspec.structs import astuple

from edgehub.message import DEFAULT_PRIORITY, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.message import EndpointId, Priority, Row

FORM: Final = 2
REASON_CHARS_MAX: Final = 200
LATER_ROWS_MAX: Final = 1024
"""Rows that are kept in memory to be encoded together."""


class RowEvent(IntEnum):
    """An event of a row; its lower-case name is in the journal's lines."""

    ENQUEUED = 0
    SENT = 1
    EXPIRED = 2
    DEAD_LETTERED = 3
    RETRIED = 4
    REQUEUED = 5
    DROPPED = 6
    PURGED = 7
    LOST = 8
    MOVED = 64  # and the numbers behind it, one for each target: see `moved_to`


ATTEMPTS_MORE: Final = {RowEvent.SENT: 1, RowEvent.DEAD_LETTERED: 1}
"""A row counts refused sends; these events end one more."""

PUMP_UNSERVED: Final = -3
PUMP_OFFLINE: Final = -2
PUMP_PAUSED: Final = -1
PUMP_IDLE: Final = 11
PUMP_DEFAULT: Final = 10
"""What a pump does: there is none, since nothing serves the endpoint; it has no link, it waits
after a failure, no row waits for a better one. 0 to 10 = the best priority that has rows to send,
where others wait for it; 10 is the default one."""

Note = list[Any]
"""Something other than a row's event; the first item is its kind.

- `start`, hub time and UTC at which the last life was last seen, [[endpoint, priority, rows,
  bytes]...] as found in the file
- `stop`; `tick` = the time passed midnight
- `pump`, endpoint, hub time, state (see `PUMP_...`)
- `delay`, endpoint, priority, hub time, 1 or 0: a queue is held back
- `hold`, endpoint, priority, sender or offset, hub time, 1 or 0
- `blur`, hub time: notes of the last three kinds were left out; all of them end here
- `aged`, hub time, milliseconds: what was enqueued before has waited so much longer
- `trusted`, [[hub time, milliseconds]...]: the clock is trusted now; from each of these hub times
  on UTC is so much ahead of it, also of commits before, under a clock that was not trusted
- `lost`, [[endpoint, priority, rows, bytes]...]: with `start`, what damage of the file has cost
- `traffic`, endpoint, hub time at which a minute began, bytes handed to its link in it
- `settings`, hub time, members of the line of this name
- `refused`, device, count, bytes, reason
- `dead_purged`, endpoint, priority, count, bytes, reason
"""

Counts = tuple[str, int, int, int, int, str | None]
"""endpoint, priority, event, rows, bytes, endpoint that they were moved to by command."""


Record = tuple[int, int, int, int, int, "Sequence[str]", int | str, str]
"""offset, enqueue time, expiry, bytes, attempts, routes, message key, sender."""


def pump_state(priority: int) -> int:
    """Return the state of a pump whose best rows have this priority."""
    return min(priority, PUMP_DEFAULT)


def moved_to(priority: int) -> int:
    """Return the event of rows that go to another queue, which has this priority."""
    return RowEvent.MOVED + pump_state(priority)


def moved_target(event: int) -> int | None:
    """Return the priority that rows go to with an event, None = they do not go to another queue."""
    if event < RowEvent.MOVED:
        return None
    state = event - RowEvent.MOVED
    return DEFAULT_PRIORITY if state == PUMP_DEFAULT else state


COLUMNS: Final = 12
"""Of `EventColumns`, its first fields; one item of each makes an event."""


class EventColumns(Struct, eq=False):
    """Events of rows of one queue, in order.

    Attributes:
        to_endpoint: Where rows were moved to by command; None = rows that move have become stale
            and stay with their endpoint.
        counts: Rows and bytes by event, of events that are only counted.
    """

    kinds: list[int] = []
    offsets: list[int] = []
    times: list[int] = []
    enqueued: list[int] = []
    expires: list[int] = []
    sizes: list[int] = []
    attempts: list[int] = []
    senders: list[str] = []
    routes: list[Sequence[str]] = []
    keys: list[int | str] = []
    reasons: list[str | None] = []
    took: list[int] = []
    to_endpoint: EndpointId | None = None
    counts: dict[int, tuple[int, int]] = {}
    _later: list[tuple[RowEvent, Sequence[Row], int | None]] = []
    _later_rows: int = 0

    def __len__(self) -> int:
        return len(self.offsets) + self._later_rows

    def __bool__(self) -> bool:
        return bool(self.offsets or self.counts or self._later)

    def record(self, event: RowEvent, rows: Sequence[Row], at_ms: int, reason: str | None) -> None:
        """Record what happened to some rows; without a reason they leave."""
        if reason is None:
            self.add_later(event, rows, at_ms)
        else:
            self.add(event, rows, at_ms, reason)

    def add_later(self, event: RowEvent, rows: Sequence[Row], at_ms: int | None) -> None:
        """Record an event of some rows, to be encoded later, many at once; see `add`.

        They must not change until then, so this is for those that leave.
        """
        self._later.append((event, rows, at_ms))
        self._later_rows += len(rows)
        if self._later_rows >= LATER_ROWS_MAX:
            self.settle()

    def settle(self) -> None:
        """Look at the rows of `add_later`."""
        later, self._later = self._later, []
        self._later_rows = 0
        for event, group in groupby(later, key=itemgetter(0)):
            batches = list(group)
            rows = list(chain.from_iterable([rows for _, rows, _ in batches]))
            times = [
                [row.enqueued_ms for row in rows] if at_ms is None else repeat(at_ms, len(rows))
                for _, rows, at_ms in batches
            ]
            self.add(event, rows, chain.from_iterable(times))

    def add(
        self,
        event: RowEvent,
        rows: Sequence[Row],
        at_ms: int | Iterable[int] | None,
        reason: str | None = None,
    ) -> None:
        """Record what happened to some rows.

        Args:
            event: What.
            rows: Rows of the queue.
            at_ms: Hub time of it, also one for each row, None = when each of them was enqueued.
            reason: Why, for events that have a reason.
        """
        count = len(rows)
        enqueued = [row.enqueued_ms for row in rows]
        more = ATTEMPTS_MORE.get(event, 0)
        if reason is not None:
            reason = reason[:REASON_CHARS_MAX].encode("utf-8", "replace").decode()
        if at_ms is None:
            at_ms = enqueued
        self._extend(
            repeat(event.value, count),
            [row.offset for row in rows],
            repeat(at_ms, count) if isinstance(at_ms, int) else at_ms,
            enqueued,
            [row.expires_ms for row in rows],
            [row.size for row in rows],
            [row.attempts + more for row in rows],
            # The property costs twice as much.
            [
                row.message.device_id if row.message.module_id is None else row.message.sender
                for row in rows
            ],
            [row.routes for row in rows],
            [row.message_key for row in rows],
            repeat(reason, count),
            [row.took_ms for row in rows] if event is RowEvent.SENT else repeat(0, count),
        )

    def add_records(
        self, event: int, records: Sequence[Record], at_ms: int, reason: str | None = None
    ) -> None:
        """Record what happened to some rows that were read as columns."""
        offsets, enqueued, expires, sizes, attempts, routes, keys, senders = zip(
            *records, strict=True
        )
        count = len(records)
        self._extend(
            repeat(int(event), count),
            offsets,
            repeat(at_ms, count),
            enqueued,
            expires,
            sizes,
            attempts,
            senders,
            routes,
            keys,
            repeat(reason, count),
            repeat(0, count),
        )

    def extend(self, later: EventColumns) -> None:
        """Put events behind that came later."""
        self.settle()
        later.settle()
        self._extend(*later._columns())
        for event, (rows, size) in later.counts.items():
            self.count(event, rows, size)

    def part(self, offset: int, left_out: set[int]) -> tuple[EventColumns, EventColumns]:
        """Split the events into those of rows up to `offset` and others, some rows left out."""
        self.settle()
        low = self._chosen([each <= offset and each not in left_out for each in self.offsets])
        high = self._chosen([each > offset and each not in left_out for each in self.offsets])
        low.counts = self.counts
        return low, high

    def take(self, offsets: set[int]) -> EventColumns:
        """Remove and return the events of rows that have not left: `add_later` has none of them."""
        if offsets.isdisjoint(self.offsets):
            return EventColumns()
        taken = self._chosen([each in offsets for each in self.offsets])
        self._keep([each not in offsets for each in self.offsets])
        return taken

    def shrink(self, offset: int = NEVER_MS) -> None:
        """Keep of the events of rows up to `offset`, and of refused sends, number and bytes only.

        The other events of a row say that it leaves, so their sums may not precede its own.
        """
        self.settle()
        are_summed = [
            each <= offset or kind == RowEvent.RETRIED
            for each, kind in zip(self.offsets, self.kinds, strict=True)
        ]
        summed = self._chosen(are_summed)
        for event in set(summed.kinds):
            sizes = list(compress(summed.sizes, [kind == event for kind in summed.kinds]))
            self.count(event, len(sizes), sum(sizes))
        self._keep([not is_summed for is_summed in are_summed])

    def document(self, endpoint_id: EndpointId, priority: Priority) -> list[Any]:
        """Return a JSON value: differences where values rise, one value where all are equal."""
        self.settle()
        never = max(self.expires) >= NEVER_MS
        ttls = (
            [
                None if expires >= NEVER_MS else expires - enqueued
                for expires, enqueued in zip(self.expires, self.enqueued, strict=True)
            ]
            if never
            else list(map(sub, self.expires, self.enqueued))
        )
        return [
            endpoint_id,
            priority,
            len(self.offsets),
            _flat(self.kinds),
            _steps(self.offsets),
            _steps(self.times),
            0 if self.times == self.enqueued else _steps(self.enqueued),
            _flat(ttls),
            _flat(self.sizes),
            _flat(self.attempts),
            _indexed(self.senders),
            _indexed(self.routes),
            _flat(self.keys),
            _flat(self.reasons),
            _flat(self.took),
        ]

    def count(self, event: int, rows: int, size: int) -> None:
        """Record that something happened to so many rows, without telling them apart."""
        before = self.counts.get(event, (0, 0))
        self.counts[event] = (before[0] + rows, before[1] + size)

    def _extend(self, *columns: Iterable[Any]) -> None:
        for column, more in zip(self._columns(), columns, strict=True):
            column.extend(more)

    def _chosen(self, are_chosen: Sequence[bool]) -> EventColumns:
        chosen = EventColumns()
        columns = [compress(column, are_chosen) for column in self._columns()]
        chosen._extend(*columns)
        return chosen

    def _keep(self, are_kept: Sequence[bool]) -> None:
        for column in self._columns():
            column[:] = compress(column, are_kept)

    def _columns(self) -> tuple[list[Any], ...]:
        return astuple(self)[:COLUMNS]


class JoinedRows:
    """The usual rows that join a queue, taken from the columns that are written of them.

    These are made for the file anyway: a third of the time of `EventColumns`.

    Args:
        rows: Offset, enqueue time, expiry (None = never), bytes and label of the routes, and more.
        senders: Their senders.
        routes_of: Returns the names of a label.
    """

    __slots__ = ("_routes_of", "_rows", "_senders")

    counts: ClassVar[dict[int, tuple[int, int]]] = {}
    to_endpoint: ClassVar[EndpointId | None] = None

    def __init__(
        self,
        rows: Sequence[tuple[Any, ...]],
        senders: Sequence[str],
        routes_of: Callable[[Any], Sequence[str]],
    ) -> None:
        self._rows = rows
        self._senders = senders
        self._routes_of = routes_of

    def __len__(self) -> int:
        return len(self._rows)

    def document(self, endpoint_id: EndpointId, priority: Priority) -> list[Any]:
        """Return a JSON value: differences where values rise, one value where all are equal."""
        offsets, enqueued, expires, sizes, labels, *_ = zip(*self._rows, strict=True)
        if None in expires:
            ttls = [
                None if expiry is None else expiry - since
                for expiry, since in zip(expires, enqueued, strict=True)
            ]
        else:
            ttls = list(map(sub, expires, enqueued))
        names, places = _indexed(labels)
        return [
            endpoint_id,
            priority,
            len(offsets),
            RowEvent.ENQUEUED.value,
            _steps(offsets),
            _steps(enqueued),
            0,
            _flat(ttls),
            _flat(sizes),
            0,
            _indexed(self._senders),
            ([self._routes_of(label) for label in names], places),
            0,
            None,
            0,
        ]


QueueEvents = tuple["EndpointId", "Priority", EventColumns | JoinedRows]


def pack(
    hub_ms: int,
    wall_ms: int,
    notes: Sequence[Note],
    queues: Iterable[QueueEvents],
    *,
    trusted: bool = True,
) -> bytes:
    """Pack the events of one commit.

    Args:
        hub_ms: Hub time of the commit.
        wall_ms: UTC of the commit, as the machine believes.
        notes: In order.
        queues: Events by queue, a queue any number of times.
        trusted: Whether UTC is known to be right.
    """
    sections: list[list[Any]] = []
    counts: list[Counts] = []
    for endpoint_id, priority, columns in queues:
        if len(columns):
            sections.append([columns.to_endpoint, *columns.document(endpoint_id, priority)])
        counts.extend(
            (endpoint_id, priority, event, rows, size, columns.to_endpoint)
            for event, (rows, size) in columns.counts.items()
        )
    # Level 1: what repeats is found by any level, and the commit waits for it.
    content = (FORM, hub_ms, wall_ms, int(trusted), notes, sections, counts)
    return zlib.compress(orjson.dumps(content), 1)


def _steps(values: Sequence[int]) -> list[int]:
    return [values[0], *map(sub, islice(values, 1, None), values)]


def _flat(values: Sequence[Any]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values


def _indexed(values: Sequence[Any]) -> tuple[list[Any], Any]:
    if values.count(values[0]) == len(values):
        return [values[0]], 0
    names = list(dict.fromkeys(values))
    places = {name: place for place, name in enumerate(names)}
    return names, list(map(places.__getitem__, values))
