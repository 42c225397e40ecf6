"""The packets of a client, with an implementation of MQTT 5 that is not ours as the oracle."""

from __future__ import annotations

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.errors import ProtocolError
from edgehub.mqtt import client_packets
from edgehub.mqtt.client_decoder import ClientDecoder
from edgehub.mqtt.client_packets import Connack, Pingresp, RefusedPublish, Suback
from edgehub.mqtt.packets import (
    Connect,
    ConnectProperties,
    Disconnect,
    Pubrel,
    Subscribe,
    Unsubscribe,
    session_expiry,
)
from edgehub.mqtt.server_decoder import Decoder

LIMIT = 2**20
packet_ids = st.integers(1, 65_535)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
pairs = st.lists(st.tuples(texts, texts), max_size=3)
filters = st.lists(st.tuples(texts.filter(bool), st.integers(0, 1)), min_size=1, max_size=4)


def members(codes):
    """List the values of an enumeration, which in the oracle is no Python one."""
    return [getattr(codes, name) for name in dir(codes) if name.isupper()]


connects = st.builds(
    Connect,
    level=st.sampled_from([4, 5]),
    client_id=texts,
    clean_session=st.booleans(),
    keep_alive_s=st.integers(0, 65_535),
    user_name=texts,
    password=st.none() | st.binary(max_size=20),
    will=st.none(),
)
properties = st.builds(
    ConnectProperties,
    session_expiry_s=st.none() | st.integers(0, 2**32 - 2),
    receive_maximum=st.integers(1, 65_535),
    packet_bytes_max=st.none() | st.integers(1, 2**32 - 1),
)


def as_server(data: bytes, *, connect: bytes = b"") -> object:
    """Read the last packet of a client as the listener does."""
    decoder, packets = Decoder(publish_bytes_max=LIMIT), []
    decoder.feed(connect + data, packets)
    return packets[-1]


def as_client(level: int, *data: bytes) -> ClientDecoder:
    """Feed a client's decoder, each packet in a read of its own."""
    decoder = ClientDecoder(level=level)
    for each in data:
        decoder.feed(each)
    return decoder


@given(connects, properties)
def test_a_connect_reads_back(connect, said):
    """By the listener's decoder, every field, in both versions; by the oracle in MQTT 5."""
    values = (
        connect
        if connect.level == 4
        else connect.__class__(
            **{name: getattr(connect, name) for name in Connect.__slots__} | {"properties": said}
        )
    )
    data = client_packets.connect(values)
    assert as_server(data) == values
    if values.level == 5:
        theirs, size = mqtt5.read(memoryview(data))
        assert size == len(data)
        assert (theirs.client_id, theirs.clean_start) == (values.client_id, values.clean_session)
        assert (theirs.username, theirs.password) == (values.user_name, values.password)
        assert session_expiry(theirs.session_expiry_interval) == said.session_expiry_s
        assert theirs.receive_max == said.receive_maximum
        assert theirs.max_packet_size == said.packet_bytes_max


@pytest.mark.parametrize("level", [4, 5])
@given(packet_id=packet_ids, wanted=filters)
def test_subscriptions_read_back(level, packet_id, wanted):
    """SUBSCRIBE and UNSUBSCRIBE, by the listener's decoder."""
    connect = client_packets.connect(
        Connect(
            level=level,
            client_id="d",
            clean_session=True,
            keep_alive_s=0,
            user_name=None,
            password=None,
            will=None,
            properties=ConnectProperties(),
        )
    )
    data = client_packets.subscribe(packet_id, wanted, level=level)
    assert as_server(data, connect=connect) == Subscribe(packet_id=packet_id, filters=tuple(wanted))
    names = tuple(name for name, _ in wanted)
    data = client_packets.unsubscribe(packet_id, names, level=level)
    assert as_server(data, connect=connect) == Unsubscribe(packet_id=packet_id, filters=names)


@given(packet_ids, filters, st.integers(1, 268_435_455))
def test_a_subscription_identifier_is_one_to_the_oracle(packet_id, wanted, number):
    """Between packet id and filters."""
    data = client_packets.subscribe(packet_id, wanted, level=5, identifier=number)
    theirs, _ = mqtt5.read(memoryview(data))
    assert (theirs.packet_id, theirs.subscription_id) == (packet_id, number)
    assert [each.pattern for each in theirs.topic_filters] == [name for name, _ in wanted]


connacks = st.builds(
    mqtt5.ConnAckPacket,
    session_present=st.booleans(),
    reason_code=st.sampled_from(members(mqtt5.ConnAckReasonCode)),
    receive_max=st.integers(1, 65_535),
    retain_available=st.booleans(),
    max_packet_size=st.none() | st.integers(1, 2**32 - 1),
    assigned_client_id=st.none() | texts,
    topic_alias_max=st.integers(0, 65_535),
    reason_str=st.none() | texts,
    user_properties=pairs,
    subscription_id_available=st.booleans(),
    shared_subscription_available=st.booleans(),
    server_keep_alive=st.none() | st.integers(0, 65_535),
)
answers = st.one_of(
    connacks,
    st.builds(
        mqtt5.PubAckPacket,
        packet_ids,
        reason_code=st.sampled_from(members(mqtt5.PubAckReasonCode)),
        reason_str=st.none() | texts,
        user_properties=pairs,
    ),
    st.builds(
        mqtt5.SubAckPacket,
        packet_ids,
        st.lists(st.sampled_from(members(mqtt5.SubAckReasonCode)), min_size=1, max_size=4),
        reason_str=st.none() | texts,
        user_properties=pairs,
    ),
    st.builds(
        mqtt5.UnsubAckPacket,
        packet_ids,
        st.lists(st.sampled_from(members(mqtt5.UnsubAckReasonCode)), min_size=1, max_size=4),
        user_properties=pairs,
    ),
    st.builds(mqtt5.PubRelPacket, packet_ids, user_properties=pairs),
    st.builds(mqtt5.PingRespPacket),
    st.builds(
        mqtt5.DisconnectPacket,
        reason_code=st.sampled_from(members(mqtt5.DisconnectReasonCode)),
        reason_str=st.none() | texts,
        server_reference=st.none() | texts,
        user_properties=pairs,
    ),
)


def expected(theirs) -> object:
    """Return what an answer of the oracle's is here; None = it stands in a list of its own."""
    match theirs:
        case mqtt5.ConnAckPacket():
            return Connack(
                code=int(theirs.reason_code),
                session_present=theirs.session_present,
                receive_maximum=theirs.receive_max,
                packet_bytes_max=theirs.max_packet_size,
                keep_alive_s=theirs.server_keep_alive,
                retains=theirs.retain_available,
                shares=theirs.shared_subscription_available,
                identifies=theirs.subscription_id_available,
                reason=theirs.reason_str or "",
            )
        case mqtt5.SubAckPacket() | mqtt5.UnsubAckPacket():
            return Suback(packet_id=theirs.packet_id, codes=bytes(map(int, theirs.reason_codes)))
        case mqtt5.PubRelPacket():
            return Pubrel(packet_id=theirs.packet_id)
        case mqtt5.PingRespPacket():
            return Pingresp()
        case mqtt5.DisconnectPacket():
            return Disconnect(code=int(theirs.reason_code), reason=theirs.reason_str or "")
    return None


@given(st.lists(answers, max_size=6))
def test_answers_of_the_oracle(theirs):
    """A stream of its packets comes out one for one, with what matters of each."""
    received = as_client(5, *(packet.write() for packet in theirs)).take()
    acks = [each for each in theirs if isinstance(each, mqtt5.PubAckPacket)]
    assert received.confirmed == [each.packet_id for each in acks if int(each.reason_code) < 0x80]
    assert received.refused == [
        RefusedPublish(
            each.packet_id,
            int(each.reason_code),
            each.reason_str or "",
            frozenset(value for name, value in each.user_properties if name == "refused_sender"),
        )
        for each in acks
        if int(each.reason_code) >= 0x80
    ]
    assert received.packets == [expected(each) for each in theirs if each not in acks]


@pytest.mark.parametrize(
    "body",
    ["20 0000 00", "40 0001 00 00", "62 0001 00 00", "d0", "e0 00 00"],
    ids=["CONNACK", "PUBACK", "PUBREL", "PINGRESP", "DISCONNECT"],
)
def test_bytes_behind_the_last_field_are_malformed(body):
    """The packet is taken with all its fields, and refused with one byte more."""
    head, *fields = bytes.fromhex(body)
    as_client(5, bytes([head, len(fields), *fields]))
    with pytest.raises(ProtocolError, match="behind the last field"):
        as_client(5, bytes([head, len(fields) + 1, *fields, 0]))


def test_acknowledgements():
    """PUBACK, PUBREC and PUBCOMP, byte by byte."""
    assert client_packets.acknowledgement(258, 1) == b"\x40\x02\x01\x02"
    assert client_packets.acknowledgement(258, 2) == b"\x50\x02\x01\x02"
