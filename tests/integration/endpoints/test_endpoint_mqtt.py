"""The MQTT endpoint against a scripted peer: what no real broker does on request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.message import FailureKind
from edgehub.mqtt.packets import publish
from tests.support.memory_queue import a_row
from tests.support.mqtt_peer import mqtt_peer
from tests.support.ports import free_port
from tests.support.quick_clock import QuickClock
from tests.support.uplink import uplink

if TYPE_CHECKING:
    from tests.support.mqtt_peer import MqttPeer

pytestmark = pytest.mark.integration


async def test_the_peers_receive_maximum_is_never_exceeded() -> None:
    """200 rows through a peer that allows 10: never 11 unconfirmed, one connection (L-07)."""
    async with mqtt_peer() as peer, uplink(peer.port, rows_max=10) as up:
        peer.acknowledge = False
        queue = up.queue()
        queue.put(*(a_row(number, body=b"%d" % number) for number in range(200)))
        while len(queue.confirmed) < 200:
            await peer.until(lambda: bool(peer.unconfirmed))
            peer.confirm()
            await up.until(lambda: bool(peer.unconfirmed) or len(queue.confirmed) == 200)
        assert peer.unconfirmed_most <= 10
        assert peer.connects == 1
        assert peer.published == [b"%d" % number for number in range(200)]


async def test_a_silent_peer_is_given_up_and_asked_again() -> None:
    """No PUBACK in time: a time-out for the oldest row, a new connection, all delivered."""
    async with mqtt_peer() as peer, uplink(peer.port, ack_timeout_s=4, clock=QuickClock()) as up:
        peer.acknowledge = False
        queue = up.queue()
        queue.put(a_row(1), a_row(2))
        await peer.until(lambda: len(peer.published) == 2)
        await peer.until(lambda: peer.connects == 2)
        peer.acknowledge = True
        await up.until(lambda: queue.confirmed == [1, 2])
        failures = up.pump.statistics().failures
        assert failures[FailureKind.TIMEOUT] == 1
        assert failures[FailureKind.DISCONNECTED] == 1


async def test_a_row_whose_confirmation_is_lost_comes_again() -> None:
    """Younger rows confirmed all the time do not keep the oldest one in flight for ever."""
    async with mqtt_peer() as peer, uplink(peer.port, ack_timeout_s=4, clock=QuickClock()) as up:
        peer.acknowledge = False
        queue = up.queue()
        queue.put(a_row(1))
        await peer.until(lambda: len(peer.unconfirmed) == 1)
        peer.unconfirmed.clear()
        number = 1
        while peer.connects == 1:
            number += 1
            queue.put(a_row(number))
            await peer.until(lambda n=number: len(peer.published) >= n or peer.connects > 1)
            peer.confirm()
            await up.until(lambda n=number: n in queue.confirmed or peer.connects > 1)
        peer.acknowledge = True
        await peer.until(lambda: peer.is_connected)
        peer.confirm()
        await up.until(lambda: sorted(queue.confirmed) == list(range(1, number + 1)))
        assert up.pump.statistics().failures[FailureKind.TIMEOUT] == 1


async def test_confirmations_of_unknown_rows_are_no_sign_of_life() -> None:
    """A peer that confirms only what was never sent is given up like a silent one."""
    async with mqtt_peer() as peer, uplink(peer.port, ack_timeout_s=4, clock=QuickClock()) as up:
        peer.acknowledge = False
        up.queue().put(a_row(1))
        await peer.until(lambda: len(peer.unconfirmed) == 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_confirm_nothing(peer))
            await peer.until(lambda: peer.connects == 2)
            task.cancel()


async def test_devices_are_subscribed_to_at_each_connection() -> None:
    """A peer that has forgotten the session gets the subscriptions of all devices again."""
    async with (
        mqtt_peer() as peer,
        uplink(peer.port, clock=QuickClock(), device_bound=lambda *_, **__: None) as up,
    ):
        up.endpoint.subscribe_device("d1")
        await peer.until(lambda: peer.subscribes == 1)
        peer.cut()
        await peer.until(lambda: peer.connects == 2 and peer.subscribes == 2)


async def _confirm_nothing(peer: MqttPeer) -> None:
    while True:
        peer.send(b"\x40\x02\xff\x00")
        await asyncio.sleep(0.05)


async def test_confirmations_of_an_old_connection_count_for_nothing() -> None:
    """After a cut every unconfirmed row is sent again, and settled once."""
    async with mqtt_peer() as peer, uplink(peer.port, clock=QuickClock()) as up:
        peer.acknowledge = False
        queue = up.queue()
        queue.put(a_row(1), a_row(2), a_row(3))
        await peer.until(lambda: len(peer.unconfirmed) == 3)
        peer.confirm(1)
        await up.until(lambda: queue.confirmed == [1])
        peer.cut()
        await peer.until(lambda: peer.connects == 2 and len(peer.unconfirmed) == 2)
        peer.send(b"\x40\x02\xff\x00")
        peer.confirm()
        await up.until(lambda: queue.confirmed == [1, 2, 3])
        assert [row.attempts for row in queue.rows] == []


@pytest.mark.parametrize(("connack", "parked"), [(4, True), (5, True), (2, True), (3, False)])
async def test_a_refused_connect_parks_only_when_a_person_must_act(
    connack: int, parked: bool
) -> None:
    """A wrong name or password parks; a server that is unavailable is asked again."""
    async with mqtt_peer() as peer:
        peer.connack = connack
        async with uplink(peer.port) as up:
            await up.until(lambda: bool(up.pump.statistics().reason))
            statistics = up.pump.statistics()
            assert statistics.state == ("parked" if parked else "connecting")
            assert statistics.reason.startswith("refused: ")
            peer.connack = 0
            up.pump.retry_now()
            queue = up.queue()
            queue.put(a_row(1))
            await up.until(lambda: queue.confirmed == [1])
            assert up.endpoint.state == "up"


async def test_a_peer_that_closes_before_connack_is_noticed_at_once() -> None:
    """The hub does not wait for its connect time-out to learn that the peer hung up."""
    async with mqtt_peer() as peer:
        peer.connack = -1
        async with uplink(peer.port, connect_timeout_s=60) as up:
            await up.until(lambda: bool(up.pump.statistics().reason), timeout_s=3)
            assert up.pump.statistics().reason == "closed by the peer"


async def test_an_end_right_behind_connack_is_noticed() -> None:
    """Junk in one piece with CONNACK ends the connection before anybody waits for its end."""
    async with mqtt_peer() as peer:
        peer.after_connack = b"\xff" * 8
        async with uplink(peer.port, clock=QuickClock()) as up:
            up.queue().put(a_row(1))
            await peer.until(lambda: peer.connects == 1)
            peer.after_connack = b""
            await up.until(lambda: up.queue().confirmed == [1])


async def test_a_peer_without_connack_times_out() -> None:
    """A peer that accepts and says nothing costs the connect time-out, no more."""
    async with mqtt_peer() as peer:
        peer.connack = None
        async with uplink(peer.port, connect_timeout_s=0.3) as up:
            await up.until(lambda: bool(up.pump.statistics().reason), timeout_s=3)
            assert "timed out" in up.pump.statistics().reason


async def test_an_unreachable_peer_leaves_the_endpoint_connecting() -> None:
    """Nobody listens: state connecting, rows wait, the reason is shown (O-06)."""
    async with uplink(free_port()) as up:
        queue = up.queue()
        queue.put(*(a_row(number) for number in range(720)))
        await up.until(lambda: bool(up.pump.statistics().reason))
        assert up.endpoint.state == "connecting"
        assert up.pump.statistics().reason == "Connection refused"
        assert len(queue.rows) == 720


async def test_what_is_too_large_is_set_aside_and_the_rest_flows() -> None:
    """The whole packet is measured, topic included, before it is sent (P-10)."""
    async with mqtt_peer() as peer, uplink(peer.port, row_bytes_max=131_072) as up:
        queue = up.queue()
        queue.put(a_row(1, body=b"x" * 131_040), *(a_row(number) for number in range(2, 12)))
        await up.until(lambda: len(queue.confirmed) == 10)
        ((offset, kind, reason),) = queue.dead
        assert (offset, kind) == (1, FailureKind.TOO_LARGE)
        assert reason.startswith("packet of 1311")
        assert peer.connects == 1


async def test_a_row_without_a_topic_is_a_dead_letter() -> None:
    """A device id that cannot stand in a topic never reaches the peer."""
    async with mqtt_peer() as peer, uplink(peer.port) as up:
        queue = up.queue()
        queue.put(a_row(1, device="a/#"), a_row(2), a_row(3, properties={"k": "v" * 70_000}))
        await up.until(lambda: queue.confirmed == [2] and len(queue.dead) == 2)
        assert [(offset, kind) for offset, kind, _ in queue.dead] == [
            (1, FailureKind.REJECTED),
            (3, FailureKind.TOO_LARGE),
        ]
        assert len(peer.published) == 1


async def test_large_and_small_rows_leave_in_order() -> None:
    """Writes that the socket takes in parts never mix, also beside other packets."""
    sizes = [0, 1, 127, 200_000, 5, 65_536, 3] * 4
    async with mqtt_peer() as peer, uplink(peer.port) as up:
        queue = up.queue()
        bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        queue.put(*(a_row(number, body=body) for number, body in enumerate(bodies)))
        await up.until(lambda: len(queue.confirmed) == len(sizes))
        assert peer.published == bodies


async def test_stopping_with_rows_in_flight_gives_them_back() -> None:
    """The endpoint ends at once, however silent the peer; no row is lost or settled twice."""
    async with mqtt_peer() as peer:
        peer.acknowledge = False
        async with uplink(peer.port) as up:
            queue = up.queue()
            queue.put(a_row(1), a_row(2, body=b"x" * 3_000_000))
            await peer.until(lambda: bool(peer.unconfirmed))
        assert queue.waiting == [1, 2]
        assert up.endpoint.state == "down"


async def test_stopping_while_connecting_leaves_nothing_open() -> None:
    """Cancelled at each stage of a connect: no socket, task or callback stays."""
    async with mqtt_peer() as peer:
        peer.connack = None
        for turns in range(20):
            async with uplink(peer.port):
                for _ in range(turns):
                    await asyncio.sleep(0)


async def test_junk_from_the_peer_ends_the_connection_only() -> None:
    """A packet that is none makes the hub connect again; rows come through."""
    async with mqtt_peer() as peer, uplink(peer.port, clock=QuickClock()) as up:
        await up.until(lambda: up.endpoint.state == "up")
        peer.send(b"\xf7\xff\xff\xff\xff\xff\xff")
        await peer.until(lambda: peer.connects == 2)
        queue = up.queue()
        queue.put(a_row(1))
        await up.until(lambda: queue.confirmed == [1])


async def test_device_bound_messages_are_acknowledged_once_they_are_stored() -> None:
    """The peer's PUBLISH, in small pieces, is handed on whole; its PUBACK goes back after."""
    accepted, stored = [], []
    packet = publish(b"devices/d1/messages/devicebound/kind=cmd", b"go" * 500, 77)

    def accept(target, body, *_properties, dup, done, **_) -> None:
        accepted.append((target, body, dup))
        stored.append(done)

    async with mqtt_peer() as peer, uplink(peer.port, device_bound=accept) as up:
        await up.until(lambda: up.endpoint.state == "up")
        up.endpoint.subscribe_device("d1")
        await peer.until(lambda: peer.subscribes == 1)
        for at in range(0, len(packet), 100):
            peer.send(packet[at : at + 100])
            await asyncio.sleep(0.001)
        await up.until(lambda: len(accepted) == 1)
        assert accepted == [("d1", b"go" * 500, False)]
        assert peer.acknowledged == []
        stored[0]()
        await peer.until(lambda: peer.acknowledged == [77])


async def test_keep_alive_survives_a_busy_link_of_confirmations_only() -> None:
    """PUBACKs bypass the client that counts silence; its pings keep the link alive."""
    async with mqtt_peer() as peer, uplink(peer.port, keep_alive_s=2, clock=QuickClock()) as up:
        queue = up.queue()
        for number in range(35):
            queue.put(a_row(number))
            await up.until(lambda count=number + 1: len(queue.confirmed) == count)
            await up.clock.sleep(0.2)
        assert peer.connects == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_only_a_row_that_had_left_whole_is_suspected(reset: bool) -> None:
    """A peer that closes while most of a row still waits here has not refused that row."""
    async with mqtt_peer() as peer, uplink(peer.port) as up:
        peer.hold_back(reset=reset)
        up.queue().put(a_row(1, body=bytes(32 * 2**20)))
        await up.until(lambda: up.pump.statistics().failures[FailureKind.DISCONNECTED] == 1)
        assert up.pump.statistics().failures[FailureKind.CLOSED] == 0
        peer.close_over(b"bad")
        up.queue().put(a_row(2, body=b"bad"))
        up.queue().rows = [row for row in up.queue().rows if row.offset == 2]
        up.pump.retry_now()
        await up.until(lambda: up.pump.statistics().failures[FailureKind.CLOSED] == 1)


async def test_a_row_that_breaks_off_comes_again_before_the_next() -> None:
    """R-12: a reset after 40 % of row 7 of 30: it comes again before row 8, nothing is lost."""
    bodies = [b"row %d " % number + bytes(2000) for number in range(1, 31)]
    async with mqtt_peer() as peer, uplink(peer.port) as up:
        peer.break_in(after=6, size=800)
        queue = up.queue()
        queue.put(*(a_row(number, body=body) for number, body in enumerate(bodies, 1)))
        await up.until(lambda: sum(up.pump.statistics().failures.values()) > 0)
        up.pump.retry_now()
        await up.until(lambda: len(queue.confirmed) == 30)
        assert list(dict.fromkeys(peer.published)) == bodies
        assert peer.published.count(bodies[6]) == 1
        assert queue.confirmed == list(range(1, 31))


async def test_a_subscription_that_the_peer_answers_by_closing_is_left_out() -> None:
    """After three closes the others are had, and rows flow; no row is suspected of them."""
    forbidden = "devices/bad/messages/devicebound/#"
    granted = "devices/good/messages/devicebound/#"
    async with (
        mqtt_peer() as peer,
        uplink(peer.port, clock=QuickClock(), device_bound=lambda *_, **__: None) as up,
    ):
        peer.forbidden.add(forbidden)
        await up.until(lambda: up.endpoint.state == "up")
        queue = up.queue()
        for device_id in ("bad", "good"):
            up.endpoint.subscribe_device(device_id)
        for number in range(1, 6):
            queue.put(a_row(number))
        await up.until(lambda: up.endpoint.left_out_filters == (forbidden,), timeout_s=20)
        await up.until(lambda: up.endpoint.state == "up")
        await up.until(lambda: len(queue.confirmed) == 5)
        await peer.until(lambda: peer.granted == {granted})
        queue.put(a_row(6))
        await up.until(lambda: 6 in queue.confirmed)
        assert up.pump.statistics().failures[FailureKind.CLOSED] == 0
        connects = peer.connects
        assert connects <= 6
        peer.forbidden.clear()
        up.pump.retry_now()
        await peer.until(lambda: peer.granted == {granted, forbidden})
        await up.until(lambda: up.endpoint.left_out_filters == ())
        assert peer.connects == connects
