"""The journal's work cut off by whoever asked for it: a time-out, a stop; no line is lost by it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from edgehub.journal.segments import Segments
from edgehub.store.journal_feed import JournalFeed
from tests.support.journal import journaling
from tests.support.journal_format import check_copies, check_equation, read_folder
from tests.support.stores import P0, a_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from edgehub.journal.segments import Segment
    from tests.support.journal import JournalHarness

pytestmark = pytest.mark.integration


class HeldUp(Segments):
    """Segments on a disk that can be made to take its time, by the kind of work."""

    at = ""
    is_there = threading.Event()
    goes_on = threading.Event()

    def append(self, segment: Segment, texts: Sequence[str]) -> None:
        """See `Segments`."""
        self._wait("append")
        super().append(segment, texts)

    def close(self, segment: Segment) -> None:
        """See `Segments`."""
        self._wait("close")
        super().close(segment)

    def resume(self, documents: Iterable[list[object]]) -> list[Segment]:
        """See `Segments`."""
        self._wait("resume")
        return super().resume(documents)

    def _wait(self, what: str) -> None:
        if HeldUp.at == what:
            HeldUp.at = ""
            HeldUp.is_there.set()
            assert HeldUp.goes_on.wait(10)


async def told_whole(it: JournalHarness, count: int) -> None:
    """Check that every message has its lines, once."""
    assert await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    assert Counter(line["event"] for line in lines)["enqueued"] == count
    assert len(check_copies(lines)) == count
    assert set(check_equation(lines).values()) == {
        (count, it.hub.queue(P0).statistics().bytes),
    }


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - threads and tasks tell it, not one event
            await asyncio.sleep(0)


@pytest.mark.parametrize("at", ["append", "close", "resume"])
async def test_a_cancel_leaves_no_thread_behind(tmp_path: Path, at: str) -> None:
    """What a thread does goes on after a cancel; the next step waits for it."""
    HeldUp.is_there.clear()
    HeldUp.goes_on.clear()
    async with journaling(tmp_path / "queue.db", segments=HeldUp) as it:
        if at != "resume":
            await it.hub.stored(2, a_result(P0))
            await it.journal.write_out()
        await it.hub.stored(3, a_result(P0))
        HeldUp.at = at
        async with asyncio.TaskGroup() as tasks:
            cut = tasks.create_task(it.journal.write_out(close=True))
            await until(HeldUp.is_there.is_set)
            cut.cancel()
            next_one = tasks.create_task(it.journal.write_out())
            for _ in range(100):
                await asyncio.sleep(0)
            assert not next_one.done()
            HeldUp.goes_on.set()
        await told_whole(it, 3 if at == "resume" else 5)


class FailingOnce(Segments):
    """Segments on a disk that does not close the first of them."""

    fails = True

    def close(self, segment: Segment) -> None:
        """See `Segments`."""
        if self.fails:
            self.fails = False
            raise OSError(5, "Input/output error")
        super().close(segment)


async def test_a_segment_that_was_not_closed_is_closed_without_other_lines(tmp_path: Path) -> None:
    """The next one had begun when the disk failed; a later look finds and closes the first."""
    async with journaling(tmp_path / "q.db", segments=FailingOnce) as it:
        await it.hub.stored(3)
        await it.journal.write_out()
        await it.hub.clock.advance(3600)
        await it.hub.stored(3)
        with pytest.raises(OSError, match="Input/output error"):
            await it.journal.write_out()
        assert await it.journal.write_out()
        figures = it.journal.statistics()
        assert figures.segments == 1
        assert figures.growing is not None


async def test_a_cancel_within_the_commit_cuts_no_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blobs are gone with the commit, so the lines that took their place must stay."""
    forget = JournalFeed.forget
    cuts = 3

    async def cut(self: JournalFeed, number: int, state: bytes, written_ms: int) -> None:
        nonlocal cuts
        task = asyncio.current_task()
        assert task is not None
        if cuts:
            cuts -= 1
            asyncio.get_running_loop().call_soon(task.cancel)
        await forget(self, number, state, written_ms)

    monkeypatch.setattr(JournalFeed, "forget", cut)
    async with journaling(tmp_path / "queue.db") as it:
        for _ in range(3):
            await it.hub.stored(2, a_result(P0))
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(it.journal.write_out())
                await until(task.done)
            assert task.cancelled()
        assert cuts == 0
        await told_whole(it, 6)
