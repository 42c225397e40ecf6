"""PUBLISH as bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.mqtt.packets import publish, publish_bytes


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
    packet = publish(topic, body, mid)
    assert decode(packet) == (topic, mid, body)
    assert publish_bytes(len(topic), size) == len(packet)


@pytest.mark.parametrize("remaining", [127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_length_is_right_where_the_header_grows(remaining: int) -> None:
    """At each border of the remaining length the counted and the built size agree."""
    body = b"b" * (remaining - 5)
    assert publish_bytes(1, len(body)) == len(publish(b"t", body, 1))
