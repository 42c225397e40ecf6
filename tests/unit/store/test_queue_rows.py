"""Rows of a group that is split: what was handed out, and what waits for its commit."""

from __future__ import annotations

import pytest

from edgehub.message import Row
from edgehub.store.queue_rows import NO_BARRIER, QueueRows
from tests.support.stores import a_message


@pytest.mark.parametrize(
    ("early_max", "low_max", "high_max"),
    [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 1), (NO_BARRIER, NO_BARRIER, NO_BARRIER)],
)
def test_rows_that_wait_for_their_commit_do_so_after_a_split(
    early_max: int, low_max: int, high_max: int
) -> None:
    """Each half is read before its commit as far as it was in the whole."""
    rows = [Row(offset, a_message(), 0, 1, (), 10) for offset in range(1, 5)]
    low, high = QueueRows(rows=rows, bytes=40, early_max=early_max).split(3)
    assert (low.rows, high.rows) == (rows[:2], rows[2:])
    assert (low.early_max, high.early_max) == (low_max, high_max)
