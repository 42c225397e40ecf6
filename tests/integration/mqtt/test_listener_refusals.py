"""What the listener does with what it cannot take: drop and acknowledge, close, or wait."""

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.message import Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("site/a/temperature", "topic_not_allowed"),
        ("devices/dev1/messages/events/a/b", "topic_not_allowed"),
        ("$iothub/twin/GET/?$rid=1", "topic_not_allowed"),
        (EVENTS + "a=1&", "bag_malformed"),
        (EVENTS + "k=%ff", "bag_malformed"),
    ],
)
async def test_bad_topics_are_acknowledged_and_dropped(topic, reason):
    """A topic that cannot be taken costs that message alone: counted, good ones flow."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        for packet_id in (1, 2):
            client.send(wire.publish(topic, b"bad", qos=1, packet_id=packet_id))
        client.send(wire.publish(topic, b"bad"))
        client.send(wire.publish(EVENTS, b"good", qos=1, packet_id=3))
        assert await client.read_pubacks(3) == [1, 2, 3]
        assert [m.body for m in bench.router.messages] == [b"good"]
        assert bench.dropped() == {reason: 3}
        assert bench.router.told == [("dev1", 3, reason)] * 3
        await client.close()


async def test_drops_are_logged_at_a_bounded_rate():
    """The first of a kind gets a line, the end of the connection the count; payloads never."""
    with capture_logs() as lines:
        async with running() as bench:
            client = await RawClient.signed_in(bench.port)
            for _ in range(500):
                client.send(wire.publish("bad\n/topic", b"payload", qos=1))
            await client.read_pubacks(500)
            client.send(wire.DISCONNECT)
            assert await client.closed()
            await client.close()
    dropped = [line for line in lines if line["event"] == "mqtt.message_dropped"]
    assert [line["detail"] for line in dropped] == [r"'bad\n/topic'"]
    (left,) = [line for line in lines if line["event"] == "mqtt.client_left"]
    assert left["dropped"] == {"topic_not_allowed": 500}
    assert "payload" not in str(lines)


async def test_too_large():
    """Body plus properties over the limit: acknowledged and dropped, read whole, then on."""
    async with running(message_bytes_max=1000) as bench:
        client = await RawClient.signed_in(bench.port)
        fits = b"x" * (1000 - len("kv"))
        client.send(wire.publish(EVENTS + "k=v", fits, qos=1, packet_id=1))
        client.send(wire.publish(EVENTS + "k=v", fits + b"x", qos=1, packet_id=2))
        client.send(wire.publish(EVENTS, b"x" * 3_000_000, qos=1, packet_id=3))
        client.send(wire.publish(EVENTS, b"x" * 3_000_000))
        client.send(wire.publish(EVENTS, b"after", qos=1, packet_id=4))
        assert await client.read_pubacks(4) == [1, 2, 3, 4]
        assert [m.body for m in bench.router.messages] == [fits, b"after"]
        assert bench.dropped() == {"too_large": 3}
        sizes = [999, 3_000_000, 3_000_000]
        assert bench.router.told == [("dev1", size, "too_large") for size in sizes]
        await client.close()


async def test_another_identity_in_the_topic():
    """Publishing as somebody else ends the connection, unacknowledged, with either quality."""
    async with running() as bench:
        for qos in (0, 1):
            client = await RawClient.signed_in(bench.port)
            client.send(wire.publish("devices/dev2/messages/events/", b"x", qos=qos))
            assert await client.closed()
            await client.close()
        module = await RawClient.signed_in(bench.port)
        module.send(wire.publish("devices/dev1/modules/m/messages/events/", b"x", qos=1))
        assert await module.closed()
        await module.close()
        assert bench.router.messages == []
        assert bench.ended() == {"foreign_identity": 3}
        assert bench.router.told == [("dev1", 1, "foreign_identity")] * 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wire.connect(), "protocol_error"),
        (b"\x36\x05\x00\x01t\x00\x01", "protocol_error"),
        (b"\x32\x03\x00\x05t", "protocol_error"),
        (b"\xff\xff\xff\xff\xff\xff", "protocol_error"),
        (b"\x60\x02\x00\x01", "protocol_error"),
    ],
)
async def test_broken_protocol(data, reason):
    """What 3.1.1 cannot go on from closes that connection; what came before counts."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"before", qos=1, packet_id=8) + data)
        assert await client.read_pubacks(1) == [8]
        assert await client.closed()
        assert bench.ended() == {reason: 1}
        assert bench.router.told == []
        other = await RawClient.signed_in(bench.port)
        await other.pong()
        await client.close()
        await other.close()


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", wire.PINGREQ, b"\x10\x00"]
)
async def test_no_mqtt_at_all(data):
    """Other protocols are closed at once, without an answer."""
    async with running() as bench:
        client = await RawClient.open(bench.port)
        client.send(data)
        assert await client.closed()
        assert bench.ended() == {"protocol_error": 1}
        await client.close()


async def test_refused_as_invalid():
    """What the store can never take is acknowledged, dropped and counted."""
    async with running() as bench:
        bench.router.refusal = Refusal.INVALID
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"x", qos=1) + wire.publish(EVENTS, b"x"))
        await client.read_pubacks(1)
        await client.pong()
        assert bench.dropped() == {"invalid": 2}
        await client.close()


async def test_refused_because_the_hub_closes():
    """Nothing is acknowledged while the hub shuts down; the client comes again."""
    async with running() as bench:
        bench.router.refusal = Refusal.CLOSED
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"x", qos=1))
        assert await client.closed()
        assert bench.ended() == {"hub_closed": 1}
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


@pytest.mark.parametrize("refusal", [Refusal.LIMIT, Refusal.UNAVAILABLE])
async def test_refused_for_now(refusal):
    """The first refusal closes at once, one soon after waits for ten seconds since the close."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        bench.router.refusal = refusal
        first = await RawClient.signed_in(bench.port)
        first.send(wire.publish(EVENTS, b"x", qos=1))
        assert await first.closed()
        await clock.advance(4)

        second = await RawClient.signed_in(bench.port)
        second.send(wire.publish(EVENTS, b"x", qos=1))
        second.send(wire.publish(EVENTS, b"y", qos=1, packet_id=2) + wire.publish(EVENTS, b"z"))
        await second.pong()
        assert [m.body for m in bench.router.messages] == [b"x", b"x"]
        await clock.advance(5.9)
        await second.pong()
        await clock.advance(0.2)
        assert await second.closed()

        bench.router.refusal = None
        third = await RawClient.signed_in(bench.port)
        third.send(wire.publish(EVENTS, b"x", qos=1))
        assert await third.read_pubacks(1) == [1]
        assert bench.ended() == {"limit": 2}
        assert bench.dropped() == {"limit": 1}
        assert bench.listener.statistics().unacknowledged_bytes == 0
        for each in (first, second, third):
            await each.close()


async def test_a_limit_does_not_spoil_what_came_before():
    """Messages before the refused one are acknowledged, those behind it are not."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        for packet_id in (1, 2, 3):
            client.send(wire.publish(EVENTS, b"x", qos=1, packet_id=packet_id))
        await bench.router.received(3)
        bench.router.settle(0, 2)
        bench.router.settle(0, refusal=Refusal.LIMIT)
        assert await client.read_pubacks(1) == [1]
        assert await client.closed()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_qos_0_refused_by_a_limit():
    """QoS 0 has no answer: dropped and counted, the connection stays."""
    async with running() as bench:
        bench.router.refusal = Refusal.LIMIT
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"x"))
        await client.pong()
        assert bench.dropped() == {"limit": 1}
        await client.close()


async def test_store_qos0_off():
    """With store_qos0 off, QoS 0 is dropped and counted while the uplink is down, QoS 1 kept."""
    async with running(store_qos0=False) as bench:
        client = await RawClient.signed_in(bench.port)
        for up in (True, False):
            bench.link["up"] = up
            for n in range(1, 101):
                client.send(wire.publish(EVENTS, b"zero"))
                client.send(wire.publish(EVENTS, b"one", qos=1, packet_id=n))
            await client.read_pubacks(100)
        bodies = [m.body for m in bench.router.messages]
        assert (bodies.count(b"zero"), bodies.count(b"one")) == (100, 200)
        assert bench.dropped() == {"qos0_offline": 100}
        await client.close()


async def test_unacknowledged_bytes_are_bounded_per_connection():
    """While nothing is settled a connection is read up to its bound, others are served."""
    async with running(connection_bytes_max=400_000) as bench:
        bench.router.holding = True
        greedy = await RawClient.signed_in(bench.port)
        for packet_id in range(1, 101):
            greedy.send(wire.publish(EVENTS, b"x" * 20_000, qos=1, packet_id=packet_id))
        await bench.router.received(10)
        other = await RawClient.signed_in(bench.port, "dev2")
        for _ in range(20):
            await other.pong()
        held = bench.listener.statistics()
        assert held.paused == 1
        assert 200_000 <= held.unacknowledged_bytes <= 456_000
        bench.router.holding = False
        bench.router.settle()
        assert await greedy.read_pubacks(100) == list(range(1, 101))
        assert bench.listener.statistics().unacknowledged_bytes == 0
        assert bench.listener.statistics().paused == 0
        await greedy.close()
        await other.close()


async def test_unacknowledged_bytes_are_bounded_over_all():
    """Over the common bound every connection with open messages waits, and all go on after."""
    async with running(unacknowledged_bytes_max=300_000) as bench:
        bench.router.holding = True
        clients = [await RawClient.signed_in(bench.port, f"d{n}") for n in range(4)]
        for n, client in enumerate(clients):
            topic = f"devices/d{n}/messages/events/"
            for packet_id in range(1, 31):
                client.send(wire.publish(topic, b"x" * 10_000, qos=1, packet_id=packet_id))
        await bench.router.received(29)
        idle = await RawClient.signed_in(bench.port, "idle")
        for _ in range(20):
            await idle.pong()
        assert bench.listener.statistics().unacknowledged_bytes < 300_000 + 4 * 256_000
        assert len(bench.router.messages) < 120
        bench.router.holding = False
        bench.router.settle()
        for client in clients:
            assert await client.read_pubacks(30) == list(range(1, 31))
        assert bench.listener.statistics().unacknowledged_bytes == 0
        for client in (*clients, idle):
            await client.close()


@pytest.mark.parametrize("settled_first", [(1,), (2, 1)])
async def test_bytes_of_a_connection_that_ended_count_until_they_are_settled(settled_first):
    """Messages settled before their turn are released at the end, the others once settled."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        for packet_id in (1, 2, 3):
            client.send(wire.publish(EVENTS, b"x" * 1000, qos=1, packet_id=packet_id))
        await bench.router.received(3)
        all_bytes = bench.listener.statistics().unacknowledged_bytes
        bench.router.settle(*settled_first)
        client.send(wire.DISCONNECT)
        assert await client.closed()
        left = bench.listener.statistics().unacknowledged_bytes
        assert left == all_bytes * (3 - len(settled_first)) // 3
        bench.router.settle()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


@pytest.mark.parametrize(("keep_alive_s", "limit_s"), [(20, 30), (0, 60)])
async def test_a_paused_client_is_closed_after_its_keep_alive(keep_alive_s, limit_s):
    """A client that stays paused is closed when its keep-alive is over; it will come again."""
    clock = ManualClock()
    async with running(clock=clock, connection_bytes_max=100_000) as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port, keep_alive_s=keep_alive_s)
        for packet_id in range(1, 101):
            client.send(wire.publish(EVENTS, b"x" * 10_000, qos=1, packet_id=packet_id))
        await bench.router.received(5)
        other = await RawClient.signed_in(bench.port, "other", keep_alive_s=0)
        for _ in range(10):
            await other.pong()
        await clock.advance(limit_s - 1)
        assert bench.ended() == {}
        await clock.advance(1.5)
        assert await client.closed()
        assert bench.ended() == {"stalled": 1}
        assert bench.listener.statistics().unacknowledged_bytes > 0
        bench.router.settle()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()
        await other.close()


async def test_qos_0_over_the_bound():
    """QoS 0 beyond the bound is dropped and counted; the connection is not paused for it."""
    async with running(connection_bytes_max=100_000) as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        for _ in range(50):
            client.send(wire.publish(EVENTS, b"x" * 10_000))
        await client.pong()
        taken = len(bench.router.messages)
        assert 0 < taken <= 10
        assert bench.dropped() == {"qos0_backlog": 50 - taken}
        bench.router.settle()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_a_client_that_never_reads_pubacks():
    """A client that reads nothing is read no further once its answers pile up."""
    async with running(write_buffer_bytes_max=1000) as bench:
        client = await RawClient.signed_in(bench.port)
        client.stop_reading()
        many = wire.publish(EVENTS, b"", qos=1) * 20_000
        for _ in range(200):
            client.send(many)
            if bench.listener.statistics().paused:
                break
            other = await RawClient.signed_in(bench.port, "other")
            await other.pong()
            await other.close()
        assert bench.listener.statistics().paused == 1
        client.cut()


async def test_settled_after_the_client_left():
    """What is settled when its client is gone is still counted down, and harms nobody."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS, b"x", qos=1) * 3 + wire.publish(EVENTS, b"x"))
        await bench.router.received(4)
        again = await RawClient.signed_in(bench.port)
        assert await client.closed()
        assert bench.listener.statistics().unacknowledged_bytes > 0
        bench.router.settle()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await again.pong()
        await client.close()
        await again.close()
