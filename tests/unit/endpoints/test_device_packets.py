"""Packets of a device's upstream session: what is built, and what a stream is read as."""

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.endpoints.device_packets import (
    Connack,
    Disconnect,
    PacketError,
    PacketParser,
    Pingresp,
    Puback,
    Publish,
    Suback,
    build_connect,
    build_puback,
    build_publish,
    build_subscribe,
    publish_properties,
)

STREAM_5 = (
    (b"\x20\x03\x00\x00\x00", Connack(code=0)),
    (
        b"\x20\x11\x00\x00\x0e\x21\x00\x0a\x24\x01\x12\x00\x01d\x27\x00\x00\x04\x00",
        Connack(code=0, receive_maximum=10, packet_bytes_max=1024),
    ),
    (
        b"\x20\x0d\x00\x87\x0a\x1f\x00\x01n\x26\x00\x01a\x00\x00",
        Connack(code=0x87),
    ),
    (b"\x90\x04\x00\x07\x00\x01", Suback(mid=7, code=1)),
    (b"\x40\x02\x01\x02", Puback(mid=258)),
    (b"\x40\x03\x01\x02\x97", Puback(mid=258, code=0x97)),
    (b"\x40\x04\x01\x02\x10\x00", Puback(mid=258, code=0x10)),
    (b"\x32\x0a\x00\x01t\x00\x09\x02\x01\x01ab", Publish(topic="t", body=b"ab", mid=9, qos=1)),
    (b"\x30\x05\x00\x01t\x00b", Publish(topic="t", body=b"b", mid=0, qos=0)),
    (b"\xd0\x00", Pingresp()),
    (b"\xe0\x02\x8e\x00", Disconnect(code=0x8E)),
    (b"\xe0\x00", Disconnect(code=0)),
)


@given(cuts=st.lists(st.integers(0, 80), max_size=6))
def test_a_stream_is_read_whatever_its_pieces(cuts):
    """Packets come out whole and in order."""
    stream = b"".join(raw for raw, _ in STREAM_5)
    parser = PacketParser(version=5)
    packets = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        packets += parser.feed(stream[start:end])
    assert packets == [packet for _, packet in STREAM_5]


def test_what_a_server_never_sends_is_refused():
    """Also a DISCONNECT of one that speaks MQTT 3.1.1, and a packet without end."""
    for raw in (b"\x10\x00", b"\xe0\x00", b"\x30\xff\xff\xff\xff", b"\x40\x81\x80\x80\x01"):
        with pytest.raises(PacketError):
            PacketParser(version=4).feed(raw)


@pytest.mark.parametrize(
    "properties", ["21 0000", "27 00000000", "21 00", "7f 00", "12 0005 64", "26 0001 61"]
)
def test_an_answer_to_connect_that_says_nonsense_is_refused(properties):
    """A bound of zero, a property that is unknown there, one that is cut off."""
    said = bytes.fromhex(properties)
    raw = bytes((0x20, len(said) + 3, 0, 0, len(said))) + said
    with pytest.raises(PacketError):
        PacketParser(version=5).feed(raw)


def test_packets_are_built_as_the_standard_has_them():
    """Byte by byte, for both versions."""
    assert build_connect(
        version=4, client_id="d", keep_alive_s=60, username="u", password="p"
    ) == bytes.fromhex("1013 0004 4d515454 04 c0 003c 0001 64 0001 75 0001 70")
    assert build_connect(
        version=5, client_id="d", keep_alive_s=60, username=None, password=None
    ) == bytes.fromhex("1013 0004 4d515454 05 00 003c 05 11 00015180 0001 64")
    old, new = publish_properties(version=4), publish_properties(version=5)
    assert build_publish(b"t", 1, b"x", properties=old) == bytes.fromhex("3206 0001 74 0001 78")
    assert build_publish(b"t", 1, b"x", properties=new) == bytes.fromhex("3207 0001 74 0001 00 78")
    assert len(build_publish(b"t", 1, b"x" * 200, properties=old)) == 200 + 5 + 3
    assert build_puback(258) == bytes.fromhex("4002 0102")
    assert build_subscribe("t", 2, version=4) == bytes.fromhex("8206 0002 0001 74 01")
    assert build_subscribe("t", 2, version=5) == bytes.fromhex("8207 0002 00 0001 74 01")


@pytest.mark.parametrize("hub_id", ["gw", "g" * 300])
def test_a_publish_names_the_hub_it_comes_from(hub_id):
    """As a user property in MQTT 5; MQTT 3.1.1 has no place for it."""
    properties = publish_properties(version=5, origin=hub_id)
    raw = build_publish(b"t", 1, b"x", properties=properties)
    packet, size = mqtt5.read(memoryview(raw))
    assert (packet.user_properties, packet.payload) == ([("edgehub-origin", hub_id)], b"x")
    assert size == len(raw)
    assert publish_properties(version=4, origin=hub_id) == b""
