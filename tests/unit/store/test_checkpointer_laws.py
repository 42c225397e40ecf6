"""Checkpointer over random histories: it never passes a row that was not sent, and loses none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.journal.row_events import RowEvent
from edgehub.message import NEVER_MS, Message, Row
from edgehub.store.checkpointer import Checkpointer

PLACES = st.sets(st.integers(0, 5), min_size=1) | st.just(set(range(50)))
MESSAGE = Message("d", None, "/messages/", {}, {}, b"")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit rows"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["admit", "leave", "admit", "leave", "give back"]), PLACES),
        st.tuples(st.just("begin"), st.just(None)),
        st.tuples(st.just("end"), st.booleans()),
    ),
    min_size=20,
    max_size=60,
)


class History:
    """A checkpointer, the rows in the file, and what was said to it of them."""

    def __init__(self) -> None:
        self.checkpointer = Checkpointer(checkpoint=0, proposed=0)
        self.file: dict[int, Row] = {}
        self.left: set[int] = set()
        self.taken: list[int] | None = None
        self.deleted: list[int] = []
        self.high_water = 0

    def step(self, what: str, how: object) -> None:
        """Do one thing, if it can be done now."""
        checkpointer = self.checkpointer
        match what, how:
            case "commit rows", int(count):
                for offset in range(self.high_water + 2, self.high_water + 2 + count):
                    self.file[offset] = Row(offset, MESSAGE, 0, NEVER_MS, (), 1)
                    checkpointer.propose(offset)
                    self.high_water = offset
            case "admit", set(places):
                rows = [row for row in self._pick(self.file, places) if row.offset not in self.left]
                before = set(checkpointer.in_flight)
                assert {r.offset for r in checkpointer.admit(rows)} == {
                    row.offset for row in rows
                } - before
            case "leave", set(places):
                rows = self._pick(checkpointer.in_flight, places)
                checkpointer.withdraw(rows)
                checkpointer.results.leave(rows, RowEvent.SENT)
                self.left |= {row.offset for row in rows}
            case "give back", set(places):
                checkpointer.withdraw(self._pick(checkpointer.in_flight, places))
            case "begin", None if self.taken is None:
                self.taken = list(checkpointer.take().offsets)
            case "end", bool(succeeds) if self.taken is not None:
                self._end(self.taken, succeeds)
                self.taken = None

    def _end(self, taken: list[int], succeeds: bool) -> None:
        if not succeeds:
            self.checkpointer.roll_back()
            return
        for offset in taken:
            del self.file[offset]
        self.deleted += taken
        if taken:
            self.checkpointer.reach(min(self.file, default=None), self.high_water)
        self.checkpointer.commit()

    def _pick(self, rows: dict[int, Row], places: set[int]) -> list[Row]:
        chosen = list(rows.values())
        return [chosen[place] for place in sorted(places) if place < len(chosen)]

    def check(self) -> None:
        """Compare."""
        checkpointer = self.checkpointer
        assert all(checkpointer.checkpoint < offset for offset in self.file)
        assert checkpointer.checkpoint <= self.high_water
        assert set(self.deleted) <= self.left
        assert len(self.deleted) == len(set(self.deleted))
        assert checkpointer.unstored == len(self.left) - len(self.deleted)
        assert sorted(checkpointer.busy()) == sorted(
            {*checkpointer.in_flight, *self.left}.difference(self.deleted)
        )


@given(STEPS)
def test_a_checkpoint_never_passes_an_unsent_row(steps: list[tuple[str, object]]) -> None:
    """Whatever is admitted, sent, given back, committed and rolled back, in any order."""
    history = History()
    for what, how in steps:
        history.step(what, how)
        history.check()
    for what, how in [("end", True), ("begin", None), ("end", True)]:
        history.step(what, how)
        history.check()
    assert set(history.deleted) == history.left
    assert history.file.keys().isdisjoint(history.left)
