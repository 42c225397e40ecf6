"""What a client reads: PUBACKs, PUBLISHes and the other packets, however the stream was cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.errors import ProtocolError
from edgehub.mqtt.client_decoder import ClientDecoder, IncomingPublish
from edgehub.mqtt.client_packets import (
    Connack,
    Pingresp,
    RefusedPublish,
    Suback,
)
from edgehub.mqtt.packets import Pubcomp, Pubrel, publish
from edgehub.mqtt.properties import Property, write_properties

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


def feed(taken: ClientDecoder, stream: bytes, sizes: Chunks) -> None:
    """Hand a stream over in pieces."""
    at = 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        taken.feed(stream[at : at + size])
        at += size


def shown(message: IncomingPublish) -> tuple[object, ...]:
    """Return what tests compare."""
    return (message.topic, message.body, message.packet_id, message.qos, message.properties)


packets = st.one_of(
    st.integers(1, 65_535).map(lambda mid: b"\x40\x02" + mid.to_bytes(2, "big")),
    st.sampled_from([PINGRESP, SUBACK]),
    st.integers(0, 400).map(lambda size: publish(b"devices/d", b"p" * size, 7)),
    st.binary(max_size=200).map(lambda body: a_publish(b"x/y", body, qos=0)),
)


@given(st.lists(packets, max_size=20), cuts)
def test_each_packet_is_found_whatever_the_chunks(found: list[bytes], sizes: Chunks) -> None:
    """Any division of the stream gives the same ids, messages and other packets."""
    decoder = ClientDecoder(level=4)
    feed(decoder, b"".join(found), sizes)
    received = decoder.take()
    acks = [packet for packet in found if packet[0] == 0x40]
    publishes = [packet for packet in found if packet[0] >> 4 == 3]
    assert received.confirmed == [int.from_bytes(packet[2:], "big") for packet in acks]
    assert received.refused == []
    assert [message.size for message in received.messages] == list(map(len, publishes))
    assert [message.qos for message in received.messages] == [
        packet[0] >> 1 & 3 for packet in publishes
    ]
    for message, packet in zip(received.messages, publishes, strict=True):
        assert message.body is not None
        assert packet.endswith(message.body)
        assert message.topic in {"devices/d", "x/y"}
    others = {PINGRESP: Pingresp(), SUBACK: Suback(packet_id=1, codes=b"\1")}
    assert received.packets == [others[packet] for packet in found if packet in others]
    assert not any(decoder.take())


@pytest.mark.parametrize(
    ("level", "junk"),
    [
        (4, b"\x30\xff\xff\xff\xff\xff"),
        (4, b"\x10\x00"),
        (4, b"\xe0\x00"),
        (4, b"\x40\x03\x00\x01\x00"),
        (5, b"\x40\x02\x00\x00"),
        (5, b"\xf0\x00"),
        (5, b"\x51\x02\x00\x01"),
        (4, b"\x50\x03\x00\x01\x00"),
        (5, b"\x72\x02\x00\x01"),
        (5, b"\x36\x06\x00\x01t\x00\x07\x00"),
        (5, b"\x32\x05\x00\x01t\x00\x00"),
        (5, b"\x90\xff\xff\xff\x7f"),
        (5, b"\x20\x02\x00\x00"),
        (5, b"\x20\x06\x00\x00\x03\x21\x00\x00"),
        (5, b"\x20\x05\x00\x00\x02\x7f\x00"),
        (5, b"\x20\x06\x00\x00\x05\x12\x00\x05"),
        (4, b"\x20\x02\x00\x06"),
        (4, b"\x20\x02\x02\x00"),
        (4, b"\x90\x02\x00\x01"),
        (4, b"\xb0\x03\x00\x01\x00"),
        (4, b"\xd0\x01\x00"),
    ],
)
def test_what_a_server_never_sends_ends_the_stream(level: int, junk: bytes) -> None:
    """What came before is there, nothing is read out of the rest, every later call raises too."""
    decoder = ClientDecoder(level=level)
    with pytest.raises(ProtocolError):
        decoder.feed(b"\x40\x02\x00\x07" + junk)
    with pytest.raises(ProtocolError):
        decoder.feed(b"\x40\x02\x00\x08")
    received = decoder.take()
    assert (received.confirmed, received.messages, received.packets) == ([7], [], [])


def test_a_publish_of_qos_2_and_its_release() -> None:
    """It is a message like others; PUBREL is one of the other packets, with and without a code."""
    decoder = ClientDecoder(level=5)
    release = b"\x62\x02\x00\x01\x62\x03\x00\x02\x00"
    decoder.feed(a_publish(b"a", b"x", qos=2, mid=3, properties=b"") + release)
    received = decoder.take()
    assert [shown(each) for each in received.messages] == [("a", b"x", 3, 2, b"")]
    assert received.packets == [Pubrel(packet_id=1), Pubrel(packet_id=2)]


def test_an_answer_to_connect_in_the_form_of_3_1_1() -> None:
    """A server that does not know MQTT 5 says so in the form that it knows."""
    for code, meaning in enumerate((0, 0x84, 0x85, 0x88, 0x86, 0x87)):
        for level in (4, 5) if code else (4,):
            decoder = ClientDecoder(level=level)
            decoder.feed(bytes((0x20, 2, code == 0, code)))
            (connack,) = decoder.take().packets
            assert connack == Connack(code=meaning, session_present=code == 0)


@given(st.binary(max_size=300), st.binary(max_size=50), cuts)
def test_the_properties_of_mqtt_5_stand_apart(
    properties: bytes, body: bytes, sizes: Chunks
) -> None:
    """The block comes without its length, the body without the block."""
    taken = ClientDecoder(level=5)
    feed(taken, a_publish(b"a/b", body, mid=9, flags=0x09, properties=properties), sizes)
    (message,) = taken.take().messages
    assert shown(message) == ("a/b", body, 9, 1, properties)
    assert (message.retain, message.dup) == (True, True)


def test_pubacks_of_mqtt_5_with_and_without_reason() -> None:
    """Success, also without subscribers, confirms; from 0x80 on it is a refusal."""
    taken = ClientDecoder(level=5)
    taken.feed(b"\x40\x02\0\1\x40\x03\0\2\x10\x40\x04\0\3\x87\0\x40\x04\0\4\0\0")
    assert taken.take() == ([1, 2, 4], [2], [RefusedPublish(3, 0x87)], [], [])


def test_answers_to_qos_2() -> None:
    """PUBREC with and without a code, and PUBCOMP, which confirms."""
    taken = ClientDecoder(level=5)
    taken.feed(b"\x50\x02\0\1\x50\x04\0\2\x97\0\x70\x02\0\1\x70\x03\0\3\0")
    assert taken.take().packets == [
        RefusedPublish(1, 0),
        RefusedPublish(2, 0x97),
        Pubcomp(packet_id=1),
        Pubcomp(packet_id=3),
    ]


def test_a_puback_of_mqtt_5_names_the_senders_that_are_refused() -> None:
    """And gives its reason; other user properties mean nothing."""
    block = write_properties(
        [
            (Property.REASON_STRING, "not yours"),
            (Property.USER_PROPERTY, ("refused_sender", "d1")),
            (Property.USER_PROPERTY, ("other", "d2")),
            (Property.USER_PROPERTY, ("refused_sender", "d3/m")),
        ]
    )
    taken = ClientDecoder(level=5)
    body = b"\x00\x09\x87" + block
    taken.feed(bytes((0x40, len(body))) + body)
    assert taken.take().refused == [RefusedPublish(9, 0x87, "not yours", frozenset({"d1", "d3/m"}))]


@pytest.mark.parametrize("size", [901, 70_000, 500_000])
@given(sizes=cuts)
def test_a_packet_that_is_too_large_loses_its_body_only(size: int, sizes: Chunks) -> None:
    """Topic and packet id are known, what follows is read as before, nothing piles up."""
    taken = ClientDecoder(level=5, bytes_max=900)
    stream = a_publish(b"big", bytes(size), mid=7, properties=b"") + a_publish(
        b"s", b"!", mid=8, properties=b""
    )
    at = kept_most = 0
    while at < len(stream):
        step = sizes[at % len(sizes)] * 977
        taken.feed(stream[at : at + step])
        kept_most = max(kept_most, len(taken._rest))  # noqa: SLF001 - what it keeps shows nowhere else
        at += step
    big, small = taken.take().messages
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
    taken = ClientDecoder(level=5)
    taken.feed(packet + a_publish(b"good", b"!", mid=9, properties=b""))
    bad, good = taken.take().messages
    assert bad.topic is None
    assert bad.packet_id == mid
    assert shown(good) == ("good", b"!", 9, 1, b"")


def test_a_large_message_is_copied_a_few_times_not_with_each_part() -> None:
    """16 MiB in parts of 4 KiB: with a copy for each it takes a minute, and nobody else a turn."""
    body = bytes(16 * 2**20)
    inbound = ClientDecoder(level=4)
    data = publish(b"t", body, 7) + publish(b"t", b"next", 8)
    began = time.process_time()
    for position in range(0, len(data), 4096):
        inbound.feed(data[position : position + 4096])
    assert time.process_time() - began < 2
    assert [(each.packet_id, len(each.body or b"")) for each in inbound.take().messages] == [
        (7, len(body)),
        (8, 4),
    ]
