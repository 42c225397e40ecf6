"""Stored sessions while the disk is slow: what waits is bounded, and answers keep their order."""

import pytest

from edgehub.heads.mqtt.subscriber import UNANSWERED_MAX
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

FILTER = "devices/dev1/messages/devicebound/#"


async def test_changes_are_answered_in_order():
    """A client that changes its mind while the disk is busy gets its answers when they are due."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, clean=False)
        client.send(wire.subscribe((FILTER, 1)))
        await client.read()
        bench.sessions.free.clear()
        for packet_id in range(1, 21, 2):
            client.send(wire.unsubscribe(FILTER, packet_id=packet_id))
            client.send(wire.subscribe((FILTER, 0), packet_id=packet_id + 1))
        await client.pong()  # The client is still heard, and nothing was answered too early.
        bench.sessions.free.set()
        answers = [await client.read() for _ in range(20)]
        heads = [head for head, _ in answers]
        assert heads == [wire.UNSUBACK, wire.SUBACK] * 10
        assert [body[1] for _, body in answers] == list(range(1, 21))
        assert bench.sessions.table == {"dev1": {FILTER: 0}}
        await client.close()


async def test_a_flood_of_changes_is_not_read_any_more():
    """Beyond the bound the client is paused until the disk answers; others go on."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, clean=False)
        other = await RawClient.signed_in(bench.port, "dev2")
        bench.sessions.free.clear()
        for _ in range(UNANSWERED_MAX):
            client.send(wire.subscribe((FILTER, 1)) + wire.unsubscribe(FILTER))
        while not bench.listener.statistics().paused:
            await other.pong()
        bench.sessions.free.set()
        for _ in range(2 * UNANSWERED_MAX):
            await client.read()
        await client.pong()
        assert bench.listener.statistics().paused == 0
        await client.close()
        await other.close()
