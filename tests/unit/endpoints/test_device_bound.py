"""The device-bound relay with a scripted connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.endpoints.device_bound import UNDELIVERED_MAX, DeviceBoundRelay
from edgehub.endpoints.subscription_guard import SubscriptionGuard
from edgehub.message import DELIVERED, FailureKind, Message, SendResult
from edgehub.mqtt.client_decoder import IncomingPublish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

AWAY = SendResult(FailureKind.DISCONNECTED, "device away")


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
        self.offers: list[tuple[str, Message, Callable[[SendResult], None]]] = []
        self.relay = DeviceBoundRelay("upstream", self._deliver)
        self.connection = ScriptedConnection()
        self.guard = SubscriptionGuard("upstream", self.clock)

    def _deliver(
        self, device_id: str, message: Message, settle: Callable[[SendResult], None]
    ) -> None:
        self.offers.append((device_id, message, settle))


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


async def test_the_peer_is_acknowledged_after_the_device(parts: Parts) -> None:
    """The device's PUBACK comes first; bag and body arrive as they were."""
    parts.relay.subscribe("d1")
    parts.relay.take(incoming(1))
    device_id, message, settle = parts.offers[0]
    assert (device_id, message.body) == ("d1", b"go")
    assert message.properties == {"kind": "cmd"}
    assert message.system == {"contentType": "text/plain"}
    assert parts.connection.acknowledged == []
    settle(DELIVERED)
    assert parts.connection.acknowledged == [1]


async def test_an_undelivered_message_waits_for_its_device(parts: Parts) -> None:
    """Not acknowledged while the device is away; offered again when it comes back."""
    parts.relay.take(incoming(1))
    parts.offers[0][2](AWAY)
    assert parts.connection.acknowledged == []
    parts.relay.subscribe("d1")
    parts.offers[1][2](DELIVERED)
    assert parts.connection.acknowledged == [1]


async def test_an_undelivered_message_ends_with_its_connection() -> None:
    """The peer sends it again on the next one; the device must not get both."""
    parts = Parts()
    task = asyncio.get_running_loop().create_task(parts.relay.run(parts.connection, parts.guard))
    await parts.clock.advance(0)
    parts.relay.take(incoming(1))
    parts.offers[0][2](AWAY)
    task.cancel()
    await asyncio.wait({task})
    parts.relay.subscribe("d1")
    assert len(parts.offers) == 1


async def test_devices_that_stay_away_do_not_block_the_others(parts: Parts) -> None:
    """Beyond the bound the oldest is acknowledged and counted as dropped."""
    for mid in range(UNDELIVERED_MAX + 2):
        parts.relay.take(incoming(mid))
        parts.offers[mid][2](AWAY)
    assert parts.connection.acknowledged == [0, 1]
    assert parts.relay.dropped_total == 2


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
    assert parts.offers == []
    assert parts.connection.acknowledged == [5]
    assert parts.relay.dropped_total == 1


async def test_a_message_whose_body_was_cut_is_dropped_with_its_size(parts: Parts) -> None:
    """No device is offered half a message; the reason names the size, not the topic."""
    parts.relay.subscribe("d1")
    topic = "devices/d1/messages/devicebound/kind=cmd"
    cut = IncomingPublish(topic=topic, body=None, packet_id=5, qos=1, size=300_000)
    with capture_logs() as lines:
        parts.relay.take(cut)
    assert parts.offers == []
    assert parts.connection.acknowledged == [5]
    assert parts.relay.dropped_total == 1
    [line] = lines
    assert line["event"] == "device_bound.message_dropped"
    assert "300000 bytes" in line["reason"]
    assert "topic" not in line["reason"]


async def test_a_message_refused_for_good_is_dropped(parts: Parts) -> None:
    """Too large for the device: acknowledged, counted."""
    parts.relay.take(incoming(1))
    parts.offers[0][2](SendResult(FailureKind.TOO_LARGE, "packet too large"))
    assert parts.connection.acknowledged == [1]
    assert parts.relay.dropped_total == 1


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
        parts.offers[0][2](DELIVERED)
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
