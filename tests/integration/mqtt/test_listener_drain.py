"""Drain and close: nothing more is taken, what was taken is acknowledged."""

import asyncio

import pytest

from edgehub.message import FailureKind, Message, Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import Results, running
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"


async def test_drain_waits_for_what_was_taken():
    """Drain ends when all is settled, and the last PUBACKs reach their clients."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"x", qos=1, packet_id=5))
        await bench.router.received(1)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(bench.listener.drain())
            await asyncio.sleep(0)
            client.send(wire.publish(EVENTS, b"late", qos=1, packet_id=6))
            await client.flushed()
            await asyncio.sleep(0)
            assert not draining.done()
            bench.router.settle()
        await bench.listener.close()
        assert await client.read_pubacks(1) == [5]
        assert await client.closed()
        assert [m.body for m in bench.router.messages] == [b"x"]
        await client.close()


async def test_no_new_client_comes_in():
    """While draining new connections are refused, those not signed in are closed."""
    async with running() as bench:
        idle = await RawClient.open(bench.port)
        signed_in = await RawClient.signed_in(bench.port)
        await bench.listener.drain()
        assert await idle.closed()
        with pytest.raises(ConnectionError):
            await RawClient.open(bench.port)
        await idle.close()
        await signed_in.close()


async def test_no_wills_of_a_hub_that_leaves():
    """A hub that closes does not report its devices as gone."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, will=(EVENTS, b"gone"))
        await bench.listener.drain()
        await bench.listener.close()
        assert await client.closed()
        assert bench.router.messages == []
        assert bench.ended() == {"hub_closed": 1}
        await client.close()


async def test_deliveries_in_flight_can_still_be_confirmed():
    """While draining, a module's PUBACK counts; nothing else of it is taken or answered."""
    async with running() as bench:
        module = await RawClient.signed_in(bench.port, "hub/cam")
        module.send(wire.subscribe(("devices/hub/modules/cam/#", 1)))
        await module.read()
        results = Results()
        message = Message("d7", None, "/messages/", {}, {}, b"x")
        bench.listener.deliver("cam", "i", message, results.settle)
        _, _, packet_id = await module.read_publish()
        await bench.listener.drain()
        bench.listener.deliver("cam", "i", message, results.settle)
        topic = "devices/hub/modules/cam/messages/events/"
        module.send(wire.PINGREQ + wire.publish(topic, b"y", qos=1) + wire.publish(topic, b"z"))
        module.send(wire.puback(packet_id))
        await results.count(2)
        assert results.kinds == [FailureKind.TRANSIENT, None]
        await bench.listener.close()
        assert await module.closed()
        assert bench.router.messages == []
        assert bench.dropped() == {"closing": 1}
        await module.close()


async def test_a_client_held_by_a_limit_does_not_hold_the_drain():
    """A refused PUBLISH that waits for its close does not keep the drain waiting."""
    async with running() as bench:
        bench.router.refusal = Refusal.LIMIT
        first, second = [await RawClient.open(bench.port) for _ in range(2)]
        for count, client in [(1, first), (2, second)]:
            client.send(wire.connect() + wire.publish(EVENTS, b"x", qos=1))
            await bench.router.received(count)
        await first.read()
        assert await first.closed()
        assert len(bench.connections()) == 1
        await bench.listener.drain()
        await second.read()
        assert await second.closed()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await first.close()
        await second.close()
