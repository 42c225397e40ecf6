"""What scenarios would have made of the day: one line for each, the best one first."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from analytics.page.grid import section
from analytics.page.words import count, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

LINES_MAX: Final = 10


def scenarios(answered: Mapping[str, Any]) -> str:
    """Return the section of the page.

    Args:
        answered: See `analytics.what_if.asked`; empty = nothing was asked.
    """
    if not answered:
        return ""
    name = answered["best"]
    effects = [effect for effect in answered["effects"] if effect["scenario"] != name]
    effects.sort(key=lambda effect: -effect["net"])
    chosen = [effect for effect in answered["effects"] if effect["scenario"] == name]
    lines = [f"<li><b>Advice</b>: {_line(effect)}</li>" for effect in chosen]
    lines += [f"<li>{_line(effect)}</li>" for effect in effects[:LINES_MAX]]
    if not chosen and answered["advised"]:
        lines.insert(0, "<li>No other priority or time to live would have let more arrive.</li>")
    note = "Simulated on the recorded day; the table what_if has each hub and route."
    return section("What if", f'<ul class="plain">{"".join(lines)}</ul>', note)


def _line(effect: Mapping[str, Any]) -> str:
    name = escape(effect["scenario"])
    untold = f" Cannot be told at {counted(effect['untold'], 'hub')}." if effect["untold"] else ""
    if not effect["hubs"]:
        return f"{name}: concerns no hub whose day can be simulated.{untold}"
    gain = "no more messages would have arrived"
    if effect["arrived"]:
        lost = counted(effect["of"], "message")
        gain = f"{count(effect['arrived'])} of {lost} that did not arrive would have"
    costs = ", ".join(
        f"{counted(rows, 'message')} of priority {priority}"
        for priority, rows in effect["costs"].items()
    )
    return f"{name}: {gain}{f'; costs {costs}' if costs else ''}.{untold}"
