"""What a hub says about the future of its queues, on a manual clock with real files."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from tests.support.control import call
from tests.support.manual_hub import publish, queue, running, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def test_a_load_beyond_the_link_is_never_drained_and_a_pause_of_it_is(
    tmp_path: Path,
) -> None:
    """Behind 3 kB/s of alarms on a link of 1 kB/s, bulk never leaves; once they stop, it does."""
    clock = ManualClock()
    upstream = {"type": "file", "path": tmp_path / "out.jsonl", "rate_bytes_s_max": 1000}
    async with running(tmp_path, clock, upstream=upstream) as hub:
        await publish(hub, "bulk", 20)
        await publish(hub, "alarm", 150)
        await clock.advance(0.5)
        await until(clock, tmp_path, lambda: queue(hub, "upstream_Pri0")["sent"] > 0)
        await clock.advance(10)
        assert queue(hub, "upstream_Pri7")["drain"] == {"state": "never", "seconds": None}
        assert queue(hub, "upstream_Pri0")["unserved_s"] is not None
        # Five minutes later nothing of the burst is in the rates any more.
        await until(
            clock,
            tmp_path,
            lambda: queue(hub, "upstream_Pri7")["drain"]["state"] in {"drains", "empty"},
            tick_s=5,
        )


async def test_the_time_to_empty_is_about_right(tmp_path: Path) -> None:
    """P-07: what waits over what the link carries, within a fifth, while nothing new comes."""
    clock = ManualClock()
    out = tmp_path / "out.jsonl"
    async with running(tmp_path, clock) as hub:
        await publish(hub, "alarm", 300)
    upstream = {"type": "file", "path": out, "rate_bytes_s_max": 500}
    async with running(tmp_path, clock, upstream=upstream) as hub:
        for _ in range(300):
            await clock.advance(0.1)
            while hub.status()["endpoints"][0]["in_flight_rows"]:
                await asyncio.to_thread(int)  # the disk is real, so that it takes no time here
        alarms = queue(hub, "upstream_Pri0")
        lines = out.read_bytes().splitlines(keepends=True)
        wanted_s = alarms["depth"] * len(lines[0]) / 500
        assert alarms["drain"]["state"] == "drains"
        assert alarms["drain"]["seconds"] == pytest.approx(wanted_s, rel=0.2)


async def test_a_burst_passes_for_a_load_that_stays_for_a_minute_only(tmp_path: Path) -> None:
    """300 messages at once take the link minutes; a minute later their queue will be empty."""
    clock = ManualClock()
    upstream = {"type": "file", "path": tmp_path / "out.jsonl", "rate_bytes_s_max": 500}
    async with running(tmp_path, clock, upstream=upstream) as hub:
        await publish(hub, "alarm", 300)
        states: list[str] = []
        for _ in range(360):
            await clock.advance(0.25)
            while hub.status()["endpoints"][0]["in_flight_rows"]:
                await asyncio.to_thread(int)  # the disk is real, so that it takes no time here
            states.append(queue(hub, "upstream_Pri0")["drain"]["state"])
        assert "never" in states[:240]
        assert set(states[280:]) == {"drains"}
        assert queue(hub, "upstream_Pri0")["depth"] > 0


async def test_a_warning_comes_before_the_oldest_row_expires(tmp_path: Path) -> None:
    """O-06, T-06: a hub that cannot send says so, how old its rows are, and what is about to go."""
    clock = ManualClock()
    upstream = {"type": "mqtt", "host": "127.0.0.1", "port": 1}
    with capture_logs() as lines:
        async with running(tmp_path, clock, upstream=upstream) as hub:
            await publish(hub, "alarm", 3)
            await publish(hub, "bulk", 5)
            await clock.advance(600)
            assert "collecting, not sending, 8 waiting" in hub.status()["summary"]
            await until(
                clock,
                tmp_path,
                lambda: queue(hub, "upstream_Pri7")["oldest_ttl_s"] == 900,
                tick_s=1,
            )
            await until(
                clock,
                tmp_path,
                lambda: any(line["event"] == "forecast.expiry_near" for line in lines),
                tick_s=5,
            )
            bulk = queue(hub, "upstream_Pri7")
            assert 0 < bulk["oldest_expires_in_s"] <= 180
            assert any(
                "upstream_Pri7: its oldest message expires" in w for w in hub.status()["warnings"]
            )
            await until(
                clock, tmp_path, lambda: queue(hub, "upstream_Pri7")["depth"] == 0, tick_s=5
            )
            assert queue(hub, "upstream_Pri7")["oldest_expires_in_s"] is None
            clock.suspend(6600 - 960)
            await clock.advance(60)
            assert queue(hub, "upstream_Pri0")["oldest_age_s"] == pytest.approx(6600, abs=400)
    told = [line for line in lines if line["event"] == "forecast.expiry_near"]
    assert [(line["queue_id"], line["waiting"], line["drain"]) for line in told] == [
        ("upstream_Pri7", 5, "offline")
    ]


async def test_a_queue_shows_when_its_first_row_expires_at_once(tmp_path: Path) -> None:
    """No look at the clock's next turn is needed; without an upstream nothing serves the queue."""
    async with running(tmp_path, ManualClock()) as hub:
        await publish(hub, "bulk", 1)
        path = tmp_path / "data" / "control.sock"
        (listed,) = (await asyncio.to_thread(call, path, "queue list"))["queues"]
        assert listed["oldest_expires_in_s"] == pytest.approx(900)
        assert listed["drain"]["state"] == "unserved"
        await publish(hub, "alarm", 1)
        status = await asyncio.to_thread(call, path, "status")
        assert status["queues"][0]["oldest_expires_in_s"] == pytest.approx(86_400)


async def test_a_queue_shows_when_its_new_oldest_row_expires_at_once(tmp_path: Path) -> None:
    """The one before it has left, or aged by time without power: no old figure is shown."""
    clock = ManualClock()
    async with running(tmp_path, clock) as hub:
        await publish(hub, "bulk", 1)
        await clock.advance(100)
        await publish(hub, "bulk", 1)
        path = tmp_path / "data" / "control.sock"
        (listed,) = (await asyncio.to_thread(call, path, "queue list"))["queues"]
        assert listed["oldest_expires_in_s"] == pytest.approx(800)
        ask = partial(call, path, "queue purge", queue="upstream_Pri7", through=1)
        assert (await asyncio.to_thread(ask))["rows"] == 1
        (listed,) = (await asyncio.to_thread(call, path, "queue list"))["queues"]
        assert (listed["depth"], listed["oldest_expires_in_s"]) == (1, pytest.approx(900))


HALF_PAST_TWO_MS = round(datetime(2026, 12, 1, 2, 30, tzinfo=UTC).timestamp() * 1000)


def every_six_hours(folder: Path) -> dict[str, object]:
    """Return an upstream with windows at 0, 6, 12 and 18 o'clock."""
    return {"type": "file", "path": folder / "out.jsonl", "open_at": ["0 */6 * * *"]}


async def test_a_row_that_expires_before_the_next_window_is_warned_of_at_once(
    tmp_path: Path,
) -> None:
    """900 s to live, 3.5 h to the window: said while nearly all of its time is left."""
    clock = ManualClock(wall_ms=HALF_PAST_TWO_MS)
    upstream = every_six_hours(tmp_path) | {"urgent_priority": -1}
    path = tmp_path / "data" / "control.sock"
    async with running(tmp_path, clock, upstream=upstream) as hub:
        await publish(hub, "bulk", 1)
        await publish(hub, "alarm", 1)  # for a whole day
        status = await asyncio.to_thread(call, path, "status")
        told = [each for each in status["warnings"] if "oldest message" in each]
        where, when = "upstream_Pri7: its oldest message expires in 900 s", "window in 12600 s"
        assert told == [f"{where}, before the next connection {when}"]
        peek = partial(call, path, "queue peek", queue="upstream_Pri7")
        (row,) = (await asyncio.to_thread(peek))["rows"]
        ask = partial(call, path, "why", id=row["id"])
        (copy,) = (await asyncio.to_thread(ask))["copies"]
        assert copy["next_window_in_s"] == pytest.approx(12_600)
        assert copy["expires_before_window"]


async def test_the_id_that_the_next_message_will_get_is_unknown(tmp_path: Path) -> None:
    """Nothing of that id is being stored yet."""
    path = tmp_path / "data" / "control.sock"
    async with running(tmp_path, ManualClock()) as hub:
        await publish(hub, "bulk", 1)
        peek = partial(call, path, "queue peek", queue="upstream_Pri7")
        (row,) = (await asyncio.to_thread(peek))["rows"]
        prefix, _, offset = row["id"].rpartition("-")
        for digits, state in ((offset, "waiting"), (f"{int(offset, 16) + 1:x}", "unknown")):
            ask = partial(call, path, "why", id=f"{prefix}-{digits}")
            assert (await asyncio.to_thread(ask))["state"] == state


async def test_windows_that_are_not_kept_are_warned_of(tmp_path: Path) -> None:
    """The link is up at half past two since nobody knows the date; the warning ends with that."""
    clock = ManualClock(wall_ms=HALF_PAST_TWO_MS, is_synchronized=False)
    upstream = every_six_hours(tmp_path)
    routes = {"all": {"route": "FROM /messages/* INTO $upstream"}}  # the global time to live holds
    with capture_logs() as lines:
        async with running(tmp_path, clock, routes=routes, upstream=upstream) as hub:
            await until(clock, tmp_path, lambda: hub.status()["endpoints"][0]["state"] == "up")
            status = hub.status()
            reason = status["store"]["clock"]["reason"]
            assert (
                "endpoint 'upstream' is open outside of its connection windows too: "
                f"the clock is not trusted ({reason})"
            ) in status["warnings"]
            clock.is_synchronized = True
            await until(
                clock, tmp_path, lambda: hub.status()["store"]["clock"]["trusted"], tick_s=5
            )
            assert "windows" not in "".join(hub.status()["warnings"])
    told = [line["event"] for line in lines]
    assert {"hub.config_warning", "endpoint.windows_not_kept"} <= set(told)
    assert "endpoint.window_opened" not in told
