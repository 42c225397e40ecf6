"""The MQTT endpoint with MQTT 5: properties, bounds of the peer, refusals, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.endpoints.mqtt_payload import RowProperties, SingleRows
from edgehub.endpoints.mqtt_topic import IotHubTopics, TopicTemplate
from edgehub.message import UPSTREAM, FailureKind
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt5_peer import mqtt5_peer
from tests.support.quick_clock import QuickClock
from tests.support.subscriber import subscriber
from tests.support.uplink import batched_rows, uplink

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

NOW_MS = 10**12
"""Later than any time since a boot, so that rows are not over before they are sent."""


def single_rows(topic: str | None = None, *, expiry: bool = True) -> SingleRows:
    """Return payloads of single rows at a fixed hub time."""
    topics = (
        IotHubTopics() if topic is None else TopicTemplate(topic, endpoint_id=UPSTREAM, key="topic")
    )
    properties = RowProperties(lambda: NOW_MS, named=topic is not None, expiry=expiry)
    return SingleRows(topics, None, properties)


async def test_rows_arrive_at_mosquitto(tmp_path: Path) -> None:
    """In order, once each, within the receive maximum of 20 that it says."""
    with Mosquitto(tmp_path) as broker:
        async with subscriber(broker.port) as parent, uplink(broker.port, level=5) as up:
            up.queue().put(*(a_row(number, body=b"%d" % number) for number in range(2000)))
            await parent.wait(2000)
            assert parent.bodies == [b"%d" % number for number in range(2000)]


async def test_properties_of_a_template_and_the_time_that_is_left() -> None:
    """What the topic does not hold goes as user properties; seconds are rounded up."""
    payloads = single_rows("site/{device}")
    async with mqtt5_peer() as peer, uplink(peer.port, level=5, payloads=payloads) as up:
        row = a_row(1, properties={"kind": "alarm", "bare": None, "bad": "a\nb"})
        row.message.system["contentType"] = "a/b"
        row.expires_ms = NOW_MS + 4_001
        up.queue().put(row)
        await peer.until(lambda: peer.published)
        (packet,) = peer.published
        assert (packet.topic, packet.payload) == ("site/dev-1", row.message.body)
        assert packet.user_properties == [("kind", "alarm"), ("bare", "")]
        assert (packet.content_type, packet.message_expiry_interval) == ("a/b", 5)


@pytest.mark.parametrize(
    ("expires_ms", "expiry", "seconds"),
    [(NOW_MS + 60_000, True, 60), (2**62, True, None), (NOW_MS + 60_000, False, None)],
)
async def test_the_dialect_has_its_properties_in_the_topic(
    expires_ms: int, seconds: int | None, *, expiry: bool
) -> None:
    """The message expiry interval alone has a place of its own."""
    payloads = single_rows(expiry=expiry)
    async with mqtt5_peer() as peer, uplink(peer.port, level=5, payloads=payloads) as up:
        up.queue().put(a_row(1, properties={"kind": "alarm"}, expires_ms=expires_ms))
        await peer.until(lambda: peer.published)
        (packet,) = peer.published
        assert "kind=alarm" in packet.topic
        assert (packet.user_properties, packet.message_expiry_interval) == ([], seconds)


@pytest.mark.parametrize("topic", [None, "site/{device}"])
@pytest.mark.parametrize("hub_id", ["gw", "g" * 300])
async def test_a_message_names_the_hub_that_publishes_it(topic: str | None, hub_id: str) -> None:
    """Where the hub subscribes to the same broker, so that it knows its own when they come back."""
    topics = (
        IotHubTopics() if topic is None else TopicTemplate(topic, endpoint_id=UPSTREAM, key="topic")
    )
    properties = RowProperties(lambda: NOW_MS, named=topic is not None, expiry=True, origin=hub_id)
    payloads = SingleRows(topics, None, properties)
    async with mqtt5_peer() as peer, uplink(peer.port, level=5, payloads=payloads) as up:
        up.queue().put(a_row(1, expires_ms=NOW_MS + 1))
        await peer.until(lambda: peer.published)
        (packet,) = peer.published
        assert packet.user_properties == [("edgehub-origin", hub_id)]
        assert packet.message_expiry_interval == 1


async def test_a_property_that_fits_into_no_packet_is_a_dead_letter() -> None:
    """The next row goes on."""
    payloads = single_rows("site/{device}")
    async with mqtt5_peer() as peer, uplink(peer.port, level=5, payloads=payloads) as up:
        queue = up.queue()
        queue.put(a_row(1, properties={"long": "ä" * 40_000}), a_row(2))
        await peer.until(lambda: peer.published)
        peer.answer()
        await up.until(lambda: queue.confirmed == [2])
        assert [(offset, kind) for offset, kind, _ in queue.dead] == [(1, FailureKind.TOO_LARGE)]


@pytest.mark.parametrize("batched", [False, True])
async def test_the_receive_maximum_of_the_peer_is_kept_to(*, batched: bool) -> None:
    """Never more PUBLISHes without PUBACK, and all rows arrive."""
    payloads = batched_rows(rows_max=2) if batched else None
    async with (
        mqtt5_peer(receive_max=3) as peer,
        uplink(peer.port, level=5, payloads=payloads) as up,
    ):
        queue = up.queue()
        queue.put(*(a_row(number, device=f"d{number}") for number in range(40)))
        while len(queue.confirmed) < 40:
            await peer.until(lambda: peer.unanswered)
            peer.answer()
            await up.until(lambda: peer.unanswered or len(queue.confirmed) == 40)
        assert peer.unanswered_most <= 3
        assert sorted(queue.confirmed) == list(range(40))


async def test_the_largest_packet_of_the_peer_is_kept_to() -> None:
    """What is larger is a dead letter and never sent."""
    async with mqtt5_peer(max_packet_size=300) as peer, uplink(peer.port, level=5) as up:
        queue = up.queue()
        queue.put(a_row(1, body=bytes(300)), a_row(2, body=b"x"))
        await peer.until(lambda: peer.published)
        peer.answer()
        await up.until(lambda: queue.confirmed == [2])
        ((offset, kind, reason),) = queue.dead
        assert (offset, kind) == (1, FailureKind.TOO_LARGE)
        assert "the peer takes 300" in reason


@pytest.mark.parametrize(
    ("code", "kind"), [(0x95, FailureKind.TOO_LARGE), (0x99, FailureKind.REJECTED)]
)
async def test_a_refusal_for_good_is_a_dead_letter_with_its_reason(
    code: int, kind: FailureKind
) -> None:
    """And the connection goes on."""
    async with mqtt5_peer() as peer, uplink(peer.port, level=5) as up:
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"))
        await peer.until(lambda: len(peer.unanswered) == 2)
        peer.answer(code)
        peer.answer()
        await up.until(lambda: queue.confirmed == [2])
        assert [(offset, found) for offset, found, _ in queue.dead] == [(1, kind)]
        assert peer.levels == [5]


@pytest.mark.parametrize("code", [0x80, 0x97])
async def test_a_refusal_for_now_is_tried_again(code: int) -> None:
    """The others go on meanwhile."""
    async with mqtt5_peer() as peer, uplink(peer.port, clock=QuickClock(), level=5) as up:
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"))
        await peer.until(lambda: len(peer.unanswered) == 2)
        peer.answer(code)
        peer.answer()
        await peer.until(lambda: len(peer.published) == 3)
        peer.answer()
        await up.until(lambda: queue.confirmed == [2, 1])


async def test_a_batch_of_which_the_peer_names_the_refused_senders() -> None:
    """Their rows are held, those of others are delivered, whatever the names say beyond that."""
    async with (
        mqtt5_peer() as peer,
        uplink(peer.port, level=5, payloads=batched_rows()) as up,
    ):
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"), a_row(3, device="a"))
        await peer.until(lambda: peer.unanswered)
        assert len(peer.published) == 1
        peer.answer(0x87, ["a", "z"])
        await up.until(lambda: queue.confirmed == [2])
        await up.until(lambda: [offset for offset, _ in queue.refused] == [1, 3])
        await up.until(lambda: bool(up.pump.statistics().refused_senders))
        (held,) = up.pump.statistics().refused_senders
        assert (held.sender, held.reason) == ("a", "refused: Not authorized")


@pytest.mark.parametrize("code", [0x83, 0x95, 0x99])
async def test_of_a_batch_that_is_refused_for_good_one_row_is_to_blame(code: int) -> None:
    """It alone becomes a dead letter."""
    async with (
        mqtt5_peer() as peer,
        uplink(peer.port, level=5, payloads=batched_rows()) as up,
    ):
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"), a_row(3, device="c"))
        await peer.until(lambda: peer.unanswered)
        peer.answer(code)
        await peer.until(lambda: len(peer.unanswered) == 3)
        peer.answer()
        peer.answer(code)
        peer.answer()
        await up.until(lambda: sorted(queue.confirmed) == [1, 3])
        assert [offset for offset, _, _ in queue.dead] == [2]


async def test_a_refused_batch_without_names_is_sent_singly() -> None:
    """So it shows which sender it is; nothing is taken for delivered before."""
    async with (
        mqtt5_peer() as peer,
        uplink(peer.port, level=5, payloads=batched_rows()) as up,
    ):
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"), a_row(3, device="c"))
        await peer.until(lambda: peer.unanswered)
        peer.answer(0x87)
        await peer.until(lambda: len(peer.unanswered) == 3)
        assert queue.confirmed == []
        peer.answer()
        peer.answer(0x87)
        peer.answer()
        await up.until(lambda: sorted(queue.confirmed) == [1, 3])
        assert [offset for offset, _ in queue.refused] == [2]
        (held,) = up.pump.statistics().refused_senders
        assert held.sender == "b"


async def test_names_that_are_of_no_row_refuse_none_of_them_silently() -> None:
    """A batch with foreign names is sent singly, too: a missing name is no delivery."""
    async with (
        mqtt5_peer() as peer,
        uplink(peer.port, level=5, payloads=batched_rows()) as up,
    ):
        queue = up.queue()
        queue.put(a_row(1, device="a"), a_row(2, device="b"))
        await peer.until(lambda: peer.unanswered)
        peer.answer(0x87, ["z"])
        await peer.until(lambda: len(peer.unanswered) == 2)
        assert queue.confirmed == []


@pytest.mark.parametrize(
    ("disconnect", "kind"),
    [
        (b"\xe0\x01\x8b", FailureKind.DISCONNECTED),
        (b"\xe0\x01\x8e", FailureKind.DISCONNECTED),
        (b"\xe0\x01\x81", FailureKind.CLOSED),
    ],
)
async def test_a_disconnect_says_whether_it_was_over_a_message(
    disconnect: bytes, kind: FailureKind
) -> None:
    """A peer that shuts down, or has another session, has nothing against the oldest row."""
    async with mqtt5_peer() as peer, uplink(peer.port, level=5) as up:
        up.queue().put(a_row(1))
        await peer.until(lambda: peer.unanswered)
        peer.send(disconnect)
        await up.until(lambda: up.pump.statistics().failures[kind] == 1)


async def test_a_peer_that_closes_over_mqtt_5_gets_3_1_1_until_a_reload() -> None:
    """At once, and at later connects; a reload asks again."""
    async with (
        mqtt5_peer(speaks_5=False) as peer,
        uplink(peer.port, clock=QuickClock(), level=5, falls_back=True) as up,
    ):
        await up.until(lambda: up.endpoint.state == "up")
        assert peer.levels == [5, 4]
        assert up.pump.statistics().failures[FailureKind.DISCONNECTED] == 0
        peer.cut()
        await peer.until(lambda: len(peer.levels) == 3)
        await up.until(lambda: up.endpoint.state == "up")
        up.endpoint.retry_now()
        peer.cut()
        await peer.until(lambda: len(peer.levels) >= 5)
        assert peer.levels[:5] == [5, 4, 4, 5, 4]


async def test_a_peer_that_takes_no_version_is_asked_for_5_first_each_time() -> None:
    """Nothing is remembered of a peer that is not there as a server at all."""
    async with (
        mqtt5_peer(speaks_5=False) as peer,
        uplink(peer.port, clock=QuickClock(), level=5, falls_back=False) as up,
    ):
        await peer.until(lambda: len(peer.levels) == 2, timeout_s=15)
        assert peer.levels == [5, 5]
        assert up.endpoint.state == "connecting"
