"""What servers send a client: any bytes are packets or a protocol error, however cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from edgehub.errors import ProtocolError
from edgehub.mqtt.client_decoder import ClientDecoder, IncomingPublish
from tests.support import mqtt_wire as wire
from tests.support.fuzzing import bounded, cut, cuts, fuzzer, hostile

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_MAX = 600

PACKETS = [
    wire.puback(7),
    b"\x40\x03\x01\x02\x97",
    b"\x40\x04\x01\x02\x10\x00",
    wire.publish("devices/d/messages/devicebound/a=b", b"body" * 20, qos=1, packet_id=9),
    wire.publish("a/b", b"", flags=1),
    wire.publish("q", b"\0\0", qos=2),
    wire.publish("large", bytes(900), qos=1, packet_id=10, flags=8),
    wire.packet(0x32, wire.field("five") + b"\x00\x05\x06\x03\x00\x03a/b" + b"body"),
    b"\x20\x02\x00\x00",
    b"\x20\x11\x00\x00\x0e\x21\x00\x0a\x24\x01\x12\x00\x01d\x27\x00\x00\x04\x00",
    b"\x20\x0d\x00\x87\x0a\x1f\x00\x01n\x26\x00\x01a\x00\x00",
    b"\x90\x03\x00\x07\x01",
    b"\x90\x04\x00\x07\x00\x01",
    b"\xd0\x00",
    b"\xe0\x02\x8e\x00",
]
STREAMS = [b"".join(PACKETS), b"".join(PACKETS[::-1]), *PACKETS]
PIECES = [*PACKETS, b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\x00\x00"]
LEVELS = st.sampled_from([4, 5])


def fields(message: IncomingPublish) -> tuple[object, ...]:
    """Make a message comparable."""
    return tuple(getattr(message, name) for name in IncomingPublish.__slots__)


def received(chunks: Sequence[bytes], level: int) -> tuple[object, ...]:
    """Feed a decoder; returns all that comes out, and whether the stream was refused."""
    decoder = ClientDecoder(level=level, bytes_max=BYTES_MAX)
    refused = False
    for chunk in chunks:
        try:
            decoder.feed(chunk)
        except ProtocolError:
            refused = True
    confirmed, unmatched, refusals, messages, packets = decoder.take()
    assert sum(each.size for each in messages[:-1]) <= sum(map(len, chunks))
    assert all(each.body is None or len(each.body) <= BYTES_MAX for each in messages)
    return confirmed, unmatched, refusals, list(map(fields, messages)), packets, refused


@fuzzer
@given(hostile(STREAMS, PIECES), cuts, LEVELS)
def test_a_damaged_stream_is_decoded_the_same_however_it_is_cut(stream, places, level):
    """The same ids, refusals, messages, packets and verdict; no other exception."""
    whole = bounded(lambda: received([stream], level))
    assert bounded(lambda: received(cut(stream, places), level)) == whole
