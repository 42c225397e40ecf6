"""Deliveries to modules and devices: when there is somebody, what is sent, how it ends."""

import pytest

from edgehub.clock import ManualClock
from edgehub.message import FailureKind, Message
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import Changes, Results, running
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

INPUTS = "devices/hub/modules/cam/#"
BOUND = "devices/dev1/messages/devicebound/#"


def a_message(body: bytes = b"body") -> Message:
    """Build a message from device d7."""
    return Message(
        "d7", None, "/messages/", {"kind": "a b"}, {"contentType": "x"}, body, message_id="m1"
    )


async def a_module(bench, *, qos: int = 1, topic_filter: str = INPUTS) -> RawClient:
    """Sign module `cam` in and subscribe."""
    module = await RawClient.signed_in(bench.port, "hub/cam")
    module.send(wire.subscribe((topic_filter, qos)))
    assert await module.read() == (wire.SUBACK, bytes([0, 1, qos]))
    return module


@pytest.mark.parametrize(
    "topic_filter",
    [INPUTS, "devices/hub/modules/cam/inputs/#", "devices/hub/modules/cam/inputs/i/#"],
)
async def test_module_input(topic_filter):
    """A message leaves on the input's topic with its bag and is delivered after the PUBACK."""
    async with running() as bench:
        module = await a_module(bench, topic_filter=topic_filter)
        results = Results()
        bench.listener.deliver("cam", "i", a_message(), results.settle)
        topic, body, packet_id = await module.read_publish()
        assert topic == (
            "devices/hub/modules/cam/inputs/i/kind=a%20b&%24.ct=x&%24.mid=m1&%24.cdid=d7"
        )
        assert body == b"body"
        assert results.all == []
        module.send(wire.puback(packet_id))
        await results.count(1)
        assert results.kinds == [None]
        assert bench.listener.statistics().delivered_total == 1
        await module.close()


async def test_granted_qos_0():
    """With QoS 0 granted a message is delivered when it is handed over."""
    async with running() as bench:
        module = await a_module(bench, qos=0)
        results = Results()
        bench.listener.deliver("cam", "i", a_message(), results.settle)
        assert results.kinds == [None]
        assert (await module.read_publish())[2] == 0
        await module.close()


async def test_no_subscriber():
    """Without a subscribed module a delivery fails at once, for now."""
    async with running() as bench:
        results = Results()
        module = await RawClient.signed_in(bench.port, "hub/cam")
        bench.listener.deliver("cam", "i", a_message(), results.settle)
        bench.send("dev1", a_message(), results.settle)
        assert results.kinds == [FailureKind.TRANSIENT] * 2
        assert not bench.listener.is_connected("cam", "i")
        assert bench.listener.unsent_bytes("cam") == 0
        await module.close()


async def test_watching_an_input():
    """A watcher hears when a module comes, and when it goes by any way."""
    async with running() as bench:
        changes = Changes()
        bench.listener.watch("cam", "i", changes)
        module = await a_module(bench)
        assert await changes.count(1) == [(True,)]
        assert bench.listener.is_connected("cam", "i")
        module.send(wire.unsubscribe(INPUTS))
        assert await changes.count(2) == [(True,), (False,)]
        await module.close()
        again = await a_module(bench)
        await changes.count(3)
        again.cut()
        assert await changes.count(4) == [(True,), (False,), (True,), (False,)]


async def test_a_watcher_may_deliver_at_once():
    """What is delivered when a stored session comes back arrives behind the CONNACK."""
    async with running() as bench:
        results = Results()
        module = await RawClient.signed_in(bench.port, "hub/cam", clean=False)
        module.send(wire.subscribe((INPUTS, 1)))
        await module.read()
        await module.close()
        while bench.listener.is_connected("cam", "i"):
            await (await RawClient.signed_in(bench.port, "other")).close()
        bench.listener.watch(
            "cam",
            "i",
            lambda there: (
                bench.listener.deliver("cam", "i", a_message(), results.settle) if there else None
            ),
        )
        module = await RawClient.open(bench.port)
        module.send(wire.connect("hub/cam", clean=False))
        assert await module.read() == (wire.CONNACK, b"\x01\x00")
        assert (await module.read_publish())[1] == b"body"
        await module.close()
        await results.count(1)
        assert results.kinds == [FailureKind.DISCONNECTED]


async def test_a_module_that_leaves_gives_back():
    """Deliveries in flight are settled as disconnected; on return they have new packet ids."""
    async with running() as bench:
        results = Results()
        module = await a_module(bench)
        for _ in range(3):
            bench.listener.deliver("cam", "i", a_message(), results.settle)
        for _ in range(3):
            await module.read_publish()
        module.cut()
        await results.count(3)
        assert results.kinds == [FailureKind.DISCONNECTED] * 3


async def test_a_module_that_does_not_confirm():
    """After the time limit a delivery is settled as late, the connection stays."""
    clock = ManualClock()
    async with running(clock=clock, ack_timeout_s=30) as bench:
        results = Results()
        module = await a_module(bench)
        bench.listener.deliver("cam", "i", a_message(), results.settle)
        _, _, packet_id = await module.read_publish()
        await clock.advance(29)
        assert results.all == []
        await clock.advance(1)
        assert results.kinds == [FailureKind.TIMEOUT]
        module.send(wire.puback(packet_id))
        await module.pong()
        assert results.kinds == [FailureKind.TIMEOUT]
        await module.close()


async def test_a_slow_module():
    """When a module does not read, deliveries are turned away and the backlog shows."""
    async with running(write_buffer_bytes_max=100_000) as bench:
        module = await a_module(bench)
        module.stop_reading()
        results = Results()
        for _ in range(500):
            bench.listener.deliver("cam", "i", a_message(b"x" * 100_000), results.settle)
            other = await RawClient.signed_in(bench.port, "other")
            await other.close()
            if results.all:
                break
        assert results.kinds == [FailureKind.THROTTLED]
        assert results.all[0].retry_after_s
        assert bench.listener.unsent_bytes("cam") > 100_000
        (camera,) = [each for each in bench.connections() if each.client.id == "hub/cam"]
        assert camera.pauses
        assert camera.unsent_bytes > 100_000
        in_flight = len(camera.connected.deliveries)
        module.cut()
        await results.count(in_flight + 1)


async def test_device_bound():
    """Messages to a device are relayed while it listens, and interest is told."""
    async with running() as bench:
        device = await RawClient.signed_in(bench.port)
        device.send(wire.subscribe((BOUND, 1)))
        await device.read()
        assert await bench.interest.count(1) == [("dev1", True)]
        results = Results()
        bench.send("dev1", a_message(), results.settle)
        topic, _, packet_id = await device.read_publish()
        assert topic == "devices/dev1/messages/devicebound/kind=a%20b&%24.ct=x&%24.mid=m1"
        device.send(wire.puback(packet_id) + wire.DISCONNECT)
        assert await device.closed()
        assert results.kinds == [None]
        assert await bench.interest.count(2) == [("dev1", True), ("dev1", False)]
        await device.close()


async def test_another_module_cannot_listen_in():
    """A module's inputs are for itself: neither its device nor another module gets them."""
    async with running() as bench:
        for client_id in ("hub", "hub/other", "other/cam"):
            client = await RawClient.signed_in(bench.port, client_id)
            client.send(wire.subscribe((INPUTS, 1)))
            assert await client.read() == (wire.SUBACK, b"\x00\x01\x80")
            await client.close()


async def test_a_foreign_puback():
    """A PUBACK for nothing is passed over."""
    async with running() as bench:
        module = await a_module(bench)
        module.send(wire.puback(77))
        await module.pong()
        await module.close()
