"""The decoder of MQTT 5: cuts change nothing, junk is refused, each fault has its code."""

import itertools

import mqtt5
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.errors import ProtocolError
from edgehub.mqtt.packets import Disconnect, Pingreq, Puback, Publish, Publish5
from edgehub.mqtt.reasons import ReasonCode, reason_of
from edgehub.mqtt.server_decoder import CONTROL_BYTES_MAX, Decoder
from tests.support import mqtt_wire as wire
from tests.support.mqtt_wire import field, packet

LIMIT = 300
CONNECT = mqtt5.ConnectPacket("d").write()


def block(*properties: bytes) -> bytes:
    """A property block."""
    joined = b"".join(properties)
    return wire.length(len(joined)) + joined


def publish(
    topic: bytes = b"t", *properties: bytes, body: bytes = b"b", qos: int = 1, packet_id: int = 1
) -> bytes:
    """PUBLISH with raw properties."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1, field(topic) + identifier + block(*properties) + body)


def alias(number: int) -> bytes:
    """A topic alias."""
    return b"\x23" + number.to_bytes(2, "big")


USER = b"\x26" + field("a") + field("b")

streams = st.builds(
    lambda packets, junk: CONNECT + b"".join(packets) + junk,
    st.lists(
        st.one_of(
            st.builds(
                publish,
                st.binary(max_size=20),
                st.sampled_from([b"", USER, alias(1), alias(2), alias(17), b"\x02\0\0\0\x05"]),
                body=st.binary(max_size=330),
                qos=st.integers(0, 3),
                packet_id=st.integers(0, 5),
            ),
            st.just(wire.PINGREQ),
            st.just(mqtt5.PubAckPacket(3, reason_code=mqtt5.PubAckReasonCode(0x97)).write()),
            st.just(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("a/#")]).write()),
            st.just(mqtt5.UnsubscribePacket(1, ["a/#"]).write()),
            st.just(mqtt5.DisconnectPacket(session_expiry_interval=4).write()),
        ),
        max_size=6,
    ),
    st.binary(max_size=40),
)


def values(packets: list) -> list:
    """Packets as comparable values."""
    plain = []
    for each in packets:
        if isinstance(each, Publish):
            fields = [each.topic, each.body, each.packet_id, each.qos, each.flags]
            if isinstance(each, Publish5):
                fields += [each.properties.properties, each.properties.expiry_ms]
            plain.append(fields)
        elif isinstance(each, Puback):
            plain.append([each.packet_id, each.code])
        else:
            plain.append(each)
    return plain


def decode(*chunks: bytes) -> tuple[list, tuple[str, int] | None]:
    """Feed chunks; gives the packets, and reason and code of the error, None = there was none."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    packets: list = []
    for chunk in chunks:
        try:
            decoder.feed(chunk, packets)
        except ProtocolError as error:
            return values(packets), (error.reason, reason_of(error))
    return values(packets), None


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Cut a stream at the given places."""
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
@example(CONNECT + publish(b"t" * 200, USER) + publish(b"", alias(1)), [20, 24, 25, 26, 200])
def test_cuts_change_nothing(stream, places):
    """However the stream is cut, packets and error are the same."""
    assert decode(*cut(stream, places)) == decode(stream)


@given(streams)
def test_byte_by_byte(stream):
    """Even single bytes give the same packets and error."""
    assert decode(*(bytes([byte]) for byte in stream)) == decode(stream)


def test_topic_aliases():
    """An alias stands for the topic it came with last; a topic beside it is taken anew."""
    stream = [
        publish(b"first", alias(1)),
        publish(b"other", alias(16)),
        publish(b"", alias(1)),
        publish(b"second", alias(1)),
        publish(b"", alias(1)),
        publish(b"", alias(16)),
    ]
    packets, error = decode(CONNECT, *stream)
    assert error is None
    topics = [each[0] for each in packets[1:]]
    assert topics == [b"first", b"other", b"first", b"second", b"second", b"other"]


def test_properties_are_read_once():
    """The same property block gives the same object, so that steady devices cost little."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    packets: list = []
    decoder.feed(CONNECT + publish(b"t", USER) * 2, packets)
    assert packets[1].properties is packets[2].properties


def test_property_cache_is_bounded():
    """Blocks that are all different do not pile up, and long ones are not kept at all."""
    blocks: dict = {}
    decoder = Decoder(publish_bytes_max=100_000, blocks=blocks)
    decoder.feed(CONNECT, [])
    for number in range(5_000):
        decoder.feed(publish(b"t", b"\x02" + number.to_bytes(4, "big")), [])
    assert 0 < len(blocks) <= 4096
    decoder.feed(publish(b"t", b"\x26" + field("a") + field("b" * 300)), [])
    assert max(map(len, blocks)) <= 256


def test_an_incomplete_packet_is_bounded():
    """Of a packet over the limit nothing is kept: it is refused by its header alone."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    decoder.feed(CONNECT, [])
    with pytest.raises(ProtocolError) as refused:
        decoder.feed(b"\x32" + wire.length(LIMIT + 1), [])
    assert reason_of(refused.value) is ReasonCode.PACKET_TOO_LARGE


def test_the_limit_itself_fits():
    """A packet of exactly the limit is read."""
    body = b"x" * (LIMIT - 6)
    packets, error = decode(CONNECT + publish(b"t", body=body))
    assert error is None
    assert packets[1][1] == body


def test_short_forms():
    """PUBACK and DISCONNECT may leave out what is success and no properties."""
    stream = [
        b"\x40\x02\x00\x05",
        b"\x40\x03\x00\x05\x97",
        b"\x40\x04\x00\x05\x97\x00",
        b"\xe0\x00",
    ]
    packets, error = decode(CONNECT, *stream)
    assert error is None
    assert packets[1:] == [[5, 0], [5, 0x97], [5, 0x97], Disconnect()]
    assert decode(CONNECT, b"\xe0\x01\x04")[0][1] == Disconnect(code=4)


MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x36\x05\x00\x01t\x00\x01", MALFORMED),  # quality of service 3
        (publish(packet_id=0), MALFORMED),
        (b"\x30\x00", MALFORMED),
        (b"\x30\x03\x00\x05t", MALFORMED),  # topic longer than the packet
        (b"\x32\x05\x00\x01t\x00\x01", MALFORMED),  # no property length
        (b"\x30\x04\x00\x01t\x05", MALFORMED),  # properties longer than the packet
        (b"\x30\x04\x00\x01t\x85", MALFORMED),
        (b"\x30\x08\x00\x01t\x80\x80\x80\x80\x01", MALFORMED),
        (publish(b"t", b"\x7e"), MALFORMED),  # no such property
        (publish(b"t", b"\x11\0\0\0\x01"), MALFORMED),  # not one of PUBLISH
        (publish(b"t", b"\x26\x00\x01a"), MALFORMED),
        (publish(b"t", b"\x26" + field(b"\xff") + field("b")), MALFORMED),
        (publish(b"t", b"\x03" + field("a\0")), MALFORMED),
        (publish(b"t", b"\x02\0\0\0\x01" * 2), PROTOCOL),
        (publish(b"t", b"\x01\x02"), PROTOCOL),
        (publish(b"t", b"\x0b\x01"), MALFORMED),  # subscription identifiers go the other way
        (publish(b""), PROTOCOL),
        (publish(b"", USER), PROTOCOL),
        (publish(b"", alias(1)), PROTOCOL),  # stands for nothing yet
        (publish(b"t", alias(0)), ReasonCode.TOPIC_ALIAS_INVALID),
        (publish(b"t", alias(17)), ReasonCode.TOPIC_ALIAS_INVALID),
        (publish(b"t", body=b"x" * 400), ReasonCode.PACKET_TOO_LARGE),
        (bytes([0x82]) + wire.length(CONTROL_BYTES_MAX), ReasonCode.PACKET_TOO_LARGE),
        (b"\x40\x02\x00\x00", MALFORMED),
        (b"\x40\x05\x00\x01\x00\x00\x00", MALFORMED),
        (b"\x41\x02\x00\x01", MALFORMED),  # reserved flags
        (b"\x40\x03\x00\x01\x92", PROTOCOL),  # a code of PUBREL
        (b"\xe0\x01\x8b", PROTOCOL),  # a code of servers
        (packet(0x38, field("t") + b"\0x"), MALFORMED),  # DUP with QoS 0
        (packet(0x82, b"\x00\x01\x00"), PROTOCOL),
        (packet(0x82, b"\x00\x01\x00" + field("a") + b"\x03"), PROTOCOL),
        (packet(0x82, b"\x00\x01\x00" + field("a") + b"\x30"), PROTOCOL),
        (packet(0x82, b"\x00\x01\x00" + field("a") + b"\x40"), MALFORMED),
        (packet(0x82, b"\x00\x01\x02\x0b\x00" + field("a") + b"\x00"), PROTOCOL),
        (packet(0x82, b"\x00\x01\x00" + field("$share/g/a") + b"\x04"), PROTOCOL),  # no local
        (packet(0xA2, b"\x00\x01\x00"), PROTOCOL),
        (packet(0xE0, b"\x00\x01\x00"), MALFORMED),
        (b"\xc0\x01\x00", MALFORMED),
        (b"\x20\x03\x00\x00\x00", PROTOCOL),  # CONNACK from a client
        (b"\x50\x03\x00\x01\x92", PROTOCOL),  # a code of PUBREL
        (b"\x60\x02\x00\x01", MALFORMED),  # reserved flags
        (b"\x62\x03\x00\x01\x10", PROTOCOL),  # codes of PUBREC
        (b"\x70\x03\x00\x01\x80", PROTOCOL),
        (b"\xf0\x02\x18\x00", PROTOCOL),  # AUTH without an agreed method
        (b"\x00\x00", PROTOCOL),
        (CONNECT, PROTOCOL),  # a second one
    ],
)
def test_faults(data, code):
    """What breaks the specification ends the stream behind what came before, with its code."""
    packets, error = decode(CONNECT + wire.PINGREQ + data + wire.PINGREQ)
    assert packets[1:] == [Pingreq()]
    assert error is not None
    assert error[1] == code


def connect(*, flags: int = 2, properties: bytes = b"", rest: bytes = field("d")) -> bytes:
    """CONNECT with raw properties."""
    head = field("MQTT") + bytes([5, flags]) + b"\x00\x00"
    return packet(0x10, head + block(properties) + rest)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (connect(flags=3), MALFORMED),
        (connect(rest=b""), MALFORMED),
        (connect(rest=field("d") + b"x"), MALFORMED),
        (connect(properties=b"\x7e"), MALFORMED),
        (connect(properties=b"\x18\0\0\0\x01"), MALFORMED),  # will delay: not of CONNECT itself
        (connect(properties=b"\x21\x00\x00"), PROTOCOL),
        (connect(properties=b"\x27\0\0\0\0"), PROTOCOL),
        (connect(properties=b"\x17\x02"), PROTOCOL),
        (connect(properties=b"\x11\0\0\0\0" * 2), PROTOCOL),
        (connect(properties=b"\x16" + field(b"x")), PROTOCOL),  # data without a method
        (connect(flags=6, rest=field("d") + b"\x05"), MALFORMED),
    ],
)
def test_faults_of_connect(data, code):
    """A client that speaks MQTT 5 badly can be told so from its first packet."""
    packets, error = decode(data)
    assert packets == []
    assert error is not None
    assert error[1] == code


def test_password_without_a_user_name():
    """MQTT 5 allows it."""
    packets, error = decode(connect(flags=0x42, rest=field("d") + field("secret")))
    assert error is None
    assert (packets[0].user_name, packets[0].password) == (None, b"secret")
