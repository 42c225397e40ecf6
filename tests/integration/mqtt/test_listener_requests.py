"""Requests of clients on topics that a part of the hub handles, and what it sends them."""

import re

import pytest

from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.message import Message, Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import Client5
from tests.support.mqtt_listener import Changes, Results, running
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

TWINS = re.compile(rb"\$iothub/twin/")
GET = "$iothub/twin/GET/?$rid=1"
ANSWERS = "$iothub/twin/res/#"


class Handler:
    """A part of the hub that handles requests; it settles them when the test wants."""

    def __init__(self) -> None:
        self.requests = []

    def __call__(self, request, settle, token) -> None:
        """Take a request."""
        self.requests.append((request, settle, token))


@pytest.mark.parametrize("client_id", ["dev1", "dev1/m"])
async def test_a_request_and_its_answer(client_id):
    """A request reaches its handler, which knows the client; PUBACK follows what it settles."""
    async with running() as bench:
        handler = Handler()
        bench.listener.handle(TWINS, handler)
        bench.listener.follow(ClientTopic.TWIN_ANSWERS, Changes())
        client = await RawClient.signed_in(bench.port, client_id)
        client.send(wire.subscribe((ANSWERS, 0)))
        await client.read()
        assert bench.listener.listens(client_id, ClientTopic.TWIN_ANSWERS)
        client.send(wire.publish(GET, b"{}", qos=1, packet_id=7) + wire.PINGREQ)
        assert (await client.read())[0] == wire.PINGRESP
        [(request, settle, token)] = handler.requests
        assert (request.client.id, request.topic, request.body) == (client_id, GET, b"{}")
        settle(token, None)
        assert (await client.read())[0] == wire.PUBACK
        results = Results()
        answer = Message("", None, "", {}, {}, b"twin")
        rest = "200/?$rid=1"
        bench.listener.send(client_id, rest, answer, results.settle, topic=ClientTopic.TWIN_ANSWERS)
        assert results.kinds == [None]
        topic, body, _ = await client.read_publish()
        assert (topic, body) == ("$iothub/twin/res/200/?$rid=1", b"twin")
        assert bench.router.messages == []
        await client.close()


async def test_a_refused_request_is_not_acknowledged():
    """As long as a handler cannot store it, a request is not acknowledged in MQTT 3.1.1."""
    async with running() as bench:
        handler = Handler()
        bench.listener.handle(TWINS, handler)
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(GET, b"{}", qos=1, packet_id=7) + wire.PINGREQ)
        assert (await client.read())[0] == wire.PINGRESP
        [(_, settle, token)] = handler.requests
        settle(token, Refusal.LIMIT)
        assert await client.closed()
        await client.close()


async def test_a_request_of_a_client_of_mqtt5():
    """It is handled alike, after a message for another identity too; a refusal has a code."""
    async with running() as bench:
        handler = Handler()
        bench.listener.handle(TWINS, handler)
        client = await Client5.signed_in(bench.port)
        for topic in ("devices/other/messages/events/", GET):
            client.publish(topic)
            if topic != GET:
                assert await client.codes(1) == [(1, 0x87)]
        await client.pong()
        [(request, settle, token)] = handler.requests
        assert request.topic == GET
        settle(token, Refusal.LIMIT)
        assert await client.codes(1) == [(1, 0x97)]
        await client.close()


async def test_topics_that_nothing_handles():
    """Without a handler a request is dropped like any other topic, and its answers are refused."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        client.send(wire.subscribe((ANSWERS, 0)))
        assert await client.read() == (wire.SUBACK, bytes([0, 1, 0x80]))
        client.send(wire.publish(GET, b"{}", qos=1, packet_id=7))
        assert (await client.read())[0] == wire.PUBACK
        assert bench.dropped() == {"topic_not_allowed": 1}
        await client.close()
