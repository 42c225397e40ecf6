"""Two hubs with stations of their own and one Redis, one of which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.lab.radio.simulation import RadioOptions, RadioSimulation, device_table
from edgehub.lora.identifiers import eui_text
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from edgehub.lab.radio.simulation import RadioResult

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STATIONS = (0xA1, 0xA2, 0xB1, 0xB2)
IN_TIME_MIN = 0.995
UNANSWERED_MAX = 2
STALE_S = 3.0
"""A hub that lost a device learns it from its notice in less than this."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many devices send how often, how long, and how long one of the hubs is down."""

    devices: int
    seconds: float
    joins_per_s: float
    uplinks_per_s: float
    down_s: float
    look_s: float


SMALL = Size(devices=40, seconds=5, joins_per_s=40, uplinks_per_s=14, down_s=1, look_s=0.2)
FULL = Size(devices=1000, seconds=300, joins_per_s=3, uplinks_per_s=5, down_s=50, look_s=2)


class LoraHub(Daemon):
    """One hub with two stations that writes what it gets into a file."""

    def __init__(self, folder: Path, redis: RedisServer, name: str, stations: list[int]) -> None:
        folder.mkdir()
        self.name = name
        self.port = free_port()
        ids = json.dumps([eui_text(each) for each in stations])
        super().__init__(
            folder,
            f"""
            hub_id = "{name}"
            data_dir = "data"
            [mqtt]
            port = 0
            [redis]
            url = "{redis.url}"
            [affinity]
            coordinator = "redis"
            registry = "redis"
            processing_delay_ms = 150
            [lora]
            port = {self.port}
            stations = {ids}
            [upstream]
            type = "file"
            path = "{folder}/upstream.jsonl"
            """,
        )

    def delivered(self) -> list[tuple[str, int]]:
        """Return device and counter of every message in its file.

        After a kill a window may be there twice, under the same ids.
        """
        lines = (self.folder / "upstream.jsonl").read_text("utf-8").splitlines()
        records = {each["id"]: each for each in map(json.loads, lines)}
        return [
            (each["device"], int(each["properties"]["loraCounter"])) for each in records.values()
        ]

    def owned(self) -> dict[str, int]:
        """Return the devices that it says it owns, with the number of the election."""
        page = self.call("device list", limit=500)
        rows: list[dict[str, Any]] = page["devices"]
        while page["next"] is not None:
            page = self.call("device list", limit=500, after=page["next"])
            rows += page["devices"]
        return {row["device_id"]: row["epoch"] for row in rows if row["ownership"] == "owner"}


class Claims:
    """Which hubs say that they own a device, over time.

    A hub that lost one says so until its notice has come, with the number of an older election.
    """

    def __init__(self) -> None:
        self._stale: dict[tuple[str, str, int], float] = {}
        self.looks = 0
        self.faults: list[str] = []

    def look(self, hubs: Sequence[LoraHub]) -> None:
        """Ask hubs, and record devices with two owners."""
        self.looks += 1
        epochs: dict[str, dict[str, int]] = defaultdict(dict)
        for hub in hubs:
            for device_id, epoch in hub.owned().items():
                epochs[device_id][hub.name] = epoch
        now_s, stale = time.monotonic(), {}
        for device_id, found in epochs.items():
            newest = max(found.values())
            if sum(epoch == newest for epoch in found.values()) > 1:
                self.faults.append(f"{device_id}: two hubs won election {newest}")
            for name, epoch in found.items():
                if epoch < newest:
                    claim = (device_id, name, epoch)
                    stale[claim] = self._stale.get(claim, now_s)
        self._stale = stale
        self.faults += [
            f"{device_id}: {name} still owns it by election {epoch}"
            for (device_id, name, epoch), since_s in stale.items()
            if now_s - since_s > STALE_S
        ]


def owners(hubs: Sequence[LoraHub], device_id: str) -> set[str]:
    """Return every hub that owns a device by its own word, or by that of the coordinator.

    A hub that does not own it asks the coordinator; null = this hub.
    """
    found = set()
    for hub in hubs:
        is_owner = hub.call("device show", device_id=device_id)["ownership"] == "owner"
        named = hub.call("device messages", device_id=device_id)["owner"]
        found |= {hub.name} if is_owner else {named} - {None}
    return found


async def run_and_kill(
    simulation: RadioSimulation, hubs: tuple[LoraHub, LoraHub], size: Size, claims: Claims
) -> RadioResult:
    """Run a simulation, kill and start the second hub, and look at who owns what all the time."""
    one, two = hubs

    async def watch(living: Sequence[LoraHub], is_over: Callable[[], bool]) -> None:
        while not is_over():
            await asyncio.to_thread(claims.look, living)
            await asyncio.sleep(size.look_s)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(simulation.run())
        before_kill = size.seconds * size.uplinks_per_s / 3
        await watch(hubs, lambda: simulation.result().uplinks >= before_kill)
        await asyncio.to_thread(two.kill)
        until_s = time.monotonic() + size.down_s
        await watch((one,), lambda: time.monotonic() >= until_s)
        await asyncio.to_thread(two.start)
        await watch(hubs, running.done)
    assert claims.looks >= size.seconds / size.look_s / 3
    return running.result()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a running Redis."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "size",
    [
        # About 12 s where nothing else runs. A mark of the function would count for both.
        pytest.param(SMALL, marks=pytest.mark.timeout(60)),
        pytest.param(FULL, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_a_frame_that_a_living_hub_took_arrives_once_and_a_device_has_one_owner(
    tmp_path: Path, redis: RedisServer, size: Size
) -> None:
    """Whichever hub hears a device; frames to a dead one are repeated, or counted as unheard."""
    one = LoraHub(tmp_path / "one", redis, "one", [0xA1, 0xA2])
    two = LoraHub(tmp_path / "two", redis, "two", [0xB1, 0xB2])
    for hub in (one, two):
        hub.start()
    one.call("lora device import", devices=device_table(size.devices, "e2e"))
    hubs = [f"ws://127.0.0.1:{hub.port}" for hub in (one, one, two, two)]
    options = RadioOptions(
        hubs=hubs,
        stations=STATIONS,
        devices=size.devices,
        seed="e2e",
        seconds=size.seconds,
        joins_per_s=size.joins_per_s,
        uplinks_per_s=size.uplinks_per_s,
    )
    simulation = RadioSimulation(options, random.Random(7))

    claims = Claims()
    result = asyncio.run(run_and_kill(simulation, (one, two), size, claims))
    assert claims.faults == []
    heard = {device_id for hub in (one, two) for device_id, _ in hub.delivered()}
    by_device = {device_id: owners((one, two), device_id) for device_id in heard}
    assert {device_id: found for device_id, found in by_device.items() if len(found) != 1} == {}
    assert set().union(*by_device.values()) == {"one", "two"}
    figures = [hub.call("status")["lora"] for hub in (one, two)]
    for hub in (one, two):
        assert hub.stop() == 0
    delivered = Counter(one.delivered()) + Counter(two.delivered())
    assert [each for each, count in delivered.items() if count > 1] == []
    # What the killed hub had stored and not answered is no other hub's to answer.
    assert len(simulation.unanswered) <= UNANSWERED_MAX
    taken = simulation.arrived | simulation.unanswered
    assert {(eui_text(eui), f_cnt) for eui, f_cnt in taken} - delivered.keys() == set()
    assert result.joined == size.devices
    assert result.acknowledged == result.confirmed - len(simulation.unanswered)
    assert result.reconnects >= 2
    assert result.refused == 0
    windows = Counter(figures[0]["downlinks"]) + Counter(figures[1]["downlinks"])
    in_time = windows["rx1"] + windows["rx2"]
    assert in_time >= IN_TIME_MIN * (in_time + windows["missed"])
    assert result.windows.get("late", 0) <= (1 - IN_TIME_MIN) * in_time
