"""Connection windows: the times of a day in which a link is open.

Pure Python. The rules are the endpoint's: a window lasts its time; outside of it rows of an urgent
priority open the link, which stays open until none waits, and a while more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from analytics.schemas import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINGER_MS: Final = 10_000
"""The link stays open for so long after the last urgent row."""


class DayWindows(NamedTuple):
    """Windows of each day.

    Attributes:
        spans: Their begins and ends in milliseconds since 00:00 UTC, apart and in order.
        urgent: The worst priority that opens the link, -1 = none.
    """

    spans: tuple[tuple[int, int], ...]
    urgent: int

    def parts(self, at_ms: int, length_ms: int) -> Iterator[tuple[int, int, bool]]:
        """Cut a time at the edges of windows.

        Args:
            at_ms: When it begins, since 00:00 UTC.
            length_ms: Its length.

        Yields:
            Begin and length of each part, and whether the link is open in it.
        """
        end_ms = at_ms + length_ms
        for begin_ms, close_ms in self.spans:
            if close_ms <= at_ms:
                continue
            if begin_ms >= end_ms:
                break
            if at_ms < begin_ms:
                yield at_ms, begin_ms - at_ms, False
                at_ms = begin_ms
            until_ms = min(close_ms, end_ms)
            yield at_ms, until_ms - at_ms, True
            at_ms = until_ms
        if at_ms < end_ms:
            yield at_ms, end_ms - at_ms, False


def windows(opens_ms: Iterable[int], open_for_ms: int, urgent: int) -> DayWindows:
    """Return windows of a length; those that overlap are one, and one may last over midnight."""
    spans: list[tuple[int, int]] = []
    for begin_ms in sorted(at_ms + day_ms for at_ms in opens_ms for day_ms in (-DAY_MS, 0)):
        end_ms = begin_ms + open_for_ms
        if spans and begin_ms <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end_ms, spans[-1][1]))
        else:
            spans.append((begin_ms, end_ms))
    return DayWindows(tuple(spans), urgent)


ALWAYS: Final = DayWindows(((-DAY_MS, 3 * DAY_MS),), -1)
"""A link without windows."""
