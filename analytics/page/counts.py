"""The sections on how rows left otherwise, on the equation, and on what the page rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analytics.page.grid import section, table
from analytics.page.words import count, size, text
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from analytics.args import JobArgs
    from analytics.page.figures import Figures
    from analytics.page.queries import Record


def losses(shown: Figures) -> str:
    """List other ways in which rows left or changed their queue."""
    if not shown.losses:
        return ""
    rows = [
        (_event(row), text(row["reason"] or "\u2013"), count(row["rows"]), size(row["bytes"]))
        for row in shown.losses
    ]
    table_ = table(("what", "reason", "messages", "bytes"), rows, words=(0, 1))
    return section("Drops, dead letters, demotions, refusals", table_)


def balance(totals: Record) -> str:
    """Show the equation over all hubs."""
    rows = [
        (name, flow.replace("_", " "), count(totals[f"{flow}_rows"]), size(totals[f"{flow}_bytes"]))
        for name, flows in (("in", IN_FLOWS), ("out", OUT_FLOWS))
        for flow in flows
    ]
    rows.append(
        ("", "in - out", count(totals["difference_rows"]), size(totals["difference_bytes"]))
    )
    note = "What went in went out or waits at the end; checked per queue before this was written."
    return section("Counts", table(("", "flow", "messages", "bytes"), rows, words=(0, 1)), note)


def source(args: JobArgs, metrics: Mapping[str, Any]) -> str:
    """Return what was read."""
    faults = ", ".join(f"{name} {number}" for name, number in metrics["faults"].items()) or "none"
    sentence = (
        f"Copies of lines that were dropped: {count(metrics['copies'])}. "
        f"Lines in quarantine: {text(faults)}. "
        f"Left out: {text(', '.join(args.exclude_hubs) or 'no hub')}."
    )
    return section("What this rests on", f'<p class="soft">{sentence}</p>')


def _event(row: Record) -> str:
    is_demotion = row["event"] == "moved" and row["reason"] == "recency"
    return "demoted" if is_demotion else text(str(row["event"]).replace("_", " "))
