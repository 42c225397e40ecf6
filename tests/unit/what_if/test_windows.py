"""Windows of a day: what is open of a time."""

from __future__ import annotations

from analytics.schemas import DAY_MS
from analytics.what_if.windows import windows


def test_a_time_is_cut_at_the_edges() -> None:
    """Into parts that add up to it."""
    opens = windows([1000, 5000], 2000, 0)
    assert list(opens.parts(0, 10_000)) == [
        (0, 1000, False),
        (1000, 2000, True),
        (3000, 2000, False),
        (5000, 2000, True),
        (7000, 3000, False),
    ]
    assert list(opens.parts(1500, 1000)) == [(1500, 1000, True)]
    assert list(opens.parts(3000, 2000)) == [(3000, 2000, False)]


def test_windows_that_overlap_are_one() -> None:
    """Also of the same begin."""
    assert windows([1000, 2000, 2000], 1500, 0).spans[-1] == (1000, 3500)


def test_a_window_may_last_over_midnight() -> None:
    """That of the day before is open at 00:00."""
    opens = windows([DAY_MS - 1000], 3000, 0)
    assert list(opens.parts(0, 5000)) == [(0, 2000, True), (2000, 3000, False)]
