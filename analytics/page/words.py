"""Numbers and names as text; everything that came from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from analytics import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1000
_TEN: Final = 10
_HUNDRED: Final = 100
_TEXT_MAX: Final = 48

CAUSE_WORDS: Final = {
    "offline": "link or hub down",
    "behind": "behind better priorities",
    "retry": "held back after a refusal",
    "rate": "the link took no more",
    "unknown": "not known",
}

KIND_WORDS: Final = {
    "starved": "starved",
    "idle": "idle",
    "held_back": "idle after refusals",
}


def text(value: object) -> str:
    """Escape a name; absent and overlong ones are marked."""
    if value is None:
        return '<span class="none">not known</span>'
    shown = str(value)
    return escape(shown if len(shown) <= _TEXT_MAX else shown[: _TEXT_MAX - 1] + "…")


def file_name(hub: str) -> str:
    """Return the name of the file with the page of a hub."""
    return f"{quote(hub, safe='')}.html"


def link(hub: str, *, has_page: bool = True) -> str:
    """Name a hub, and link its page if there is one."""
    return f'<a href="hubs/{quote(file_name(hub))}">{text(hub)}</a>' if has_page else text(hub)


def names(hubs: Sequence[str], of: int, *, have_pages: bool = False) -> str:
    """Name the first of so many hubs."""
    more = f" and {count(of - len(hubs))} more" if of > len(hubs) else ""
    return ", ".join(link(hub, has_page=have_pages) for hub in hubs) + more


def sentence(value: str) -> str:
    """Escape a sentence of our own, which may hold names from outside; it may be wrapped."""
    return f'<span class="told">{escape(value)}</span>'


def priority(value: int | None) -> str:
    """Name a priority."""
    if value is None:
        return "\u2013"
    return "default" if value == schemas.DEFAULT_PRIORITY else str(value)


def queue(endpoint: str, number: int) -> str:
    """Name a queue; see `schemas.queue_name`."""
    return text(schemas.queue_name(endpoint, number))


def count(value: int | None) -> str:
    """Write a number with thin spaces between thousands."""
    return "\u2013" if value is None else f"{value:,}".replace(",", "\u202f")


def counted(value: int, one: str, many: str | None = None) -> str:
    """Write a number and what it counts; `many` is for words that do not end in s."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def size(value: int) -> str:
    """Write bytes in decimal units with two or three digits."""
    number, unit = float(value), 0
    while number >= _STEP and unit < len(_SIZES) - 1:
        number, unit = number / _STEP, unit + 1
    shown = f"{number:.1f}" if unit and number < _HUNDRED else f"{number:.0f}"
    return f"{shown} {_SIZES[unit]}"


def duration(value_ms: int | None) -> str:
    """Write a duration with its two largest units."""
    if not value_ms:
        return "\u2013" if value_ms is None else "0"
    if value_ms < _STEP:
        return f"{value_ms} ms"
    seconds = value_ms / _STEP
    if seconds < _TEN:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left:02} min" if minutes_left else f"{hours} h"
    if minutes:
        return f"{minutes} min {rest:02} s" if rest else f"{minutes} min"
    return f"{rest} s"


def share(part: int, whole: int) -> str:
    """Write a part of a whole in per cent, which no line break parts from its sign."""
    if not whole:
        return "\u2013"
    percent = part / whole * _HUNDRED
    if 0 < percent < 0.1:  # noqa: PLR2004 - below it, one digit would say none
        return "&lt;\u00a00.1\u00a0%"
    return f"{percent:.1f}\u00a0%"
