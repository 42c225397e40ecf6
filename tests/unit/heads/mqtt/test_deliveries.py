"""Deliveries to one client: packet ids, time limits, and one result each."""

from edgehub.clock import ManualClock
from edgehub.heads.mqtt.deliveries import ABANDONED_MAX, IN_FLIGHT_MAX, ClientDelivery, Deliveries
from edgehub.message import FailureKind, Message
from edgehub.mqtt.packets import ConnectProperties, Pubcomp, Pubrec, pubrel
from tests.support.mqtt_listener import Changes, Results


class Peer:
    """Deliveries with all that they write and report."""

    def __init__(self, properties: ConnectProperties | None = None) -> None:
        self.clock = ManualClock()
        self.written: list[bytes] = []
        self.unresponsive = Changes()
        self.delivered = Changes()
        self.results = Results()
        self.deliveries = Deliveries(
            clock=self.clock,
            ack_timeout_s=30,
            write=self.written.append,
            unresponsive=self.unresponsive,
            delivered=self.delivered,
            properties=properties,
        )

    def send(
        self,
        *,
        qos: int = 1,
        topic: str = "t",
        body: bytes = b"body",
        expires_in_ms: int | None = None,
    ) -> None:
        """Send one."""
        message = Message("d", None, "/messages/", {}, {}, body)
        settle = self.results.settle
        self.deliveries.send(ClientDelivery(topic.encode(), message, qos, settle, expires_in_ms))

    @property
    def kinds(self) -> list[FailureKind | None]:
        """Results so far."""
        return [result.kind for result in self.results.all]

    @property
    def ids(self) -> list[int]:
        """Packet ids written so far."""
        return [int.from_bytes(data[5:7], "big") for data in self.written]


async def test_delivered_after_puback():
    """QoS 1 is settled by its PUBACK, a second PUBACK changes nothing."""
    peer = Peer()
    peer.send()
    peer.send()
    assert peer.kinds == []
    peer.deliveries.acknowledge(2)
    peer.deliveries.acknowledge(2)
    assert peer.kinds == [None]
    assert len(peer.deliveries) == 1
    assert len(peer.delivered.all) == 1


async def test_qos_0_is_delivered_at_once():
    """QoS 0 has no PUBACK to wait for."""
    peer = Peer()
    peer.send(qos=0)
    assert peer.kinds == [None]
    assert peer.written == [b"\x30\x07\x00\x01tbody"]


async def test_late_ones_time_out_each_at_its_own_time():
    """A delivery is late 30 s after it was sent, whatever happened to others."""
    peer = Peer()
    peer.send()
    await peer.clock.advance(20)
    peer.send()
    await peer.clock.advance(10)
    assert peer.kinds == [FailureKind.TIMEOUT]
    await peer.clock.advance(19)
    assert peer.kinds == [FailureKind.TIMEOUT]
    await peer.clock.advance(1)
    assert peer.kinds == [FailureKind.TIMEOUT] * 2


async def test_a_late_puback_confirms_nothing_else():
    """The packet id of a timed-out delivery is not used again before its PUBACK."""
    peer = Peer()
    peer.send()
    await peer.clock.advance(30)
    for _ in range(65_534):
        peer.send()
        peer.deliveries.acknowledge(peer.ids[-1])
        peer.written.clear()
    peer.send()
    assert peer.ids != [1]
    peer.deliveries.acknowledge(1)
    assert len(peer.deliveries) == 1


async def test_an_unresponsive_client_is_given_up():
    """A client that never confirms is reported once its unconfirmed ids reach the bound."""
    peer = Peer()
    for _ in range(ABANDONED_MAX - 1):
        peer.send()
    await peer.clock.advance(30)
    assert peer.unresponsive.all == []
    peer.send()
    await peer.clock.advance(30)
    assert peer.unresponsive.all == [()]


async def test_close_settles_the_rest():
    """When the client goes, what is in flight comes back as disconnected, and no timer runs."""
    peer = Peer()
    peer.send()
    peer.send()
    peer.deliveries.close()
    await peer.clock.advance(60)
    assert peer.kinds == [FailureKind.DISCONNECTED] * 2


async def test_a_client_that_has_gone_is_not_reported_again():
    """What waited for an unresponsive client has no time limit any more."""
    peer = a_terse_peer(1)
    peer.send()
    await peer.clock.advance(10)
    peer.send()
    await peer.clock.advance(20)
    assert peer.unresponsive.all == [()]
    peer.deliveries.close()
    await peer.clock.advance(60)
    assert peer.unresponsive.all == [()]


async def test_a_topic_that_does_not_fit():
    """Properties that no topic can hold are too large, not an exception."""
    peer = Peer()
    peer.send(topic="t" * 65_536)
    assert peer.kinds == [FailureKind.TOO_LARGE]


def a_terse_peer(receive_maximum: int = 2) -> Peer:
    """A client of MQTT 5 that takes so many at once."""
    return Peer(ConnectProperties(receive_maximum=receive_maximum))


async def test_what_waits_is_late_too():
    """Waiting does not lengthen the time in which a delivery is settled."""
    peer = a_terse_peer()
    for _ in range(3):
        peer.send()
    await peer.clock.advance(10)
    peer.send()
    assert (len(peer.written), len(peer.deliveries)) == (2, 4)
    await peer.clock.advance(20)
    assert peer.kinds == [FailureKind.TIMEOUT] * 3
    assert peer.deliveries.waiting_bytes == len(b"tbody")
    await peer.clock.advance(10)
    assert peer.kinds == [FailureKind.TIMEOUT] * 4
    assert (len(peer.written), peer.deliveries.waiting_bytes) == (2, 0)


async def test_what_was_never_confirmed_counts_against_the_receive_maximum():
    """A late PUBACK makes room again; without it nothing more is sent, and that is reported."""
    peer = a_terse_peer()
    peer.send()
    await peer.clock.advance(30)
    for _ in range(2):
        peer.send()
    assert len(peer.written) == 2
    peer.deliveries.acknowledge(1)
    assert len(peer.written) == 3
    assert peer.unresponsive.all == []
    await peer.clock.advance(30)
    assert peer.unresponsive.all == [()]


async def test_what_was_never_confirmed_keeps_its_place_when_others_are_confirmed():
    """Of two places one is taken by a delivery that timed out: one delivery at a time is left."""
    peer = a_terse_peer()
    peer.send()
    await peer.clock.advance(10)
    for _ in range(3):
        peer.send()
    await peer.clock.advance(20)
    assert peer.kinds == [FailureKind.TIMEOUT]
    peer.deliveries.acknowledge(2)
    assert len(peer.written) == 3
    peer.deliveries.acknowledge(3)
    assert len(peer.written) == 4


async def test_what_waits_is_bounded():
    """Beyond a bound of bytes deliveries are turned away for now; a large one may wait alone."""
    peer = a_terse_peer(1)
    peer.send()
    peer.send(body=b"x" * 2**21)
    peer.send()
    assert peer.kinds == [FailureKind.THROTTLED]
    peer.deliveries.acknowledge(1)
    assert peer.kinds == [FailureKind.THROTTLED, None]
    assert [len(data) > 2**21 for data in peer.written] == [False, True]
    peer.deliveries.close()
    assert peer.kinds[2:] == [FailureKind.DISCONNECTED]


async def test_the_time_to_live_runs_while_a_message_waits():
    """What is left is told when it is sent; when nothing is, it is not sent at all."""
    peer = a_terse_peer(1)
    peer.send()
    peer.send(expires_in_ms=9_000)
    peer.send(expires_in_ms=1_000)
    await peer.clock.advance(4)
    peer.deliveries.acknowledge(1)
    assert peer.written[-1].endswith(b"\x05\x02\x00\x00\x00\x05body")
    peer.deliveries.acknowledge(2)
    assert peer.kinds == [None, None, FailureKind.TRANSIENT]
    assert len(peer.written) == 2


async def test_unknown_refusals_may_go_over():
    """A code that nobody knows is a refusal for now."""
    peer = a_terse_peer()
    peer.send()
    peer.deliveries.acknowledge(1, 0xEE)
    assert peer.kinds == [FailureKind.TRANSIENT]
    assert "0xee" in peer.results.all[0].reason
    assert peer.delivered.all == []


async def test_some_packet_ids_are_left_for_others():
    """What is never confirmed leaves ids for the local topic space, and then waits."""
    peer = Peer()
    for _ in range(IN_FLIGHT_MAX + 1):
        peer.send()
    assert peer.kinds == [FailureKind.THROTTLED]
    peer.deliveries.reserved = range(1, 60_000)
    assert peer.deliveries.free_id() > 59_999


async def test_an_exchange_of_the_local_space():
    """Each step is answered once, and only what is awaited counts."""
    peer = Peer(ConnectProperties(receive_maximum=1))
    steps: list[bool] = []
    peer.deliveries.hold(5, Pubrec, steps.append)
    peer.deliveries.acknowledge(5)
    peer.deliveries.completed(5)
    assert steps == []
    assert peer.deliveries.received(5)
    assert not peer.deliveries.has_room(100)
    assert peer.deliveries.received(5)
    assert steps == [False]
    peer.deliveries.hold(5, Pubcomp, steps.append)
    assert peer.deliveries.received(5)
    assert peer.written == [pubrel(5)]
    peer.deliveries.completed(5)
    assert steps == [False, True]
    assert peer.deliveries.has_room(100)
    assert not peer.deliveries.received(5)
