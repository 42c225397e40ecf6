"""Two hubs with stations of their own and one Redis, one of which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.lab.radio.simulation import RadioOptions, RadioSimulation, device_table
from edgehub.lora.identifiers import eui_text
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STATIONS = (0xA1, 0xA2, 0xB1, 0xB2)
IN_TIME_MIN = 0.995
UNANSWERED_MAX = 2


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many devices send how often, how long, and how long one of the hubs is down."""

    devices: int
    seconds: float
    joins_per_s: float
    uplinks_per_s: float
    down_s: float


SMALL = Size(devices=40, seconds=5, joins_per_s=40, uplinks_per_s=14, down_s=1)
FULL = Size(devices=1000, seconds=300, joins_per_s=3, uplinks_per_s=5, down_s=50)


class LoraHub(Daemon):
    """One hub with two stations that writes what it gets into a file."""

    def __init__(self, folder: Path, redis: RedisServer, name: str, stations: list[int]) -> None:
        folder.mkdir()
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


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a running Redis."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.mark.timeout(60)  # about 12 s where nothing else runs
@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(FULL, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])]
)
def test_a_frame_that_a_living_hub_took_arrives_once(
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

    async def run() -> Any:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(simulation.run())
            before_kill = size.seconds * size.uplinks_per_s / 3
            while simulation.result().uplinks < before_kill:  # noqa: ASYNC110 - no event of it
                await asyncio.sleep(0.05)
            await asyncio.to_thread(two.kill)
            await asyncio.sleep(size.down_s)
            await asyncio.to_thread(two.start)
        return running.result()

    result = asyncio.run(run())
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
