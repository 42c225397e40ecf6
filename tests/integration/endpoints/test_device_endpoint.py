"""The hub's upstream with a session for each device, in one process with a real broker."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from edgehub.devices.affinity.flags import Cause, Flags, Ownership
from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from edgehub.settings.origin import LoadedSettings
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_peer import mqtt_peer
from tests.support.quick_clock import QuickClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from edgehub.clock import Clock

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests."""
    with Mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@asynccontextmanager
async def running(
    tmp_path, port: int, *, clock: Clock | None = None, **upstream
) -> AsyncIterator[Hub]:
    """Run a hub whose devices have their own sessions upstream."""
    hub = Hub(
        Settings(
            hub_id=f"hub-{tmp_path.name[-20:]}",
            data_dir=tmp_path / "data",
            drain_timeout_s=2,
            mqtt={"port": 0},
            upstream={
                "type": "mqtt",
                "host": "127.0.0.1",
                "port": port,
                "identity": "device",
                **upstream,
            },
        ),
        clock=clock,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(hub.run())
        await hub.started.wait()
        try:
            yield hub
        finally:
            hub.stop()
    assert running.result()


@asynccontextmanager
async def listening(port: int) -> AsyncIterator[aiomqtt.Client]:
    """Hear what arrives upstream."""
    async with aiomqtt.Client("127.0.0.1", port, identifier="listener") as client:
        await client.subscribe("devices/#", qos=1)
        yield client


def flags_of(hub: Hub) -> Flags:
    """Return what the hub knows of elections."""
    [devices] = [part for part in hub.parts if part.name == "devices"]
    return devices._flags  # noqa: SLF001 - what only another hub could change otherwise


async def hear(client: aiomqtt.Client, count: int) -> list[bytes]:
    """Return the next payloads."""
    heard: list[bytes] = []
    async with asyncio.timeout(10):
        async for message in client.messages:
            heard.append(message.payload)
            if len(heard) == count:
                break
    return heard


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a hub tells when it is asked."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a status has no event
            await asyncio.sleep(0.02)


async def send(hub: Hub, device: str, *bodies: bytes) -> None:
    """Have a device send messages."""
    async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier=device) as client:
        for body in bodies:
            await client.publish(f"devices/{device}/messages/events/", body, qos=1)


async def test_each_device_has_its_session(tmp_path, broker):
    """They are opened with the first message and stay; the hub's own messages have the hub's."""
    async with listening(broker.port) as upstream, running(tmp_path, broker.port) as hub:
        for device in ("t1-a", "t1-b"):
            await send(hub, device, b"1", b"2")
        assert sorted(await hear(upstream, 4)) == [b"1", b"1", b"2", b"2"]
        status = hub.status()["affinity"]
        assert (status["sessions"], status["upstream_sessions"]["losses"]) == (2, 0)


async def test_a_packet_that_the_broker_cannot_take_blocks_nothing(tmp_path):
    """P-10: Mosquitto says how much it takes; what is larger is a dead letter at once."""
    with Mosquitto(tmp_path / "small", "max_packet_size 1000") as small:
        async with listening(small.port) as upstream, running(tmp_path, small.port) as hub:
            await send(hub, "t9-a", b"1", bytes(2000), b"2", b"3")
            assert await hear(upstream, 3) == [b"1", b"2", b"3"]
            await until(lambda: hub.status()["store"]["dead_letter_rows"] == 1)
            assert hub.status()["affinity"]["upstream_sessions"]["losses"] == 0


@pytest.mark.parametrize("on_behalf", [False, True])
async def test_a_lost_devices_rows_wait_or_take_the_hubs_session(tmp_path, broker, on_behalf):
    """Never the device's own; an election lets what waited go."""
    device = f"t2-{on_behalf}".lower()
    async with (
        listening(broker.port) as upstream,
        running(tmp_path, broker.port, on_behalf=on_behalf) as hub,
    ):
        flags = flags_of(hub)
        flags.of = lambda name: Ownership.LOSER if name == device else Ownership.OWNER
        await send(hub, device, b"lost")
        await send(hub, "t2-other", b"other")
        heard = await hear(upstream, 2 if on_behalf else 1)
        assert (b"lost" in heard) is on_behalf
        assert hub.status()["affinity"]["sessions"] == 1
        if not on_behalf:
            flags.of = lambda _name: Ownership.OWNER
            flags.set(device, Ownership.OWNER, 7, cause=Cause.REGAINED)
            assert await hear(upstream, 1) == [b"lost"]


async def test_turns_go_round_the_devices_of_a_queue(tmp_path):
    """One with a backlog does not keep the others back."""
    link = Mosquitto(tmp_path / "late")
    async with running(tmp_path, link.port) as hub:
        await send(hub, "t3-a", *[b"a"] * 400)
        await send(hub, "t3-b", b"b")
        link.start()
        async with listening(link.port) as upstream:
            await hub.operations["config reload"]({})
            heard = await hear(upstream, 401)
        assert heard.index(b"b") < 200
        assert hub.status()["affinity"]["sessions"] == 2
    link.stop()


async def test_a_broker_that_restarts_is_no_take_over(tmp_path):
    """All sessions open again with the hub's own session."""
    broker = Mosquitto(tmp_path / "restarted").start()
    async with running(tmp_path, broker.port) as hub:
        async with listening(broker.port) as upstream:
            await send(hub, "t4-a", b"1")
            assert await hear(upstream, 1) == [b"1"]
        broker.stop()
        await until(lambda: not hub.status()["affinity"]["sessions"])
        await send(hub, "t4-a", b"2")
        broker.start()
        async with listening(broker.port) as upstream:
            await hub.operations["config reload"]({})
            assert await hear(upstream, 1) == [b"2"]
        assert hub.status()["affinity"]["upstream_sessions"]["take_overs"] == 0
    broker.stop()


async def test_messages_to_a_device_come_over_its_session(tmp_path, broker):
    """To a device that only listens at the hub, and has sent nothing."""
    topic = "devices/t5-a/messages/devicebound/k=v"
    async with listening(broker.port) as upstream:
        # Retained, so that the moment of the subscription upstream does not matter.
        await upstream.publish(topic, b"down", qos=1, retain=True)
        async with (
            running(tmp_path, broker.port) as hub,
            aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="t5-a") as device,
        ):
            await device.subscribe("devices/t5-a/messages/devicebound/#", qos=1)
            assert await hear(device, 1) == [b"down"]
            shown = hub.status()["affinity"]
            assert (shown["sessions"], shown["upstream_sessions"]["listening"]) == (1, 1)
        await upstream.publish(topic, b"", qos=1, retain=True)


async def test_a_reload_changes_whose_sessions_are_used(tmp_path, broker):
    """From the hub's one to one for each device, and back; nothing is lost on the way."""

    def settings(**upstream) -> Settings:
        there = {"type": "mqtt", "host": "127.0.0.1", "port": broker.port}
        return Settings(
            hub_id="hub-t6", data_dir=tmp_path, mqtt={"port": 0}, upstream={**there, **upstream}
        )

    wanted = [settings()]
    hub = Hub(settings(), reread=lambda: LoadedSettings(settings=wanted[0], origins={}))
    async with listening(broker.port) as upstream, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(hub.run())
        await hub.started.wait()
        for number, (options, sessions) in enumerate(
            [
                ({}, None),
                ({"identity": "device"}, 2),
                ({"identity": "device", "device_mqtt": "3.1.1"}, 2),
                ({}, 0),
            ]
        ):
            wanted[0] = settings(**options)
            await hub.operations["config reload"]({})
            for device in ("t6-a", "t6-b"):
                await send(hub, device, b"%d" % number)
            assert await hear(upstream, 2) == [b"%d" % number] * 2
            assert hub.status()["affinity"].get("sessions") == sessions
        hub.stop()
    assert running.result()


async def test_a_parent_hub_sees_the_devices_themselves(tmp_path):
    """They sign in there under their own ids; one that comes by another way is not fought for."""
    parent = Hub(Settings(hub_id="parent", data_dir=tmp_path / "parent", mqtt={"port": 0}))
    async with asyncio.TaskGroup() as tasks:
        running_parent = tasks.create_task(parent.run())
        await parent.started.wait()
        async with running(tmp_path, parent.mqtt_port) as hub:
            await send(hub, "t7-a", b"1")
            await until(lambda: parent.status()["store"]["rows"] == 1)
            assert parent.status()["mqtt"]["clients"] == 2
            async with aiomqtt.Client("127.0.0.1", parent.mqtt_port, identifier="t7-a"):
                await until(
                    lambda: hub.status()["affinity"]["upstream_sessions"]["take_overs"] == 1
                )
                await send(hub, "t7-a", b"2")
                await send(hub, "t7-b", b"3")
                await until(lambda: parent.status()["store"]["rows"] == 2)
                assert hub.status()["affinity"]["upstream_sessions"]["paused"] == 1
        parent.stop()
    assert running_parent.result()


async def test_a_subscription_that_the_peer_answers_by_closing_is_left_out(tmp_path):
    """The device's session stands without it after three closes, and its messages leave."""
    topic_filter = "devices/t9-a/messages/devicebound/#"
    async with mqtt_peer() as peer:
        peer.forbidden.add(topic_filter)
        async with (
            running(tmp_path, peer.port, clock=QuickClock(), device_mqtt="3.1.1") as hub,
            aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="t9-a") as device,
        ):
            await device.subscribe(topic_filter, qos=1)
            for number in range(5):
                await device.publish("devices/t9-a/messages/events/", f"{number}", qos=1)
            await peer.until(lambda: len(set(peer.published)) == 5, 20)
            (endpoint,) = hub.status()["endpoints"]
            assert endpoint["left_out_filters"] == (topic_filter,)
