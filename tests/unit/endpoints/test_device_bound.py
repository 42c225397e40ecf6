"""The device-bound relay with a scripted connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.endpoints.device_bound import DeviceBoundRelay
from edgehub.endpoints.subscription_guard import SubscriptionGuard
from edgehub.mqtt.client_decoder import IncomingPublish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable


class ScriptedConnection:
    """Records subscriptions and acknowledgements."""

    def __init__(self) -> None:
        self.filters: set[str] = set()
        self.acknowledged: list[int] = []

    async def subscribe(self, filters: Iterable[str]) -> list[str]:
        """See `Connection`; refuses what names `forbidden`."""
        wanted = list(filters)
        self.filters.update(wanted)
        return [topic for topic in wanted if "forbidden" in topic]

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """See `Connection`."""
        self.filters.difference_update(filters)

    def begin(self) -> None:
        """See `Connection`."""

    def acknowledge(self, message: IncomingPublish) -> None:
        """See `Connection`."""
        assert message.packet_id not in self.acknowledged
        self.acknowledged.append(message.packet_id)


class Parts:
    """A relay on a connection."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.accepted: list[dict[str, object]] = []
        self.done: list[Callable[[], None]] = []
        self.relay = DeviceBoundRelay("upstream", self._accept)
        self.connection = ScriptedConnection()
        self.guard = SubscriptionGuard("upstream", self.clock)

    def _accept(self, target, body, properties, system, *, expiry_ms, dup, done) -> None:
        self.accepted.append(
            {
                "target": target,
                "body": body,
                "app": properties,
                "system": system,
                "expiry_ms": expiry_ms,
                "dup": dup,
            }
        )
        self.done.append(done)


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    """Run a relay for the length of a test."""
    parts = Parts()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(parts.relay.run(parts.connection, parts.guard))
            await parts.clock.advance(0)
            yield parts
            task.cancel()


def incoming(
    mid: int, device: str = "d1", bag: str = "kind=cmd&%24.ct=text%2Fplain"
) -> IncomingPublish:
    """Build a device-bound message of the peer."""
    topic = f"devices/{device}/messages/devicebound/{bag}"
    return IncomingPublish(topic=topic, body=b"go", packet_id=mid, qos=1)


async def test_subscriptions_follow_the_devices(parts: Parts) -> None:
    """A device that comes is subscribed at the peer, one that leaves is not any more."""
    parts.relay.subscribe("d1")
    parts.relay.subscribe("d2")
    await parts.clock.advance(0)
    assert parts.connection.filters == {
        "devices/d1/messages/devicebound/#",
        "devices/d2/messages/devicebound/#",
    }
    parts.relay.unsubscribe("d1")
    await parts.clock.advance(0)
    assert parts.connection.filters == {"devices/d2/messages/devicebound/#"}


async def test_the_peer_is_acknowledged_once_the_message_is_stored(parts: Parts) -> None:
    """What stores it says when; bag, body and the flag of a repetition arrive as they were."""
    parts.relay.subscribe("d1")
    expiry, user = b"\x02\x00\x00\x00\x3c", b"\x26\x00\x04user\x00\x01x"
    parts.relay.take(replace(incoming(1), dup=True, properties=expiry + user))
    assert parts.accepted == [
        {
            "target": "d1",
            "body": b"go",
            "app": {"user": "x", "kind": "cmd"},
            "system": {"contentType": "text/plain"},
            "expiry_ms": 60_000,
            "dup": True,
        }
    ]
    assert parts.connection.acknowledged == []
    parts.done[0]()
    assert parts.connection.acknowledged == [1]


@pytest.mark.parametrize(
    "topic",
    [
        "devices/d1/messages/events/a=b",
        "devices/d1/messages/devicebound",
        "devices/d1/messages/devicebound/a=b=c",
        "devices/d1/messages/devicebound/%FF",
    ],
)
async def test_what_cannot_be_relayed_is_acknowledged_and_counted(parts: Parts, topic: str) -> None:
    """A foreign topic or a malformed bag would come again for ever otherwise."""
    parts.relay.take(IncomingPublish(topic=topic, body=b"", packet_id=5, qos=1))
    assert parts.accepted == []
    assert parts.connection.acknowledged == [5]
    assert parts.relay.dropped_total == 1


async def test_malformed_properties_of_mqtt5_drop_the_message(parts: Parts) -> None:
    """It would come again for ever otherwise."""
    parts.relay.take(replace(incoming(5), properties=b"\xff"))
    assert parts.accepted == []
    assert parts.connection.acknowledged == [5]


async def test_a_message_whose_body_was_cut_is_dropped_with_its_size(parts: Parts) -> None:
    """No device is offered half a message; the reason names the size, not the topic."""
    parts.relay.subscribe("d1")
    topic = "devices/d1/messages/devicebound/kind=cmd"
    cut = IncomingPublish(topic=topic, body=None, packet_id=5, qos=1, size=300_000)
    with capture_logs() as lines:
        parts.relay.take(cut)
    assert parts.accepted == []
    assert parts.connection.acknowledged == [5]
    assert parts.relay.dropped_total == 1
    [line] = lines
    assert line["event"] == "device_bound.message_dropped"
    assert "300000 bytes" in line["reason"]
    assert "topic" not in line["reason"]


async def test_answers_after_the_connection_count_for_nothing() -> None:
    """The peer sends it again on its next connection; ids of the old one mean nothing there."""
    parts = Parts()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(parts.relay.run(parts.connection, parts.guard))
        await parts.clock.advance(0)
        parts.relay.take(incoming(1))
        first.cancel()
        await parts.clock.advance(0)
        second = ScriptedConnection()
        task = group.create_task(parts.relay.run(second, parts.guard))
        await parts.clock.advance(0)
        parts.done[0]()
        assert parts.connection.acknowledged == []
        assert second.acknowledged == []
        task.cancel()


async def test_a_refused_subscription_is_no_reason_to_fail(parts: Parts) -> None:
    """The relay goes on with the other devices."""
    parts.relay.subscribe("forbidden")
    await parts.clock.advance(0)
    parts.relay.subscribe("d2")
    await parts.clock.advance(0)
    assert "devices/d2/messages/devicebound/#" in parts.connection.filters
