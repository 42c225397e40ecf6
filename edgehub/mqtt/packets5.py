"""The layout of MQTT 5 packets: what clients send, and the bytes of what the server answers.

Owns what differs from MQTT 3.1.1; the values are those of `packets`. Pure, without sockets or
state; framing, PUBLISH and topic aliases belong to the decoder. Invariant: nothing but
`ProtocolError` leaves a parser. Source: MQTT 5, sections 2 and 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import HEAD, Reader, packet
from edgehub.mqtt.message_properties import MessageProperties
from edgehub.mqtt.packets import (
    CLEAN_SESSION,
    LEVEL_5,
    PASSWORD,
    QOS_2,
    USER_NAME,
    WILL,
    WILL_RETAIN,
    Connect,
    ConnectProperties,
    Disconnect,
    Subscribe,
    Unsubscribe,
    Will,
    check_connect_flags,
    check_filter_count,
    topic_filter,
    will_topic,
)
from edgehub.mqtt.properties import (
    IN_ACKNOWLEDGEMENT,
    IN_CONNECT,
    IN_DISCONNECT,
    IN_SUBSCRIBE,
    IN_UNSUBSCRIBE,
    IN_WILL,
    Property,
    read_properties,
    write_block,
    write_properties,
)
from edgehub.mqtt.reasons import (
    DISCONNECTS,
    ReasonCode,
    ReasonedError,
)
from edgehub.mqtt.topic_filter import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.mqtt.packets import A

CONNECT_BEGIN: Final = b"\x00\x04MQTT\x05"
"""The first bytes of the body of a CONNECT."""

QOS: Final = 0x03
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
OPTIONS_MAX: Final = 0xFF
IDENTIFIER_SHIFT: Final = 8
_IDENTIFIER_BITS: Final = 28
_IDENTIFIER: Final = (1 << _IDENTIFIER_BITS) - 1

REFUSED_SENDER: Final = "refused_sender"
"""Name of the user properties of a PUBACK that says whose messages a client may not send."""

NEVER_S: Final = 0xFFFF_FFFF
"""Session expiry interval of a session that does not expire."""

# Packet id and reason code; the properties may be left out.
_SHORT_ANSWER_BYTES: Final = 3

_RETAIN_HANDLING_SHIFT: Final = 4
_RETAIN_HANDLING: Final = 3

REPLAY_IF_NEW: Final = 1
REPLAY_NEVER: Final = 2
REPLAY_IF_NEW_BITS: Final = REPLAY_IF_NEW << _RETAIN_HANDLING_SHIFT
_RESERVED_OPTIONS: Final = 0xC0


def parse_connect(data: bytes) -> Connect:
    """Read the body of a CONNECT that begins as one of MQTT 5 does.

    Raises:
        ReasonedError: If it is malformed; the client can be told why.
    """
    try:
        return _parse_connect(Reader(data.removeprefix(CONNECT_BEGIN)))
    except ReasonedError:
        raise
    except ProtocolError as error:
        raise ReasonedError(ReasonCode.MALFORMED_PACKET, error.reason) from error


def _parse_connect(reader: Reader) -> Connect:
    flags = reader.byte()
    check_connect_flags(flags)
    keep_alive_s = reader.short()
    values = read_properties(reader, IN_CONNECT)
    method = values.get(Property.AUTHENTICATION_METHOD)
    if Property.AUTHENTICATION_DATA in values and method is None:
        reason = "authentication data without a method"
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, reason)
    client_id = reader.text("client id")
    will = _parse_will(reader, flags) if flags & WILL else None
    user_name = reader.text("user name") if flags & USER_NAME else None
    password = reader.binary() if flags & PASSWORD else None
    reader.finish()
    return Connect(
        level=LEVEL_5,
        client_id=client_id,
        clean_session=bool(flags & CLEAN_SESSION),
        keep_alive_s=keep_alive_s,
        user_name=user_name,
        password=password,
        will=will,
        properties=ConnectProperties(
            session_expiry_s=expiry_s(values.get(Property.SESSION_EXPIRY_INTERVAL, 0)),
            receive_maximum=values.get(Property.RECEIVE_MAXIMUM, 65_535),
            packet_bytes_max=values.get(Property.MAXIMUM_PACKET_SIZE),
            problem_information=values.get(Property.REQUEST_PROBLEM_INFORMATION, 1) == 1,
            authentication_method=method,
        ),
    )


def _parse_will(reader: Reader, flags: int) -> Will:
    values = read_properties(reader, IN_WILL)
    return Will(
        topic=will_topic(reader),
        body=reader.binary(),
        qos=flags >> 3 & 3,
        retain=bool(flags & WILL_RETAIN),
        delay_s=values.get(Property.WILL_DELAY_INTERVAL, 0),
        properties=MessageProperties(values) if values else None,
    )


def expiry_s(interval: int) -> int | None:
    """Return a session expiry interval in seconds, None = never."""
    return None if interval == NEVER_S else interval


def parse_acknowledgement(kind: type[A], codes: frozenset[int], data: bytes) -> A:
    """Read the body of a PUBACK, PUBREC, PUBREL or PUBCOMP, which have one layout.

    Args:
        kind: Which of them.
        codes: The reason codes that it may have.
        data: The body.
    """
    reader = Reader(data)
    packet_id = reader.packet_id()
    code = ReasonCode.SUCCESS if reader.at_end else reader.byte()
    if len(data) > _SHORT_ANSWER_BYTES:
        read_properties(reader, IN_ACKNOWLEDGEMENT)
    reader.finish()
    _check_code(code, codes)
    return kind(packet_id, code)


def _check_code(code: int, allowed: frozenset[int]) -> None:
    if code not in allowed:
        reason = f"reason code {code:#04x} does not belong in this packet"
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, reason)


def parse_subscribe(data: bytes) -> Subscribe:
    """Read the body of a SUBSCRIBE; what is asked for is the options byte, and the identifier."""
    reader = Reader(data)
    packet_id = reader.packet_id()
    identifier = read_properties(reader, IN_SUBSCRIBE).get(Property.SUBSCRIPTION_IDENTIFIER, 0)
    filters = []
    while not reader.at_end:
        name = topic_filter(reader)
        options = reader.byte()
        _check_options(name, options)
        filters.append((name, options | identifier << IDENTIFIER_SHIFT))
        check_filter_count(len(filters))
    if not filters:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE without a filter")
    return Subscribe(packet_id=packet_id, filters=tuple(filters))


def _check_options(name: str, options: int) -> None:
    if options & _RESERVED_OPTIONS:
        raise ProtocolError(HEAD, "reserved subscription options are set")
    if options & QOS > QOS_2 or options >> _RETAIN_HANDLING_SHIFT == _RETAIN_HANDLING:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, f"subscription options {options:#04x}")
    if options & NO_LOCAL and name.startswith(SHARED):
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "shared subscription with no local")


def retain_handling(options: int) -> int:
    """Return what a subscription wants of retained messages; 0 = to get them in any case."""
    return options >> _RETAIN_HANDLING_SHIFT & _RETAIN_HANDLING


def merged_options(one: int, other: int) -> int:
    """Return what holds for a message that two subscriptions take: the best, and all identifiers.

    The identifiers stand above the options, `_IDENTIFIER_BITS` bits each, so that options with them
    are one number, and nothing is built where there are none.
    """
    identifiers = one >> IDENTIFIER_SHIFT
    places = -(-identifiers.bit_length() // _IDENTIFIER_BITS)
    identifiers |= other >> IDENTIFIER_SHIFT << places * _IDENTIFIER_BITS
    options = max(one & QOS, other & QOS) | (one | other) & RETAIN_AS_PUBLISHED
    return options | identifiers << IDENTIFIER_SHIFT


def write_identifiers(options: int) -> bytes:
    """Write the subscription identifiers among options, as part of a property block."""
    values: list[tuple[Property, Any]] = []
    identifiers = options >> IDENTIFIER_SHIFT
    while identifiers:
        values.append((Property.SUBSCRIPTION_IDENTIFIER, identifiers & _IDENTIFIER))
        identifiers >>= _IDENTIFIER_BITS
    return write_block(values)


def parse_unsubscribe(data: bytes) -> Unsubscribe:
    """Read the body of an UNSUBSCRIBE."""
    reader = Reader(data)
    packet_id = reader.packet_id()
    read_properties(reader, IN_UNSUBSCRIBE)
    filters = []
    while not reader.at_end:
        filters.append(topic_filter(reader))
        check_filter_count(len(filters))
    if not filters:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id=packet_id, filters=tuple(filters))


def parse_disconnect(data: bytes) -> Disconnect:
    """Read the body of a DISCONNECT."""
    if not data:
        return Disconnect()
    reader = Reader(data)
    code = reader.byte()
    _check_code(code, DISCONNECTS)
    if len(data) == 1:
        return Disconnect(code=code)
    values = read_properties(reader, IN_DISCONNECT)
    reader.finish()
    return Disconnect(code=code, session_expiry=values.get(Property.SESSION_EXPIRY_INTERVAL))


def connack(
    code: int, properties: Iterable[tuple[Property, Any]], *, session_present: bool = False
) -> bytes:
    """Write a CONNACK."""
    return packet(0x20, bytes((int(session_present), code)) + write_properties(properties))


def refusal(
    head: int, packet_id: int, code: int, reason: str = "", senders: Iterable[str] = ()
) -> bytes:
    """Write a PUBACK or PUBREC that says more than success.

    Args:
        head: Which of them; see `packets.PUBACK_HEAD`.
        packet_id: Of the PUBLISH.
        code: Reason code.
        reason: Its text, empty = none.
        senders: Whose messages are refused; user properties.
    """
    body = packet_id.to_bytes(2, "big") + bytes((code,))
    said = _reason(reason)
    said += [(Property.USER_PROPERTY, (REFUSED_SENDER, sender)) for sender in senders]
    return packet(head >> 8, body + write_properties(said) if said else body)


def not_found(head: int, packet_id: int) -> bytes:
    """Write a PUBREL or PUBCOMP, by its first byte, for a packet id of which nothing is known."""
    code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    return packet(head, packet_id.to_bytes(2, "big") + bytes((code,)))


def suback(packet_id: int, codes: bytes, reason: str = "") -> bytes:
    """Write a SUBACK with one code per filter."""
    return _subscription_answer(0x90, packet_id, codes, reason)


def unsuback(packet_id: int, codes: bytes) -> bytes:
    """Write an UNSUBACK with one code per filter."""
    return _subscription_answer(0xB0, packet_id, codes, "")


def disconnect(code: int, reason: str = "") -> bytes:
    """Write a DISCONNECT."""
    body = bytes((code,))
    return packet(0xE0, body + write_properties(_reason(reason)) if reason else body)


def _subscription_answer(head: int, packet_id: int, codes: bytes, reason: str) -> bytes:
    return packet(head, packet_id.to_bytes(2, "big") + write_properties(_reason(reason)) + codes)


def _reason(text: str) -> list[tuple[Property, Any]]:
    return [(Property.REASON_STRING, text)] if text else []
