"""What the journal tells of rows that gave way to a limit, or went to their fallback priority."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from edgehub.message import DEFAULT_PRIORITY, Recency
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.journal import journaling
from tests.support.journal_page import check_copies, check_equation, read_folder
from tests.support.stores import LAB, P0, P2, P7, a_message, a_result

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

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
        await it.hub.store.flush()
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
