"""Hubs as processes that hear the same devices, each device with its own session upstream."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import Fleet, Upstream
from tests.support.swarm import Swarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
DEVICES = 900 if SOAK else 24
FRAMES = 10 if SOAK else 5
ROUND_S = 12.0 if SOAK else 0.2
"""A full round is paced so that two shared cores carry broker, Redis, hubs and devices."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900 if SOAK else 60)]


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Make fleets that leave no process behind."""
    fleets: list[Fleet] = []

    def make(**options: object) -> Fleet:
        folder = tmp_path / f"fleet-{len(fleets)}"
        folder.mkdir()
        fleets.append(Fleet(folder, **options))
        return fleets[-1].start()

    yield make
    for fleet in fleets:
        fleet.close()


def _fly(fleet: Fleet, count: int, frames: int, *, first: int = 1) -> Swarm:
    """Have devices send frames that all hubs hear."""

    async def fly() -> Swarm:
        swarm = Swarm(count, fleet.ports)
        await swarm.connect()
        for frame in range(first, first + frames):
            await swarm.round(frame, within_s=ROUND_S)
        await swarm.close()
        return swarm

    return asyncio.run(fly())


def _is_whole(upstream: Upstream, swarm: Swarm, frames: int) -> None:
    """Wait until every frame has arrived, and check that each came once."""
    wanted = {(name, frame) for name in swarm.names for frame in range(1, frames + 1)}
    deadline, missing = time.monotonic() + 30, len(wanted)
    while lost := wanted - upstream.seen.keys():
        if len(lost) < missing:
            # On a machine that others use a backlog drains slowly; what counts is that it drains.
            deadline, missing = time.monotonic() + 30, len(lost)
        assert time.monotonic() < deadline, (missing, sorted(lost)[:5])
        time.sleep(0.05)  # paho counts in a thread of its own
    assert upstream.seen.keys() == wanted
    assert set(upstream.seen.values()) == {1}


@pytest.mark.scaled
@pytest.mark.parametrize("hubs", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_hubs_share_devices_without_fighting_over_them(
    make_fleet: Callable[..., Fleet], hubs: int
) -> None:
    """Each device has one holder, its session hardly ever moves, and each frame arrives once."""
    fleet = make_fleet(hubs=hubs)
    upstream = Upstream(fleet.broker.port)
    swarm = _fly(fleet, DEVICES, FRAMES)
    assert swarm.heard.refused == 0
    _is_whole(upstream, swarm, FRAMES)
    held = fleet.wait_for_holders(swarm.names, 10)
    assert len({holder for (holder,) in held.values()}) == hubs
    taken = sum(fleet.take_overs().values())
    openings = fleet.openings()
    assert taken <= DEVICES * 0.02
    assert openings <= DEVICES * 1.1
    assert fleet.stop_hubs() == [0] * hubs
    upstream.close()


@pytest.mark.scaled
def test_without_a_delay_devices_follow_whoever_hears_them_first(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Sessions move all the time, which is what the delay is for; still nothing is sent twice."""
    fleet = make_fleet(delay_ms=0)
    upstream = Upstream(fleet.broker.port)
    swarm = _fly(fleet, DEVICES, FRAMES)
    _is_whole(upstream, swarm, FRAMES)
    fleet.wait_for_holders(swarm.names, 10)
    assert fleet.openings() > DEVICES * FRAMES / 4
    upstream.close()


def test_a_killed_owner_is_replaced_within_the_delay_and_one_frame(
    make_fleet: Callable[..., Fleet],
) -> None:
    """The other hub waits, is elected, and sends the first frame that the owner did not hear."""
    fleet = make_fleet()
    upstream = Upstream(fleet.broker.port)

    async def fly() -> tuple[Swarm, float, list[str]]:
        swarm = Swarm(12, fleet.ports)
        await swarm.connect()
        for frame in (1, 2):
            await swarm.round(frame, within_s=0.2)
        held = fleet.wait_for_holders(swarm.names, 10)
        lost = [name for name in swarm.names if held[name] == ["hub-0"]]
        await asyncio.to_thread(fleet.hubs[0].kill)
        begun = time.monotonic()
        await swarm.round(3, within_s=0.0)
        took_s = time.monotonic() - begun
        await swarm.close()
        return swarm, took_s, lost

    swarm, took_s, lost = asyncio.run(fly())
    assert lost
    assert took_s < 1.5  # the delay of 0.4 s, the election and the commit
    _is_whole(upstream, swarm, 3)
    held = fleet.wait_for_holders(swarm.names, 10)
    assert {holder for (holder,) in held.values()} == {"hub-1"}
    steals = fleet.hubs[1].call("device ledger")["last_hour"]["taken"]
    assert steals == len(lost)
    fleet.hubs[0].start()
    assert fleet.owners() == held, "a hub that comes back takes nothing away"
    upstream.close()


def test_a_hub_that_comes_back_with_rows_takes_no_session(
    make_fleet: Callable[..., Fleet],
) -> None:
    """It reads what it was told before it opens any; its rows wait for their time to live."""
    fleet = make_fleet()

    async def fly() -> Swarm:
        swarm = Swarm(12, fleet.ports)
        await swarm.connect()
        await swarm.round(1, within_s=0.2)
        fleet.wait_for_holders(swarm.names, 10)
        await asyncio.to_thread(fleet.broker.stop)
        await swarm.round(2, within_s=0.2)
        await asyncio.to_thread(fleet.hubs[0].kill)
        await asyncio.to_thread(fleet.broker.start)
        await swarm.round(3, within_s=0.2)
        await swarm.close()
        return swarm

    swarm = asyncio.run(fly())
    held = fleet.wait_for_holders(swarm.names, 10)
    assert {holder for (holder,) in held.values()} == {"hub-1"}
    fleet.hubs[0].start()
    fleet.hubs[0].wait_until(
        lambda: fleet.hubs[0].call("status")["endpoints"][0]["state"] == "up", 10
    )
    status = fleet.hubs[0].call("status")
    assert sum(queue["depth"] for queue in status["queues"]) > 0
    assert (status["affinity"]["owned"], status["affinity"]["sessions"]) == (0, 0)
    assert fleet.owners() == held
    assert sum(fleet.take_overs().values()) == 0


@pytest.mark.parametrize("persistent", [True, False], ids=["with its data", "without its data"])
def test_redis_may_be_restarted(make_fleet: Callable[..., Fleet], persistent: bool) -> None:
    """Frames fail while it is away and no flag changes; afterwards each device has one holder."""
    fleet = make_fleet(persistent=persistent)
    upstream = Upstream(fleet.broker.port)

    async def fly() -> Swarm:
        swarm = Swarm(12, fleet.ports)
        await swarm.connect()
        await swarm.round(1, within_s=0.2)
        held = fleet.wait_for_holders(swarm.names, 10)
        fleet.redis.stop(forget=not persistent)
        await swarm.round(2, within_s=0.2)
        assert swarm.heard.refused == 24, "all fail, at both hubs"
        assert fleet.owners() == held
        fleet.redis.start()
        for frame in (3, 4, 5):
            await swarm.round(frame, within_s=0.5)
        assert swarm.heard.refused == 24
        await swarm.close()
        return swarm

    swarm = asyncio.run(fly())
    fleet.wait_drained(10)
    fleet.wait_for_holders(swarm.names, 10)
    assert sum(fleet.take_overs().values()) <= 1
    frames = {frame for _, frame in upstream.seen}
    assert frames == {1, 3, 4, 5}
    assert len(upstream.seen) == 12 * 4
    assert set(upstream.seen.values()) == {1}
    upstream.close()


def test_a_hub_keeps_its_flags_over_a_restart(make_fleet: Callable[..., Fleet]) -> None:
    """A loser that comes back waits as before, and the owner keeps the device."""
    fleet = make_fleet()
    swarm = _fly(fleet, 8, 2)
    held = fleet.wait_for_holders(swarm.names, 10)
    assert fleet.stop_hubs() == [0, 0]
    fleet.start_hubs()
    swarm = _fly(fleet, 8, 2, first=3)
    assert fleet.wait_for_holders(swarm.names, 10) == held


LOW_LIMIT = (
    "import resource as r, runpy, sys; "
    "r.setrlimit(r.RLIMIT_NOFILE, (128, r.getrlimit(r.RLIMIT_NOFILE)[1])); "
    "sys.argv[0] = 'edgehub'; runpy.run_module('edgehub', run_name='__main__')"
)
"""Runs the daemon as from a shell that allows few open files."""


def test_a_low_limit_of_open_files_is_raised(make_fleet: Callable[..., Fleet]) -> None:
    """Each client and each device's session is a file, and the usual limit is below them all."""
    fleet = make_fleet(hubs=1, program=("-c", LOW_LIMIT))
    upstream = Upstream(fleet.broker.port)
    swarm = _fly(fleet, 100, 1)
    assert swarm.heard.refused == 0
    _is_whole(upstream, swarm, 1)
    assert fleet.openings() == 100
    upstream.close()


def test_a_session_that_a_stranger_takes_is_not_fought_for(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Its session is paused, others go on, and the next election here opens it again."""
    fleet = make_fleet(hubs=1)
    upstream = Upstream(fleet.broker.port)

    async def fly() -> None:
        swarm = Swarm(3, fleet.ports)
        await swarm.connect()
        await swarm.round(1, within_s=0.1)
        fleet.wait_for_holders(swarm.names, 10)
        stranger = await Swarm(1, [fleet.broker.port]).connect_all()
        await asyncio.to_thread(fleet.hubs[0].wait_event, "device.session_taken_over", 10)
        assert not stranger.lost.is_set()
        status = fleet.hubs[0].call("status")["affinity"]
        assert (status["sessions"], status["upstream_sessions"]["paused"]) == (2, 1)
        await swarm.round(2, within_s=0.1)
        async with asyncio.timeout(10):
            await stranger.lost.wait()
        await stranger.close()
        await swarm.close()

    asyncio.run(fly())
    deadline = time.monotonic() + 10
    while len(upstream.seen) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # paho counts in a thread of its own
    assert sum(fleet.take_overs().values()) == 2
    upstream.close()
