"""Reports to a service manager: a real datagram socket, a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.notify.reports import EXTENSION_S, PERIOD_S_MAX, START_S_MAX, Reports
from edgehub.notify.service_manager import STATE_MESSAGES_MAX, ServiceManager
from tests.support.notify_socket import NotifySocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration

WATCHDOG_S = 30.0


class Bench:
    """Reports with what they look at."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        self.clock = ManualClock()
        self.stalled: dict[str, float] = {}
        self.asked: list[float] = []
        self.summary = "delivering, 0 waiting"
        self.reports = Reports(
            ServiceManager(address, watchdog_s=watchdog_s),
            clock=self.clock,
            summary=lambda: self.summary,
            stalled=self._stalled,
        )

    def _stalled(self, seconds: float) -> Mapping[str, float]:
        self.asked.append(seconds)
        return self.stalled


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[NotifySocket]:
    """Return the service manager's end."""
    with NotifySocket(str(tmp_path / "notify")) as bound:
        yield bound


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Bench]]:
    """Return a function that runs reports; they end with the test."""
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        def begin(address: str | None, *, watchdog_s: float | None = WATCHDOG_S) -> Bench:
            bench = Bench(address, watchdog_s)
            tasks.append(group.create_task(bench.reports.run()))
            return bench

        yield begin
        for task in tasks:
            task.cancel()


async def test_a_start_asks_for_time_until_it_is_ready(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """A long recovery is not killed; after READY=1 no more time is asked for."""
    bench = start(heard.address)
    await bench.clock.advance(0)
    assert heard.waiting()[0]["EXTEND_TIMEOUT_USEC"] == str(int(EXTENSION_S * 1e6))
    bench.reports.ready()
    assert heard.waiting() == [{"READY": "1", "STATUS": bench.summary}]
    await bench.clock.advance(100)
    assert [m for m in heard.waiting() if "EXTEND_TIMEOUT_USEC" in m] == []


async def test_a_start_that_never_ends_gets_no_more_time(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """The bound of a start that hangs."""
    bench = start(heard.address)
    await bench.clock.advance(START_S_MAX + PERIOD_S_MAX)
    heard.waiting()
    await bench.clock.advance(PERIOD_S_MAX)
    later = heard.waiting()
    assert later
    assert [m for m in later if "EXTEND_TIMEOUT_USEC" in m] == []


async def test_the_watchdog_is_fed_at_least_at_half_its_time(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """A ping may come late by as much again."""
    bench = start(heard.address, watchdog_s=8.0)
    bench.reports.ready()
    await bench.clock.advance(0)
    heard.waiting()
    await bench.clock.advance(4.0 * 5)
    pings = [m for m in heard.waiting() if m.get("WATCHDOG") == "1"]
    assert len(pings) == 5
    assert set(bench.asked) == {16.0}


async def test_a_pump_that_stands_still_ends_the_pings_not_the_status(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """The watchdog will act; meanwhile the status goes on, and pings return with the pump."""
    bench = start(heard.address)
    bench.reports.ready()
    await bench.clock.advance(0)
    heard.waiting()
    bench.stalled = {"upstream": 61.0}
    await bench.clock.advance(100)
    silent = heard.waiting()
    assert len(silent) == 10
    assert [m for m in silent if "WATCHDOG" in m] == []
    assert bench.reports.stalled == {"upstream": 61.0}
    bench.stalled = {}
    await bench.clock.advance(PERIOD_S_MAX)
    assert heard.waiting() == [{"STATUS": bench.summary, "WATCHDOG": "1"}]


async def test_the_status_is_kept_fresh(heard: NotifySocket, start: Callable[..., Bench]) -> None:
    """`systemctl status` shows what is true now, also without a watchdog."""
    bench = start(heard.address, watchdog_s=None)
    bench.reports.ready()
    bench.summary = "collecting, not sending, 7 waiting"
    await bench.clock.advance(PERIOD_S_MAX)
    assert heard.waiting()[-1] == {"STATUS": bench.summary}


async def test_a_reload_is_one_datagram_with_its_time(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """Type=notify-reload knows by the time which request it belongs to; READY=1 ends it."""
    bench = start(heard.address)
    await bench.clock.advance(0)
    heard.waiting()
    with contextlib.suppress(ValueError), bench.reports.reloading():
        now = int(bench.clock.monotonic() * 1e6)
        assert heard.waiting() == [{"RELOADING": "1", "MONOTONIC_USEC": str(now)}]
        raise ValueError
    assert heard.waiting() == [{"READY": "1", "STATUS": bench.summary}]


async def test_a_drain_has_the_time_it_was_promised_and_no_more(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """Each report asks for more until the deadline; then the service manager may act."""
    bench = start(heard.address)
    await bench.clock.advance(0)
    bench.reports.ready()
    heard.waiting()
    bench.reports.stopping(35.0)
    stopping = heard.waiting()[0]
    assert stopping == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": str(int(EXTENSION_S * 1e6))}
    await bench.clock.advance(60)
    asked = [int(m.get("EXTEND_TIMEOUT_USEC", 0)) / 1e6 for m in heard.waiting()]
    assert asked == [25.0, 15.0, 5.0, 0.0, 0.0, 0.0]


async def test_a_drain_is_bounded_by_its_deadline_not_by_the_pumps(
    heard: NotifySocket, start: Callable[..., Bench]
) -> None:
    """A pump that stood still does not have its hub killed while the others settle."""
    bench = start(heard.address)
    bench.reports.ready()
    bench.stalled = {"upstream": 61.0}
    await bench.clock.advance(PERIOD_S_MAX)
    bench.reports.stopping(35.0)
    heard.waiting()
    await bench.clock.advance(PERIOD_S_MAX)
    assert heard.waiting()[0]["WATCHDOG"] == "1"


async def test_nothing_is_sent_without_a_listener(start: Callable[..., Bench]) -> None:
    """Pumps are looked at all the same, for `edgehub status`."""
    bench = start(None)
    bench.stalled = {"upstream": 61.0}
    await bench.clock.advance(0)
    assert bench.reports.stalled == bench.stalled
    assert set(bench.asked) == {60.0}


def test_changes_of_state_are_kept_until_somebody_reads(tmp_path: Path) -> None:
    """READY=1 must arrive, in order and before what is newer; a status may be lost."""
    address = str(tmp_path / "notify")
    manager = ServiceManager(address)
    manager.change_state("RELOADING=1")
    manager.notify("STATUS=lost")
    manager.change_state("READY=1")
    with NotifySocket(address) as heard:
        manager.notify("STATUS=fresh")
        assert heard.waiting() == [{"RELOADING": "1"}, {"READY": "1"}, {"STATUS": "fresh"}]


def test_a_reader_that_sleeps_blocks_nothing(tmp_path: Path) -> None:
    """A full socket takes no more; sending returns at once, and the last states stay."""
    with NotifySocket(str(tmp_path / "notify")) as heard:
        manager = ServiceManager(heard.address)
        for number in range(10_000):
            manager.change_state(f"X={number}")
        taken = heard.waiting()
        manager.notify("STATUS=awake")
        rest = heard.waiting()
    assert len(taken) < 10_000
    assert [m.get("X") for m in rest[:-1]] == [
        str(number) for number in range(10_000 - STATE_MESSAGES_MAX, 10_000)
    ]
    assert rest[-1] == {"STATUS": "awake"}


def test_abstract_addresses_are_reached() -> None:
    """The name behind `@` stands in no file system."""
    with NotifySocket(f"@edgehub-test-{os.getpid()}") as heard:
        ServiceManager(heard.address).change_state("READY=1")
        assert heard.waiting() == [{"READY": "1"}]
