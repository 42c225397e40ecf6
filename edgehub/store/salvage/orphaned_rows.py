"""Rows on pages whose table is unknown, or that may be free.

The map entry of such a page and all pages above it are corrupt. It may be an old free page, with
rows that were delivered. The zone rows tell them apart: a page whose rows no queue lacks is old. A
row that some queue may lack is restored: a row that is delivered twice does less harm than a lost
one; but rows of routes that the queue has no other rows of are parked, so that none gets to a wrong
receiver. Invariant: nothing is sent of 1000 offsets of which no queue lacks a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.salvage.damaged_file import row_of
from edgehub.store.salvage.placement import counts_of, queues_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from edgehub.store.salvage.damaged_file import DamagedFile, Table
    from edgehub.store.salvage.placement import ZoneDepths
    from edgehub.store.salvage.row_validation import Record

    Copy = Callable[[Table, Iterable[Record]], int]
    """Validates records and writes them; returns how many."""


class OrphanedRows:
    """Rows whose table is found by what they hold."""

    def __init__(
        self,
        source: DamagedFile,
        into: sqlite3.Connection,
        queues: dict[int, Table],
        shape: Table,
        copy: Copy,
    ) -> None:
        """Begin; `queues` are the tables of the new file by number, `shape` is one like them."""
        self._source = source
        self._shape = shape
        self._into = into
        self._queues = queues
        self._copy = copy

    def place(self, zones: ZoneDepths, parked: Callable[[], Table]) -> bool:
        """Put them into the queues that lack them; return whether there were any such rows.

        Args:
            zones: The zone rows of the damaged file.
            parked: Returns the table for rows of unknown queues; it is created for the first.
        """
        page_recovery = self._source.page_recovery
        if not page_recovery.has_unowned:
            return False
        any_placed = False
        missing = zones.without(
            {number: self._present(table) for number, table in self._queues.items()}
        )
        dead = {offset for (offset,) in self._into.execute("SELECT offset FROM dead_letter")}
        for cells in page_recovery.unowned_rows():
            rows = [row for cell in cells if (row := row_of(self._shape, *cell)) is not None]
            # What is here of a row that is elsewhere is an older state.
            rows = [row for row in rows if row[0] not in dead and not self._waits(row[0])]
            if not rows:
                continue
            found = counts_of(row[0] for row in rows)
            queues = queues_of(found, missing)
            if len(queues) == 1 and self._fits(queues[0], rows):
                any_placed |= self._copy(self._queues[queues[0]], rows) > 0
            elif queues or not zones.is_whole:
                any_placed |= self._copy(parked(), rows) > 0
        return any_placed

    def place_bodies(self, table: Table) -> None:
        """Take every message that may be a shared one; those that no row refers to go again."""
        for cells in self._source.page_recovery.unowned_rows():
            self._copy(table, [row for cell in cells if (row := row_of(table, *cell)) is not None])

    def _fits(self, number: int, rows: Iterable[Record]) -> bool:
        """Return whether rows came by routes that lead to a queue, as far as those in it tell."""
        name = self._queues[number].name
        known = {routes for (routes,) in self._into.execute(f"SELECT DISTINCT routes FROM {name}")}  # noqa: S608 - our name
        place = self._shape.columns.index("routes")
        return not known or {row[place] for row in rows} <= known

    def _present(self, table: Table) -> dict[int, int]:
        return counts_of(
            offset
            for (offset,) in self._into.execute(f"SELECT offset FROM {table.name}")  # noqa: S608 - our name
        )

    def _waits(self, offset: int) -> bool:
        return any(
            self._into.execute(
                f"SELECT 1 FROM {table.name} WHERE offset = ?",  # noqa: S608 - our name
                (offset,),
            ).fetchone()
            for table in self._queues.values()
        )
