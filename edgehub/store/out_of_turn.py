"""Creations of one queue that are read by their offsets, ahead of their place.

Owns which rows are: the reader skips them until they have left or are returned to it. Invariant:
such a row gets to the pump from here alone, and at most once at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edgehub.store.encoding import decode_row
from edgehub.store.row_reading import read_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import Row
    from edgehub.store.checkpointer import Checkpointer
    from edgehub.store.creations import Creations
    from edgehub.store.reader import Reader
    from edgehub.store.shared_state import SharedState

TAKEN_ROWS_MAX = 256
"""Rows of one reading."""


class OutOfTurn:
    """Implements the pump's `OutOfTurn`.

    Args:
        shared: What the parts of the store share.
        number: Of the queue.
        creations: Its rows that create entities.
        checkpointer: Knows which rows are in flight.
        reader: Reads the queue in order.
    """

    __slots__ = ("_checkpointer", "_creations", "_number", "_reader", "_shared", "_taken")

    def __init__(
        self,
        shared: SharedState,
        number: int,
        creations: Creations,
        checkpointer: Checkpointer,
        reader: Reader,
    ) -> None:
        self._shared = shared
        self._number = number
        self._creations = creations
        self._checkpointer = checkpointer
        self._reader = reader
        self._taken: set[int] = set()

    def creates(self, offset: int) -> bool:
        """Return whether the queue holds a row of this offset that creates an entity."""
        return offset in self._creations

    def is_in_flight(self, offset: int) -> bool:
        """Return whether a row is in flight."""
        return offset in self._checkpointer.in_flight

    async def take(self, offsets: Sequence[int], bytes_max: int) -> list[Row]:
        """Read rows; they are in flight from here on.

        Args:
            offsets: Rows that create entities; those that are in flight already, or not in the file
                yet, are skipped.
            bytes_max: Sum of sizes at most; one row is returned even if it is larger.

        Raises:
            StoreError: They cannot be read now.
        """
        wanted = [offset for offset in sorted(offsets) if self._may_take(offset)][:TAKEN_ROWS_MAX]
        fresh = [offset for offset in wanted if offset not in self._taken]
        if fresh:
            self._reader.evict(fresh)
            self._taken.update(fresh)
        if not wanted:
            return []
        shared = self._shared
        decode = partial(decode_row, labels=shared.labels, store_id=shared.store_id)
        rows, _ = await shared.database.run(partial(read_offsets, self._number, wanted, decode))
        # An operator may have removed some during the read.
        rows = [row for row in rows if row.offset in self._creations]
        self._checkpointer.count_unstored(rows)
        fitting: list[Row] = []
        left = bytes_max
        for row in rows:
            if fitting and row.size > left:
                break
            fitting.append(row)
            left -= row.size
        return self._checkpointer.admit(fitting)

    def leave(self, offset: int) -> None:
        """Return a row to the reader; nothing happens if it has left or is not taken."""
        if offset in self._taken and offset not in self._checkpointer.busy():
            self._taken.discard(offset)
            self._reader.restore(offset)

    def left(self, offsets: Sequence[int]) -> None:
        """Record that rows are not in the file any more; others may be among them."""
        if self._taken:
            self._taken.difference_update(offsets)

    def _may_take(self, offset: int) -> bool:
        is_here = offset in self._creations and offset <= self._checkpointer.proposed
        return is_here and offset not in self._checkpointer.in_flight
