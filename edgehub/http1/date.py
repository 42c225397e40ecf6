"""Times in headers of HTTP. Source: RFC 9110, section 5.6.7."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edgehub.clock import Clock

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"
)  # fmt: skip
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_FORMS: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"[A-Z][a-z]{{2}}, (?P<day>\d\d) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_TIME} GMT",
        rf"[A-Z][a-z]+, (?P<day>\d\d)-(?P<month>[A-Z][a-z]{{2}})-(?P<year>\d\d) {_TIME} GMT",
        rf"[A-Z][a-z]{{2}} (?P<month>[A-Z][a-z]{{2}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",
    )
)
"""The one that is written today, and two obsolete ones that a recipient has to accept."""


class DateHeader:
    """The header line with the time of day, written once a second.

    Args:
        clock: Knows it.
    """

    __slots__ = ("_clock", "_line", "_second")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """Return the line with its end."""
        second = self._clock.wall_ms() // 1000
        if second != self._second:
            self._second = second
            self._line = f"Date: {http_date(second)}\r\n".encode("ascii")
        return self._line


def http_date(second: int) -> str:
    """Write a second since 1970, UTC."""
    at = datetime.fromtimestamp(second, UTC)
    day, month = _DAYS[at.weekday()], _MONTHS[at.month - 1]
    return f"{day}, {at.day:02} {month} {at.year:04} {at:%H:%M:%S} GMT"


def read_http_date(text: str) -> int | None:
    """Return the second since 1970, UTC, that a text names; None = it is no date."""
    found = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    if found is None or found["month"] not in _MONTHS:
        return None
    year = found["year"]
    if len(year) < len("1970"):
        # From 1970 to 2069.
        year = ("19" if year >= "70" else "20") + year
    month = _MONTHS.index(found["month"]) + 1
    hour, minute, second = (int(found[part]) for part in ("hour", "minute", "second"))
    try:
        at = datetime(int(year), month, int(found["day"]), hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp())
