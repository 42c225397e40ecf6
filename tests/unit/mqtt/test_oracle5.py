"""MQTT 5 against another codec: what we build it reads, and what it builds we read, field by field.

The oracle is the `mqtt5` package, which shares no code with ours.
"""

import mqtt5
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.heads.mqtt.responses import Responses5
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.message import Message
from edgehub.mqtt import server_packets
from edgehub.mqtt.fields import variable
from edgehub.mqtt.message_properties import write_message_properties
from edgehub.mqtt.packets import (
    PUBACK_HEAD,
    PUBREC_HEAD,
    Acknowledgement,
    Connect,
    ConnectCode,
    ConnectProperties,
    Disconnect,
    Publish5,
    Subscribe,
    Unsubscribe,
    pack_answer,
    pubcomp,
    publish,
    pubrel,
    session_expiry,
)
from edgehub.mqtt.reasons import ReasonCode
from edgehub.mqtt.server_decoder import Decoder
from edgehub.mqtt.subscription_options import (
    IDENTIFIER_SHIFT,
    QOS,
    merged_options,
    write_identifiers,
)

LIMIT = 100_000


def members(kind: type) -> list:
    """Return the members of an enumeration of the oracle's, which is none of Python's."""
    return [value for name, value in vars(kind).items() if name.isupper()]


# Reason codes that the standard has for the DISCONNECT of a client, 3.14.2.1.
OF_CLIENTS = {0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}

# U+0000 and surrogates have no place in MQTT strings.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
topics = st.text("abc/é", min_size=1, max_size=12)
packet_ids = st.integers(1, 65_535)
longs = st.integers(0, 2**32 - 1)
pairs = st.lists(st.tuples(texts, texts), max_size=4)
optional_texts = st.none() | texts
binaries = st.binary(max_size=20)

wills = st.builds(
    mqtt5.Will,
    topics,
    payload=binaries,
    qos=st.sampled_from(members(mqtt5.QoS)),
    retain=st.booleans(),
    payload_format_indicator=st.integers(0, 1),
    message_expiry_interval=st.none() | longs,
    content_type=optional_texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | binaries,
    will_delay_interval=longs,
    user_properties=pairs,
)
connects = st.builds(
    mqtt5.ConnectPacket,
    texts,
    username=optional_texts,
    password=st.none() | binaries,
    clean_start=st.booleans(),
    will=st.none() | wills,
    keep_alive=st.integers(0, 65_535),
    session_expiry_interval=longs,
    authentication_method=optional_texts,
    request_problem_info=st.booleans(),
    request_response_info=st.booleans(),
    receive_max=st.integers(1, 65_535),
    topic_alias_max=st.integers(0, 65_535),
    max_packet_size=st.none() | st.integers(1, 2**32 - 1),
    user_properties=pairs,
)
publishes = st.builds(
    lambda qos, packet_id, **fields: mqtt5.PublishPacket(
        qos=qos, packet_id=packet_id if int(qos) else None, **fields
    ),
    st.sampled_from(members(mqtt5.QoS)),
    packet_ids,
    topic=topics,
    payload=st.binary(max_size=300),
    retain=st.booleans(),
    payload_format_indicator=st.integers(0, 1),
    message_expiry_interval=st.none() | longs,
    content_type=optional_texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | binaries,
    topic_alias=st.none() | st.integers(1, 16),
    user_properties=pairs,
)
client_packets = st.one_of(
    publishes,
    st.builds(
        mqtt5.PubAckPacket,
        packet_ids,
        reason_code=st.sampled_from(members(mqtt5.PubAckReasonCode)),
        reason_str=optional_texts,
        user_properties=pairs,
    ),
    st.builds(
        mqtt5.SubscribePacket,
        packet_ids,
        st.lists(
            st.builds(
                mqtt5.TopicFilter,
                topics,
                max_qos=st.sampled_from(members(mqtt5.QoS)),
                no_local=st.booleans(),
                retain_as_published=st.booleans(),
                retain_handling=st.sampled_from(members(mqtt5.RetainHandling)),
            ),
            min_size=1,
            max_size=4,
        ),
        subscription_id=st.none() | st.integers(1, 2**28 - 1),
        user_properties=pairs,
    ),
    *(
        st.builds(
            kind,
            packet_ids,
            reason_code=st.sampled_from(members(codes)),
            reason_str=optional_texts,
            user_properties=pairs,
        )
        for kind, codes in (
            (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
            (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
            (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
        )
    ),
    st.builds(
        mqtt5.UnsubscribePacket,
        packet_ids,
        st.lists(topics, min_size=1, max_size=4),
        user_properties=pairs,
    ),
    st.builds(mqtt5.PingReqPacket),
    st.builds(
        mqtt5.DisconnectPacket,
        reason_code=st.sampled_from(
            [code for code in members(mqtt5.DisconnectReasonCode) if int(code) in OF_CLIENTS]
        ),
        session_expiry_interval=st.none() | longs,
        reason_str=optional_texts,
        user_properties=pairs,
    ),
)


def decoded(*data: bytes) -> list:
    """Packets behind a CONNECT."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    packets: list = []
    decoder.feed(b"".join((mqtt5.ConnectPacket("d").write(), *data)), packets)
    return packets[1:]


def read(data: bytes):
    """Return the one packet that the oracle reads."""
    packet, size = mqtt5.read(memoryview(data))
    assert size == len(data)
    return packet


def test_reason_codes_are_those_of_the_standard() -> None:
    """By their names; the oracle writes some words of them shorter."""
    theirs = {
        name: int(code)
        for kind in dir(mqtt5)
        if kind.endswith("ReasonCode")
        for name, code in vars(getattr(mqtt5, kind)).items()
        if name.isupper()
    }
    assert {
        code.name: theirs[code.name.replace("IDENTIFIER", "ID").replace("MAXIMUM", "MAX")]
        for code in ReasonCode
    } == ReasonCode.__members__


@given(connects)
def test_connect(theirs):
    """Every field of a CONNECT and of its will."""
    decoder = Decoder(publish_bytes_max=LIMIT)
    packets: list = []
    decoder.feed(theirs.write(), packets)
    (ours,) = packets
    assert isinstance(ours, Connect)
    assert (ours.level, ours.client_id, ours.keep_alive_s) == (
        5,
        theirs.client_id,
        theirs.keep_alive,
    )
    assert (ours.user_name, ours.password) == (theirs.username, theirs.password)
    assert ours.clean_session == theirs.clean_start
    assert ours.properties == ConnectProperties(
        session_expiry_s=session_expiry(theirs.session_expiry_interval),
        receive_maximum=theirs.receive_max,
        packet_bytes_max=theirs.max_packet_size,
        problem_information=theirs.request_problem_info,
        authentication_method=theirs.authentication_method,
    )
    assert (ours.will is None) == (theirs.will is None)
    if ours.will is not None:
        will = theirs.will
        assert (ours.will.topic.decode(), ours.will.body) == (will.topic, will.payload or b"")
        assert (ours.will.qos, ours.will.retain) == (will.qos, will.retain)
        assert ours.will.delay_s == will.will_delay_interval
        expiry_ms = None if ours.will.properties is None else ours.will.properties.expiry_ms
        expiry_wanted_s = will.message_expiry_interval
        assert expiry_ms == (None if expiry_wanted_s is None else expiry_wanted_s * 1000)


@given(publishes)
def test_publish_in(theirs):
    """Every field of a PUBLISH that has a meaning for a message."""
    (ours,) = decoded(theirs.write())
    assert (ours.topic.decode(), ours.body, ours.qos) == (theirs.topic, theirs.payload, theirs.qos)
    assert (ours.packet_id or None, ours.flags & 1) == (theirs.packet_id, theirs.retain)
    if not isinstance(ours, Publish5):
        assert theirs.user_properties == []
        assert theirs.message_expiry_interval is None
        return
    given_ = ours.properties
    expected = {name: value or None for name, value in theirs.user_properties if name}
    assert given_.properties == {k: v for k, v in expected.items() if k in given_.properties}
    assert expected.keys() - given_.properties.keys() <= {"ack", "iothub-operation"}
    expiry = theirs.message_expiry_interval
    assert given_.expiry_ms == (None if expiry is None else expiry * 1000)
    assert given_.is_text == (theirs.payload_format_indicator == 1)
    if theirs.content_type:
        assert given_.system["contentType"] == theirs.content_type


@given(st.lists(client_packets, max_size=6))
def test_streams(theirs):
    """A stream of the oracle's packets comes out one for one, with what matters of each."""
    ours = decoded(*(packet.write() for packet in theirs))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        match mine:
            case Acknowledgement():
                assert type(mine).__name__.lower() + "packet" == type(other).__name__.lower()
                assert (mine.packet_id, mine.code) == (other.packet_id, int(other.reason_code))
            case Subscribe():
                options = [
                    int(f.max_qos)
                    | f.no_local << 2
                    | f.retain_as_published << 3
                    | int(f.retain_handling) << 4
                    | (other.subscription_id or 0) << IDENTIFIER_SHIFT
                    for f in other.topic_filters
                ]
                names = [f.pattern for f in other.topic_filters]
                assert mine.filters == tuple(zip(names, options, strict=True))
            case Unsubscribe():
                assert mine.filters == tuple(other.patterns)
            case Disconnect():
                assert mine.code == other.reason_code
                assert mine.session_expiry == other.session_expiry_interval


def is_plain(text):
    """Whether libmosquitto takes a string, as its utf8_mosq.c has it."""
    codes = [ord(character) for character in text]
    return not any(
        code <= 0x1F
        or 0x7F <= code <= 0x9F
        or 0xFDD0 <= code <= 0xFDEF
        or code & 0xFFFF in (0xFFFE, 0xFFFF)
        for code in codes
    )


@example(
    "t", b"", 0, 1, {"a\nb": "1", "c": "\x85", "\U0010ffff": None, "é\u200b": "ü"}, None, False
)
@given(
    topics,
    binaries,
    st.integers(0, 1),
    packet_ids,
    st.dictionaries(texts, st.none() | texts, max_size=4),
    st.none() | st.integers(1, 2**33 * 1000),
    st.booleans(),
)
def test_publish_out(topic, body, qos, packet_id, properties, left_ms, retain):
    """The oracle reads a message that we send, with its properties and what is left of its time."""
    message = Message(
        "d", None, "/messages/", properties, {"contentType": "a/b", "cid": "é1"}, body
    )
    data = publish(
        topic.encode(),
        body,
        qos=qos,
        packet_id=packet_id if qos else 0,
        retain=retain,
        properties=write_message_properties(message, left_ms),
    )
    theirs = read(data)
    assert (theirs.topic, theirs.payload, theirs.qos) == (topic, body, qos)
    assert (theirs.retain, theirs.packet_id) == (retain, packet_id if qos else None)
    sent = [(k, v or "") for k, v in properties.items() if k and is_plain(k + (v or ""))]
    assert theirs.user_properties == sent
    assert (theirs.content_type, theirs.correlation_data) == ("a/b", "é1".encode())
    left_s = None if left_ms is None else min(-(-left_ms // 1000), 2**32 - 1)
    assert theirs.message_expiry_interval == left_s


def responses(*, client_id: str = "d", reasons: bool = True, most: int | None = None) -> Responses5:
    """Build the responses to a client."""
    connect = Connect(
        level=5,
        client_id=client_id,
        clean_session=True,
        keep_alive_s=0,
        user_name=None,
        password=None,
        will=None,
    )
    properties = ConnectProperties(problem_information=reasons, packet_bytes_max=most)
    return Responses5(connect, properties, packet_bytes_max=4711)


@pytest.mark.parametrize("assigned", [False, True])
def test_connack(assigned):
    """What the listener can do, and the client id where the client had none."""
    ours = responses(client_id="" if assigned else "d").accepted("auto-1", session_present=assigned)
    theirs = read(ours)
    assert (theirs.reason_code, theirs.session_present) == (0, assigned)
    assert (theirs.receive_max, theirs.max_packet_size) == (1024, 4711)
    assert theirs.max_qos == mqtt5.QoS.EXACTLY_ONCE
    assert (theirs.topic_alias_max, theirs.retain_available) == (16, True)
    assert theirs.wildcard_subscription_available
    assert theirs.subscription_id_available
    assert theirs.shared_subscription_available
    assert theirs.assigned_client_id == ("auto-1" if assigned else None)
    assert theirs.server_keep_alive is None
    # A client that takes little is told what is not the default alone.
    short = responses(most=len(ours) - 1, client_id="" if assigned else "d").accepted(
        "auto-1", session_present=assigned
    )
    assert len(short) == len(ours) - 8
    assert read(short).shared_subscription_available


@pytest.mark.parametrize("code", [code for code in ConnectCode if code])
def test_refusing_connack(code):
    """Every refusal has a code that the oracle knows, and the reason unless it is not wanted."""
    error = SignInError(code, "why")
    theirs = read(responses().refused(error))
    assert (theirs.reason_code, theirs.reason_str) == (error.reason_code, "why")
    assert read(responses(reasons=False).refused(error)).reason_str is None


@pytest.mark.parametrize("reason", CloseReason)
def test_disconnect(reason):
    """Every DISCONNECT that is sent is one that the oracle knows."""
    disconnect = responses().disconnect(reason, "detail")
    if disconnect:
        theirs = read(disconnect)
        assert int(theirs.reason_code) >= 0x80
        assert theirs.reason_str == "detail"
        assert read(responses(reasons=False).disconnect(reason, "detail")).reason_str is None


@given(packet_ids, st.sampled_from(members(mqtt5.PubAckReasonCode)), texts)
@example(1, mqtt5.PubAckReasonCode.QUOTA_EXCEEDED, "")
def test_puback(packet_id, code, reason):
    """PUBACK and PUBREC with and without a reason."""
    for head, kind in ((PUBACK_HEAD, mqtt5.PubAckPacket), (PUBREC_HEAD, mqtt5.PubRecPacket)):
        theirs = read(server_packets.refusal(head, packet_id, int(code), reason))
        assert isinstance(theirs, kind)
        assert (theirs.packet_id, int(theirs.reason_code)) == (packet_id, int(code))
        assert (theirs.reason_str or "") == reason
        theirs = read(pack_answer(head, packet_id))
        assert (type(theirs), int(theirs.reason_code)) == (kind, 0)


@given(packet_ids)
def test_pubrel_and_pubcomp(packet_id):
    """They go on with an exchange, or say that there is none."""
    for ours, kind, code in (
        (pubrel(packet_id), mqtt5.PubRelPacket, 0),
        (pubcomp(packet_id), mqtt5.PubCompPacket, 0),
        (responses().pubrel(packet_id), mqtt5.PubRelPacket, 0x92),
        (responses().pubcomp(packet_id), mqtt5.PubCompPacket, 0x92),
    ):
        theirs = read(ours)
        assert isinstance(theirs, kind)
        assert (theirs.packet_id, int(theirs.reason_code)) == (packet_id, code)


identifiers = st.lists(st.integers(1, 2**28 - 1), min_size=1, max_size=5)


@given(identifiers, st.integers(0, 2), st.integers(0, 2))
def test_identifiers_of_several_subscriptions(numbers, one, other):
    """One message has the identifiers of all that take it, and the best of their options."""
    merged = numbers[0] << IDENTIFIER_SHIFT | one
    for number in numbers[1:]:
        merged = merged_options(merged, number << IDENTIFIER_SHIFT | other)
    assert merged & QOS == (max(one, other) if len(numbers) > 1 else one)
    merged = merged_options(merged, 0)
    block = write_identifiers(merged)
    data = publish(b"t", b"", qos=0, packet_id=0, properties=variable(len(block)) + block)
    assert read(data).subscription_ids == numbers


def test_suback_and_unsuback():
    """One code per filter; the reason only where something was refused."""
    codes = [0, 1, ReasonCode.TOPIC_FILTER_INVALID]
    theirs = read(responses().suback(7, codes))
    assert (theirs.packet_id, list(theirs.reason_codes)) == (7, codes)
    assert theirs.reason_str
    assert read(responses().suback(7, [1])).reason_str is None
    assert read(responses(reasons=False).suback(7, codes)).reason_str is None
    theirs = read(responses().unsuback(8, [0, ReasonCode.NO_SUBSCRIPTION_EXISTED]))
    assert (theirs.packet_id, list(theirs.reason_codes)) == (8, [0, 17])


def test_nothing_is_larger_than_the_client_takes():
    """A reason is left out where it does not fit, and a packet where it does not fit without."""
    error = SignInError(ConnectCode.CREDENTIALS, "x" * 100)
    assert read(responses(most=50).refused(error)).reason_str is None
    assert responses(most=4).refused(error) == b""
    assert responses(most=20).suback(1, [0x87] * 10)
    assert responses(most=20).suback(1, [0x87] * 20) == b""
    assert read(responses(most=50).disconnect(CloseReason.STALLED, "x" * 100)).reason_str is None
