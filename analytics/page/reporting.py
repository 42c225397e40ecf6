"""Which hubs the page is about, and which it is without: its first line, and their list."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from analytics.page.grid import section, table
from analytics.page.queries import NAMED_MAX
from analytics.page.words import count, counted, names, sentence, text

if TYPE_CHECKING:
    from collections.abc import Collection

    from analytics.quality import HubDay

_LISTED_MAX: Final = 50
_ORDER: Final = ("silent", "damaged", "unbalanced", "unreadable", "cloned")


def verdict(days: Collection[HubDay]) -> str:
    """Return the first line: how many hubs reported, and which did not."""
    sound = sum(day.is_sound for day in days)
    line = f"{count(sound)} of {counted(len(days), 'hub')} reported"
    if sound == len(days):
        return f'<p class="good"><b>{line}.</b></p>'
    named = [_named(state, [day.hub for day in days if day.state == state]) for state in _ORDER]
    return f'<p class="bad"><b>{line}</b>; {"; ".join(filter(None, named))}.</p>'


def missing(days: Collection[HubDay]) -> str:
    """List the hubs that the page is without, each with the reason."""
    wrong = [day for day in days if not day.is_sound]
    if not wrong:
        return ""
    wrong.sort(key=lambda day: (_ORDER.index(day.state), day.hub))
    rows = [(text(day.hub), day.state, sentence(day.reason)) for day in wrong[:_LISTED_MAX]]
    kinds = Counter(day.state for day in wrong)
    note = ", ".join(f"{state} {kinds[state]}" for state in _ORDER if kinds[state])
    return section(
        "Hubs that are not in the figures",
        table(("hub", "state", "reason"), rows, words=(0, 1, 2)),
        f"{note}.",
    )


def _named(state: str, hubs: list[str]) -> str:
    if not hubs:
        return ""
    return f"{state}: {names(sorted(hubs)[:NAMED_MAX], len(hubs))}"
