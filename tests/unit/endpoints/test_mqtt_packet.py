"""PUBLISH and PUBACK as bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.endpoints.mqtt_packet import PubackFilter, build_publish, publish_bytes

PINGRESP = b"\xd0\x00"


def decode(packet: bytes) -> tuple[bytes, int, bytes]:
    """Read a PUBLISH back: topic, packet id, body."""
    assert packet[0] == 0x32
    remaining, shift, at = 0, 0, 1
    while True:
        remaining |= (packet[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not packet[at - 1] & 0x80:
            break
    assert len(packet) == at + remaining
    topic_end = at + 2 + int.from_bytes(packet[at : at + 2], "big")
    mid = int.from_bytes(packet[topic_end : topic_end + 2], "big")
    return packet[at + 2 : topic_end], mid, packet[topic_end + 2 :]


@given(st.binary(min_size=1, max_size=300), st.integers(1, 65_535), st.integers(0, 20_000))
@example(b"t", 1, 127 - 5)
@example(b"t", 1, 128 - 5)
@example(b"t", 65_535, 16_384 - 5)
def test_a_publish_reads_back(topic: bytes, mid: int, size: int) -> None:
    """What is built decodes to the same parts, and its length was known before."""
    body = b"b" * size
    packet = build_publish(topic, mid, body)
    assert decode(packet) == (topic, mid, body)
    assert publish_bytes(len(topic), size) == len(packet)


@pytest.mark.parametrize("remaining", [127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_length_is_right_where_the_header_grows(remaining: int) -> None:
    """At each border of the remaining length the counted and the built size agree."""
    body = b"b" * (remaining - 5)
    assert publish_bytes(1, len(body)) == len(build_publish(b"t", 1, body))


@given(
    st.lists(
        st.one_of(
            st.integers(1, 65_535).map(lambda mid: b"\x40\x02" + mid.to_bytes(2, "big")),
            st.just(PINGRESP),
            st.integers(0, 400).map(lambda size: build_publish(b"devices/d", 7, b"p" * size)),
        ),
        max_size=20,
    ),
    st.lists(st.integers(1, 50), min_size=1, max_size=50),
)
def test_pubacks_are_taken_out_whatever_the_chunks(packets: list[bytes], cuts: list[int]) -> None:
    """Any division of the stream gives the same packet ids and the same other bytes."""
    stream = b"".join(packets)
    passed = bytearray()
    taken = PubackFilter(passed.extend)
    mids: list[int] = []
    at = 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        mids += taken.feed(stream[at : at + size])
        at += size
    acks = [packet for packet in packets if packet[0] == 0x40]
    assert mids == [int.from_bytes(packet[2:], "big") for packet in acks]
    assert bytes(passed) == b"".join(packet for packet in packets if packet[0] != 0x40)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_junk_never_breaks_the_filter(chunks: list[bytes]) -> None:
    """Bytes that are no MQTT are passed on or kept, never an exception, never invented."""
    passed = bytearray()
    taken = PubackFilter(passed.extend)
    mids = [mid for chunk in chunks for mid in taken.feed(chunk)]
    assert len(passed) + 4 * len(mids) <= sum(map(len, chunks))


def test_a_length_without_end_is_passed_on() -> None:
    """Five length bytes are malformed; the client behind the filter refuses them."""
    passed = bytearray()
    junk = b"\x30\xff\xff\xff\xff\xff"
    assert PubackFilter(passed.extend).feed(junk) == []
    assert passed == junk
