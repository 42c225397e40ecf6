"""Tables on standard output: whole on a pipe, folded to the width of a terminal.

Owns how tables look. Invariant: nothing of a cell is cut off or taken for markup, since names and
conditions may hold any character and people search for them with `grep`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Collection

_WIDTH_MAX: Final = 1_000_000


def counted(number: int, noun: str) -> str:
    """Give a number and what it counts: `1 segment`, `2 segments`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def new_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Make an empty table.

    Args:
        columns: Their headings.
        right: Those of figures, which stand on the right and are never folded.
    """
    table = Table(box=None)
    for name in columns:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print a table."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; the table takes what its longest cells need.
        unbounded = console.options.update_width(_WIDTH_MAX)
        console.width = max(console.width, console.measure(table, options=unbounded).maximum)
    console.print(table)
