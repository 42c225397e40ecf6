"""Tables on standard output: whole on a pipe, folded to the width of a terminal.

Owns how tables look. Invariant: nothing of a cell is cut off or taken for markup, since names and
conditions may hold any character, and operators search for them with `grep`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from edgehub.cli.output import print_line, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_WIDTH_MAX: Final = 1_000_000
MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


def span(seconds: float) -> str:
    """Return a length of time in the unit that fits: `40 s`, `25 min`, `6.0 h`, `457.5 days`."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    if seconds < 2 * DAY_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / DAY_S:.1f} days"


def print_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    right: Collection[str] = (),
    empty: str = "",
) -> None:
    """Print a table.

    Args:
        columns: Their headings.
        rows: Cells of each.
        right: Columns of figures, which stand on the right and are never folded.
        empty: Printed in its place if it has no rows.
    """
    table = Table(box=None)
    for name in columns:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        # A line end in a cell would look like another row.
        table.add_row(*map(printable, row))
    if empty and not table.row_count:
        print_line(empty)
        return
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; the table takes what its longest cells need.
        unbounded = console.options.update_width(_WIDTH_MAX)
        console.width = max(console.width, console.measure(table, options=unbounded).maximum)
    console.print(table)
