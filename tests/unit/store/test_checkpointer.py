"""Checkpointer: admission, results over roll-backs, the checkpoint."""

from __future__ import annotations

import pytest

from edgehub.journal.row_events import RowEvent
from edgehub.message import NEVER_MS, Message, Row
from edgehub.store.checkpointer import Checkpointer


def rows(*offsets: int) -> list[Row]:
    """Build rows of which only offsets and sizes count."""
    message = Message("d", None, "/messages/", {}, {}, b"")
    return [Row(offset, message, 0, NEVER_MS, (), 10 + offset) for offset in offsets]


def test_admits_all_but_what_is_in_flight() -> None:
    """A row is in flight at most once."""
    checkpointer = Checkpointer(checkpoint=0, proposed=9)
    first, second, third = rows(1, 2, 3)
    assert checkpointer.admit([first, second]) == [first, second]
    assert checkpointer.admit([second, third]) == [third]
    checkpointer.withdraw([second])
    assert checkpointer.admit([second]) == [second]
    with pytest.raises(KeyError):
        checkpointer.withdraw(rows(7))


def test_offsets_are_proposed_in_order() -> None:
    """The highest committed offset only grows."""
    checkpointer = Checkpointer(checkpoint=0, proposed=5)
    checkpointer.propose(6)
    with pytest.raises(AssertionError):
        checkpointer.propose(6)


def test_results_rejoin_after_a_roll_back_in_their_order() -> None:
    """Nothing is lost or doubled when the transaction fails; nothing of it may be cleaned up."""
    checkpointer = Checkpointer(checkpoint=0, proposed=9)
    checkpointer.results.leave(rows(1, 2), RowEvent.SENT)
    taken = checkpointer.take()
    checkpointer.results.leave(rows(3), RowEvent.EXPIRED)
    assert checkpointer.unstored == 3
    assert sorted(checkpointer.busy()) == [1, 2, 3]
    checkpointer.roll_back()
    assert checkpointer.results is taken
    assert list(taken.offsets) == [1, 2, 3]
    assert list(taken.sizes) == [11, 12, 13]
    assert (taken.count(RowEvent.SENT), taken.count(RowEvent.EXPIRED)) == (2, 1)
    checkpointer.take()
    checkpointer.commit()
    assert checkpointer.unstored == 0
    assert not checkpointer.results


def test_attempts_of_a_row_that_left_are_forgotten() -> None:
    """A row that leaves needs no count, before and after a roll-back."""
    checkpointer = Checkpointer(checkpoint=0, proposed=9)
    checkpointer.results.attempts = {1: 1, 2: 1}
    checkpointer.results.leave(rows(1), RowEvent.SENT)
    assert checkpointer.results.attempts == {2: 1}
    checkpointer.take()
    checkpointer.results.leave(rows(2), RowEvent.SENT)
    checkpointer.results.attempts[3] = 4
    checkpointer.roll_back()
    assert checkpointer.results.attempts == {3: 4}


def test_a_row_read_from_the_file_has_its_latest_attempts() -> None:
    """Refused before the commit under way and again during it: the second count is its own."""
    checkpointer = Checkpointer(checkpoint=0, proposed=9)
    checkpointer.results.attempts = {1: 1, 2: 1}
    checkpointer.take()
    checkpointer.results.attempts = {1: 2, 3: 1}
    read = rows(1, 2, 3, 4)
    checkpointer.count_unstored(read)
    assert [row.attempts for row in read] == [2, 1, 1, 0]


def test_results_of_uncommitted_rows_stay_behind() -> None:
    """A row cannot be deleted before it was inserted."""
    checkpointer = Checkpointer(checkpoint=0, proposed=2)
    assert not checkpointer.is_due()
    checkpointer.results.leave(rows(2, 3), RowEvent.DEAD_LETTERED)
    checkpointer.results.dead_letters = {2: ("two",), 3: ("three",)}
    checkpointer.results.attempts = {1: 1, 4: 1}
    assert checkpointer.is_due()
    taken = checkpointer.take()
    assert (list(taken.offsets), taken.dead_letters, taken.attempts) == ([2], {2: ("two",)}, {1: 1})
    left = checkpointer.results
    assert (list(left.offsets), left.dead_letters, left.attempts) == ([3], {3: ("three",)}, {4: 1})


def test_result_of_a_refused_row_is_dropped() -> None:
    """A row that will never be in the file cannot be deleted from it."""
    checkpointer = Checkpointer(checkpoint=0, proposed=5)
    checkpointer.refuse(4)
    checkpointer.results.leave(rows(3, 4), RowEvent.DEAD_LETTERED)
    checkpointer.results.dead_letters = {4: ("four",)}
    taken = checkpointer.take()
    assert (list(taken.offsets), taken.dead_letters) == ([3], {})


def test_each_refused_row_in_flight_is_remembered_until_it_lands() -> None:
    """The result of one says nothing of the others, which a later transaction must not delete."""
    checkpointer = Checkpointer(checkpoint=0, proposed=5)
    refused = checkpointer.admit(rows(3, 4))
    for row in refused:
        checkpointer.refuse(row.offset)
    for row in refused:
        checkpointer.withdraw([row])
        checkpointer.results.leave([row], RowEvent.SENT)
        assert list(checkpointer.take().offsets) == []
        checkpointer.commit()
    assert not checkpointer.refused


def test_checkpoint_is_below_the_lowest_row_or_the_highest_offset() -> None:
    """Lowest live offset - 1; the committed mark when the queue is empty."""
    checkpointer = Checkpointer(checkpoint=0, proposed=9)
    checkpointer.reach(4, 9)
    assert checkpointer.checkpoint == 3
    checkpointer.reach(None, 9)
    assert checkpointer.checkpoint == 9
