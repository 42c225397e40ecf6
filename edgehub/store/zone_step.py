"""One step of background work on the zones of one queue: a transaction of its own.

Runs on the connection's thread on values that were taken on the loop. Invariant: a step takes at
most about 50 ms or 5 000 rows, so that no commit waits longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from edgehub.journal.row_events import EventColumns
from edgehub.message import NEVER_MS
from edgehub.store.row_records import read_records
from edgehub.store.transaction import register_queue, write_checkpoint, write_zones

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from edgehub.message import EndpointId
    from edgehub.store.encoding import Params
    from edgehub.store.event_log import EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.shared_state import SharedState
    from edgehub.store.zones import ZoneValues

STEP_ROWS_MAX: Final = 5_000
STEP_S_MAX: Final = 0.05

_MOVED_COLUMNS: Final = (
    "offset, enqueued_ms, expires_ms, size, predecessor, creation, routes, message_id, body_id"
)


class Target:
    """A queue that rows of one step may be moved to, as it was before the step."""

    __slots__ = (
        "creations",
        "highest",
        "lowest",
        "number",
        "queue",
        "registration",
        "rows",
        "sums",
        "zones",
    )

    def __init__(self, queue: Queue, zones: Iterable[int]) -> None:
        self.queue = queue
        self.number = queue.number
        self.registration: Params | None = None
        if not queue.registered:
            self.registration = (queue.number, queue.id, queue.endpoint_id, queue.priority, 0)
        before = [queue.zones.get(zone) for zone in zones]
        self.zones = {values[0]: values for values in before if values is not None}
        self.rows = 0
        self.lowest: int = NEVER_MS
        self.highest = 0
        self.sums: tuple[int, int] | None = None
        """Offset and enqueue time of its lowest row afterwards."""
        self.creations: list[tuple[int, int]] = []
        """Offset and size of those of the rows that create entities."""

    def register(self, connection: sqlite3.Connection) -> None:
        """Store the queue if it is new."""
        if self.registration is not None:
            register_queue(connection, self.registration)
            self.registration = None

    def join(self, zone: int, figures: Sequence[int]) -> None:
        """Count rows that were moved to a zone; they have no recency any more.

        Args:
            zone: The zone.
            figures: Rows, bytes, lowest and highest offset, earliest and latest expiry.
        """
        rows, size, lowest, highest, min_expires_ms, max_expires_ms = figures
        before = self.zones.get(zone, (zone, NEVER_MS, 0, 0, 0, 0, NEVER_MS))
        self.zones[zone] = (
            zone,
            min(before[1], min_expires_ms),
            max(before[2], max_expires_ms),
            NEVER_MS,
            before[4] + rows,
            before[5] + size,
            before[6],
        )
        self.rows += rows
        self.lowest = min(self.lowest, lowest)
        self.highest = max(self.highest, highest)

    def write(self, connection: sqlite3.Connection, empty_checkpoint: int) -> None:
        """Store zones and checkpoint after the rows."""
        if self.rows:
            write_zones(connection, self.number, list(self.zones.values()))
            self.sums = write_checkpoint(connection, self.number, empty_checkpoint)

    def apply(self, committed: int) -> None:
        """Update the queue once the rows are in the file."""
        if not self.rows:
            return
        self.queue.registered = True
        self.queue.zones.replace(self.zones.values())
        for offset, size in self.creations:
            self.queue.creations.add(offset, size)
        self.queue.lowest_committed(self.sums, committed)
        self.queue.rows_moved_in(self.lowest, self.highest)


class StepResult(Struct):
    """The result of one step.

    Attributes:
        zones: Entries of the queue as they are now.
        rows: Rows that have left.
        bytes: Sum of their sizes.
        lowest: Offset and enqueue time of the lowest row left, None = empty.
        skipped: Rows that were to leave and are in flight.
        next_offset: Where to go on, None = the whole queue is done.
        creations: Offset and size of the creations among them.
        at_live_row: The step met a row that stays and only the head is cleaned.
        unknown: Fallback priorities that were met and that the step had no target for.
    """

    zones: list[ZoneValues] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    lowest: tuple[int, int] | None = None
    skipped: int = 0
    next_offset: int | None = None
    creations: list[tuple[int, int]] = field(default_factory=list)
    at_live_row: bool = False
    unknown: set[int] = field(default_factory=set)


class ZoneStep(ABC):
    """One step on some zones of one queue.

    Args:
        queue: The queue.
        zones: Its entries that the step may work on.
        shared: What the parts of the store share.
        batch: Takes the events of the rows, None = there is no journal.
        now_ms: Hub time.
        busy: Offsets of the rows that stay.
        to_endpoint: Where rows are moved to, if it is another endpoint.

    Attributes:
        number: Of the queue.
        now_ms: Hub time.
        targets: Queues that rows are moved to.
    """

    def __init__(
        self,
        queue: Queue,
        zones: list[ZoneValues],
        shared: SharedState,
        batch: EventBatch | None,
        *,
        now_ms: int,
        busy: list[int],
        to_endpoint: EndpointId | None = None,
    ) -> None:
        self.number = queue.number
        self.now_ms = now_ms
        self.targets: Collection[Target] = ()
        self._zones = zones
        self._empty_checkpoint = shared.offsets.committed
        self._key = (queue.endpoint_id, queue.priority)
        self._busy = busy
        self._batch = batch
        self._labels = shared.labels
        self._columns = EventColumns(to_endpoint=to_endpoint)
        self._monotonic = shared.clock.monotonic
        self._until_s = 0.0

    def run(self, connection: sqlite3.Connection) -> StepResult:
        """Take rows out, zone by zone, until the step is long enough."""
        self._until_s = self._monotonic() + STEP_S_MAX
        result = StepResult()
        for values in self._zones:
            if not self.take(connection, values, result) or self.is_long(result.rows):
                break
        write_zones(connection, self.number, result.zones)
        result.lowest = write_checkpoint(connection, self.number, self._empty_checkpoint)
        for target in self.targets:
            target.write(connection, self._empty_checkpoint)
        if self._batch is not None:
            self._batch.queues.append((*self._key, self._columns))
        return result

    @abstractmethod
    def take(self, connection: sqlite3.Connection, values: ZoneValues, result: StepResult) -> bool:
        """Take the rows of one zone out; return False if the step ends with it."""

    def is_long(self, rows: int) -> bool:
        """Return whether the step has taken long enough, or so many rows are enough."""
        return rows >= STEP_ROWS_MAX or self._monotonic() >= self._until_s

    def busy_between(self, low: int, high: int) -> list[int]:
        """Return the offsets of the rows that stay, of some offsets."""
        return [offset for offset in self._busy if low <= offset <= high]

    def record(
        self,
        connection: sqlite3.Connection,
        event: int,
        where: str,
        chosen: tuple[Any, ...],
        figures: Sequence[int],
    ) -> None:
        """Record an event of rows for the journal.

        Args:
            connection: Of the file.
            event: A `RowEvent`, or of `moved_to`.
            where: Which rows, in columns of `q`.
            chosen: Its parameters.
            figures: Their number and bytes, in this order.
        """
        if self._batch is None:
            return
        if self._batch.summed:
            self._columns.count(event, figures[0], figures[1])
        else:
            records = read_records(connection, self.number, where, chosen, self._labels)
            self._columns.add_records(event, records, self.now_ms)

    def move(
        self,
        connection: sqlite3.Connection,
        target: Target,
        where: str,
        chosen: tuple[Any, ...],
        *,
        attempts: bool,
    ) -> None:
        """Copy rows to another queue; the caller deletes them.

        Args:
            connection: Of the file.
            target: Where they go.
            where: Which rows, in columns of `q`.
            chosen: Its parameters.
            attempts: They keep the count of refused sends.
        """
        target.register(connection)
        # The deletion counts shared bodies down. Two rows of a queue may share one: copies for two
        # endpoints that were moved to the same queue.
        bodies = connection.execute(
            f"SELECT q.body_id FROM q_{self.number} q WHERE q.body_id IS NOT NULL AND {where}",  # noqa: S608 - our numbers and words
            chosen,
        ).fetchall()
        connection.executemany("UPDATE body SET refs = refs + 1 WHERE id = ?", bodies)
        # Recency ends: this is where they are to be.
        connection.execute(
            f"INSERT INTO q_{target.number} ({_MOVED_COLUMNS}, attempts, header, body)"  # noqa: S608 - likewise
            f" SELECT {_MOVED_COLUMNS}, {'attempts' if attempts else '0'}, header, body"
            f" FROM q_{self.number} q WHERE {where}",
            chosen,
        )
