"""When a link may be used: cron expressions in UTC.

Pure; the wall clock comes in as an argument, in milliseconds since 1970. Nothing here measures how
long something lasts, so that a stepped clock can only choose another window.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from cronsim import CronSim
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_YEAR_FROM: Final = datetime(2026, 1, 1, tzinfo=UTC)
_YEAR_UNTIL: Final = _YEAR_FROM + timedelta(days=366)
_STARTS_MAX: Final = 20_000
"""Of windows that begin each minute these are two weeks."""


class ScheduleOptions(Struct, frozen=True, kw_only=True):
    """The windows of one endpoint.

    Attributes:
        open_at: Cron expressions in UTC, checked before.
        open_for_s: How long each window lasts.
        urgent_priority: Rows of this priority or better open the link at any time, None = no row
            does.
    """

    open_at: Sequence[str]
    open_for_s: int
    urgent_priority: int | None


def last_start_ms(open_at: Iterable[str], now_ms: int) -> int | None:
    """Return the latest start of a window that is not after `now_ms`, None = there was none."""
    # The search backward begins before its argument, so it is given the next minute.
    begin = _utc(now_ms).replace(second=0, microsecond=0) + timedelta(minutes=1)
    starts = [next(CronSim(each, begin, reverse=True), None) for each in open_at]
    return max((_ms(start) for start in starts if start is not None), default=None)


def next_start_ms(open_at: Iterable[str], now_ms: int) -> int | None:
    """Return the first start of a window after `now_ms`, None = none within 50 years."""
    starts = [next(CronSim(each, _utc(now_ms)), None) for each in open_at]
    return min((_ms(start) for start in starts if start is not None), default=None)


def longest_closed_s(open_at: Sequence[str], open_for_s: int) -> float:
    """Return the longest time from the end of a window to the next, as far as one year shows.

    The year is always the same, so that the answer does not depend on the current day.
    """
    each = [CronSim(expression, _YEAR_FROM) for expression in open_at]
    starts = islice(heapq.merge(*each), _STARTS_MAX)
    first_ms = last_start_ms(open_at, _ms(_YEAR_FROM))
    longest_s, before = 0.0, _YEAR_FROM if first_ms is None else _utc(first_ms)
    for start in starts:
        longest_s = max(longest_s, (start - before).total_seconds() - open_for_s)
        before = start
        if start > _YEAR_UNTIL:
            break
    return longest_s


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
