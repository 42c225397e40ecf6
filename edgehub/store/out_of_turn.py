"""Rows of one queue that are taken by their offsets, before their turn.

Owns which rows are taken: the reader passes them by until they have left or are given up. Only rows
that create entities are; others wait for them. Invariant: a row that is taken comes to the pump
from here alone, and at most once at a time.
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
    from edgehub.store.reader import Reader, ReadSource

TAKEN_ROWS_MAX = 256
"""Rows of one reading."""


class OutOfTurn:
    """See the module.

    Args:
        source: How rows are read.
        number: Of the queue.
        creations: Its rows that create entities.
        checkpointer: Knows what is in flight.
        reader: The usual way.
    """

    __slots__ = ("_checkpointer", "_creations", "_number", "_reader", "_source", "_taken")

    def __init__(
        self,
        source: ReadSource,
        number: int,
        creations: Creations,
        checkpointer: Checkpointer,
        reader: Reader,
    ) -> None:
        self._source = source
        self._number = number
        self._creations = creations
        self._checkpointer = checkpointer
        self._reader = reader
        self._taken: set[int] = set()

    def creates(self, offset: int) -> bool:
        """Return whether a row is here and creates an entity."""
        return offset in self._creations

    def is_in_flight(self, offset: int) -> bool:
        """Return whether a row is in flight."""
        return offset in self._checkpointer.in_flight

    async def take(self, offsets: Sequence[int], bytes_max: int) -> list[Row]:
        """Take rows; they are in flight from here on.

        Args:
            offsets: Rows that create entities; those that are in flight already, or not in the file
                yet, are passed by.
            bytes_max: Sum of sizes at most; one row comes even if it is larger.

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
        source = self._source
        decode = partial(decode_row, labels=source.labels, store_id=source.store_id)
        rows, _ = await source.database.run(partial(read_offsets, self._number, wanted, decode))
        # A person may have removed some meanwhile.
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
        """Let a row come in its turn again; nothing happens if it has left or is not taken."""
        if offset in self._taken and offset not in self._checkpointer.busy():
            self._taken.discard(offset)
            self._reader.come_back(offset)

    def left(self, offsets: Sequence[int]) -> None:
        """Take note that rows are not in the file any more; others may be among them."""
        if self._taken:
            self._taken.difference_update(offsets)

    def _may_take(self, offset: int) -> bool:
        is_here = offset in self._creations and offset <= self._checkpointer.proposed
        return is_here and offset not in self._checkpointer.in_flight
