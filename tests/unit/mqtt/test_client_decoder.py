"""PUBACKs and PUBLISHes taken out of a stream."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.mqtt.client_decoder import InboundFilter, Incoming
from edgehub.mqtt.packets import publish

PINGRESP = b"\xd0\x00"
SUBACK = b"\x90\x03\x00\x01\x01"

Chunks = list[int]
cuts = st.lists(st.integers(1, 50), min_size=1, max_size=50)


def variable(length: int) -> bytes:
    """Write a variable byte integer."""
    found = bytearray()
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)


def a_publish(
    topic: bytes = b"t",
    body: bytes = b"",
    *,
    mid: int = 1,
    qos: int = 1,
    flags: int = 0,
    properties: bytes | None = None,
) -> bytes:
    """Write a PUBLISH; `properties` None = MQTT 3.1.1."""
    rest = len(topic).to_bytes(2, "big") + topic
    if qos:
        rest += mid.to_bytes(2, "big")
    if properties is not None:
        rest += variable(len(properties)) + properties
    rest += body
    return bytes([0x30 | qos << 1 | flags]) + variable(len(rest)) + rest


def feed(taken: InboundFilter, stream: bytes, sizes: Chunks) -> None:
    """Hand a stream over in pieces."""
    at = 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        taken.feed(stream[at : at + size])
        at += size


def shown(message: Incoming) -> tuple[object, ...]:
    """Give what tests compare."""
    return (message.topic, message.body, message.mid, message.qos, message.properties)


packets = st.one_of(
    st.integers(1, 65_535).map(lambda mid: b"\x40\x02" + mid.to_bytes(2, "big")),
    st.sampled_from([PINGRESP, SUBACK]),
    st.integers(0, 400).map(lambda size: publish(b"devices/d", b"p" * size, 7)),
    st.binary(max_size=200).map(lambda body: a_publish(b"x/y", body, qos=0)),
)


@given(st.lists(packets, max_size=20), cuts)
def test_each_packet_is_found_whatever_the_chunks(found: list[bytes], sizes: Chunks) -> None:
    """Any division of the stream gives the same ids, the same messages and the same other bytes."""
    passed = bytearray()
    taken = InboundFilter(passed.extend)
    feed(taken, b"".join(found), sizes)
    mids, refusals, messages = taken.take()
    acks = [packet for packet in found if packet[0] == 0x40]
    publishes = [packet for packet in found if packet[0] >> 4 == 3]
    assert mids == [int.from_bytes(packet[2:], "big") for packet in acks]
    assert refusals == []
    assert [message.size for message in messages] == list(map(len, publishes))
    assert [message.qos for message in messages] == [packet[0] >> 1 & 3 for packet in publishes]
    for message, packet in zip(messages, publishes, strict=True):
        assert message.body is not None
        assert packet.endswith(message.body)
        assert message.topic in {"devices/d", "x/y"}
    assert bytes(passed) == b"".join(p for p in found if p in {PINGRESP, SUBACK})
    assert taken.take() == ([], [], [])


def test_a_length_without_end_is_passed_on() -> None:
    """The client behind the filter refuses five length bytes; no PUBACK is read out of the rest."""
    passed = bytearray()
    junk = b"\x30\xff\xff\xff\xff\xff"
    puback = b"\x40\x02\x00\x07"
    taken = InboundFilter(passed.extend)
    taken.feed(junk)
    taken.feed(puback)
    assert taken.take() == ([], [], [])
    assert passed == junk + puback


def test_a_publish_of_qos_2_is_left_to_the_client() -> None:
    """Its four packets are none of the hot path."""
    passed = bytearray()
    taken = InboundFilter(passed.extend)
    packet = a_publish(qos=2)
    taken.feed(packet)
    assert passed == packet
    assert taken.take()[2] == []


@given(st.binary(max_size=300), st.binary(max_size=50), cuts)
def test_the_properties_of_mqtt_5_stand_apart(
    properties: bytes, body: bytes, sizes: Chunks
) -> None:
    """The block comes without its length, the body without the block."""
    taken = InboundFilter(bytearray().extend, level=5)
    feed(taken, a_publish(b"a/b", body, mid=9, flags=0x09, properties=properties), sizes)
    (message,) = taken.take()[2]
    assert shown(message) == ("a/b", body, 9, 1, properties)
    assert (message.retain, message.again) == (True, True)


def test_pubacks_of_mqtt_5_with_and_without_reason() -> None:
    """Success, also without subscribers, confirms; from 0x80 on it is a refusal."""
    taken = InboundFilter(bytearray().extend, level=5)
    taken.feed(b"\x40\x02\0\1\x40\x03\0\2\x10\x40\x04\0\3\x87\0\x40\x04\0\4\0\0")
    assert taken.take() == ([1, 2, 4], [(3, 0x87)], [])


@pytest.mark.parametrize("size", [901, 70_000, 500_000])
@given(sizes=cuts)
def test_a_packet_that_is_too_large_loses_its_body_only(size: int, sizes: Chunks) -> None:
    """Topic and packet id are known, what follows is read as before, nothing piles up."""
    taken = InboundFilter(bytearray().extend, level=5, bytes_max=900)
    stream = a_publish(b"big", bytes(size), mid=7, properties=b"") + a_publish(
        b"s", b"!", mid=8, properties=b""
    )
    at = kept_most = 0
    while at < len(stream):
        step = sizes[at % len(sizes)] * 977
        taken.feed(stream[at : at + step])
        kept_most = max(kept_most, len(taken._rest))  # noqa: SLF001 - what it keeps shows nowhere else
        at += step
    big, small = taken.take()[2]
    assert shown(big) == ("big", None, 7, 1, b"")
    assert shown(small) == ("s", b"!", 8, 1, b"")
    assert kept_most < 120_000


@pytest.mark.parametrize(
    ("packet", "mid"),
    [
        (a_publish(b"\x63\xff\x2f\x31", b"x", mid=5, properties=b""), 5),
        (a_publish(b"", b"x", mid=6, properties=b""), 6),
        (b"\x32\x06\x00\x01t\x00\x07\x7f", 7),
        (b"\x32\x08\x00\x01t\x00\x07\xff\xff\xff", 7),
        (b"\x32\x05\x00\x01t\x00\x07", 7),
        (b"\x32\x03\x00\x09t", 0),
        (b"\x32\x01\x00", 0),
        (b"\x32\x00", 0),
    ],
)
def test_a_publish_that_cannot_be_read_can_still_be_acknowledged(packet: bytes, mid: int) -> None:
    """Bad topic, bad length, no end: its packet id where it has one, and the next one is read."""
    taken = InboundFilter(bytearray().extend, level=5)
    taken.feed(packet + a_publish(b"good", b"!", mid=9, properties=b""))
    bad, good = taken.take()[2]
    assert bad.topic is None
    assert bad.mid == mid
    assert shown(good) == ("good", b"!", 9, 1, b"")


def test_a_large_message_is_copied_a_few_times_not_with_each_part() -> None:
    """16 MiB in parts of 4 KiB: with a copy for each it takes a minute, and nobody else a turn."""
    body = bytes(16 * 2**20)
    inbound = InboundFilter(lambda _data: None)
    data = publish(b"t", body, 7) + publish(b"t", b"next", 8)
    began = time.process_time()
    for position in range(0, len(data), 4096):
        inbound.feed(data[position : position + 4096])
    assert time.process_time() - began < 2
    assert [(each.mid, len(each.body or b"")) for each in inbound.messages] == [
        (7, len(body)),
        (8, 4),
    ]
