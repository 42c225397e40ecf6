"""The section on queues that were not served: a timeline, and a table of the worst ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.page import plots
from analytics.page.grid import legend, section, table
from analytics.page.words import KIND_WORDS, count, counted, duration, link, queue, size, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analytics.args import JobArgs
    from analytics.page.figures import Figures
    from analytics.page.queries import Record


def starvation(shown: Figures, args: JobArgs) -> str:
    """Show which queues were not served, when, and whether better priorities were the reason."""
    shortest, pause = (duration(s * 1000) for s in (args.starved_after_s, args.idle_after_s))
    note = (
        f"Times of {shortest} or more in which a queue had messages, its "
        "link was up, and none of them was sent. Starved: better priorities were. Idle: "
        f"nothing at all was sent for {pause} or longer, which is a fault "
        "unless the endpoint had refused."
    )
    if not shown.queues:
        return section("Starvation", '<p class="soft">Every queue was served in time.</p>', note)
    kinds = {KIND_WORDS[kind]: kind for kind in KIND_WORDS}
    content = legend(kinds) + plots.lanes([_lane(*lane) for lane in shown.lanes])
    heads = (
        "hub",
        "queue",
        "kind",
        "windows",
        "longest",
        "total",
        "link idle",
        "messages",
        "bytes",
        "expired",
    )
    rows = [
        (
            link(row["hub"], has_page=shown.links_hubs),
            queue(row["endpoint"], row["priority"]),
            KIND_WORDS[row["kind"]],
            count(row["windows"]),
            *(duration(row[name]) for name in ("longest_ms", "total_ms", "idle_ms")),
            count(row["rows"]),
            size(row["bytes"]),
            count(row["expired"]),
        )
        for row in shown.queues
    ]
    below = table(heads, rows, words=(0, 1, 2))
    return section("Starvation", content + "<h3>By queue, the longest first</h3>" + below, note)


def _lane(of: Record, windows: Sequence[Record]) -> tuple[str, list[tuple[int, int, str, str]]]:
    bars = []
    for row in windows:
        start = row["start"]
        start_ms = ((start.hour * 60 + start.minute) * 60 + start.second) * 1000
        title = (
            f"{start:%H:%M:%S}, {duration(row['length_ms'])}: {KIND_WORDS[row['kind']]}, "
            f"{counted(row['rows'], 'message')}"
        )
        bars.append((start_ms, row["length_ms"], row["kind"], title))
    return f"{text(of['hub'])} · {queue(of['endpoint'], of['priority'])}", bars
