"""Ages of the rows of a queue: in steps, bounded, and of as many rows as wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.journal.ages import STEP_MS, STEPS_MAX, Ages


def rows_of(ages: Ages) -> int:
    """Return the rows of all steps."""
    return sum(rows for _, rows in ages.of(0))


def test_ages_are_those_of_the_rows_that_are_left() -> None:
    """What leaves is of its own step, the oldest come first."""
    ages = Ages()
    ages.change(0, 3)
    ages.change(5 * STEP_MS, 2)
    ages.change(1, -1)
    assert ages.of(6 * STEP_MS) == [[5 * STEP_MS, 2], [0, 2]]


def test_where_the_time_is_not_known_the_oldest_leave() -> None:
    """Sums have no times of enqueue."""
    ages = Ages()
    ages.change(0, 3)
    ages.change(5 * STEP_MS, 2)
    ages.change(9 * STEP_MS, -4)
    assert ages.of(6 * STEP_MS) == [[0, 1]]


def test_rows_become_older_together() -> None:
    """The hub was off for longer than was known."""
    ages = Ages()
    ages.change(0, 3)
    ages.change(5 * STEP_MS, 2)
    ages.move_back(STEP_MS, 2 * STEP_MS)
    assert ages.of(6 * STEP_MS) == [[7 * STEP_MS, 3], [0, 2]]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 5)), max_size=300))
def test_steps_are_bounded_and_add_up(rows: list[tuple[int, int]]) -> None:
    """Whatever the ages; stored and loaded they are the same."""
    ages = Ages()
    for enqueued_ms, count in rows:
        ages.change(enqueued_ms, count)
    assert rows_of(ages) == sum(count for _, count in rows)
    assert len(ages.of(0)) <= STEPS_MAX
    assert Ages.load(ages.document()).of(2**41) == ages.of(2**41)
    for enqueued_ms, count in rows:
        ages.change(enqueued_ms, -count)
    assert not ages.of(0)
