"""The rows of one group that go to one queue.

Owns them from their append until the commit has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from edgehub.message import Row
    from edgehub.store.encoding import Params
    from edgehub.store.labels import Labels

NO_BARRIER: Final = 2**31


class QueueRows(Struct, eq=False):
    """Rows in order of their offsets.

    Attributes:
        full: Columns of rows with more than the usual ones: with recency, or a shared body.
        recency: Some of the rows have it.
        bytes: Sum of the sizes of the rows.
        handed_out: So many of the first rows were read by the pump before the commit.
        early_max: Rows from this one on wait for their commit; a shared message is only read
            once all of its rows are stored.
        withdrawn: Offsets of rows that were confirmed before the commit.
    """

    rows: list[Row] = []
    full: list[Params] = []
    recency: bool = False
    bytes: int = 0
    handed_out: int = 0
    early_max: int = NO_BARRIER
    withdrawn: set[int] = set()

    def plain(self, labels: Labels) -> list[Params]:
        """Return the columns of the usual rows."""
        rows = self.rows
        if self.full:
            others = {columns[0] for columns in self.full}
            rows = [row for row in rows if row.offset not in others]
        label = labels.intern_routes
        return [
            (
                row.offset,
                row.enqueued_ms,
                None if row.expires_ms >= NEVER_MS else row.expires_ms,
                row.size,
                label(row.routes),
                row.message.header,
                row.message.body,
            )
            for row in rows
        ]

    def prune(self) -> None:
        """Remove the rows that were withdrawn."""
        withdrawn = self.withdrawn
        self.rows = [row for row in self.rows if row.offset not in withdrawn]
        self.full = [columns for columns in self.full if columns[0] not in withdrawn]
        self.handed_out -= len(withdrawn)
        if self.early_max != NO_BARRIER:
            self.early_max -= len(withdrawn)
        self.withdrawn = set()

    def split(self, offset: int) -> tuple[QueueRows, QueueRows]:
        """Split into the rows below `offset` and the others."""
        low, high = QueueRows(), QueueRows()
        cut = bisect_left(self.rows, offset, key=lambda row: row.offset)
        low.rows, high.rows = self.rows[:cut], self.rows[cut:]
        low.full, high.full = split_columns(self.full, offset)
        low.handed_out = min(self.handed_out, cut)
        high.handed_out = self.handed_out - low.handed_out
        if self.early_max != NO_BARRIER:
            low.early_max, high.early_max = min(self.early_max, cut), max(0, self.early_max - cut)
        low.recency = high.recency = self.recency
        low.bytes = sum([row.size for row in low.rows])
        high.bytes = self.bytes - low.bytes
        return low, high


def split_columns(rows: list[Params], offset: int) -> tuple[list[Params], list[Params]]:
    """Split rows whose first column is an offset into those below `offset` and the others."""
    cut = bisect_left(rows, offset, key=_first_column)
    return rows[:cut], rows[cut:]


def _first_column(columns: Params) -> int:
    offset = columns[0]
    assert isinstance(offset, int)
    return offset
