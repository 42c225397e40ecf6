"""Events in columns: what is packed comes out again, and takes little room."""

from __future__ import annotations

import random
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.journal.events import unpack
from edgehub.journal.row_events import EventColumns, RowEvent, pack
from edgehub.message import NEVER_MS, EndpointId, Message, Priority, Row

QUEUE = (EndpointId("upstream"), Priority(7))


def confirmed(row: Row, took_ms: int) -> Row:
    """Return a row with the duration of its send."""
    row.took_ms = took_ms
    return row


def the(column: Any) -> Any:
    """Return the value of a column of one event."""
    return column[0] if isinstance(column, list) else column


rows = st.builds(
    lambda offset, device, module, enqueued, ttl, size, attempts, routes, key: Row(
        offset,
        Message(device, module, "/messages/", {}, {}, b""),
        enqueued,
        NEVER_MS if ttl is None else enqueued + ttl,
        tuple(routes),
        size,
        attempts,
        message_key=key,
    ),
    st.integers(1, 2**40),
    st.sampled_from(["a", "b", "gerät"]),
    st.sampled_from([None, None, "cam"]),
    st.integers(0, 2**44),
    st.sampled_from([None, 1, 7_200_000]),
    st.integers(64, 2**20),
    st.integers(0, 3),
    st.lists(st.sampled_from(["r1", "r2"]), min_size=1, max_size=2),
    st.sampled_from([0, 5, "abc-1"]),
)
rows = st.builds(confirmed, rows, st.integers(0, 2**32))


@given(st.lists(rows, min_size=1, max_size=40), st.sampled_from(RowEvent), st.integers(0, 2**44))
def test_what_is_packed_comes_out_again(some: list[Row], event: RowEvent, at_ms: int) -> None:
    """Every column, whatever is equal or differs in it."""
    columns = EventColumns()
    enqueues = event is RowEvent.ENQUEUED
    columns.add(event, some, None if enqueues else at_ms, None if enqueues else "why: so")
    notes = [["stop"]]
    events = unpack(pack(17, 18, notes, [(*QUEUE, columns)]))
    assert (events.hub_ms, events.wall_ms, events.notes, events.counts) == (17, 18, notes, [])
    section = events.sections[0]
    assert (section.endpoint_id, section.priority) == QUEUE
    for row, run in zip(some, section.runs(1), strict=True):
        assert run.kind == event
        assert (run.offsets, run.enqueued) == ([row.offset], [row.enqueued_ms])
        assert (the(run.sizes), the(run.keys)) == (row.size, row.message_key)
        assert run.times == [row.enqueued_ms if enqueues else at_ms]
        ttl_ms = the(run.ttls)
        assert (NEVER_MS if ttl_ms is None else row.enqueued_ms + ttl_ms) == row.expires_ms
        ends = event in {RowEvent.SENT, RowEvent.DEAD_LETTERED}
        assert the(run.attempts) - row.attempts == ends
        assert section.senders[the(run.senders)] == row.message.sender
        assert tuple(section.routes[the(run.routes)]) == row.routes
        assert the(run.reasons) == (None if enqueues else "why: so")
        assert the(run.took) == (row.took_ms if event is RowEvent.SENT else 0)


def test_runs_are_of_one_event_and_no_longer_than_asked() -> None:
    """In the order of the events, however these take turns."""
    columns = EventColumns()
    for event, offsets in ((RowEvent.ENQUEUED, (1, 2, 3)), (RowEvent.SENT, (1, 2)), (0, (4,))):
        columns.add(RowEvent(event), [a_row(n) for n in offsets], 9)
    section = unpack(pack(17, 18, [], [(*QUEUE, columns)])).sections[0]
    found = [(run.kind, run.offsets) for run in section.runs(2)]
    assert found == [(0, [1, 2]), (0, [3]), (1, [1, 2]), (0, [4])]


def test_a_long_reason_is_cut() -> None:
    """A peer that answers with a page makes no long lines; half a character is none."""
    columns = EventColumns()
    columns.add(RowEvent.DEAD_LETTERED, [a_row(1)], 0, "\ud800" + "é" * 200)
    section = unpack(pack(17, 18, [], [(*QUEUE, columns)])).sections[0]
    assert [the(run.reasons) for run in section.runs(1)] == ["?" + "é" * 199]


def test_an_event_takes_few_bytes() -> None:
    """A busy commit: 500 rows of 100 devices take 3 bytes each."""
    dice = random.Random(1)
    some = [
        Row(
            n,
            Message(f"dev-{dice.randrange(100)}", None, "", {}, {}, b""),
            n // 83,
            n // 83 + 60,
            ("r",),
            264,
        )
        for n in range(1, 501)
    ]
    columns = EventColumns()
    columns.add(RowEvent.ENQUEUED, some, None)
    assert len(pack(1, 1, [], [(*QUEUE, columns)])) < 3 * 500


def test_what_the_program_before_has_packed_can_be_read() -> None:
    """Its sections have no durations of sends."""
    columns = EventColumns()
    columns.add(RowEvent.SENT, [a_row(1)], 9)
    _, *fields = orjson.loads(zlib.decompress(pack(17, 18, [], [(*QUEUE, columns)])))
    fields[4] = [section[:-1] for section in fields[4]]
    (run,) = unpack(zlib.compress(orjson.dumps([1, *fields]))).sections[0].runs(9)
    assert (run.kind, run.offsets, run.times, run.took) == (RowEvent.SENT, [1], [9], 0)


def a_row(offset: int, size: int = 100) -> Row:
    """Build a row."""
    return Row(offset, Message("d", None, "", {}, {}, b""), 5, NEVER_MS, ("r",), size)


def test_parting_and_joining_keeps_the_order() -> None:
    """Parts divide at an offset and leave out what is to be left out."""
    columns = EventColumns()
    columns.add(RowEvent.SENT, [a_row(n) for n in (1, 2, 3, 4)], 9)
    low, high = columns.part(2, {4})
    assert (low.offsets, high.offsets) == ([1, 2], [3])
    low.extend(high)
    assert low.offsets == [1, 2, 3]
    taken = low.take({2})
    assert (taken.offsets, low.offsets) == ([2], [1, 3])


def test_sums_take_the_place_of_events() -> None:
    """Shrunk columns keep number and bytes by event, of the offsets asked for."""
    columns = EventColumns()
    columns.add(RowEvent.SENT, [a_row(1), a_row(2)], 9)
    columns.add(RowEvent.EXPIRED, [a_row(3, 50), a_row(4)], 9)
    columns.shrink(3)
    assert columns.offsets == [4]
    events = unpack(pack(1, 1, [], [(*QUEUE, columns)]))
    assert sorted(events.counts) == [
        ("upstream", 7, 1, 2, 200, None),
        ("upstream", 7, 2, 1, 50, None),
    ]
    columns.shrink()
    assert not columns.offsets
    assert columns.counts == {1: (2, 200), 2: (2, 150)}


def test_refused_sends_are_summed_whatever_the_offset() -> None:
    """They say nothing of whether the row is there, so their sums may precede the row."""
    columns = EventColumns()
    columns.add(RowEvent.RETRIED, [a_row(1), a_row(5)], 9, "busy")
    columns.add(RowEvent.SENT, [a_row(1), a_row(5)], 9)
    columns.shrink(3)
    assert (columns.offsets, columns.kinds) == ([5], [RowEvent.SENT])
    assert columns.counts == {RowEvent.RETRIED: (2, 200), RowEvent.SENT: (1, 100)}


@pytest.mark.parametrize("blob", [b"", b"junk", pack(1, 1, [], [])[:-2]])
def test_damage_is_reported(blob: bytes) -> None:
    """What cannot be read is a ValueError, not a crash."""
    with pytest.raises(ValueError, match="damaged"):
        unpack(blob)
