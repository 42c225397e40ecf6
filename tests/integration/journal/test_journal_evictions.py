"""What the journal tells of rows that gave way to a limit, or went to their fallback priority."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from edgehub.message import DEFAULT_PRIORITY, UPSTREAM, Recency
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.journal import journaling
from tests.support.journal_format import check_copies, check_equation, read_folder
from tests.support.stores import LAB, P0, P2, P7, a_message, a_result

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

EVENTS_BYTES_MAX = 6000
"""Events of one group of these tests; they come when the group has its room already."""

SUMS = pytest.mark.parametrize("bound", [1 << 20, 1], ids=["single", "sums"])


@SUMS
@pytest.mark.parametrize("overflow", [Overflow.BY_VALUE, Overflow.DROP_NEWEST])
async def test_dropped_rows_have_lines(tmp_path: Path, overflow: Overflow, bound: int) -> None:
    """One for each copy, with policy and limit; the equation closes in rows and bytes."""
    options = StoreOptions(
        journal=True, journal_bytes_max=bound, caps=Caps(queue_rows=20, overflow=overflow)
    )
    async with journaling(tmp_path / "q.db", options=options) as it:
        for _ in range(3):
            await it.hub.stored(15, a_result(P2), a_result(P0, endpoint_id=LAB))
        queue = it.hub.queue()
        queue.confirm(await queue.read_batch(7, 1 << 20))
        depths = it.depths
        await it.end()
        left = depths()
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    check_copies(lines)
    assert {queue: figures for (_, queue), figures in check_equation(lines).items()} == left
    dropped = [line for line in lines if line["event"] == "dropped"]
    assert sum(line.get("count", 1) for line in dropped) == 50
    if bound > 1:
        assert {line["reason"] for line in dropped} == {f"{overflow.value}: queue rows"}


async def test_refused_messages_name_the_limit(tmp_path: Path) -> None:
    """`refused` stands for the message, and is no part of the equation."""
    caps = Caps(rows=5, overflow=Overflow.REJECT_NEW)
    options = StoreOptions(journal=True, caps=caps)
    async with journaling(tmp_path / "q.db", options=options) as it:
        await it.hub.stored(8)
        await it.end()
        await it.journal.write_out(close=True)
    refused = [line for line in read_folder(it.folder) if line["event"] == "refused"]
    assert [(line["reason"], line["count"]) for line in refused] == [("limit: hub rows", 3)]


@SUMS
async def test_moved_rows_have_lines(tmp_path: Path, bound: int) -> None:
    """Out of one queue and into the other, under the same offset; the equation closes for both."""
    options = StoreOptions(journal=True, journal_bytes_max=bound)
    async with journaling(tmp_path / "q.db", options=options) as it:
        for fallback in (P7, DEFAULT_PRIORITY):
            recency = Recency(seconds=10, fallback_priority=fallback)
            for _ in range(4):
                it.hub.send(a_message("dev-1"), a_result(P2, recency=recency))
        await it.hub.store.writer.flush()
        await it.hub.clock.advance(16)
        moved = it.hub.queue()
        await it.hub.until(lambda: moved.statistics().moved_total == 8)
        last = it.hub.queue(P7)
        last.confirm(await last.read_batch(9, 1 << 20))
        await it.end()
        left = it.depths()
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    told = [line for line in lines if line["event"] == "moved"]
    counts = Counter()
    for line in told:
        assert (line["endpoint"], line["priority"], line["reason"]) == ("upstream", 2, "recency")
        assert line["to_endpoint"] == "upstream"
        counts[line.get("to_priority")] += line.get("count", 1)
    assert counts == {7: 4, None: 4}
    balance = {queue: figures for (_, queue), figures in check_equation(lines).items()}
    assert balance == {(name, None): figures for (name, _), figures in left.items()}


@pytest.mark.parametrize("overflow", [Overflow.BY_VALUE, Overflow.DROP_OLDEST])
async def test_events_that_are_not_written_count_into_the_hub_s_bytes(
    tmp_path: Path, overflow: Overflow
) -> None:
    """Rows give way to them, they shrink to sums at a quarter, and the equation still closes."""
    cap = 100_000
    options = StoreOptions(journal=True, caps=Caps(bytes=cap, overflow=overflow))
    async with journaling(tmp_path / "q.db", options=options) as it:
        queue = it.hub.store.queues.get(UPSTREAM, P2)
        most = 0
        for _ in range(120):
            await it.hub.stored(30)
            queue.confirm(await queue.read_batch(10, 1 << 20))
            await it.hub.store.writer.flush()
            assert queue.statistics().bytes + it.feed.bytes_waiting < cap + EVENTS_BYTES_MAX
            most = max(most, it.feed.bytes_waiting)
        assert queue.statistics().dropped_total > 1000
        assert cap // 5 < most < cap // 4 + 2 * EVENTS_BYTES_MAX
        (reached,) = it.hub.store.statistics().limits
        assert (reached.cap, reached.queue) == ("hub bytes", None)
        await it.end()
        left = it.depths()
        await it.journal.write_out(close=True)
        assert it.feed.bytes_waiting == 0
    lines = read_folder(it.folder)
    check_copies(lines)
    assert {queue: figures for (_, queue), figures in check_equation(lines).items()} == left


async def test_events_take_the_room_that_was_handed_out(tmp_path: Path) -> None:
    """Rows that are refused again and again leave events; the next ones find the limit in place."""
    cap = 200_000
    options = StoreOptions(journal=True, caps=Caps(bytes=cap, overflow=Overflow.REJECT_NEW))
    async with journaling(tmp_path / "q.db", options=options) as it:
        queue = it.hub.store.queues.get(UPSTREAM, P2)
        await it.hub.stored(20)
        while it.feed.bytes_waiting < cap // 5:
            rows = await queue.read_batch(20, 1 << 20)
            queue.give_back(rows, attempted=True, refusal="later")
            await it.hub.store.writer.flush()
        while it.hub.settled[-1][1] is None:
            await it.hub.stored(10)
        taken = queue.statistics().bytes + it.feed.bytes_waiting
        assert cap - 200 < taken < cap + EVENTS_BYTES_MAX
