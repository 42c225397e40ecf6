"""Clients that flood, stall or send rubbish: the others keep their share, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from random import Random
from typing import TYPE_CHECKING

import mqtt5
import pytest
import uvloop

from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_LEAST_ONCE, Client5
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from tests.support.mqtt_listener import Bench

pytestmark = [pytest.mark.integration, pytest.mark.alone]

NEIGHBOURS = 10
WINDOW = 50
MESSAGES = 2_000
COMMIT_S = 0.004
HALF_OPEN = 300


def events(client_id: str) -> str:
    """Topic of a device."""
    return f"devices/{client_id}/messages/events/"


async def commits(bench: Bench) -> None:
    """Settle what came in every few milliseconds, as a store does."""
    bench.router.holding = True
    while True:
        await asyncio.sleep(COMMIT_S)
        bench.router.settle()


async def neighbour(port: int, client_id: str) -> None:
    """Send a number of messages, so many in flight."""
    client = await RawClient.signed_in(port, client_id)
    batch = wire.publish(events(client_id), b"x" * 200, qos=1) * WINDOW
    for _ in range(MESSAGES // WINDOW):
        client.send(batch)
        await client.read_pubacks(WINDOW)
    await client.close()


@contextlib.asynccontextmanager
async def intruder(bench: Bench) -> AsyncIterator[Client5]:
    """Sign the hostile client in for the length of a block."""
    client = await Client5.signed_in(bench.port, "hostile")
    try:
        yield client
    finally:
        client.raw.cut()


async def flood(client: Client5, data: bytes) -> None:
    """Send the same bytes as fast as they are taken, to the end of the test."""
    while True:
        client.raw.send(data)
        await client.raw.flushed()


async def qos_0(bench: Bench) -> None:
    """Messages of QoS 0, each with properties of its own."""
    topic = events("hostile")
    packets = [
        mqtt5.PublishPacket(topic, b"x" * 200, user_properties=[("n", str(n))]) for n in range(1000)
    ]
    async with intruder(bench) as client:
        await flood(client, b"".join(packet.write() for packet in packets))


async def qos_1(bench: Bench) -> None:
    """As many messages of QoS 1 as the hub allows at once."""
    packet = mqtt5.PublishPacket(events("hostile"), b"x" * 200, qos=AT_LEAST_ONCE, packet_id=1)
    data = packet.write()
    async with intruder(bench) as client:
        client.raw.send(data * 1000)
        while True:
            await client.codes(20)
            client.raw.send(data * 20)


async def refused(bench: Bench) -> None:
    """Tiny messages on a topic that is none, whose answers nobody reads."""
    packet = mqtt5.PublishPacket("x", b"", qos=AT_LEAST_ONCE, packet_id=1)
    async with intruder(bench) as client:
        client.raw.stop_reading()
        await flood(client, packet.write() * 5000)


async def pings(bench: Bench) -> None:
    """Nothing but pings."""
    async with intruder(bench) as client:
        client.raw.stop_reading()
        await flood(client, wire.PINGREQ * 20_000)


async def rubbish(bench: Bench) -> None:
    """Connections that end in bytes without a meaning, one after the other."""
    for seed in itertools.count():
        async with intruder(bench) as client:
            client.raw.send(Random(seed).randbytes(500))
            await client.raw.closed()


async def half_open(bench: Bench) -> None:
    """Hundreds of connections that stop in the middle of their CONNECT."""
    clients: list[RawClient] = []
    try:
        while len(clients) < HALF_OPEN:
            clients.append(await RawClient.open(bench.port))
            clients[-1].send(mqtt5.ConnectPacket("hostile").write()[:9])
        await asyncio.Event().wait()
    finally:
        for client in clients:
            client.cut()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hostile", [qos_0, qos_1, refused, pings, rubbish, half_open])
def test_neighbours_get_their_messages_through(
    hostile: Callable[[Bench], Coroutine[None, None, None]],
):
    """No hostile client gets much more of the commits than a neighbour does, or holds them up."""

    async def scenario() -> None:
        async with running() as bench, asyncio.TaskGroup() as background:
            tasks = [
                background.create_task(commits(bench)),
                background.create_task(quietly(hostile(bench))),
            ]
            async with asyncio.TaskGroup() as neighbours:
                for number in range(NEIGHBOURS):
                    neighbours.create_task(neighbour(bench.port, f"good{number}"))
            senders = [message.device_id for message in bench.router.messages]
            for task in tasks:
                task.cancel()
        theirs = senders.count("hostile")
        assert len(senders) - theirs == NEIGHBOURS * MESSAGES
        assert theirs <= 4 * MESSAGES

    uvloop.run(scenario())


async def quietly(work: Coroutine[None, None, None]) -> None:
    """Let a hostile client be thrown out."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await work


def test_a_client_alone_is_not_held_back():
    """Without neighbours a large read is worked off at once, in its order."""

    async def scenario() -> None:
        async with running(connection_bytes_max=2**26) as bench:
            client = await RawClient.signed_in(bench.port)
            stream = [
                wire.publish(events("dev1") + f"n={n}", b"x" * 50, qos=1, packet_id=n)
                for n in range(1, 20_001)
            ]
            client.send(b"".join(stream))
            assert await client.read_pubacks(20_000) == list(range(1, 20_001))
            ids = [int(message.properties["n"]) for message in bench.router.messages]
            assert ids == list(range(1, 20_001))
            await client.close()

    uvloop.run(scenario())


def test_what_was_read_counts_though_its_client_is_gone():
    """QoS 0 of a client that sends much and leaves at once is all taken."""

    async def scenario() -> None:
        async with running() as bench:
            other = await RawClient.signed_in(bench.port, "other")
            client = await RawClient.signed_in(bench.port)
            message = wire.publish(events("dev1"), b"x" * 200)
            client.send(message * 1000 + wire.DISCONNECT)
            await client.close()
            await bench.router.received(1000)
            await other.pong()
            await other.close()

    uvloop.run(scenario())


async def test_what_comes_with_the_connect_is_served_in_turns():
    """A hundred thousand packets right behind a CONNECT hold up no other client."""
    flood = 100_000
    async with running() as bench:
        other = await RawClient.signed_in(bench.port, "other")
        hasty = await RawClient.open(bench.port)
        hasty.send(wire.connect("hasty") + wire.PINGREQ * flood)
        answered = asyncio.create_task(_read_all(hasty, 1 + flood))
        while bench.listener.statistics().clients < 2:  # noqa: ASYNC110 - each turn paces it
            await asyncio.sleep(0)
        for _ in range(20):
            await other.pong()
        assert not answered.done()
        await answered
        hasty.cut()
        await other.close()


async def _read_all(client: RawClient, count: int) -> None:
    for _ in range(count):
        await client.read()


async def test_few_bytes_for_many_receivers_are_served_in_turns():
    """Hundreds of tiny messages in one read, each for many clients, hold up no other client."""
    async with running() as bench:
        other = await RawClient.signed_in(bench.port, "other")
        receivers = [await RawClient.signed_in(bench.port, f"receiver-{n}") for n in range(50)]
        for receiver in receivers:
            receiver.send(wire.subscribe(("te/#", 0)))
            await receiver.read()
        sender = await RawClient.signed_in(bench.port, "sender")
        sender.send(wire.publish("te/a", b"") * 1000 + wire.publish("te/a", b"", qos=1))
        answered = asyncio.create_task(sender.read_pubacks(1))
        for _ in range(10):
            await other.pong()
        assert not answered.done()
        await answered
        for client in (*receivers, sender, other):
            client.cut()


async def test_messages_with_many_properties_are_served_in_turns():
    """A hundred messages with a thousand properties each hold up no other client."""
    bag = "&".join(f"k{n}=%41" for n in range(1000))
    async with running() as bench:
        other = await RawClient.signed_in(bench.port, "other")
        sender = await RawClient.signed_in(bench.port, "sender")
        sender.send(wire.publish(events("sender") + bag, b"", qos=1) * 100)
        answered = asyncio.create_task(sender.read_pubacks(100))
        for _ in range(10):
            await other.pong()
        assert not answered.done()
        await answered
        for client in (sender, other):
            client.cut()
