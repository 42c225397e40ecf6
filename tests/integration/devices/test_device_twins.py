"""A hub that keeps its devices in their twins upstream, with a real broker and responder."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.settings import SettingsError, check_settings
from tests.support.broker_hub import BrokerHub, running_hub
from tests.support.mosquitto import Mosquitto
from tests.support.redis import RedisServer
from tests.support.swarm import Radio
from tests.support.twin_responder import TwinResponder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFUSED = 0x83

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def responder(broker: Mosquitto) -> Iterator[TwinResponder]:
    """Return what answers for twins there."""
    with TwinResponder(broker.port) as responder:
        yield responder


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a running Redis."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


def settings(port: int, **affinity: Any) -> dict[str, Any]:
    """Return the sections of a hub with twins."""
    return {
        "upstream": {"type": "mqtt", "host": "127.0.0.1", "port": port, "identity": "device"},
        "affinity": {"coordinator": "in-process", "registry": "twin", **affinity},
        "routes": {"all": "FROM /messages/* INTO $upstream"},
    }


async def send(hub: BrokerHub, device: str, *sequences: int) -> list[int]:
    """Have a device send numbered messages; gives the codes of their PUBACKs."""
    radio = await Radio(device).connect(hub.mqtt_port)
    async with asyncio.timeout(10):
        codes = [await radio.frame(sequence) for sequence in sequences]
    await radio.close()
    return codes


async def send_until_taken(hub: BrokerHub, device: str, sequence: int) -> None:
    """Have a device send a message again while it is refused."""
    # Two hubs that read a device in step take its session from each other, at times for a while.
    for _ in range(50):
        if await send(hub, device, sequence) == [0]:
            return
    pytest.fail(f"{device} was refused {sequence} fifty times")


def arrived(hub: BrokerHub) -> int:
    """Count what the peer has confirmed."""
    return int(hub.endpoint()["sent_total"])


async def test_a_device_is_read_from_its_twin_and_reports_its_counter(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """Read once, written now and then, and known to a hub with another data folder."""
    responder.twin("dev-1")["desired"]["edgehub"] = {"keep_alive_s": 600}
    async with running_hub(tmp_path / "one", **settings(broker.port)) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        await send(hub, "dev-1", *range(1, 13))
        await hub.until(lambda: arrived(hub) == 12)
        assert responder.asked.count(("GET", "dev-1")) == 1
        shown = await hub.call("device show", device_id="dev-1")
        assert shown["profile"]["keep_alive_s"] == 600
        with pytest.raises(CommandError, match="changed upstream"):
            await hub.call("device set", device_id="dev-1", keep_alive_s=60)
        with pytest.raises(CommandError, match="changed upstream"):
            await hub.call("device forget", device_id="dev-1")
    reported = responder.twin("dev-1")["reported"]["edgehub"]["f_cnt_up"]
    assert reported >= 10
    async with running_hub(tmp_path / "two", **settings(broker.port)) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        await send(hub, "dev-1", reported - 1, 13)
        await hub.until(lambda: arrived(hub) == 1)
        assert hub.hub.status()["affinity"]["frames"] == {
            "invalid_frame_counter": 1,
            "processed": 1,
        }


async def test_a_twin_that_cannot_be_read_fails_the_frame_and_no_more(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """The device is not acknowledged and sends again; its session was closed behind the try."""
    responder.status = 503
    async with running_hub(tmp_path / "hub", **settings(broker.port)) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        assert await send(hub, "dev-1", 1) == [REFUSED]
        assert hub.hub.status()["affinity"]["sessions"] == 0
        assert hub.hub.status()["affinity"]["frames"] == {"source_unreachable": 1}
        responder.status = None
        await send(hub, "dev-1", 1)
        await hub.until(lambda: arrived(hub) == 1)


async def test_a_hub_whose_upstream_is_away_refuses_devices_that_it_does_not_know(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """Known ones go on, stored; that is the price of keeping devices upstream."""
    async with running_hub(tmp_path / "hub", **settings(broker.port)) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        await send(hub, "dev-1", 1)
        await hub.until(lambda: arrived(hub) == 1)
        await asyncio.to_thread(responder.close)
        await asyncio.to_thread(broker.stop)
        await hub.until(lambda: hub.endpoint()["state"] != "up")
        assert await send(hub, "dev-1", 2) == [0]
        assert hub.depth() == 1
        assert await send(hub, "dev-2", 1) == [REFUSED]


async def test_two_hubs_share_devices_that_are_kept_in_twins(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder, redis: RedisServer
) -> None:
    """Each read takes the session for a moment, and may fail another; each frame arrives once."""
    shared = settings(broker.port, coordinator="redis", processing_delay_ms=150)
    shared["redis"] = {"url": redis.url}
    names = [f"dev-{number}" for number in range(4)]
    async with AsyncExitStack() as stack:
        hubs = []
        for name in ("hub-a", "hub-b"):
            hub = running_hub(tmp_path / name, hub_id=name, **shared)
            hubs.append(await stack.enter_async_context(hub))
        for hub in hubs:
            await hub.until(lambda hub=hub: hub.endpoint()["state"] == "up")
        for frame in range(1, 6):
            await asyncio.gather(
                *(send_until_taken(hub, name, frame) for name in names for hub in hubs)
            )
        async with asyncio.timeout(10):
            while sum(map(arrived, hubs)) < 20:  # noqa: ASYNC110 - a status has no event
                await asyncio.sleep(0.02)
        assert sum(map(arrived, hubs)) == 20
        assert {device for _, device in responder.asked} == set(names)
        owned = [hub.hub.status()["affinity"]["owned"] for hub in hubs]
        assert sum(owned) == 4


@pytest.mark.parametrize("identity", ["hub", None])
def test_twins_want_sessions_of_devices(tmp_path: Path, identity: str | None) -> None:
    """A hub whose devices have no session upstream cannot read their twins."""
    document: dict[str, Any] = {"data_dir": str(tmp_path), "affinity": {"registry": "twin"}}
    if identity:
        document["upstream"] = {"type": "mqtt", "host": "h", "identity": identity}
    with pytest.raises(SettingsError, match=r"affinity\.registry is twin"):
        check_settings(document, file=None)
