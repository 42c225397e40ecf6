"""The broker head against a scripted peer that sends what no good broker would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_hub import BrokerHub, broker_hub
from tests.support.mqtt_peer import MqttPeer, mqtt_peer
from tests.support.quick_clock import QuickClock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

VERSION = {"version": "3.1.1"}
BAD_TOPIC = b"\x63\xff\x2f\x31"


def a_publish(topic: bytes, body: bytes, mid: int, *, flags: int = 0x32) -> bytes:
    """Write a PUBLISH with QoS 1."""
    rest = len(topic).to_bytes(2, "big") + topic + mid.to_bytes(2, "big") + body
    assert len(rest) < 128
    return bytes([flags, len(rest)]) + rest


async def joined(hub: BrokerHub, peer: MqttPeer) -> None:
    """Wait until the hub is connected and subscribed."""
    await hub.until_subscribed("#")
    await peer.until(lambda: peer.is_connected)


async def test_a_topic_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    """M-07, M-08: a bad topic at each connect, one among 50 good ones: no loop, all good arrive."""
    async with mqtt_peer() as peer:
        peer.after_connack = a_publish(BAD_TOPIC, b"bad", 1, flags=0x33)
        async with broker_hub(tmp_path / "hub", peer.port, broker=VERSION) as hub:
            await joined(hub, peer)
            good = [a_publish(b"good/%d" % n, b"%d" % n, n) for n in range(2, 52)]
            peer.send(b"".join(good[:25]) + a_publish(BAD_TOPIC, b"x", 60) + b"".join(good[25:]))
            await peer.until(lambda: len(peer.acknowledged) == 52)
            assert peer.acknowledged == [1, *range(2, 27), 60, *range(27, 52)]
            assert hub.depth() == 50
            assert hub.broker["dropped"] == {"malformed": 2}
            assert peer.connects == 1


@pytest.mark.parametrize(
    "packet",
    [b"\x32\x03\x00\x09t", b"\x32\x00", b"\x32\x04\x00\x00\x00\x07", a_publish(b"a\0b", b"", 7)],
)
async def test_a_malformed_message_never_stops_the_next(tmp_path: Path, packet: bytes) -> None:
    """Without a packet id there is nothing to acknowledge; the connection stays either way."""
    async with mqtt_peer() as peer, broker_hub(tmp_path / "hub", peer.port, broker=VERSION) as hub:
        await joined(hub, peer)
        peer.send(packet + a_publish(b"good", b"", 9))
        await peer.until(lambda: 9 in peer.acknowledged)
        assert (hub.depth(), hub.broker["dropped"]) == (1, {"malformed": 1})
        assert peer.connects == 1


async def test_a_message_that_comes_again_is_stored_again(tmp_path: Path) -> None:
    """At least once: what the broker repeats is a message of its own, and counted."""
    async with mqtt_peer() as peer, broker_hub(tmp_path / "hub", peer.port, broker=VERSION) as hub:
        await joined(hub, peer)
        peer.send(a_publish(b"a", b"x", 3) + a_publish(b"a", b"x", 3, flags=0x3A))
        await peer.until(lambda: peer.acknowledged == [3, 3])
        rows = await hub.rows()
        assert len({row["id"] for row in rows}) == 2
        assert hub.broker["redelivered_total"] == 1


async def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    """With back-off; an operator's reload does not wait for it (C-05)."""
    async with mqtt_peer() as peer, broker_hub(tmp_path / "hub", peer.port, broker=VERSION) as hub:
        await joined(hub, peer)
        peer.connack = 3
        peer.cut()
        await peer.until(lambda: peer.connects == 2)
        peer.connack = 0
        await hub.until(lambda: hub.broker["state"] == "down")
        assert hub.broker["reason"].startswith("refused: ")
        await hub.call("config reload")
        await joined(hub, peer)


async def test_a_silent_peer_is_given_up(tmp_path: Path) -> None:
    """No answer to a subscription ends the connection; the hub tries again."""
    async with mqtt_peer() as peer:
        peer.connack = None
        async with broker_hub(
            tmp_path / "hub", peer.port, broker=VERSION, clock=QuickClock()
        ) as hub:
            await peer.until(lambda: peer.connects == 1)
            peer.cut()
            peer.connack = 0
            await joined(hub, peer)
            async with asyncio.timeout(5):
                await hub.call("status")


async def test_a_subscription_that_the_peer_answers_by_closing_is_left_out(tmp_path: Path) -> None:
    """After three closes the others are had; status names it, and a reload tries it again."""
    routes = {"one": "FROM /mqtt/a/# INTO $upstream", "two": "FROM /mqtt/b/# INTO $upstream"}
    async with mqtt_peer() as peer:
        peer.forbidden.add("a/#")
        async with broker_hub(
            tmp_path / "hub", peer.port, broker=VERSION, routes=routes, clock=QuickClock()
        ) as hub:
            await hub.until(lambda: hub.broker["left_out_subscriptions"] == ("a/#",))
            await peer.until(lambda: peer.granted == {"b/#"})
            assert peer.connects == 4
            warnings = (await hub.call("status"))["warnings"]
            assert any("'a/#'" in warning and "closes" in warning for warning in warnings)
            peer.forbidden.clear()
            await hub.call("config reload")
            await peer.until(lambda: peer.granted == {"a/#", "b/#"})
            await hub.until(lambda: hub.broker["left_out_subscriptions"] == ())
