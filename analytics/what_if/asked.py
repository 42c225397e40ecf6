"""All scenarios of a run: those of a file, and those of the grid, in one pass over the lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analytics.kept import keep
from analytics.what_if.advice import best, effects, grid
from analytics.what_if.parcels import what_if

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from analytics.what_if.scenarios import Scenario


def ask(
    lines: DataFrame, scenarios: Sequence[Scenario], *, count: int, advise: bool
) -> tuple[DataFrame, dict[str, Any]]:
    """Simulate scenarios and add up what they come to.

    Args:
        lines: Good lines without copies, with what scenarios need.
        scenarios: Of the file.
        count: Number of the lines.
        advise: Look for the best change too, in a grid for the worst routes.

    Returns:
        The table `what_if`, and for page and metrics: `effects`, `advised` (whether a grid was
        simulated), `best` (the name of its best scenario, None = none lets more arrive) and
        `fragment` (what that one changes in the routes of the manifest).
    """
    named = {scenario.name for scenario in scenarios}
    searched = [each for each in grid(lines) if each.name not in named] if advise else []
    table = keep(what_if(lines, [*scenarios, *searched], count=count))
    chosen = best(effects(table, searched), searched) if searched else None
    shown = [*scenarios, *([] if chosen is None else [chosen])]
    return table, {
        "effects": effects(table, shown),
        "advised": advise,
        "best": None if chosen is None else chosen.name,
        "fragment": None if chosen is None else {"routes": chosen.fragment()},
    }
