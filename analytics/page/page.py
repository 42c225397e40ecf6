"""The pages put together: verdict, pictures, tables, in the order in which a reader asks.

Invariant: a page refers to nothing but the other pages of its date, and holds no script.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from analytics.page import counts, headline, links, reporting, scenarios, sections, starving
from analytics.page.figures import Sums
from analytics.page.queries import NAMED_MAX
from analytics.page.words import counted, file_name, names, share, size, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame

    from analytics.args import JobArgs
    from analytics.history import History
    from analytics.page.figures import Figures
    from analytics.quality import HubDay


FEW: Final = 3
"""So many hubs have room on one page; of more, each has a page of its own too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The finished pages, each one self-contained file.

    Attributes:
        fleet: The page on all hubs.
        hubs: Pages of hubs by the name of their file; none where there are few hubs.
        totals: The sums over all hubs.
    """

    fleet: str
    hubs: dict[str, str]
    totals: dict[str, Any]


def pages(
    args: JobArgs,
    metrics: Mapping[str, Any],
    tables: Mapping[str, DataFrame],
    days: Collection[HubDay],
    earlier: History,
) -> Pages:
    """Make the pages of a date.

    Args:
        args: The date and the thresholds.
        metrics: What is known of the lines that were read.
        tables: All tables by name.
        days: All hubs of the date.
        earlier: Metrics of the last days.
    """
    sound = {day.hub: day for day in days if day.is_sound}
    sums = Sums(tables, by_hub=len(sound) > FEW)
    shown = sums.figures()
    with_page = sums.hubs if len(sound) > FEW else []
    fleet = [
        _head(args, metrics, shown, days, earlier),
        reporting.missing(days),
        sections.advice(shown),
        scenarios.scenarios(metrics["what_if"]),
        sections.worst_hubs(shown),
        *_questions(shown, args),
        counts.source(args, metrics),
        sections.all_hubs(with_page),
    ]
    return Pages(
        fleet=_document(f"Hub report {args.date}", fleet),
        hubs={file_name(hub): _hub_page(args, sound[hub], sums.figures(hub)) for hub in with_page},
        totals=shown.totals,
    )


def _hub_page(args: JobArgs, day: HubDay, shown: Figures) -> str:
    own = {"lines": day.lines, "quarantined": day.quarantined, "copies": day.copies}
    title = f"<h1>{text(day.hub)}, {args.date} UTC</h1>"
    back = '<p><a href="../report.html">All hubs</a></p>'
    head = f"{back}{title}<p>{_verdict(shown, [day])}</p>"
    tiles = headline.tiles({**own, **shown.totals}, {})
    parts = [head + tiles, sections.advice(shown), *_questions(shown, args)]
    return _document(f"{text(day.hub)} {args.date}", parts)


def _questions(shown: Figures, args: JobArgs) -> list[str]:
    """Return the answers for the fleet and for each hub."""
    return [
        sections.waiting(shown),
        sections.expiry(shown),
        starving.starvation(shown, args),
        links.links(shown),
        counts.losses(shown),
        counts.balance(shown.totals),
    ]


def _document(title: str, parts: Sequence[str]) -> str:
    style = resources.files("analytics.page").joinpath("style.css").read_text("utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Otherwise a browser asks for /favicon.ico in the folder of the file.
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _head(
    args: JobArgs,
    metrics: Mapping[str, Any],
    shown: Figures,
    days: Collection[HubDay],
    earlier: History,
) -> str:
    title = f"<h1>Hub report, {args.date} UTC</h1>{reporting.verdict(days)}"
    tiles = headline.tiles({**metrics, **shown.totals}, earlier)
    return f"{title}<p>{_verdict(shown, days)}</p>{_warnings(metrics)}{tiles}"


def _verdict(shown: Figures, days: Collection[HubDay]) -> str:
    """Return what did not arrive, and whether the counts close."""
    totals = shown.totals
    came, lost_rows = headline.came(totals), headline.lost(totals)
    lost_bytes = headline.lost(totals, "bytes")
    verdict = (
        f"{counted(lost_rows, 'message')} ({size(lost_bytes)}, {share(lost_rows, came)})"
        " did not arrive"
        if lost_rows
        else "Nothing was lost"
    )
    return verdict + ("; the counts close." if not totals["open_hubs"] else _open(shown, days))


def _open(shown: Figures, days: Collection[HubDay]) -> str:
    if shown.totals["open_hubs"] == shown.totals["hubs"]:
        return ". The day is still open: what waits is what has not left yet."
    hubs = sorted(day.hub for day in days if day.state == "open")
    named = names(hubs[:NAMED_MAX], len(hubs), have_pages=shown.links_hubs)
    return f". The day is still open at {named}: it goes on, or its end was not exported."


def _warnings(metrics: Mapping[str, Any]) -> str:
    lines = []
    if metrics["quarantined"]:
        lines.append(
            f"{counted(metrics['quarantined'], 'line')} could not be used: "
            "see the table quarantine."
        )
    if metrics["hubs_of_one_name"]:
        named = ", ".join(map(text, metrics["hubs_of_one_name"]))
        lines.append(f"Several hubs at once call themselves {named}: its figures are of all.")
    if metrics["excluded_hubs"]:
        lines.append(f"Left out on request: {counted(len(metrics['excluded_hubs']), 'hub')}.")
    return "".join(f'<p class="bad">{line}</p>' for line in lines)
