"""What peers of endpoints send: any bytes are packets, answers or an error, however cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from edgehub.endpoints.device_packets import PacketError, PacketParser, Publish
from edgehub.endpoints.http_answer import RETRY_AFTER_MAX_S, judge
from edgehub.endpoints.http_link import Answer
from edgehub.mqtt.client_decoder import InboundFilter, Incoming
from tests.support import mqtt_wire as wire
from tests.support.hostile import JSON_PIECES, bounded, cut, cuts, fuzzer, hostile, hostile_text

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_MAX = 600
NOW_MS = 1_777_636_800_000

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


def fields(message: Incoming) -> tuple[object, ...]:
    """Make a message comparable."""
    return tuple(getattr(message, name) for name in Incoming.__slots__)


def taken(chunks: Sequence[bytes], level: int) -> tuple[object, ...]:
    """Feed the filter of the uplink; returns all that comes out."""
    passed = bytearray()
    inbound = InboundFilter(passed.extend, level=level, bytes_max=BYTES_MAX)
    for chunk in chunks:
        inbound.feed(chunk)
    mids, refusals, messages = inbound.take()
    assert len(passed) + sum(each.size for each in messages[:-1]) <= sum(map(len, chunks))
    assert all(each.body is None or len(each.body) <= BYTES_MAX for each in messages)
    return mids, refusals, list(map(fields, messages)), bytes(passed)


@fuzzer
@given(hostile(STREAMS, PIECES), cuts, LEVELS)
def test_a_damaged_stream_of_the_uplink_is_filtered_the_same_however_it_is_cut(
    stream, places, level
):
    """No exception; the same ids, refusals, messages and other bytes."""
    whole = bounded(lambda: taken([stream], level))
    assert bounded(lambda: taken(cut(stream, places), level)) == whole


def packets(chunks: Sequence[bytes], version: int) -> tuple[list[object], bool]:
    """Feed the parser of a device's session; returns its packets, and whether it refused."""
    parser = PacketParser(version=version)
    found: list[object] = []
    for chunk in chunks:
        try:
            found += parser.feed(chunk)
        except PacketError:
            return found, True
    return found, False


@fuzzer
@given(hostile(STREAMS, PIECES), cuts, LEVELS)
def test_a_damaged_stream_of_a_session_is_packets_or_refused(stream, places, version):
    """The same refusal however cut, and the same packets where there is none."""
    whole, refused = bounded(lambda: packets([stream], version))
    in_parts, part_refused = bounded(lambda: packets(cut(stream, places), version))
    assert part_refused == refused
    assert in_parts == whole or refused
    for packet in whole:
        assert not isinstance(packet, Publish) or packet.topic.encode() in stream


BODIES = [
    b'{"results":[{"id":"1","status":204},{"id":"2","status":422,"reason":"no such tag"}]}',
    b'{"detail":"later","status":503}',
    b"plain words",
]
VALUES = ["120", "Fri, 01 May 2026 12:00:30 GMT", "application/problem+json", "text/plain"]
VALUE_PIECES = ["0001", "9999", "99999", "+9999", "-2400", "9" * 5_000, "\xb2", "\u0663", "31 Feb"]


@fuzzer
@given(
    st.integers(200, 600),
    hostile(BODIES, JSON_PIECES),
    st.dictionaries(
        st.sampled_from(["retry-after", "date", "content-type", "location"]),
        hostile_text(VALUES, VALUE_PIECES),
    ),
)
def test_a_damaged_answer_of_an_http_peer_has_one_meaning(status, body, headers):
    """Its reason is short and printable, a pause is bounded, and an error delivers nothing."""
    answer = Answer()
    answer.status, answer.body, answer.headers = status, body, headers
    verdict = bounded(lambda: judge(answer, NOW_MS))
    assert verdict.broken or status < 300 or verdict.result.kind is not None
    for result in (verdict.result, *verdict.by_id.values()):
        assert result.reason is None or (len(result.reason) < 700 and result.reason.isprintable())
        assert 0 <= (result.retry_after_s or 0) <= RETRY_AFTER_MAX_S
