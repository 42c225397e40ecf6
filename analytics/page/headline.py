"""The figures in the page's tiles, each with that of the day before and the median of a week."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from analytics.page.words import count, duration, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from analytics.history import History

LOST: Final = ("expired", "dropped", "dead_lettered", "lost", "left_behind")
"""Flows of rows that did not arrive, and were not removed by an operator."""


def came(totals: Mapping[str, Any]) -> int:
    """Return how many rows there were to send."""
    return _sum(totals, ("enqueued", "requeued", "carried_in"), "rows")


def lost(totals: Mapping[str, Any], unit: str = "rows") -> int:
    """Return how many rows did not arrive, or their bytes."""
    return _sum(totals, LOST, unit)


def tiles(metrics: Mapping[str, Any], earlier: History) -> str:
    """Write the tiles.

    Args:
        metrics: Those of the date, with its sums.
        earlier: Those of the last days.
    """
    boxes = [
        _tile(metrics, earlier, came, count, "messages to send"),
        _tile(
            metrics,
            earlier,
            lambda each: each["sent_rows"],
            count,
            f"sent, {share(metrics['sent_rows'], came(metrics))}",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: each["expired_rows"],
            count,
            f"expired, {size(metrics['expired_bytes'])}",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: lost(each) - each["expired_rows"],
            count,
            "dropped, dead, damaged or left behind",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: each["carried_out_rows"] + each["difference_rows"],
            count,
            "waiting at the end",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: each["longest_starved_ms"],
            duration,
            f"longest of {count(metrics['starved_windows'])} starved"
            if metrics["starved_windows"]
            else "starved",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: each["idle_windows"],
            count,
            "times idle with messages waiting",
        ),
        _tile(
            metrics,
            earlier,
            lambda each: each["lines"] - each["quarantined"] - each["copies"],
            count,
            "lines of the journals",
        ),
    ]
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _tile(
    metrics: Mapping[str, Any],
    earlier: History,
    figure: Callable[[Mapping[str, Any]], int],
    word: Callable[[int], str],
    name: str,
) -> str:
    before = {ago: figure(each) for ago, each in earlier.items()}
    compared = [f"yesterday {word(before[1])}"] if 1 in before else []
    if len(before) > 1:
        middle = word(round(median(before.values())))
        compared.append(f"median of {len(before)} days {middle}")
    line = f"<em>{', '.join(compared)}</em>" if compared else ""
    return f'<div class="tile"><b>{word(figure(metrics))}</b><span>{name}</span>{line}</div>'


def _sum(totals: Mapping[str, Any], flows: tuple[str, ...], unit: str) -> int:
    return sum(totals[f"{flow}_{unit}"] for flow in flows)
