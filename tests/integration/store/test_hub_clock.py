"""Hub time, UTC and trust in the wall clock over boots, steps and power-off times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.store import Store, StoreOptions
from edgehub.store.boots import WALL_CEILING_MS
from edgehub.store.maintenance.ageing import CHECK_S
from edgehub.store.options import ClockTrust, TtlWhileOff
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
    FaultPlan,
    a_message,
    a_result,
    bodies,
    crash_copy,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
MAY_2026_MS = 1_777_593_600_000
BOOT_1970_MS = 1_000_000
PAUSE = StoreOptions(ttl_while_off=TtlWhileOff.PAUSE)


def booted(boot_id: str, wall_ms: int, *, is_synchronized: bool = True) -> ManualClock:
    """Return the clock of another boot of the machine."""
    return ManualClock(boot_id=boot_id, wall_ms=wall_ms, is_synchronized=is_synchronized)


def unset(boot_id: str) -> ManualClock:
    """Return the clock of a boot that begins in 1970."""
    return booted(boot_id, BOOT_1970_MS, is_synchronized=False)


async def is_set(hub: Harness, wall_ms: int) -> None:
    """Let NTP set the clock, and the hub notice."""
    hub.clock.step_wall(wall_ms - hub.clock.wall_ms())
    hub.clock.is_synchronized = True
    await hub.clock.advance(CHECK_S)
    await hub.until(lambda: _is_settled(hub.store))


def _is_settled(store: Store) -> bool:
    clock = store.statistics().clock
    return clock.trusted and not clock.ageing


async def passing(hub: Harness, seconds: int) -> None:
    """Let time pass in such a way that background work has its turns."""
    for _ in range(0, seconds, 9):
        await hub.clock.advance(9)
        for _ in range(3):
            await hub.store.writer.flush()


def utc_of(hub: Harness, enqueued_ms: int) -> int:
    """Return UTC of a row."""
    return hub.store.utc_ms(enqueued_ms)


@pytest.mark.parametrize(
    ("options", "expired"), [(StoreOptions(), 10), (PAUSE, 0)], ids=["count", "pause"]
)
async def test_time_to_live_while_off(tmp_path: Path, options: StoreOptions, expired: int) -> None:
    """T-05: `ttl_while_off`: by default the time without power counts, `pause` leaves it out."""
    path = tmp_path / "q.db"
    clock = booted("a", MAY_2026_MS)
    async with running(path, clock=clock, options=options) as hub:
        await hub.stored(10, a_result(ttl_s=600))
    async with running(path, clock=booted("b", clock.wall_ms() + 900_000), options=options) as hub:
        queue = hub.queue()
        rows = await read_all(queue)
        left_ms = {row.expires_ms - hub.store.hub_time.now_ms() for row in rows}
        assert (len(rows), left_ms) == ((0, set()) if expired else (10, {600_000}))
        queue.give_back(rows, attempted=False)
        await hub.clock.advance(6)
        await hub.until(lambda: queue.statistics().expired_total == expired, tick_s=0.1, within_s=5)
        assert queue.statistics().depth == 10 - expired
        assert hub.store.statistics().clock.off_s == (900 if expired else 0)
        await hub.clock.advance(580)
        assert len(await read_all(queue)) == 10 - expired
        assert len(hub.settled) == 0
    if not expired:
        clock = booted("c", clock.wall_ms() + 10 * HOUR_MS)
        async with running(path, clock=clock, options=options) as hub:
            assert len(await read_all(hub.queue())) == 10
            await hub.clock.advance(30)
            await hub.until(lambda: hub.queue().statistics().depth == 10)


async def test_pause_holds_while_the_hub_alone_is_off(tmp_path: Path) -> None:
    """T-05: with `pause`, hub time stands still from the stop of the hub to its start."""
    path = tmp_path / "q.db"
    clock = booted("a", MAY_2026_MS)
    async with running(path, clock=clock, options=PAUSE) as hub:
        await hub.stored(1)
        await hub.clock.advance(100)
        stopped_ms, enqueued_ms = hub.store.hub_time.now_ms(), clock.wall_ms() - 100_000
    await clock.advance(5000)
    async with running(path, clock=clock, options=PAUSE) as hub:
        assert hub.store.hub_time.now_ms() == stopped_ms
        (row,) = await read_all(hub.queue())
        assert utc_of(hub, row.enqueued_ms) == enqueued_ms
        await hub.stored(1)
        (row,) = await read_all(hub.queue())
        assert utc_of(hub, row.enqueued_ms) == clock.wall_ms()


async def test_a_boot_in_1970_expires_nothing_and_is_corrected(tmp_path: Path) -> None:
    """W-05: rows stored before the clock was set get their right times once it is."""
    path = tmp_path / "q.db"
    async with running(path, clock=unset("a")) as hub:
        await hub.stored(50, a_result(ttl_s=7200))
        assert not hub.store.statistics().clock.trusted
        assert "impossible time" in hub.store.statistics().clock.reason
        await hub.clock.advance(600)
        await is_set(hub, MAY_2026_MS)
        clock = hub.store.statistics().clock
        assert clock.trusted
        assert clock.off_s == 0
        assert abs(clock.correction_s - (MAY_2026_MS - BOOT_1970_MS) / 1000 + 600) <= 1
        await hub.stored(1, a_result(ttl_s=7200))
        rows = await read_all(hub.queue())
        assert len(rows) == 51
        assert {utc_of(hub, row.enqueued_ms) for row in rows[:50]} == {MAY_2026_MS - 600_000}
        assert utc_of(hub, rows[50].enqueued_ms) == hub.clock.wall_ms()


async def test_rows_of_a_boot_that_was_never_set_get_times_from_the_next(tmp_path: Path) -> None:
    """W-05: no row of 1970 leaves the hub, also where power went before the clock was set."""
    path = tmp_path / "q.db"
    async with running(path, clock=unset("a")) as hub:
        await hub.stored(5, a_result(ttl_s=7200))
        await hub.clock.advance(60)
    async with running(path, clock=unset("b")) as hub:
        await hub.clock.advance(30)
        await is_set(hub, MAY_2026_MS)
        rows = await read_all(hub.queue())
        assert len(rows) == 5
        assert {utc_of(hub, row.enqueued_ms) for row in rows} == {MAY_2026_MS - 90_000}


@pytest.mark.parametrize("wall_ms", [BOOT_1970_MS, WALL_CEILING_MS])
async def test_until_the_clock_is_set_times_go_on_from_the_last_known_one(
    tmp_path: Path, wall_ms: int
) -> None:
    """Whether it is far behind or beyond all that can be: as if the machine had not been off."""
    path = tmp_path / "q.db"
    async with running(path, clock=booted("a", MAY_2026_MS)) as hub:
        await hub.stored(1)
    async with running(path, clock=booted("b", wall_ms, is_synchronized=False)) as hub:
        await hub.stored(1)
        rows = await read_all(hub.queue())
        assert [utc_of(hub, row.enqueued_ms) for row in rows] == [MAY_2026_MS] * 2


async def test_power_off_time_counts_once_the_clock_is_trusted(tmp_path: Path) -> None:
    """Rows from before the power went age by it, rows of the new boot do not; once, not twice."""
    path = tmp_path / "q.db"
    clock = booted("a", MAY_2026_MS)
    async with running(path, clock=clock) as hub:
        await hub.stored(1500, a_result(ttl_s=7200))
        await hub.stored(3, a_result(P0, ttl_s=30), a_result(P7, endpoint_id=LAB))
        off_ms = clock.wall_ms()
    async with running(path, clock=unset("b")) as hub:
        queue, lab = hub.queue(), hub.queue(P7, LAB)
        flying = await queue.read_batch(3, 1 << 20)
        cached = await queue.read_batch(3, 1 << 20)
        queue.give_back(cached, attempted=False)
        await hub.stored(4, a_result(ttl_s=7200))
        assert hub.queue(P0).statistics().depth == 3
        await hub.clock.advance(10)
        await is_set(hub, off_ms + 2 * HOUR_MS - 60_000)
        assert hub.store.statistics().clock.off_s == pytest.approx(7120, abs=15)
        await hub.until(lambda: hub.queue(P0).statistics().depth == 0, tick_s=1)
        oldest_ms = queue.statistics().oldest_enqueued_ms
        assert oldest_ms is not None
        assert utc_of(hub, oldest_ms) == MAY_2026_MS
        assert {utc_of(hub, row.enqueued_ms) for row in flying} == {MAY_2026_MS}
        assert {row.expires_ms - row.enqueued_ms for row in flying} == {7_200_000}
        assert {utc_of(hub, row.enqueued_ms) for row in await read_all(lab)} == {MAY_2026_MS}
        queue.give_back(flying, attempted=False)
        rows = await read_all(queue)
        assert len(rows) == 1504
        queue.give_back(rows, attempted=False)
        await hub.clock.advance(70)
        await hub.until(lambda: queue.statistics().depth == 4, tick_s=1)
        assert bodies(await read_all(queue)) == [b"body-%d" % number for number in range(4)]
        copy = crash_copy(path, tmp_path / "crash")
        wall_ms = hub.clock.wall_ms()
    async with running(copy, clock=booted("c", wall_ms + 60_000)) as hub:
        (first, *_) = await read_all(hub.queue())
        assert utc_of(hub, first.enqueued_ms) == pytest.approx(off_ms + 7_120_000, abs=40_000)


async def test_ageing_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """A crash between two zones neither forgets a row nor ages one twice."""
    path = tmp_path / "q.db"
    async with running(path, clock=booted("a", MAY_2026_MS)) as hub:
        await hub.stored(2500, a_result(ttl_s=7200))
        await hub.stored(2500, a_result(P0, ttl_s=7200))
    plan = FaultPlan()
    async with running(path, clock=unset("b"), database_type=faulty_database(plan)) as hub:
        await hub.clock.advance(1)
        hub.clock.step_wall(MAY_2026_MS + HOUR_MS - hub.clock.wall_ms())
        hub.clock.is_synchronized = True
        plan.fail("UPDATE q_2 SET enqueued_ms", times=10**6)
        await hub.clock.advance(CHECK_S)
        await hub.until(lambda: plan.raised > 0)
        plan.heal()
        copy = crash_copy(path, tmp_path / "crash")
        wall_ms = hub.clock.wall_ms()
    async with running(copy, clock=booted("c", wall_ms)) as hub:
        await hub.until(lambda: not hub.store.statistics().clock.ageing)
        rows = await read_all(hub.queue()) + await read_all(hub.queue(P0))
        assert len(rows) == 5000
        assert {utc_of(hub, row.enqueued_ms) for row in rows} == {MAY_2026_MS}
        assert {row.expires_ms - row.enqueued_ms for row in rows} == {7_200_000}


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 10 * YEAR_MS, -10 * YEAR_MS])
@pytest.mark.parametrize("is_synchronized", [True, False])
async def test_steps_neither_expire_nor_immortalise(
    tmp_path: Path, step_ms: int, is_synchronized: bool
) -> None:
    """W-02: a step of the wall clock, whoever makes it, changes no time to live."""
    clock = booted("a", MAY_2026_MS, is_synchronized=is_synchronized)
    async with running(tmp_path / "q.db", clock=clock) as hub:
        await hub.stored(5, a_result(ttl_s=600))
        for _ in range(3):
            await passing(hub, 99)
            clock.step_wall(step_ms)
            await passing(hub, 99)
            rows = await read_all(hub.queue())
            assert len(rows) == 5
            hub.queue().give_back(rows, attempted=False)
            clock.step_wall(-step_ms)
        assert hub.queue().statistics().depth == 5
        clock.step_wall(step_ms)
        # 594 s are over; with clean-up every tenth of the time to live it is 60 s after its end.
        await hub.until(lambda: hub.queue().statistics().depth == 0, tick_s=1, within_s=70)
        assert hub.queue().statistics().expired_total == 5


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -30 * YEAR_MS, -56 * YEAR_MS])
async def test_a_boot_that_lies_in_the_past_counts_no_time(tmp_path: Path, step_ms: int) -> None:
    """A battery that died puts the clock back: hub time goes on, and the times sent stay right."""
    path = tmp_path / "q.db"
    async with running(path, clock=booted("a", MAY_2026_MS)) as hub:
        await hub.stored(5, a_result(ttl_s=600))
    clock = booted("b", MAY_2026_MS + step_ms, is_synchronized=False)
    async with running(path, clock=clock) as hub:
        rows = await read_all(hub.queue())
        assert {utc_of(hub, row.enqueued_ms) for row in rows} == {MAY_2026_MS}
        await hub.stored(1)
        (fresh,) = await read_all(hub.queue())
        assert MAY_2026_MS <= utc_of(hub, fresh.enqueued_ms) < MAY_2026_MS + HOUR_MS


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -YEAR_MS])
async def test_a_boot_that_is_set_right_to_an_earlier_time_counts_no_time(
    tmp_path: Path, step_ms: int
) -> None:
    """The clock before was ahead and was believed: what waits is neither aged nor made immortal."""
    path = tmp_path / "q.db"
    async with running(path, clock=booted("a", MAY_2026_MS)) as hub:
        await hub.stored(5, a_result(ttl_s=600))
    async with running(path, clock=booted("b", MAY_2026_MS + step_ms)) as hub:
        figures = hub.store.statistics().clock
        assert (figures.trusted, figures.off_s) == (True, 0)
        rows = await read_all(hub.queue())
        left_ms = {row.expires_ms - hub.store.hub_time.now_ms() for row in rows}
        assert (len(rows), left_ms) == (5, {600_000})
        hub.queue().give_back(rows, attempted=False)
        await hub.stored(1)
        rows = await read_all(hub.queue())
        assert utc_of(hub, rows[-1].enqueued_ms) == MAY_2026_MS + step_ms
        hub.queue().give_back(rows, attempted=False)
        await hub.until(lambda: hub.queue().statistics().depth == 1, tick_s=5, within_s=670)


@pytest.mark.parametrize(
    ("trust", "is_synchronized", "wall_ms", "expected"),
    [
        (ClockTrust.AUTO, True, MAY_2026_MS, ""),
        (ClockTrust.AUTO, False, MAY_2026_MS, "has not been synchronised"),
        (ClockTrust.AUTO, True, BOOT_1970_MS, "impossible time"),
        (ClockTrust.AUTO, True, MAY_2026_MS + 300 * YEAR_MS, "impossible time"),
        (ClockTrust.ALWAYS, False, MAY_2026_MS, ""),
        (ClockTrust.ALWAYS, False, BOOT_1970_MS, "impossible time"),
        (ClockTrust.NEVER, True, MAY_2026_MS, "clock.trust is never"),
    ],
)
async def test_when_the_wall_clock_is_trusted(
    tmp_path: Path, trust: ClockTrust, is_synchronized: bool, wall_ms: int, expected: str
) -> None:
    """`clock.trust` decides, within what can be; status says why not."""
    clock = booted("a", wall_ms, is_synchronized=is_synchronized)
    async with running(
        tmp_path / "q.db", clock=clock, options=StoreOptions(clock_trust=trust)
    ) as hub:
        figures = hub.store.statistics().clock
        assert figures.trusted is not bool(expected)
        assert expected in figures.reason


async def test_a_clock_behind_the_last_known_time_is_not_always_trusted(tmp_path: Path) -> None:
    """`always` means a clock with a battery; one that has fallen behind is waited for."""
    path = tmp_path / "q.db"
    options = StoreOptions(clock_trust=ClockTrust.ALWAYS)
    async with running(path, clock=booted("a", MAY_2026_MS), options=options) as hub:
        await hub.stored(1, a_result(ttl_s=600))
    clock = booted("b", MAY_2026_MS - HOUR_MS, is_synchronized=False)
    async with running(path, clock=clock, options=options) as hub:
        assert "behind the last known time" in hub.store.statistics().clock.reason
        clock.step_wall(HOUR_MS + 900_000)
        await clock.advance(CHECK_S)
        await hub.until(lambda: hub.queue().statistics().depth == 0, tick_s=1)


async def test_an_idle_hub_stores_how_far_its_time_is(tmp_path: Path) -> None:
    """A power cut takes ten minutes of hub time at most, also where nothing was written."""
    path = tmp_path / "q.db"
    clock = unset("a")
    async with running(path, clock=clock) as hub:
        await hub.stored(1, a_result(ttl_s=7200))
        end_ms = hub.store.hub_time.now_ms() + HOUR_MS
        await hub.until(lambda: hub.store.hub_time.now_ms() >= end_ms, tick_s=10)
        copy = crash_copy(path, tmp_path / "crash")
        now_ms = hub.store.hub_time.now_ms()
    async with running(copy, clock=unset("b")) as hub:
        assert now_ms - 620_000 <= hub.store.hub_time.now_ms() <= now_ms


async def test_messages_with_a_wish_for_expiry_age_too(tmp_path: Path) -> None:
    """MQTT 5 message expiry counts like a time to live of a route."""
    path = tmp_path / "q.db"
    async with running(path, clock=booted("a", MAY_2026_MS)) as hub:
        hub.send(a_message(expiry_ms=HOUR_MS), a_result(P2))
        await hub.store.writer.flush()
    async with running(path, clock=unset("b")) as hub:
        await is_set(hub, MAY_2026_MS + 2 * HOUR_MS)
        await hub.until(lambda: hub.queue().statistics().expired_total == 1, tick_s=1)
