"""Turns: slices, pauses in proportion, shares of what is unsettled, and nobody alone waits."""

from edgehub.clock import ManualClock
from edgehub.errors import ProtocolError
from edgehub.heads.mqtt.backlog import Backlog
from edgehub.heads.mqtt.fairness import SHARE_BYTES_MIN, FairShare, Turn
from edgehub.mqtt.server_decoder import Decoder
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import Changes


class Client:
    """A client that was heard at some time, with so many unsettled bytes, and its turn."""

    def __init__(self, clock: ManualClock, heard_s: float = 0.0) -> None:
        self.clock = clock
        self.heard_s = heard_s or clock.monotonic()
        self.bytes = 0
        self.wake_bytes = -1
        self.turns = Changes()

    def next_turn(self) -> None:
        """See `ClientConnection`."""
        self.turns()


class Parts:
    """A busy client, its neighbours and what they share."""

    def __init__(self, neighbours: int) -> None:
        self.clock = ManualClock()
        self.backlog = Backlog("bytes", 2**26, {})
        self.client = Client(self.clock)
        self.neighbours = [Client(self.clock) for _ in range(neighbours)]
        self.share = FairShare(self.clock, self.backlog, [self.client, *self.neighbours])
        self.turn = Turn(self.clock, self.share, self.client)

    def end_turn(self) -> None:
        """End a turn of the busy client."""
        self.client.wake_bytes = self.turn.end(self.client.bytes)

    def unsettled(self, own: int, others: int = 0) -> None:
        """Set what is unsettled."""
        self.client.bytes = own
        self.backlog.identified.used = own + others


async def test_alone_no_client_waits():
    """Whatever a lone client has unsettled, it is read on."""
    parts = Parts(0)
    parts.unsettled(2**20)
    parts.end_turn()
    assert not parts.turn.is_waiting


async def test_a_neighbour_that_is_silent_does_not_count():
    """Who was not heard for a moment leaves its share to the others."""
    parts = Parts(1)
    await parts.clock.advance(1)
    parts.client.heard_s = parts.clock.monotonic()
    parts.unsettled(2**20)
    parts.end_turn()
    assert not parts.turn.is_waiting


async def test_more_than_its_share_waits_until_it_is_settled():
    """The client goes on once half of its share is settled, or after a short while."""
    parts = Parts(10)
    parts.unsettled(SHARE_BYTES_MIN * 2)
    parts.end_turn()
    assert parts.turn.is_waiting
    assert parts.client.wake_bytes == SHARE_BYTES_MIN // 2
    parts.turn.wake()
    await parts.clock.advance(0)
    assert len(parts.client.turns.all) == 1
    assert not parts.turn.is_waiting
    parts.end_turn()
    await parts.clock.advance(0.05)
    assert len(parts.client.turns.all) == 2


async def test_the_share_grows_with_what_all_have():
    """Among clients that all have much, each may have as much."""
    parts = Parts(1)
    parts.unsettled(200_000, 200_000)
    parts.end_turn()
    assert not parts.turn.is_waiting
    parts.unsettled(300_000, 20_000)
    parts.end_turn()
    assert parts.turn.is_waiting
    parts.turn.close()


async def test_slices():
    """Bytes come in their order, some dozens of packets at a time, next turn after next turn."""
    parts = Parts(0)
    decoder = Decoder(publish_bytes_max=10_000)
    decoder.feed(wire.connect(), [])
    stream = b"".join(wire.publish("t", b"%d" % n + b"x" * 100) for n in range(500))
    parts.turn.add(stream[:20_000])
    parts.turn.add(stream[20_000:])
    bodies = []
    turns = 0
    while parts.turn.has_rest:
        packets = []
        parts.turn.decode(decoder, packets)
        assert 0 < len(packets) < 110
        bodies += [int(packet.body.rstrip(b"x")) for packet in packets]
        parts.end_turn()
        assert parts.turn.is_waiting == parts.turn.has_rest
        turns += 1
        await parts.clock.advance(0)
        assert len(parts.client.turns.all) == min(turns, turns - (not parts.turn.has_rest))
    assert bodies == list(range(500))


async def test_what_is_malformed_ends_it():
    """Nothing is left to decode behind a broken packet."""
    parts = Parts(0)
    decoder = Decoder(publish_bytes_max=10_000)
    decoder.feed(wire.connect(), [])
    parts.turn.add(wire.PINGREQ * 10 + b"\x00" * 50_000)
    packets = []
    try:
        parts.turn.decode(decoder, packets)
    except ProtocolError:
        assert len(packets) == 10
    assert not parts.turn.has_rest


async def test_pauses_are_as_long_as_the_neighbours_need():
    """While others are active a client pauses several times as long as its slice took."""
    parts = Parts(3)
    decoder = Decoder(publish_bytes_max=10_000)
    decoder.feed(wire.connect(), [])
    parts.turn.add(wire.PINGREQ * 50_000)
    parts.turn.decode(decoder, [])
    await parts.clock.advance(0.004)
    parts.end_turn()
    await parts.clock.advance(0.011)
    assert parts.client.turns.all == []
    await parts.clock.advance(0.0011)
    assert len(parts.client.turns.all) == 1


async def test_a_client_that_left_has_no_turn():
    """Nothing is decoded, and no timer fires, after the end."""
    parts = Parts(1)
    parts.turn.add(wire.PINGREQ * 50_000)
    parts.unsettled(2**20)
    parts.end_turn()
    parts.turn.close()
    assert not parts.turn.has_rest
    parts.turn.wake()
    await parts.clock.advance(1)
    assert parts.client.turns.all == []
