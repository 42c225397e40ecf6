"""The journal on a real store: every copy exactly once, equations that close, crashes anywhere."""

from __future__ import annotations

import asyncio
import gzip
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.journal.journal import RETRY_S_MAX
from edgehub.journal.row_events import PUMP_IDLE, PUMP_OFFLINE
from edgehub.journal.segments import Segments
from edgehub.message import UPSTREAM, FailureKind
from edgehub.store import StoreOptions
from tests.support.journal import journaling, state_copy
from tests.support.journal_format import (
    OUT,
    check_copies,
    check_equation,
    queue_of,
    read_folder,
    read_segment,
)
from tests.support.journal_history import Life
from tests.support.stores import LAB, P0, P2, a_message, a_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.journal.segments import Segment

DAY_S = 86_400
EXAMPLES = 300 if os.environ.get("EDGEHUB_SOAK") else 4
HISTORIES = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
    # A smaller seed is no simpler history, and one that hangs would be tried for minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
pytestmark = [pytest.mark.integration, pytest.mark.scaled, pytest.mark.timeout(60 + 4 * EXAMPLES)]


@HISTORIES
@given(seed=st.integers(0, 2**32))
def test_the_equation_closes_whatever_happens(seed: int) -> None:
    """Per date and queue, in rows and bytes; every copy once; depths equal what is carried."""
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory), seed, StoreOptions(journal=True))
        lines = asyncio.run(life.play(50))
    told = check_copies(lines)
    assert len(told) == life.copies


@HISTORIES
@given(seed=st.integers(0, 2**32), bound=st.sampled_from([1, 600]))
def test_the_equation_closes_where_sums_take_the_place_of_events(seed: int, bound: int) -> None:
    """At the bound, and over it again and again."""
    with tempfile.TemporaryDirectory() as directory:
        options = StoreOptions(journal=True, journal_bytes_max=bound)
        life = Life(Path(directory), seed, options)
        lines = asyncio.run(life.play(50))
    counted = sum(line.get("count", 1) for line in lines if line["event"] == "enqueued")
    assert counted == life.copies


@HISTORIES
@given(seed=st.integers(0, 2**32), bound=st.sampled_from([600, 1 << 26]))
def test_the_equation_closes_over_boots_in_1970(seed: int, bound: int) -> None:
    """Power cuts, and clocks that are right at once, later, or only after another boot."""
    with tempfile.TemporaryDirectory() as directory:
        options = StoreOptions(journal=True, journal_bytes_max=bound)
        life = Life(Path(directory), seed, options, reboots=True)
        lines = asyncio.run(life.play(50))
    assert lines[0]["time"] > "2023"
    counted = sum(line.get("count", 1) for line in lines if line["event"] == "enqueued")
    assert counted == life.copies


async def test_rows_that_were_never_written_have_lines(tmp_path: Path) -> None:
    """Confirmed before their commit: enqueued and sent, the second attempt after a refusal."""
    options = StoreOptions(journal=True, commit_delay_ms=500)
    async with journaling(tmp_path / "queue.db", options=options) as it:
        await it.hub.stored(1)
        it.hub.send_many(3)
        queue = it.hub.queue()
        first, *rest = await queue.read_batch(2, 1 << 20)
        queue.confirm([first])
        queue.give_back(rest, attempted=True, refusal="transient")
        queue.confirm(await queue.read_batch(9, 1 << 20))
        await it.hub.clock.advance(0.6)
        await it.hub.store.writer.flush()
        assert it.hub.store.statistics().early_rows_total == 3
        await it.journal.write_out(close=True)
    told = check_copies(read_folder(it.folder))
    assert sorted(told.values()) == [
        ["enqueued", "retried", "sent"],
        *[["enqueued", "sent"]] * 3,
    ]


class _CopyingSegments(Segments):
    """Takes a copy of all files around each thing it does to them, as a kill there would leave."""

    def __init__(self, folder: Path, **names: str) -> None:
        super().__init__(folder, **names)
        self.copies: list[Path] = []

    def append(self, segment: Segment, texts: Sequence[bytes]) -> None:
        self._copy()
        part = [text[: len(text) // 2] for text in texts[:1]]
        with_half = self.begin(segment.day, segment.hour, 0)
        with_half.path, with_half.length = segment.path, segment.length
        if segment.length:
            # Half of it reached the file; what follows cuts and writes it whole.
            super().append(with_half, part)
            self._copy()
        super().append(segment, texts)
        self._copy()

    def close(self, segment: Segment) -> None:
        self._copy()
        super().close(segment)
        self._copy()

    def _copy(self) -> None:
        root = self.folder.parent.parent / "copies" / str(len(self.copies))
        self.copies.append(state_copy(self.folder.parent / "queue.db", root))


async def test_a_crash_at_any_step_loses_and_doubles_no_line(tmp_path: Path) -> None:
    """Around each write and close, also over midnight: the next start gives the same lines."""
    clock = ManualClock(wall_ms=1_700_002_800_000)
    path = tmp_path / "hub" / "queue.db"
    async with journaling(path, clock=clock, segments=_CopyingSegments) as it:
        for _ in range(3):
            await it.hub.stored(20, a_result(P0), a_result(P2, endpoint_id=LAB))
            await it.journal.write_out()
            rows = await it.hub.queue(P0).read_batch(7, 1 << 20)
            it.hub.queue(P0).confirm(rows)
            await it.hub.store.writer.flush()
            await clock.advance(DAY_S / 3)
            await it.hub.store.writer.flush()
            await it.journal.write_out()
        await it.journal.write_out(close=True)
        whole = read_folder(it.folder)
        copies = it.segments.copies
    assert len(copies) > 20
    for copy in copies:
        async with journaling(copy, clock=clock) as again:
            await again.journal.write_out(close=True)
        lines = read_folder(copy.parent / "journal")
        last = max(line["commit"] for line in lines if line["event"] in {"enqueued", *OUT})
        # What is in the copy's file and segments is a beginning of the whole, line by line.
        same = [line for line in whole if line["commit"] <= last]
        assert [line for line in lines if line["commit"] <= last] == same
        check_copies(lines)


async def test_a_folder_that_takes_no_lines_holds_up_no_message(tmp_path: Path) -> None:
    """A file stands where the folder should be: messages flow, then all lines are there."""
    path = tmp_path / "queue.db"
    (tmp_path / "journal").write_text("in the way")
    async with journaling(path) as it:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(it.journal.run())
            await it.hub.stored(5)
            await it.hub.until(lambda: it.journal.statistics().failing is not None, tick_s=1)
            (warning,) = it.journal.statistics().warnings()
            assert "its lines cannot be written: " in warning
            await it.hub.stored(5)
            assert len(it.hub.accepted) == 10
            assert it.journal.statistics().journal_lag_seconds > 0
            (tmp_path / "journal").unlink()
            await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=1)
            await it.hub.until(lambda: it.journal.statistics().failing is None, tick_s=1)
            assert it.journal.statistics().warnings() == []
            running.cancel()
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    assert Counter(line["event"] for line in lines)["enqueued"] == 10


async def test_trouble_that_comes_again_is_looked_at_soon_again(tmp_path: Path) -> None:
    """The waits of a failure that is over do not lengthen those of the next one."""

    class Full(Segments):
        attempts: int | None = None

        def append(self, segment: Segment, texts: Sequence[bytes]) -> None:
            if Full.attempts is not None:
                Full.attempts += 1
                raise OSError("no space")
            super().append(segment, texts)

    class Sleeps(ManualClock):
        slept: ClassVar[list[float]] = []

        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            await super().sleep(seconds)

    async with journaling(tmp_path / "queue.db", clock=Sleeps(), segments=Full) as it:

        async def fails(attempts: int) -> None:
            Full.attempts = 0
            await it.hub.stored(1)
            await it.hub.until(lambda: Full.attempts == attempts, tick_s=1)
            await it.hub.until(lambda: it.journal.statistics().failing is not None)
            Full.attempts = None

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(it.journal.run())
            await fails(6)
            await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=1)
            await fails(1)
            assert RETRY_S_MAX not in Sleeps.slept
            running.cancel()


async def test_what_happens_during_a_commit_that_fails_is_reported_after_what_was_in_it(
    tmp_path: Path,
) -> None:
    """The link that went down before it came up again is up in the end."""
    async with journaling(tmp_path / "queue.db") as it:
        events = it.feed._events  # noqa: SLF001 - the writer's part
        it.feed.pump_changed(UPSTREAM, PUMP_OFFLINE)
        taken = events.begin()
        it.feed.pump_changed(UPSTREAM, PUMP_IDLE)
        events.failed(taken)
        await it.hub.stored(1)
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    assert [line["state"] for line in lines if line["event"] == "link"] == ["down", "up"]


async def test_what_cannot_be_read_is_passed_by(tmp_path: Path) -> None:
    """A damaged blob costs its own events, not those behind it."""
    async with journaling(tmp_path / "queue.db") as it:
        await it.hub.stored(1)
        await it.hub.stored(2)
        sql = (
            "UPDATE journal SET events = zeroblob(length(events))"
            " WHERE number = (SELECT min(number) FROM journal)"
        )
        await it.hub.store.writer.transact(lambda conn: conn.execute(sql).close())
        await it.journal.write_out(close=True)
        assert it.feed.bytes_waiting == 0
    assert len(check_copies(read_folder(it.folder))) == 2


async def test_a_damaged_growing_segment_costs_its_lines_alone(tmp_path: Path) -> None:
    """One byte of it flipped: the next start leaves it out, says so, and writes on."""
    path = tmp_path / "queue.db"
    async with journaling(path) as it:
        await it.hub.stored(50)
        await it.journal.write_out()
        (growing,) = it.folder.rglob("*.open")
    content = bytearray(growing.read_bytes())
    content[len(content) // 2] ^= 0xFF
    growing.write_bytes(content)
    with capture_logs() as logs:
        async with journaling(path) as it:
            await it.hub.stored(2)
            assert await it.journal.write_out(close=True)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == [
        "journal.segment_lost"
    ]
    offsets = [line["offset"] for line in read_folder(it.folder) if line["event"] == "enqueued"]
    assert offsets == [51, 52]


async def test_the_background_work_rotates_by_hour_and_notices_midnight(tmp_path: Path) -> None:
    """Lines follow within seconds; an idle hub still closes its hour and its day."""
    clock = ManualClock(wall_ms=1_700_002_800_000)
    async with journaling(tmp_path / "queue.db", clock=clock) as it, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(it.journal.run())
        await it.hub.stored(3)
        await it.hub.until(lambda: it.journal.statistics().growing is not None, tick_s=1)
        await it.hub.until(lambda: it.journal.statistics().segments >= 1, tick_s=60)
        await it.hub.until(lambda: it.journal.statistics().segments >= 3, tick_s=60)
        running.cancel()
    edges = [line["edge"] for line in read_folder(it.folder) if line["event"] == "carried"]
    assert edges == ["out", "in"]


async def test_clean_up_reports_each_row_that_it_removes(tmp_path: Path) -> None:
    """Whole zones, shared bodies, sums at the bound: one event or one count for each row."""
    async with journaling(tmp_path / "queue.db") as it:
        it.hub.send(
            a_message("d", module="m"), a_result(P0, ttl_s=20), a_result(P2, endpoint_id=LAB)
        )
        await it.hub.stored(1500, a_result(P0, ttl_s=20))
        await it.hub.until(lambda: it.hub.queue(P0).statistics().depth == 0, tick_s=5)
        await it.hub.store.writer.flush()
        await it.journal.write_out(close=True)
    expired = [line for line in read_folder(it.folder) if line["event"] == "expired"]
    assert len(expired) == 1501
    assert expired[0]["device"] == "d/m"
    assert all(line["waited_ms"] >= 20_000 for line in expired)
    assert all(line["offline_ms"] == line["waited_ms"] for line in expired)


async def test_dead_letters_that_go_are_reported(tmp_path: Path) -> None:
    """By their bounds, with number and bytes; they are not part of the equation."""
    options = StoreOptions(journal=True, dead_letter_rows_max=2)
    async with journaling(tmp_path / "queue.db", options=options) as it:
        await it.hub.stored(5)
        for row in await it.hub.queue().read_batch(9, 1 << 20):
            it.hub.queue().dead_letter(row, FailureKind.TOO_LARGE, "beyond 10 KB")
        await it.hub.store.writer.flush()
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    purged = [line for line in lines if line["event"] == "dead_purged"]
    assert [(line["count"], line["reason"], queue_of(line)) for line in purged] == [
        (3, "bounds", ("upstream", 2))
    ]
    dead = [line["reason"] for line in lines if line["event"] == "dead_lettered"]
    assert dead == ["too_large: beyond 10 KB"] * 5
    assert check_equation(lines) == {}


async def test_messages_that_are_not_stored_are_reported(tmp_path: Path) -> None:
    """By device and reason, with the next commit."""
    options = StoreOptions(journal=True, pending_bytes_max=0)
    async with journaling(tmp_path / "queue.db", options=options) as it:
        it.hub.send_many(1)
        it.hub.send_many(2, device="late")
        await it.hub.store.writer.flush()
        it.hub.send(a_message("bad", properties={"p": "\ud800"}))
        await it.hub.stored(1)
        await it.journal.write_out(close=True)
    refused = [line for line in read_folder(it.folder) if line["event"] == "refused"]
    assert {(line["device"], line["reason"], line["count"]) for line in refused} == {
        ("late", "limit", 2),
        ("bad", "invalid", 1),
    }


async def test_a_flood_of_refused_messages_takes_a_line_a_second(tmp_path: Path) -> None:
    """Though nothing else is committed; sums are exact, and devices bounded."""
    path = tmp_path / "queue.db"
    async with journaling(path) as it, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(it.journal.run())
        before = it.hub.store.statistics().commits_total
        for _ in range(5):
            for number in range(3000):
                it.feed.refused(f"d{number % 300}", 10, "too_large")
            await it.hub.clock.advance(1.0)
            await it.hub.store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())
        await it.hub.until(lambda: it.journal.statistics().growing is not None, tick_s=1)
        assert it.hub.store.statistics().commits_total <= before + 7
        await it.journal.write_out(close=True)
        running.cancel()
    refused = [line for line in read_folder(it.folder) if line["event"] == "refused"]
    assert sum(line["count"] for line in refused) == 15_000
    assert sum(line["bytes"] for line in refused) == 150_000
    assert len(refused) <= 6 * 257
    assert {line["reason"] for line in refused} == {"too_large"}
    assert any("device" not in line for line in refused)


async def test_a_closed_segment_is_one_whole_gzip_file(tmp_path: Path) -> None:
    """However often it was flushed, cut off and gone on with."""
    path = tmp_path / "queue.db"
    clock = ManualClock(wall_ms=1_700_002_800_000)
    for _ in range(3):
        async with journaling(path, clock=clock) as it:
            for _ in range(3):
                await it.hub.stored(2)
                await it.journal.write_out()
    async with journaling(path, clock=clock) as it:
        await it.journal.write_out(close=True)
        (segment,) = it.folder.glob("date=*/hub=*/*.gz")
        assert not list(it.folder.rglob("*.open"))
    assert len(check_copies(read_segment(segment))) == 18


def test_what_a_crash_left_behind_the_position_is_in_no_closed_segment(tmp_path: Path) -> None:
    """Its lines come again, in another segment where this one is closed before."""
    segments = Segments(tmp_path, hub_id="gw-1", store_id="0123456789abcdef")
    segment = segments.begin(20_000, 480_000, 1)
    segments.append(segment, [b"told\n"])
    position = segment.document()
    segments.append(segment, [b"not stored\n"])
    (known,) = segments.resume([position])
    segments.close(known)
    (closed,) = segments.closed()
    assert gzip.decompress((tmp_path / closed.path).read_bytes()) == b"told\n"


async def test_writing_out_says_whether_all_is_written(tmp_path: Path) -> None:
    """Whoever gave it no time is told that there may be more."""
    async with journaling(tmp_path / "queue.db") as it:
        await it.hub.stored(3)
        assert not await it.journal.write_out(seconds_max=0)
        assert await it.journal.write_out()
        assert it.feed.bytes_waiting == 0
