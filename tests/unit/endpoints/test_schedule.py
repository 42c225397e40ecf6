"""When windows begin: cron expressions in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from edgehub.endpoints.schedule import last_start_ms, longest_closed_s, next_start_ms

EVERY_SIX_HOURS = ["0 */6 * * *"]


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("now", "last", "following"),
    [
        ("2026-05-01T12:00:00", "2026-05-01T12:00:00", "2026-05-01T18:00:00"),
        ("2026-05-01T11:59:59", "2026-05-01T06:00:00", "2026-05-01T12:00:00"),
        ("2026-05-01T12:00:30", "2026-05-01T12:00:00", "2026-05-01T18:00:00"),
        ("2026-12-31T23:00:00", "2026-12-31T18:00:00", "2027-01-01T00:00:00"),
    ],
)
def test_windows_begin_at_the_minute(now: str, last: str, following: str) -> None:
    """The start itself belongs to its window; the next one is later."""
    assert last_start_ms(EVERY_SIX_HOURS, _ms(now)) == _ms(last)
    assert next_start_ms(EVERY_SIX_HOURS, _ms(now)) == _ms(following)


def test_several_expressions_add_up() -> None:
    """The latest of all starts before now, the first of all after it."""
    both = ["30 4 * * *", "0 12 * * mon"]
    monday = _ms("2026-05-04T13:00:00")
    assert last_start_ms(both, monday) == _ms("2026-05-04T12:00:00")
    assert next_start_ms(both, monday) == _ms("2026-05-05T04:30:00")


@pytest.mark.parametrize(
    ("open_at", "open_for_s", "longest_s"),
    [
        (EVERY_SIX_HOURS, 600, 21_000),
        (["0 */6 * * *", "0 3 * * *"], 600, 21_000),
        (["* 8-17 * * MON-FRI"], 60, (2 * 24 + 14) * 3600),
        (["0 0 1 * *"], 600, 31 * 86_400 - 600),
        (["0 0 * 3 *"], 3600, 335 * 86_400 - 3600),
        (["* * * * *"], 60, 0),
        (["*/10 * * * *"], 3600, 0),
    ],
)
def test_the_longest_time_without_a_window(
    open_at: list[str], open_for_s: int, longest_s: int
) -> None:
    """From the end of one to the next: nights, weekends, months; none where they overlap."""
    assert longest_closed_s(open_at, open_for_s) == longest_s
