"""What clients of the listener send: any bytes are packets or a protocol error, however cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given

from edgehub.devices.ids import is_device_id, split_sender
from edgehub.errors import ProtocolError
from edgehub.heads.mqtt.batch import RecordError, message_of, record_bytes
from edgehub.heads.mqtt.topics import parse_events_topic, parse_subscription
from edgehub.mqtt.batch import BATCH_TYPE, UNPACKED_BYTES_MAX, BatchError, build_batch, read_batch
from edgehub.mqtt.message_properties import MessageProperties, read_message_properties
from edgehub.mqtt.packets import OversizedPublish, Publish
from edgehub.mqtt.properties import Property, without_identifiers, write_block
from edgehub.mqtt.property_bag import BagError
from edgehub.mqtt.server_decoder import Decoder
from edgehub.mqtt.topic_filter import filter_fault, is_topic, matches
from tests.support import mqtt_wire as wire
from tests.support.fuzzing import JSON_PIECES, bounded, cut, cuts, fuzzer, hostile, hostile_text

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 600

OLD = [
    wire.connect(
        user="u", password=b"p", will=("devices/d/messages/events/", b"w"), will_flags=0x28
    ),
    wire.subscribe(("devices/d/messages/devicebound/#", 1), ("a/+", 0)),
    wire.unsubscribe("a/+", "b"),
    wire.publish("devices/d/messages/events/a=b&%24.ct=x", b"body" * 20, qos=1),
    wire.publish("a/b", b"", flags=1),
    wire.publish("large", bytes(LIMIT), qos=1, packet_id=9),
    wire.puback(7) + wire.PINGREQ,
    wire.DISCONNECT,
]
BLOCK = write_block(
    [
        (Property.PAYLOAD_FORMAT_INDICATOR, 1),
        (Property.MESSAGE_EXPIRY_INTERVAL, 60),
        (Property.CONTENT_TYPE, "text/plain"),
        (Property.RESPONSE_TOPIC, "a/answers"),
        (Property.CORRELATION_DATA, b"\x00\xff"),
        (Property.USER_PROPERTY, ("name", "value")),
        (Property.USER_PROPERTY, ("name", "é")),
        (Property.TOPIC_ALIAS, 3),
    ]
)
CONNECT5 = b"\x00\x04MQTT\x05"
CONNECT_BLOCK = write_block(
    [
        (Property.SESSION_EXPIRY_INTERVAL, 60),
        (Property.RECEIVE_MAXIMUM, 10),
        (Property.MAXIMUM_PACKET_SIZE, 1000),
        (Property.USER_PROPERTY, ("a", "b")),
    ]
)
WILL_BLOCK = write_block([(Property.WILL_DELAY_INTERVAL, 5), (Property.CONTENT_TYPE, "t")])


def with_length(block: bytes) -> bytes:
    """Write a property block, its length in front."""
    return wire.length(len(block)) + block


NEW = [
    wire.packet(
        0x10,
        CONNECT5
        + b"\xee\x00\x3c"
        + with_length(CONNECT_BLOCK)
        + wire.field("d")
        + with_length(WILL_BLOCK)
        + b"".join(map(wire.field, ("will", "body", "user", "password"))),
    ),
    wire.packet(0x10, CONNECT5 + b"\x02\x00\x3c\x00" + wire.field("d")),
    wire.packet(0x32, wire.field("a/b") + b"\x00\x05" + with_length(BLOCK) + b"body"),
    wire.packet(0x30, wire.field("") + with_length(b"\x23\x00\x03") + b"by alias"),
    wire.packet(0x40, b"\x00\x05\x80" + with_length(b"\x1f\x00\x01r")),
    wire.packet(0x82, b"\x00\x06\x00" + wire.field("a/#") + b"\x2d"),
    wire.packet(0xA2, b"\x00\x07\x00" + wire.field("a/#")),
    wire.packet(0xE0, b"\x04" + with_length(b"\x11\x00\x00\x00\x0a")),
    wire.PINGREQ,
]
STREAMS = [b"".join(OLD), b"".join(OLD[:1] + OLD[4:]), b"".join(NEW), b"".join(NEW[1:]), *OLD, *NEW]
PACKETS = [*OLD, *NEW, b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\x00\x00"]


def shown(value: object) -> object:
    """Make a packet, or a value in one, comparable."""
    if isinstance(value, MessageProperties):
        return value.properties, value.expiry_ms, value.passed_on
    if isinstance(value, str | bytes | int | tuple | None):
        return value
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return type(value), {name: shown(getattr(value, name)) for name in names}


def decode(chunks: Sequence[bytes]) -> tuple[list[object], list[object]]:
    """Feed chunks; returns the packets, and the error of every chunk from the first refused on."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    packets: list[object] = []
    errors: list[object] = []
    for chunk in chunks:
        try:
            decoder.feed(chunk, packets)
        except ProtocolError as error:
            errors.append((type(error), error.reason))
        else:
            assert not errors
    return packets, errors


@fuzzer
@given(hostile(STREAMS, PACKETS), cuts)
def test_a_damaged_stream_is_decoded_the_same_however_it_is_cut(stream, places):
    """The same packets and the same error; nothing longer than the limit is kept."""
    packets, errors = bounded(lambda: decode([stream]))
    in_parts, part_errors = bounded(lambda: decode(cut(stream, places)))
    assert list(map(shown, in_parts)) == list(map(shown, packets))
    assert part_errors[:1] == errors
    for packet in packets:
        if isinstance(packet, Publish) and not isinstance(packet, OversizedPublish):
            assert len(packet.body) <= LIMIT


@fuzzer
@given(hostile([BLOCK, WILL_BLOCK, CONNECT_BLOCK]))
def test_a_damaged_property_block_is_read_or_refused(block):
    """What was read can be written for a receiver, and read again."""
    try:
        found = bounded(lambda: read_message_properties(block))
    except ProtocolError:
        pass
    else:
        again = read_message_properties(found.passed_on)
        assert again.passed_on == found.passed_on
        assert found.is_passable in {True, False}
    try:
        identifiers, rest = bounded(lambda: without_identifiers(block))
    except ProtocolError:
        return
    assert len(rest) <= len(block) - 2 * len(identifiers)


TOPICS = [
    "devices/press-1/messages/events/kind=alarm&%24.ct=application%2Fjson&x",
    "devices/gw/modules/cam/messages/events/?a=b&$.on=out",
    "devices/d/messages/devicebound/#",
    "devices/d/modules/m/inputs/in/#",
    "$SYS/broker/connection/bridge/state",
    "a/+/c/#",
    "+",
    "a/b",
]
TOPIC_PIECES = [
    "/",
    "+",
    "#",
    "$",
    "&",
    "=",
    "%",
    "%FF",
    "%00",
    "\0",
    "\U0010ffff",
    "//",
    "a" * 900,
]


@fuzzer
@given(hostile_text(TOPICS, TOPIC_PIECES), hostile_text(TOPICS, TOPIC_PIECES))
def test_any_topic_and_filter_is_used_or_refused(topic, topic_filter):
    """A sender's ids are valid whatever the topic; a filter that is none takes nothing."""
    found = bounded(lambda: parse_events_topic(topic), BagError)
    if isinstance(found, BagError):
        assert str(found).isprintable()
    else:
        assert found is None or is_device_id(found.device_id)
    asked = bounded(lambda: parse_subscription(topic_filter, "client"))
    if asked is not None:
        assert split_sender(asked.target) is not None
        assert not filter_fault(topic_filter)
    if not filter_fault(topic_filter) and is_topic(topic):
        taken = bounded(lambda: matches(topic_filter, topic))
        assert (
            not taken
            or "+" in topic_filter
            or "#" in topic_filter
            or taken == (topic == topic_filter)
        )


RECORDS = [
    b'{"device":"d","id":"1","body":"x","properties":{"kind":"alarm","n":null}}',
    b'{"device":"d","module":"m","body_base64":"/wA=","system":{"contentType":"%s"}}'
    % BATCH_TYPE.encode(),
    b'{"device":"gw","body":"","properties":{"mqtt-retain":"true"},"system":{"outputName":"o"}}',
]
BATCHES = [
    build_batch(RECORDS, compress=False),
    build_batch(RECORDS * 50, compress=False),
    build_batch(RECORDS, compress=True),
    build_batch(RECORDS[:1] * 500, compress=True),
]
BATCH_PIECES = [*JSON_PIECES, *RECORDS, b"\x28\xb5\x2f\xfd", b"{}\n" * 5_000]


@fuzzer
@given(hostile(BATCHES, BATCH_PIECES))
def test_a_damaged_batch_is_messages_or_refused(payload):
    """Each record is a message with valid ids, or an error of its own."""

    def messages() -> list:
        found = []
        for record in read_batch(payload, bytes_max=UNPACKED_BYTES_MAX):
            try:
                found.append(message_of(record, message_bytes_max=LIMIT))
            except RecordError as error:
                found.append(error)
            assert record_bytes(record) >= 0
        return found

    try:
        taken = bounded(messages, memory_bytes=8 * 2**20)
    except BatchError:
        return
    for each in taken:
        if not isinstance(each, RecordError):
            message, fits = each
            assert is_device_id(message.device_id)
            assert not fits or len(message.body) <= LIMIT
