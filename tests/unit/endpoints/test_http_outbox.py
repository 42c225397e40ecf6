"""Rows that wait for a request: order per sender, and what counts as waiting for the link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from edgehub.endpoints.http_outbox import SKIPPED_MAX, Outbox, OutboxRow
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from edgehub.message import Row, SendResult


def _settle(row: Row, result: SendResult) -> None:
    raise AssertionError((row, result))


def _entry(offset: int, device: str, size: int = 9, path: str | None = None) -> OutboxRow:
    return OutboxRow(a_row(offset, device=device), b"x" * size, _settle, path)


def _offsets(entries: list[OutboxRow]) -> list[int]:
    return [entry.row.offset for entry in entries]


def test_a_sender_waits_for_its_request_and_others_do_not() -> None:
    """What waits for its sender's answer does not count as waiting for the link."""
    outbox = Outbox()
    for offset, device in enumerate(["a", "b", "a", "c"]):
        outbox.put(_entry(offset, device))
    first = outbox.take(2, 1000)
    assert _offsets(first) == [0, 1]
    assert outbox.ready_bytes == 10
    outbox.put(_entry(4, "b"))
    assert outbox.ready_bytes == 10
    assert _offsets(outbox.take(10, 1000)) == [3]
    assert outbox.take(10, 1000) == []
    outbox.done(first)
    assert outbox.ready_bytes == 20
    assert _offsets(outbox.take(10, 1000)) == [2, 4]


def test_rows_that_came_by_different_ways_do_not_share_a_request() -> None:
    """A request says once which hubs all of it has passed; order per sender stays."""
    outbox = Outbox()
    for offset, path in enumerate(["one", "one", "two", "one"]):
        outbox.put(_entry(offset, "abca"[offset], path=path))
    first = outbox.take(10, 1000)
    assert _offsets(first) == [0, 1]
    second = outbox.take(10, 1000)
    assert _offsets(second) == [2]
    outbox.done(first)
    assert _offsets(outbox.take(10, 1000)) == [3]


def test_looking_for_idle_senders_is_bounded() -> None:
    """Behind so many rows of busy senders nobody is looked for."""
    outbox = Outbox()
    outbox.put(_entry(0, "a"))
    outbox.take(1, 1000)
    for offset in range(SKIPPED_MAX):
        outbox.put(_entry(1 + offset, "a"))
    outbox.put(_entry(1000, "b"))
    assert outbox.take(10, 1000) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(1, 50)),
            st.tuples(st.just("take"), st.integers(1, 4), st.integers(1, 120)),
            st.tuples(st.just("done"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["clear", "all_done"])),
        ),
        min_size=20,
        max_size=60,
    )
)
def test_the_account_holds(steps: list[tuple]) -> None:
    """Against a list: order per sender, never two requests of one, bytes of those that may go."""
    outbox = Outbox()
    waiting: list[OutboxRow] = []
    requests: list[list[OutboxRow]] = []
    for offset, step in enumerate(steps):
        match step:
            case ("put", device, size):
                entry = _entry(offset, device, size)
                outbox.put(entry)
                waiting.append(entry)
            case ("take", rows_max, bytes_max):
                busy = {entry.row.message.sender for request in requests for entry in request}
                taken = outbox.take(rows_max, bytes_max)
                assert not busy & {entry.row.message.sender for entry in taken}
                may_go = [entry for entry in waiting if entry.row.message.sender not in busy]
                assert taken == may_go[: len(taken)]
                waiting = [entry for entry in waiting if entry not in taken]
                requests.append(taken)
            case ("done", place) if place < len(requests):
                outbox.done(requests.pop(place))
            case ("clear",):
                assert outbox.clear() == waiting
                waiting = []
            case ("all_done",):
                outbox.all_done()
                requests = []
        busy = {entry.row.message.sender for request in requests for entry in request}
        ready = [entry.size for entry in waiting if entry.row.message.sender not in busy]
        assert outbox.ready_bytes == sum(ready)
