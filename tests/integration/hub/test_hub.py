"""A whole hub on a manual clock: real file, real sockets, time only as the test says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from edgehub.clock import ManualClock
from edgehub.errors import ConfigError, StartupError
from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from tests.support.control import call
from tests.support.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def _settings(folder: Path, routes: dict[str, object], **more: object) -> Settings:
    (folder / "m.json").write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": routes,
                "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
            }
        ),
        "utf-8",
    )
    return Settings(
        hub_id="gw", data_dir=folder / "data", manifest=folder / "m.json", mqtt={"port": 0}, **more
    )


async def test_its_owner_is_called_once_all_is_open(tmp_path: Path) -> None:
    """Before it serves: nothing of what stays for good is missing then."""
    calls: list[bool] = []
    hub = Hub(_settings(tmp_path, {}), opened=lambda: calls.append(hub.started.is_set()))
    async with serving(hub):
        assert calls == [False]
        assert hub.mqtt_port


async def _publish(hub: Hub, bodies: list[bytes], properties: str = "") -> None:
    async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="press-1") as client:
        for body in bodies:
            await client.publish(f"devices/press-1/messages/events/{properties}", body, qos=1)


def _depths(hub: Hub) -> dict[str, int]:
    return {queue["id"]: queue["depth"] for queue in hub.status()["queues"]}


async def _advance_until(
    clock: ManualClock, hub: Hub, wanted: dict[str, int], *, folder: Path
) -> None:
    # The clean-up's turn is due on the manual clock, its transaction is done by a real disk: what
    # is asked here is answered by the thread that does all that was asked of the file before.
    async with asyncio.timeout(10):
        while _depths(hub) != wanted:
            await clock.advance(0.5)
            await asyncio.to_thread(call, folder / "data" / "control.sock", "dead list")


async def test_rows_expire_by_their_deadline_not_by_their_place(tmp_path: Path) -> None:
    """T-01, T-08: short-lived rows behind a long-lived one go, on time, from disk too."""
    clock = ManualClock()
    routes: dict[str, object] = {
        "long": {
            "route": "FROM /messages/* WHERE kind = 'long' INTO $upstream",
            "priority": 2,
            "timeToLiveSecs": 604_800,
        },
        "short": {
            "route": "FROM /messages/* WHERE kind = 'short' INTO $upstream",
            "priority": 2,
            "timeToLiveSecs": 5,
        },
    }
    out = tmp_path / "out.jsonl"
    async with serving(Hub(_settings(tmp_path, routes), clock=clock)) as hub:
        await _publish(hub, [b"a"], "kind=long")
        await _publish(hub, [b"b"] * 5, "kind=short")
        assert _depths(hub) == {"upstream_Pri2": 6}
        began_s = clock.monotonic()
        await clock.advance(10)
        await _advance_until(clock, hub, {"upstream_Pri2": 1}, folder=tmp_path)
        assert clock.monotonic() - began_s <= 20
        queue = hub.status()["queues"][0]
        assert queue["expired"] == 5
        # The time to live of these ends while nobody is there to clean up.
        await _publish(hub, [b"c"] * 5, "kind=short")
    await clock.advance(6)
    settings = _settings(tmp_path, routes, upstream={"type": "file", "path": out})
    async with serving(Hub(settings, clock=clock)) as hub:
        await _advance_until(clock, hub, {"upstream_Pri2": 0}, folder=tmp_path)
    assert [json.loads(line)["body"] for line in out.read_text("utf-8").splitlines()] == ["a"]


async def test_back_off_counts_elapsed_time(tmp_path: Path) -> None:
    """W-03: two hours back at 10 s of a wait of half a minute; the next attempt is at its end."""
    clock = ManualClock()
    attempts: asyncio.Queue[float] = asyncio.Queue()

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.put_nowait(clock.monotonic())
        writer.close()

    async def wait_s() -> float:
        # The sockets are real, and so is the time until the hub knows that it was refused.
        async with asyncio.timeout(10):
            while True:
                control = tmp_path / "data" / "control.sock"
                (endpoint,) = (await asyncio.to_thread(call, control, "status"))["endpoints"]
                if endpoint["backoff_remaining_s"] is not None:
                    return float(endpoint["backoff_remaining_s"])

    peer = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = peer.sockets[0].getsockname()[1]
    upstream = {"type": "mqtt", "host": "127.0.0.1", "port": port, "mqtt": "3.1.1"}
    async with peer, serving(Hub(_settings(tmp_path, {}, upstream=upstream), clock=clock)):
        async with asyncio.timeout(30):
            await attempts.get()
            while (left_s := await wait_s()) < 25:
                await clock.advance(left_s + 0.1)
                await attempts.get()
        due_s = clock.monotonic() + left_s
        await clock.advance(10)
        clock.step_wall(-7_200_000)
        await clock.advance(left_s - 11)
        assert await wait_s() == pytest.approx(1, abs=0.2)
        assert attempts.empty()
        await clock.advance(1.1)
        async with asyncio.timeout(10):
            assert await attempts.get() == pytest.approx(due_s, abs=0.2)


async def test_a_step_of_the_wall_clock_expires_nothing(tmp_path: Path) -> None:
    """W-02: a year forward or back moves no deadline; elapsed time does."""
    clock = ManualClock()
    routes: dict[str, object] = {
        "a": {"route": "FROM /messages/* INTO $upstream", "priority": 1, "timeToLiveSecs": 60}
    }
    async with serving(Hub(_settings(tmp_path, routes), clock=clock)) as hub:
        await _publish(hub, [b"a"] * 3)
        for step_ms, age_s in ((365 * 86_400_000, 24), (-2 * 365 * 86_400_000, 48)):
            clock.step_wall(step_ms)
            for _ in range(4):
                await clock.advance(6)
                # Answered by the thread that would have deleted them.
                await asyncio.to_thread(call, tmp_path / "data" / "control.sock", "dead list")
            (queue,) = hub.status()["queues"]
            assert (queue["depth"], queue["expired"]) == (3, 0)
            assert queue["oldest_age_s"] == pytest.approx(age_s, abs=1)
        await clock.advance(13)
        began_s = clock.monotonic()
        await _advance_until(clock, hub, {"upstream_Pri1": 0}, folder=tmp_path)
        assert clock.monotonic() - began_s <= 10


async def test_hub_time_goes_on_over_a_restart_within_a_boot(tmp_path: Path) -> None:
    """A row stored before a restart expires after it, counted from its enqueueing."""
    clock = ManualClock()
    routes: dict[str, object] = {
        "a": {"route": "FROM /messages/* INTO $upstream", "priority": 1, "timeToLiveSecs": 60}
    }
    settings = _settings(tmp_path, routes)
    async with serving(Hub(settings, clock=clock)) as hub:
        await _publish(hub, [b"a"])
    await clock.advance(40)
    async with serving(Hub(settings, clock=clock)) as hub:
        assert _depths(hub) == {"upstream_Pri1": 1}
        assert hub.status()["queues"][0]["oldest_age_s"] == pytest.approx(40, abs=1)
        await clock.advance(21)
        await _advance_until(clock, hub, {"upstream_Pri1": 0}, folder=tmp_path)


async def test_queues_that_no_route_names_any_more_are_adopted(tmp_path: Path) -> None:
    """A changed manifest strands nothing: the old queue is there after a restart, and drains."""
    clock = ManualClock()
    old: dict[str, object] = {"a": {"route": "FROM /messages/* INTO $upstream", "priority": 4}}
    new: dict[str, object] = {"a": {"route": "FROM /messages/* INTO $upstream", "priority": 1}}
    out = tmp_path / "out.jsonl"
    async with serving(Hub(_settings(tmp_path, old), clock=clock)) as hub:
        await _publish(hub, [b"old"])
    settings = _settings(tmp_path, new, upstream={"type": "file", "path": out})
    async with serving(Hub(settings, clock=clock)) as hub:
        await _publish(hub, [b"new"])
        await _advance_until(clock, hub, {"upstream_Pri1": 0, "upstream_Pri4": 0}, folder=tmp_path)
    bodies = {json.loads(line)["body"] for line in out.read_text("utf-8").splitlines()}
    assert bodies == {"old", "new"}


async def test_rows_of_an_endpoint_that_is_gone_are_orphans(tmp_path: Path) -> None:
    """They are parked and shown, and flow again once the endpoint is named again."""
    clock = ManualClock()
    routes: dict[str, object] = {"a": 'FROM /messages/* INTO Endpoint("lab")'}
    lab = {"type": "mqtt", "host": "127.0.0.1", "port": 1}
    async with serving(
        Hub(_settings(tmp_path, routes, endpoints={"lab": lab}), clock=clock)
    ) as hub:
        await _publish(hub, [b"a"])
        assert _depths(hub) == {"lab": 1}
    rest: dict[str, object] = {"a": "FROM /messages/* INTO $upstream"}
    async with serving(Hub(_settings(tmp_path, rest), clock=clock)) as hub:
        status = hub.status()
        assert [queue["orphaned"] for queue in status["queues"]] == [True]
        assert "'lab' are orphaned" in status["warnings"][0]
    out = tmp_path / "lab.jsonl"
    lab_file = {"type": "file", "path": out}
    async with serving(
        Hub(_settings(tmp_path, rest, endpoints={"lab": lab_file}), clock=clock)
    ) as hub:
        await _advance_until(clock, hub, {"lab": 0}, folder=tmp_path)
    assert json.loads(out.read_text("utf-8"))["body"] == "a"


async def test_what_cannot_start_raises_its_own_error(tmp_path: Path) -> None:
    """Callers see the error itself, not a group around it."""
    routes: dict[str, object] = {"a": 'FROM /messages/* INTO Endpoint("lab")'}
    with pytest.raises(ConfigError, match="lab"):
        await Hub(_settings(tmp_path, routes), clock=ManualClock()).run()
    fine: dict[str, object] = {"a": "FROM /messages/* INTO $upstream"}
    settings = _settings(tmp_path, fine)
    async with serving(Hub(settings, clock=ManualClock())):
        with pytest.raises(StartupError):
            await Hub(settings, clock=ManualClock()).run()
