"""The page put together: verdict, pictures, tables, in the order in which a reader asks.

Invariant: the result refers to nothing outside itself and holds no script.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from analytics.page import counts, reporting, sections, starving
from analytics.page.figures import figures
from analytics.page.words import count, counted, duration, share, size, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame

    from analytics.args import JobArgs
    from analytics.page.figures import Figures, Record
    from analytics.quality import HubDay


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The finished page.

    Attributes:
        html: One self-contained file.
        totals: The sums over all hubs that it shows.
    """

    html: str
    totals: dict[str, Any]


def page(
    args: JobArgs,
    metrics: Mapping[str, Any],
    tables: Mapping[str, DataFrame],
    days: Collection[HubDay],
) -> Page:
    """Make the page of a date.

    Args:
        args: The date and the thresholds.
        metrics: What is known of the lines that were read.
        tables: All tables by name.
        days: All hubs of the date.
    """
    shown = figures(tables)
    return Page(html=render(args, metrics, shown, days), totals=shown.totals)


def render(
    args: JobArgs, metrics: Mapping[str, Any], shown: Figures, days: Collection[HubDay]
) -> str:
    """Write the page from its figures."""
    style = resources.files("analytics.page").joinpath("style.css").read_text("utf-8")
    parts = [
        _head(args, metrics, shown.totals, days),
        reporting.missing(days),
        sections.advice(shown),
        sections.worst_hubs(shown),
        sections.waiting(shown),
        sections.expiry(shown),
        starving.starvation(shown, args),
        counts.losses(shown),
        counts.balance(shown.totals),
        counts.source(args, metrics),
    ]
    title = f"Hub report {args.date}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Otherwise a browser asks for /favicon.ico beside the file.
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _head(
    args: JobArgs, metrics: Mapping[str, Any], totals: Record, days: Collection[HubDay]
) -> str:
    came = totals["enqueued_rows"] + totals["requeued_rows"] + totals["carried_in_rows"]
    lost = ("expired", "dropped", "dead_lettered", "lost")
    lost_rows = sum(totals[f"{flow}_rows"] for flow in lost)
    lost_bytes = sum(totals[f"{flow}_bytes"] for flow in lost)
    still = totals["carried_out_rows"] + totals["difference_rows"]
    tiles = [
        (count(came), "messages to send"),
        (count(totals["sent_rows"]), f"sent, {share(totals['sent_rows'], came)}"),
        (count(totals["expired_rows"]), f"expired, {size(totals['expired_bytes'])}"),
        (count(lost_rows - totals["expired_rows"]), "dropped, dead or damaged"),
        (count(still), "waiting at the end"),
        _starved(totals),
        (count(totals["idle_windows"]), "times idle with messages waiting"),
        (
            count(metrics["lines"] - metrics["quarantined"] - metrics["copies"]),
            "lines of the journals",
        ),
    ]
    boxes = "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles
    )
    verdict = (
        f"{counted(lost_rows, 'message')} ({size(lost_bytes)}, {share(lost_rows, came)})"
        f" {'was' if lost_rows == 1 else 'were'} lost"
        if lost_rows
        else "Nothing was lost"
    )
    verdict += "; the counts close." if not totals["open_hubs"] else _open(totals)
    warnings = _warnings(metrics)
    title = f"<h1>Hub report, {args.date} UTC</h1>{reporting.verdict(days)}"
    return f'{title}<p>{verdict}</p>{warnings}<div class="tiles">{boxes}</div>'


def _starved(totals: Record) -> tuple[str, str]:
    if not totals["starved_windows"]:
        return "0", "starved"
    longest = duration(totals["longest_starved_ms"])
    return longest, f"longest of {count(totals['starved_windows'])} starved"


def _open(totals: Record) -> str:
    if totals["open_hubs"] == totals["hubs"]:
        return ". The day is still open: what waits is what has not left yet."
    return f". The day is still open at {count(totals['open_hubs'])} of them."


def _warnings(metrics: Mapping[str, Any]) -> str:
    told = []
    if metrics["quarantined"]:
        told.append(
            f"{counted(metrics['quarantined'], 'line')} could not be used: see the quarantine."
        )
    if metrics["hubs_of_one_name"]:
        named = ", ".join(map(text, metrics["hubs_of_one_name"]))
        told.append(f"Several hubs at once call themselves {named}: what is told of it is of all.")
    if metrics["excluded_hubs"]:
        told.append(f"Left out on request: {counted(len(metrics['excluded_hubs']), 'hub')}.")
    return "".join(f'<p class="bad">{line}</p>' for line in told)
