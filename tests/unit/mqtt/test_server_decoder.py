"""The decoder: framing, limits, and independence of how the bytes were cut."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.errors import ProtocolError
from edgehub.mqtt.packets import (
    Acknowledgement,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    Unsubscribe,
    UnsupportedLevelError,
    puback,
    publish,
)
from edgehub.mqtt.server_decoder import CONTROL_BYTES_MAX, Decoder
from tests.support import mqtt_wire as wire

PUBLISH_BYTES_MAX = 300
FIELDS = (Acknowledgement.__slots__, Publish.__slots__)

topics = st.binary(min_size=0, max_size=40)
packet_ids = st.integers(1, 65_535)
client_packets = st.one_of(
    st.builds(
        lambda topic, body, qos, packet_id, flags: wire.publish(
            # What is sent at most once is never a repetition.
            topic,
            body,
            qos=qos,
            packet_id=packet_id,
            flags=flags if qos else flags & 1,
        ),
        topics,
        st.binary(max_size=400),
        st.integers(0, 2),
        packet_ids,
        st.sampled_from([0, 1, 8]),
    ),
    st.builds(
        lambda head, packet_id: wire.packet(head, packet_id.to_bytes(2, "big")),
        st.sampled_from([0x40, 0x50, 0x62, 0x70]),
        packet_ids,
    ),
    st.builds(
        lambda filters, packet_id: wire.subscribe(*filters, packet_id=packet_id),
        st.lists(
            st.tuples(st.text("ab/#+", min_size=1, max_size=5), st.integers(0, 2)),
            min_size=1,
            max_size=3,
        ),
        packet_ids,
    ),
    st.builds(
        lambda filters, packet_id: wire.unsubscribe(*filters, packet_id=packet_id),
        st.lists(st.text("ab/#+", min_size=1, max_size=5), min_size=1, max_size=3),
        packet_ids,
    ),
    st.just(wire.PINGREQ),
    st.just(wire.DISCONNECT),
)
streams = st.builds(
    lambda packets, junk: wire.connect() + b"".join(packets) + junk,
    st.lists(client_packets, max_size=6),
    st.binary(max_size=40),
)


def values(packets: list[object]) -> list[object]:
    """Packets as comparable values."""
    return [
        (type(p), *(getattr(p, name) for name in FIELDS[isinstance(p, Publish)]))
        if isinstance(p, Publish | Acknowledgement)
        else p
        for p in packets
    ]


def decode(*chunks: bytes, limit: int = PUBLISH_BYTES_MAX) -> tuple[list[object], str | None]:
    """Feed chunks; gives the packets and the reason of the error, None = there was none."""
    decoder = Decoder(publish_bytes_max=limit)
    packets: list[object] = []
    for chunk in chunks:
        try:
            decoder.feed(chunk, packets)
        except ProtocolError as error:
            return values(packets), error.reason
    return values(packets), None


def decoded(stream: bytes, *, limit: int = PUBLISH_BYTES_MAX) -> list[object]:
    """Packets behind a CONNECT."""
    decoder = Decoder(publish_bytes_max=limit)
    packets: list[object] = []
    decoder.feed(wire.connect() + stream, packets)
    return packets[1:]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Cut a stream at the given places."""
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
@example(wire.connect() + wire.publish(b"t" * 290, b"x" * 400, qos=1), [20, 24, 25, 26, 300, 400])
def test_cuts_change_nothing(stream, places):
    """However the stream is cut, packets and error are the same."""
    assert decode(*cut(stream, places)) == decode(stream)


@given(streams)
def test_byte_by_byte(stream):
    """Even single bytes give the same packets and error."""
    assert decode(*(bytes([byte]) for byte in stream)) == decode(stream)


@given(st.lists(client_packets, max_size=8))
def test_all_packets_of_a_stream(packets):
    """Well-formed packets come out one for one."""
    assert len(decoded(b"".join(packets))) == len(packets)


@given(topics, st.binary(max_size=200), st.integers(0, 1), packet_ids, st.booleans())
def test_publish_round_trip(topic, body, qos, packet_id, retain):
    """A PUBLISH that the server writes is read back the same."""
    packet_id = packet_id if qos else 0
    data = publish(topic, body, qos=qos, packet_id=packet_id, retain=retain)
    (read,) = decoded(data)
    assert isinstance(read, Publish)
    assert (read.topic, read.body, read.qos, read.packet_id) == (topic, body, qos, packet_id)
    assert read.flags == retain


@given(packet_ids)
def test_puback_round_trip(packet_id):
    """A PUBACK that the server writes is read back the same."""
    (read,) = decoded(puback(packet_id))
    assert isinstance(read, Puback)
    assert read.packet_id == packet_id


def test_connect():
    """All fields of a CONNECT are read."""
    stream = wire.connect(
        "d/m",
        clean=False,
        keep_alive_s=7,
        user="u",
        password=b"\0p",
        will=("w/t", b"gone"),
        will_flags=0x28,
    )
    packets, error = decode(stream)
    assert error is None
    (read,) = packets
    assert isinstance(read, Connect)
    assert (read.client_id, read.clean_session, read.keep_alive_s) == ("d/m", False, 7)
    assert (read.user_name, read.password) == ("u", b"\0p")
    assert read.will is not None
    assert (read.will.topic, read.will.body) == (b"w/t", b"gone")
    assert (read.will.qos, read.will.retain) == (1, True)


def test_subscribe_and_unsubscribe():
    """Filters keep their order and quality of service."""
    read = decoded(
        wire.subscribe(("a/#", 1), ("b", 2), packet_id=5) + wire.unsubscribe("a/#", packet_id=6)
    )
    assert read == [
        Subscribe(packet_id=5, filters=(("a/#", 1), ("b", 2))),
        Unsubscribe(packet_id=6, filters=("a/#",)),
    ]


def test_ping_and_disconnect():
    """Packets without a body are values that compare equal."""
    assert decoded(wire.PINGREQ + wire.DISCONNECT) == [Pingreq(), Disconnect()]


@pytest.mark.parametrize(
    "size", [0, 1, 120, 121, 122, 123, 124, 125, 126, 127, 128, 16_370, 16_400]
)
def test_lengths_of_one_to_three_bytes(size):
    """Bodies around the borders of the remaining length come out whole."""
    (read,) = decoded(wire.publish("t", b"x" * size, qos=1), limit=20_000)
    assert read.body == b"x" * size


@pytest.mark.parametrize("qos", [0, 1])
def test_oversized_is_discarded(qos):
    """Of a PUBLISH over the limit topic and packet id stay, and the next packet is read."""
    oversized = wire.publish("t/1", b"x" * 5_000, qos=qos, packet_id=9)
    first, second = decoded(oversized + wire.PINGREQ)
    assert (first.topic, first.body, first.packet_id) == (b"t/1", None, 9 if qos else 0)
    assert second == Pingreq()


def test_oversized_is_not_kept():
    """While an oversized PUBLISH streams in, no more than its topic is kept."""
    decoder = Decoder(publish_bytes_max=PUBLISH_BYTES_MAX)
    packets: list[object] = []
    stream = wire.publish("t", b"x" * 1_000_000, qos=1)
    decoder.feed(wire.connect() + stream[:50], packets)
    for at in range(50, len(stream), 1000):
        decoder.feed(stream[at : at + 1000], packets)
        kept = len(decoder._pending)  # noqa: SLF001 - the claim is about what is inside
        assert kept <= PUBLISH_BYTES_MAX
    assert len(packets) == 2


def test_the_limit_itself_fits():
    """A PUBLISH of exactly the limit is kept, one byte more is not."""
    body = b"x" * (PUBLISH_BYTES_MAX - 5)
    (fits,) = decoded(wire.publish("t", body, qos=1))
    (over,) = decoded(wire.publish("t", body + b"x", qos=1))
    assert fits.body == body
    assert over.body is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x36\x05\x00\x01t\x00\x01",  # quality of service 3
        wire.publish("t", qos=1, packet_id=0),
        b"\x30\x00",
        b"\x30\x01\x00",
        b"\x30\x03\x00\x05t",  # topic longer than the packet
        b"\x32\x03\x00\x01t",  # no packet id
        b"\x30\xff\xff\xff\xff\x01",
        # Over the limit and broken: told as soon as the fields that show it are there.
        wire.packet(0x36, wire.field("t") + bytes(1000)),
        wire.publish("t", bytes(1000), qos=1, packet_id=0),
        wire.packet(0x30, b"\xff\xff" + bytes(1000)),
        wire.puback(0),
        b"\x40\x03\x00\x01\x00",
        b"\x41\x02\x00\x01",
        b"\x80\x05\x00\x01\x00\x00\x00",  # SUBSCRIBE with wrong flags
        wire.packet(0x82, b"\x00\x01"),
        wire.subscribe(("a", 3)),
        wire.subscribe(("a", 0), packet_id=0),
        wire.packet(0x82, b"\x00\x01\x00\x02\xff\xfe\x00"),
        wire.packet(0x82, b"\x00\x01\x00\x01\x00\x00"),
        wire.packet(0xA2, b"\x00\x01"),
        b"\xc0\x01\x00",
        b"\xe0\x01\x00",
        b"\x20\x02\x00\x00",  # CONNACK from a client
        b"\x50\x03\x00\x01\x00",
        b"\x60\x02\x00\x01",  # PUBREL with wrong flags
        b"\x70\x02\x00\x00",
        b"\x00\x00",
        b"\xf0\x00",
        wire.connect(),  # a second one
        bytes([0x82]) + wire.length(CONTROL_BYTES_MAX + 1),
    ],
)
def test_malformed(data):
    """What breaks the specification ends the stream, behind what came before."""
    packets, error = decode(wire.connect() + wire.PINGREQ + data + wire.PINGREQ)
    assert packets[1:] == [Pingreq()]
    assert error


@pytest.mark.parametrize(
    "data",
    [
        wire.PINGREQ,
        wire.publish("t"),
        wire.connect(protocol=("MQTX", 4)),
        wire.connect(will_flags=0x01),
        wire.connect(will_flags=0x08),
        wire.connect(will=("t", b""), will_flags=0x18),
        wire.packet(0x10, wire.field("MQTT") + b"\x04\x42\x00\x00" + wire.field("d") * 2),
        wire.connect("a\0b"),
        wire.packet(0x10, wire.field("MQTT") + b"\x04\x02\x00\x00" + wire.field(b"\xff")),
        wire.packet(0x10, wire.field("MQTT") + b"\x04\x02\x00\x00" + wire.field("d") + b"x"),
        wire.packet(0x10, wire.field("MQTT") + b"\x04\x02"),
        b"\x11" + wire.connect()[1:],
        b"\x10" + wire.length(CONTROL_BYTES_MAX + 1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    ],
)
def test_malformed_start(data):
    """A stream that does not begin with a proper CONNECT gives nothing but an error."""
    packets, error = decode(data)
    assert packets == []
    assert error


@pytest.mark.parametrize(("name", "level"), [("MQTT", 0x84), ("MQIsdp", 0x83)])
def test_levels_of_bridges(name, level):
    """Mosquitto sets the highest bit of the protocol level; the rest is the level."""
    packets: list = []
    Decoder(publish_bytes_max=PUBLISH_BYTES_MAX).feed(wire.connect(protocol=(name, level)), packets)
    (connect,) = packets
    assert (connect.level, connect.bridge) == (level & 0x7F, True)


@pytest.mark.parametrize(
    ("name", "level"), [("MQTT", 6), ("MQTT", 3), ("MQIsdp", 3), ("MQTT", 0x83), ("MQIsdp", 0x84)]
)
def test_other_levels(name, level):
    """Another protocol level is told apart from junk."""
    decoder = Decoder(publish_bytes_max=PUBLISH_BYTES_MAX)
    with pytest.raises(UnsupportedLevelError, match=f"level {level}"):
        decoder.feed(wire.connect(protocol=(name, level)), [])
