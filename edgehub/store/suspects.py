"""Counts of closes by a peer against rows, over restarts.

Owns the table `suspect`. A change joins the next group commit; a crash loses at most one close.
Invariant: bounded; the oldest rows are forgotten first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from edgehub.store.writer import Writer

SUSPECTS_MAX: Final = 256

Counts = tuple[int, int, bool]
"""Closes, those with the row alone in flight, whether it was cleared."""


class Suspects:
    """Counts by offset; see `edgehub.pump.poison`."""

    def __init__(self, stored: Iterable[tuple[int, int, int, int]], writer: Writer) -> None:
        self._known: dict[int, Counts] = {
            offset: (closes, alone, bool(cleared)) for offset, closes, alone, cleared in stored
        }
        self._writer = writer

    def get(self, offset: int) -> Counts:
        """Return the counts of a row."""
        return self._known.get(offset, (0, 0, False))

    def note(self, offset: int, counts: Counts) -> None:
        """Store the counts of a row."""
        self._known[offset] = counts
        self._change(offset)
        while len(self._known) > SUSPECTS_MAX:
            self.forget(min(self._known))

    def forget(self, offset: int) -> None:
        """Remove the counts of a row that has left."""
        if self._known.pop(offset, None) is not None:
            self._change(offset)

    def _change(self, offset: int) -> None:
        # Closes come seconds apart: nothing to gather.
        counts = self._known.get(offset)
        future = self._writer.transact(partial(_write, offset, counts))
        # Not awaited: a closed store keeps what it has.
        future.add_done_callback(lambda future: future.cancelled() or future.exception())


def _write(offset: int, counts: Counts | None, connection: sqlite3.Connection) -> None:
    if counts is None:
        connection.execute("DELETE FROM suspect WHERE offset = ?", (offset,))
        return
    connection.execute(
        "INSERT OR REPLACE INTO suspect (offset, closes, alone, cleared) VALUES (?, ?, ?, ?)",
        (offset, *counts),
    )
