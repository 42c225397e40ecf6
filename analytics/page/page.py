"""The page put together: verdict, pictures, tables, in the order in which a reader asks.

Invariant: the result refers to nothing outside itself and holds no script.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from analytics.page import counts, headline, reporting, sections, starving
from analytics.page.figures import figures
from analytics.page.words import count, counted, share, size, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame

    from analytics.args import JobArgs
    from analytics.history import History
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
    earlier: History,
) -> Page:
    """Make the page of a date.

    Args:
        args: The date and the thresholds.
        metrics: What is known of the lines that were read.
        tables: All tables by name.
        days: All hubs of the date.
        earlier: Metrics of the last days.
    """
    shown = figures(tables)
    return Page(html=render(args, metrics, shown, days, earlier), totals=shown.totals)


def render(
    args: JobArgs,
    metrics: Mapping[str, Any],
    shown: Figures,
    days: Collection[HubDay],
    earlier: History,
) -> str:
    """Write the page from its figures."""
    style = resources.files("analytics.page").joinpath("style.css").read_text("utf-8")
    parts = [
        _head(args, metrics, shown.totals, days, earlier),
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
    args: JobArgs,
    metrics: Mapping[str, Any],
    totals: Record,
    days: Collection[HubDay],
    earlier: History,
) -> str:
    came, lost_rows = headline.came(totals), headline.lost(totals)
    lost_bytes = headline.lost(totals, "bytes")
    verdict = (
        f"{counted(lost_rows, 'message')} ({size(lost_bytes)}, {share(lost_rows, came)})"
        " did not arrive"
        if lost_rows
        else "Nothing was lost"
    )
    verdict += "; the counts close." if not totals["open_hubs"] else _open(totals)
    title = f"<h1>Hub report, {args.date} UTC</h1>{reporting.verdict(days)}"
    tiles = headline.tiles({**metrics, **totals}, earlier)
    return f"{title}<p>{verdict}</p>{_warnings(metrics)}{tiles}"


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
