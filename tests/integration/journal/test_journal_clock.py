"""The journal under a clock that is not trusted: no dated line before the time of day is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import ManualClock
from edgehub.journal.journal import UNKNOWN_AFTER_MS
from edgehub.journal.retention import Bounds
from edgehub.journal.row_events import PUMP_IDLE
from edgehub.journal.segments import Segments
from edgehub.store.maintenance.ageing import CHECK_S
from tests.support.journal import JournalHarness, journaling, state_copy
from tests.support.journal_format import check_copies, check_equation, read_folder
from tests.support.stores import LAB, P0, P2, FaultPlan, a_result, faulty_database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgehub.journal.segments import Segment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MAY_2026_MS = 1_777_593_600_000
"""Midnight."""
EVENING_MS = MAY_2026_MS + 20 * HOUR_S * 1000


def unset(boot_id: str) -> ManualClock:
    """Return the clock of a boot that begins in 1970."""
    return ManualClock(boot_id=boot_id, wall_ms=1_000_000, is_synchronized=False)


async def is_set(it: JournalHarness, wall_ms: int) -> None:
    """Let NTP set the clock, and the hub notice."""
    clock, store = it.hub.clock, it.hub.store
    clock.step_wall(wall_ms - clock.wall_ms())
    clock.is_synchronized = True
    await clock.advance(CHECK_S)
    await it.hub.until(lambda: store.statistics().clock.trusted)
    await it.hub.until(lambda: not store.statistics().clock.ageing)
    await store.writer.flush()


async def sent(it: JournalHarness, count: int) -> None:
    """Let some rows leave."""
    it.hub.queue(P0).confirm(await it.hub.queue(P0).read_batch(count, 1 << 20))
    await it.hub.store.writer.flush()


def edges(lines: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Return date, edge and rows of the carried lines."""
    carried = [line for line in lines if line["event"] == "carried"]
    return [(line["time"][:10], line["edge"], line["rows"]) for line in carried]


def files(folder: Path) -> list[str]:
    """List what is below the folder of segments without a date."""
    return sorted(path.name for path in folder.glob("date=unknown/*/*"))


async def test_a_boot_in_1970_has_no_lines_of_1970(tmp_path: Path) -> None:
    """W-05: nothing is exported before the clock is set; then all lines have right times."""
    async with journaling(tmp_path / "queue.db", clock=unset("a")) as it:
        await it.hub.stored(50, a_result(P0))
        await it.hub.clock.advance(600)
        await sent(it, 20)
        await it.journal.write_out(close=True)
        assert await it.journal.plan_export("out") == []
        assert it.feed.bytes_waiting == 0
        assert it.journal.statistics().held_segments == 1
        assert it.journal.statistics().held_bytes > 0
        message = it.hub.sent[0].message_id
        held = await it.journal.trace(message, [], seconds_max=2)
        assert [line["event"] for line in held.lines] == ["enqueued", "sent"]
        await is_set(it, EVENING_MS)
        await it.hub.stored(1, a_result(P0))
        await it.journal.write_out(close=True)
        assert it.journal.statistics().held_segments == 0
        assert it.journal.statistics().held_bytes == 0
        planned = await it.journal.plan_export("out")
        assert {path.split("/")[0] for path in planned} == {"date=2026-05-01"}
        found = await it.journal.trace(message, [], seconds_max=2)
        assert [line["event"] for line in found.lines] == ["enqueued", "sent"]
    assert files(it.folder) == []
    lines = read_folder(it.folder)
    assert len(check_copies(lines)) == 51
    times = {line["time"] for line in lines if line["event"] in {"enqueued", "sent"}}
    assert times == {
        "2026-05-01T19:50:00.000Z",
        "2026-05-01T20:00:00.000Z",
        "2026-05-01T20:00:10.000Z",
    }
    left = it.hub.queue(P0).statistics().bytes
    assert check_equation(lines) == {("2026-05-01", ("upstream", 0)): (31, left)}


async def test_midnights_are_those_of_the_right_time(tmp_path: Path) -> None:
    """Queues are handed over where it was midnight, not where the machine believed that it was."""
    async with journaling(tmp_path / "queue.db", clock=unset("a")) as it:
        for _ in range(5):
            it.feed.pump_changed("upstream", PUMP_IDLE)
            await it.hub.stored(2, a_result(P0))
            await it.journal.write_out()
            await it.hub.clock.advance(10 * HOUR_S)
        assert it.journal.statistics().held_segments == 5
        # 50 hours ago it was 18:00 of 29 April.
        await is_set(it, EVENING_MS)
        await it.journal.write_out(close=True)
        assert it.journal.statistics().held_segments == 0
    lines = read_folder(it.folder)
    assert edges(lines) == [
        ("2026-04-29", "out", 2),
        ("2026-04-30", "in", 2),
        ("2026-04-30", "out", 6),
        ("2026-05-01", "in", 6),
    ]
    midnights = [line["time"][11:] for line in lines if line["event"] == "carried"]
    assert midnights == ["23:59:59.999Z", "00:00:00.000Z"] * 2
    assert [date for date, _ in check_equation(lines)] == ["2026-05-01"]


async def test_a_life_before_is_ended_on_its_own_date(tmp_path: Path) -> None:
    """Killed on one day, booted in 1970, set two days later: each date has its edges."""
    path = tmp_path / "a" / "queue.db"
    clock = ManualClock(wall_ms=EVENING_MS, boot_id="a")
    async with journaling(path, clock=clock) as it:
        await it.hub.stored(3, a_result(P0, ttl_s=10 * DAY_S))
        await it.journal.write_out()
        copy = state_copy(path, tmp_path / "b")
    async with journaling(copy, clock=unset("b")) as it:
        await it.hub.stored(2, a_result(P0))
        await it.journal.write_out(close=True)
        # What is known of the date is exported at once.
        (segment,) = await it.journal.plan_export("out")
        assert segment.startswith("date=2026-05-01/")
        assert edges(read_folder(it.folder)) == [("2026-05-01", "stop", 3)]
        await it.hub.clock.advance(60)
        await is_set(it, EVENING_MS + 2 * DAY_S * 1000)
        await it.journal.write_out(close=True)
        assert it.journal.statistics().corrections == 0
    lines = read_folder(it.folder)
    assert edges(lines) == [
        ("2026-05-01", "stop", 3),
        ("2026-05-01", "out", 3),
        ("2026-05-02", "in", 3),
        ("2026-05-02", "out", 3),
        ("2026-05-03", "in", 3),
        ("2026-05-03", "start", 3),
    ]
    check_copies(lines)
    check_equation(lines)


async def test_lines_get_no_date_after_a_week(tmp_path: Path) -> None:
    """Exported as they stand; what has a date later begins with what waited."""
    path = tmp_path / "queue.db"
    async with journaling(path, clock=ManualClock(wall_ms=EVENING_MS, boot_id="a")) as it:
        await it.hub.stored(3, a_result(P0))
        await it.end()
    async with journaling(path, clock=unset("b")) as it, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(it.journal.run())
        await it.hub.stored(2, a_result(P0))
        await sent(it, 1)
        await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=5)
        end_ms = it.hub.store.hub_time.now_ms() + UNKNOWN_AFTER_MS - 60_000
        it.hub.clock.suspend(UNKNOWN_AFTER_MS / 1000 - HOUR_S)
        await it.hub.clock.advance(HOUR_S - 60)
        assert it.hub.store.hub_time.now_ms() == end_ms
        await it.hub.stored(4, a_result(P0))
        await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=5)
        await it.hub.until(lambda: it.journal.statistics().held_segments == 1, tick_s=5)
        (unknown,) = [s for s in await it.journal.plan_export("out") if "unknown" in s]
        assert unknown.startswith("date=unknown/hub=gw-1/")
        await is_set(it, EVENING_MS + 9 * DAY_S * 1000)
        await it.hub.stored(1, a_result(P0))
        running.cancel()
    async with journaling(path, clock=it.hub.clock) as it:
        await it.end()
        await it.journal.write_out(close=True)
    assert len(files(it.folder)) == 1
    lines = read_folder(it.folder)
    believed = read_folder(it.folder, "unknown")
    # As if the machine had not been off.
    assert {line["time"][:10] for line in believed} == {"2026-05-01"}
    assert [line["event"] for line in believed if line["event"] != "carried"] == [
        *["enqueued"] * 2,
        "sent",
    ]
    told = check_copies([*lines[:4], *believed, *lines[4:]])
    assert len(told) == 10
    dates = [each for each in edges(lines) if each[0] > "2026-05-01"]
    assert dates[0] == ("2026-05-10", "in", 4)
    later = [line for line in lines if line["time"] > "2026-05-02"]
    assert {rows for rows, _ in check_equation(later).values()} == {9}


async def test_held_lines_stay_within_the_bound_of_the_folder(tmp_path: Path) -> None:
    """Beyond it the oldest of them get no date, and are the first to go."""
    bounds = Bounds(keep_days=1, bytes_max=3000)
    path = tmp_path / "queue.db"
    async with (
        journaling(path, clock=unset("a"), bounds=bounds) as it,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(it.journal.run())
        for _ in range(6):
            await it.hub.stored(40, a_result(P0))
            await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=5)
            it.hub.clock.suspend(HOUR_S)
        await it.hub.until(lambda: it.journal.statistics().held_bytes <= 3000, tick_s=5)
        figures = it.journal.statistics()
        assert figures.held_segments > 0
        assert figures.dropped_not_exported > 0
        assert figures.held_bytes + figures.segment_bytes <= 3000
        running.cancel()


class _CopyingSegments(Segments):
    """Takes a copy of all files around each thing it does to them, as a kill there would leave."""

    def __init__(self, folder: Path, **names: str) -> None:
        super().__init__(folder, **names)
        self.copies: list[Path] = []

    def append(self, segment: Segment, texts: Sequence[bytes]) -> None:
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


async def test_a_crash_while_times_are_unknown_loses_and_doubles_no_line(tmp_path: Path) -> None:
    """Around each write, while lines are held and while they are told again."""
    path = tmp_path / "hub" / "queue.db"
    clock = ManualClock(wall_ms=EVENING_MS, boot_id="a")
    async with journaling(path, clock=clock) as it:
        await it.hub.stored(5, a_result(P0), a_result(P2, endpoint_id=LAB))
        await it.journal.write_out()
    clock = unset("b")
    async with journaling(path, clock=clock, segments=_CopyingSegments) as it:
        for _ in range(4):
            await it.hub.stored(20, a_result(P0), a_result(P2, endpoint_id=LAB))
            await sent(it, 7)
            await it.journal.write_out()
            await clock.advance(3 * HOUR_S)
        held = len(it.segments.copies)
        await is_set(it, EVENING_MS + DAY_S * 1000)
        await it.hub.stored(3, a_result(P0))
        await it.journal.write_out(close=True)
        whole = read_folder(it.folder)
        copies = it.segments.copies
    assert (held, len(copies)) > (8, held + 10)
    check_equation(whole)
    for copy in copies:
        async with journaling(copy, clock=clock) as again:
            await again.hub.until(
                lambda again=again: again.hub.store.statistics().clock.trusted, tick_s=CHECK_S
            )
            await again.journal.write_out(close=True)
            assert again.journal.statistics().held_segments == 0
            assert again.journal.statistics().corrections == 0
        assert files(again.folder) == []
        lines = read_folder(again.folder)
        last = max(line["commit"] for line in lines if line["event"] in {"enqueued", "sent"})
        same = [line for line in whole if line["commit"] <= last]
        assert [line for line in lines if line["commit"] <= last] == same
        check_copies(lines)
        check_equation(lines)


async def test_a_crash_while_lines_are_given_up_doubles_none(tmp_path: Path) -> None:
    """Around the moment at which they become a segment: each line has a date, or none, for good."""
    path = tmp_path / "hub" / "queue.db"
    clock = unset("a")
    async with (
        journaling(path, clock=clock, segments=_CopyingSegments) as it,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(3):
            await it.hub.stored(5, a_result(P0))
            await it.journal.write_out()
            await clock.advance(HOUR_S)
        held = len(it.segments.copies)
        running = tasks.create_task(it.journal.run())
        clock.suspend(UNKNOWN_AFTER_MS / 1000 - HOUR_S)
        await clock.advance(HOUR_S)
        await it.hub.until(lambda: it.journal.statistics().held_segments == 0, tick_s=5)
        running.cancel()
        copies = it.segments.copies[held:]
    assert len(copies) == 6
    clock.step_wall(EVENING_MS - clock.wall_ms())
    clock.is_synchronized = True
    found = []
    for copy in copies:
        async with journaling(copy, clock=clock) as again:
            await again.hub.until(
                lambda again=again: again.hub.store.statistics().clock.trusted, tick_s=CHECK_S
            )
            await again.hub.store.writer.flush()
            await again.journal.write_out(close=True)
            assert again.journal.statistics().held_segments == 0
        believed, lines = read_folder(again.folder, "unknown"), read_folder(again.folder)
        assert len(check_copies([*believed, *lines])) == 15
        check_equation(lines)
        found.append(len(believed))
    assert found == [0, 5, 5, 10, 10, 15]


async def test_a_commit_that_fails_leaves_lines_held(tmp_path: Path) -> None:
    """The disk is full when the clock is set: word of it comes with the commit that succeeds."""
    path = tmp_path / "queue.db"
    async with journaling(path, clock=ManualClock(wall_ms=EVENING_MS, boot_id="a")) as it:
        await it.hub.stored(3, a_result(P0, ttl_s=DAY_S))
        await it.end()
    plan = FaultPlan()
    database = faulty_database(plan)
    async with journaling(path, clock=unset("b"), database_type=database) as it:
        await it.hub.stored(2, a_result(P0))
        await it.journal.write_out()
        clock = it.hub.clock
        clock.step_wall(EVENING_MS + HOUR_S * 1000 - clock.wall_ms())
        clock.is_synchronized = True
        plan.fail("UPDATE boot SET first_hub_ms")
        await clock.advance(CHECK_S)
        await it.hub.until(lambda: plan.raised > 0)
        await it.journal.write_out()
        assert it.journal.statistics().held_segments == 1
        await clock.advance(CHECK_S)
        await it.hub.until(lambda: it.hub.store.statistics().clock.trusted, tick_s=1)
        await it.end()
        await it.journal.write_out(close=True)
        assert it.journal.statistics().held_segments == 0
    lines = read_folder(it.folder)
    assert {line["time"][:10] for line in lines} == {"2026-05-01"}
    check_equation(lines)


async def test_lines_are_given_up_where_the_word_of_the_clock_is_damaged(tmp_path: Path) -> None:
    """They get no date, and what comes after them has one."""
    async with journaling(tmp_path / "queue.db", clock=unset("a")) as it:
        await it.hub.stored(2, a_result(P0))
        await it.journal.write_out()
        await is_set(it, EVENING_MS)
        await it.hub.store.writer.flush()
        sql = "UPDATE journal SET events = zeroblob(length(events))"
        await it.hub.store.writer.transact(lambda conn: conn.execute(sql).close())
        await it.hub.stored(3, a_result(P0))
        await it.journal.write_out(close=True)
        assert it.journal.statistics().held_segments == 0
    assert [line["event"] for line in read_folder(it.folder, "unknown")] == ["enqueued"] * 2
    lines = read_folder(it.folder)
    assert edges(lines) == [("2026-05-01", "in", 2)]
    assert [line["event"] for line in lines[1:]] == ["enqueued"] * 3


async def test_a_clock_that_jumps_years_ahead_costs_few_dates(tmp_path: Path) -> None:
    """The journal of weeks is not too old at once; an hour of it costs one date."""
    clock = ManualClock(wall_ms=EVENING_MS, boot_id="a")
    bounds = Bounds(keep_days=30, bytes_max=1 << 30)
    async with journaling(tmp_path / "queue.db", clock=clock, bounds=bounds) as it:
        for _ in range(6):
            await it.hub.stored(1, a_result(P0, ttl_s=100 * DAY_S))
            await it.journal.write_out(close=True)
            await clock.advance(DAY_S)
        dates = len(list(it.folder.glob("date=*")))
        assert dates >= 6
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(it.journal.run())
            await it.hub.stored(1, a_result(P0))
            await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=1)
            # Waits for the end of the look that has found them: this hour's clean-up is done.
            await it.journal.write_out()
            clock.step_wall(20 * 365 * DAY_S * 1000)
            for _ in range(61):
                await clock.advance(60)
                await it.hub.stored(1, a_result(P0))
            # A machine that is busy may be late with the clean-up of that hour.
            await it.hub.until(lambda: it.journal.statistics().dropped_not_exported > 0, tick_s=1)
            clock.step_wall(-20 * 365 * DAY_S * 1000)
            await it.hub.stored(1, a_result(P0))
            await it.hub.until(lambda: it.feed.bytes_waiting == 0, tick_s=1)
            running.cancel()
        left = [path.name for path in it.folder.glob("date=2026-*")]
        assert dates - 2 <= len(left) <= dates + 1
        assert 1 <= it.journal.statistics().dropped_not_exported <= 2
        (warning,) = it.journal.statistics().warnings()
        assert "before any export" in warning
