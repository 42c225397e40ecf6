"""The section on links and hubs: for how long they were up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.page.grid import section, table
from analytics.page.words import count, duration, link, share, text

if TYPE_CHECKING:
    from analytics.page.figures import Figures

_NOTE = (
    "Of the time between the first line of a hub and the end of its day. A link is down while the "
    "hub runs and cannot send; the longest time first."
)


def links(shown: Figures) -> str:
    """List the links that were down for longest, with how long their hubs ran."""
    if not shown.links:
        return section("Links", '<p class="soft">All links were up while their hubs ran.</p>')
    heads = ("hub", "endpoint", "hub ran", "link up", "down", "times", "longest")
    rows = [
        (
            link(row["hub"], has_page=shown.links_hubs),
            text(row["endpoint"]),
            share(row["running_ms"], row["known_ms"]),
            share(row["running_ms"] - row["down_ms"], row["running_ms"]),
            *(duration(row["down_ms"]), count(row["downs"]), duration(row["longest_down_ms"])),
        )
        for row in shown.links
    ]
    return section("Links", table(heads, rows, words=(0, 1)), _NOTE)
