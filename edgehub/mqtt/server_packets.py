"""Packets of the server's side: what clients send, and the bytes of what a server answers.

Both protocol versions; pure, without sockets or state. Framing, PUBLISH and topic aliases belong to
the decoder. Invariant: nothing but `ProtocolError` leaves a parser. Source: MQTT 3.1.1 and 5,
section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import Reader, packet
from edgehub.mqtt.message_properties import MessageProperties
from edgehub.mqtt.packets import (
    CLEAN_SESSION,
    LEVEL_3_1_1,
    LEVEL_5,
    PASSWORD,
    QOS_2,
    REFUSED_SENDER,
    USER_NAME,
    WILL,
    WILL_RETAIN,
    Connect,
    ConnectProperties,
    Disconnect,
    Pingreq,
    Subscribe,
    Unsubscribe,
    UnsupportedLevelError,
    Will,
    pack_answer,
    session_expiry,
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
    write_properties,
)
from edgehub.mqtt.reasons import DISCONNECTS, ReasonCode, ReasonedError
from edgehub.mqtt.subscription_options import (
    IDENTIFIER_SHIFT,
    NO_LOCAL,
    QOS,
    RESERVED_OPTIONS,
    retain_handling,
)
from edgehub.mqtt.topic_filter import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from edgehub.mqtt.packets import A

FILTERS_MAX: Final = 1_000
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE; a session has far fewer."""

_BRIDGE: Final = 0x80
_LEVELS: Final = frozenset(
    {
        (b"MQTT", LEVEL_3_1_1),
        (b"MQTT", LEVEL_5),
        (b"MQTT", LEVEL_3_1_1 | _BRIDGE),
        (b"MQIsdp", 3 | _BRIDGE),
    }
)
"""Supported protocol names and levels. Mosquitto sets the highest bit where it is a bridge; what a
bridge sends in MQTT 3.1 means the same in 3.1.1."""

_WILL_BITS: Final = 0x38
_RETAIN_HANDLING_INVALID: Final = 3
_UNSUBACK_HEAD: Final = 0xB002
# Packet id and reason code; the properties may be left out.
_SHORT_ANSWER_BYTES: Final = 3

_NO_VALUES: Final[Mapping[int, Any]] = {}
_PINGREQ: Final = Pingreq()


def parse_connect(data: bytes) -> Connect:
    """Parse the body of a CONNECT.

    Raises:
        UnsupportedLevelError: If it asks for another protocol level.
        ReasonedError: If it is malformed, and the client takes a reason code.
        ProtocolError: If it is malformed.
    """
    reader = Reader(data)
    name = reader.binary()
    level = reader.byte()
    if (name, level) not in _LEVELS:
        if name in (b"MQTT", b"MQIsdp"):
            raise UnsupportedLevelError(f"protocol level {level} is not supported")
        raise ProtocolError("unknown protocol name")
    try:
        return _parse_connect(reader, level)
    except ReasonedError:
        raise
    except ProtocolError as error:
        if level < LEVEL_5 or level & _BRIDGE:
            raise
        raise ReasonedError(ReasonCode.MALFORMED_PACKET, error.reason) from error


def _parse_connect(reader: Reader, level: int) -> Connect:
    bridge, level = bool(level & _BRIDGE), level & ~_BRIDGE
    flags = reader.byte()
    _check_connect_flags(flags, level)
    keep_alive_s = reader.short()
    properties = _connect_properties(reader) if level >= LEVEL_5 else None
    client_id = reader.text("client id")
    will = _parse_will(reader, flags, level) if flags & WILL else None
    user_name = reader.text("user name") if flags & USER_NAME else None
    password = reader.binary() if flags & PASSWORD else None
    reader.finish()
    return Connect(
        level=level,
        client_id=client_id,
        clean_session=bool(flags & CLEAN_SESSION),
        keep_alive_s=keep_alive_s,
        user_name=user_name,
        password=password,
        will=will,
        properties=properties,
        bridge=bridge,
    )


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 1:
        raise ProtocolError("reserved connect flag is set")
    if not flags & WILL and flags & _WILL_BITS:
        raise ProtocolError("will quality or retain without a will")
    if flags >> 3 & 3 > QOS_2:
        raise ProtocolError("will quality of service 3")
    if level < LEVEL_5 and flags & PASSWORD and not flags & USER_NAME:
        raise ProtocolError("password without a user name")


def _connect_properties(reader: Reader) -> ConnectProperties:
    values = read_properties(reader, IN_CONNECT)
    method = values.get(Property.AUTHENTICATION_METHOD)
    if Property.AUTHENTICATION_DATA in values and method is None:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "authentication data without a method")
    return ConnectProperties(
        session_expiry_s=session_expiry(values.get(Property.SESSION_EXPIRY_INTERVAL, 0)),
        receive_maximum=values.get(Property.RECEIVE_MAXIMUM, 65_535),
        packet_bytes_max=values.get(Property.MAXIMUM_PACKET_SIZE),
        problem_information=values.get(Property.REQUEST_PROBLEM_INFORMATION, 1) == 1,
        authentication_method=method,
    )


def _parse_will(reader: Reader, flags: int, level: int) -> Will:
    values = read_properties(reader, IN_WILL) if level >= LEVEL_5 else _NO_VALUES
    return Will(
        topic=_not_empty(reader, "will topic").encode(),
        body=reader.binary(),
        qos=flags >> 3 & 3,
        retain=bool(flags & WILL_RETAIN),
        delay_s=values.get(Property.WILL_DELAY_INTERVAL, 0),
        properties=MessageProperties(values) if values else None,
    )


def _not_empty(reader: Reader, what: str) -> str:
    text = reader.text(what)
    if not text:
        raise ProtocolError(f"empty {what}")
    return text


def parse_acknowledgement(kind: type[A], codes: frozenset[int], data: bytes, level: int) -> A:
    """Parse the body of a PUBACK, PUBREC, PUBREL or PUBCOMP, which have one layout.

    Args:
        kind: Which of them.
        codes: The reason codes that it may have.
        data: The body.
        level: Protocol level.
    """
    reader = Reader(data)
    packet_id = reader.packet_id()
    code: int = ReasonCode.SUCCESS
    if level >= LEVEL_5 and not reader.at_end:
        code = reader.byte()
        if len(data) > _SHORT_ANSWER_BYTES:
            read_properties(reader, IN_ACKNOWLEDGEMENT)
    reader.finish()
    _check_code(code, codes)
    return kind(packet_id, code)


def _check_code(code: int, allowed: frozenset[int]) -> None:
    if code not in allowed:
        raise ReasonedError(
            ReasonCode.PROTOCOL_ERROR, f"reason code {code:#04x} does not belong in this packet"
        )


def parse_subscribe(data: bytes, level: int) -> Subscribe:
    """Parse the body of a SUBSCRIBE; see `subscription_options`."""
    reader = Reader(data)
    packet_id = reader.packet_id()
    identifier = 0
    if level >= LEVEL_5:
        values = read_properties(reader, IN_SUBSCRIBE)
        identifier = values.get(Property.SUBSCRIPTION_IDENTIFIER, 0) << IDENTIFIER_SHIFT
    filters = []
    for name in _topic_filters(reader):
        options = reader.byte()
        _check_options(name, options, level)
        filters.append((name, options | identifier))
    return Subscribe(packet_id=packet_id, filters=tuple(filters))


def _topic_filters(reader: Reader) -> Iterator[str]:
    """Yield the topic filters of a packet; the caller reads what follows each."""
    count = 0
    while not reader.at_end:
        count += 1
        if count > FILTERS_MAX:
            raise ProtocolError(f"more than {FILTERS_MAX} topic filters in one packet")
        yield _not_empty(reader, "topic filter")
    if not count:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "no topic filter in the packet")


def _check_options(name: str, options: int, level: int) -> None:
    if options & (RESERVED_OPTIONS if level >= LEVEL_5 else ~QOS):
        raise ProtocolError("reserved subscription options are set")
    if options & QOS > QOS_2 or retain_handling(options) == _RETAIN_HANDLING_INVALID:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, f"subscription options {options:#04x}")
    if options & NO_LOCAL and name.startswith(SHARED):
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "shared subscription with no local")


def parse_unsubscribe(data: bytes, level: int) -> Unsubscribe:
    """Parse the body of an UNSUBSCRIBE."""
    reader = Reader(data)
    packet_id = reader.packet_id()
    if level >= LEVEL_5:
        read_properties(reader, IN_UNSUBSCRIBE)
    return Unsubscribe(packet_id=packet_id, filters=tuple(_topic_filters(reader)))


def parse_pingreq(data: bytes, level: int) -> Pingreq:
    """Parse the body of a PINGREQ, which is empty."""
    del level
    Reader(data).finish()
    return _PINGREQ


def parse_disconnect(data: bytes, level: int) -> Disconnect:
    """Parse the body of a DISCONNECT, which is empty in MQTT 3.1.1."""
    reader = Reader(data)
    if level < LEVEL_5 or not data:
        reader.finish()
        return Disconnect()
    code = reader.byte()
    _check_code(code, DISCONNECTS)
    values = _NO_VALUES if reader.at_end else read_properties(reader, IN_DISCONNECT)
    reader.finish()
    return Disconnect(code=code, session_expiry=values.get(Property.SESSION_EXPIRY_INTERVAL))


def connack(
    code: int,
    properties: Iterable[tuple[Property, Any]] | None = None,
    *,
    session_present: bool = False,
) -> bytes:
    """Write a CONNACK; without properties it is one of MQTT 3.1.1."""
    block = b"" if properties is None else write_properties(properties)
    return packet(0x20, bytes((session_present, code)) + block)


def refusal(
    head: int, packet_id: int, code: int, reason: str = "", senders: Iterable[str] = ()
) -> bytes:
    """Write a PUBACK or PUBREC of MQTT 5 with another code than success.

    Args:
        head: Which of them; see `packets.PUBACK_HEAD`.
        packet_id: Of the PUBLISH.
        code: Reason code.
        reason: Reason string, empty = none.
        senders: Senders of the refused messages of a batch, as user properties.
    """
    body = packet_id.to_bytes(2, "big") + bytes((code,))
    properties = _reason(reason)
    properties += [(Property.USER_PROPERTY, (REFUSED_SENDER, sender)) for sender in senders]
    return packet(head >> 8, body + write_properties(properties) if properties else body)


def not_found(head: int, packet_id: int) -> bytes:
    """Write a PUBREL or PUBCOMP of MQTT 5, by its first byte, for an unknown packet id."""
    code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    return packet(head, packet_id.to_bytes(2, "big") + bytes((code,)))


def suback(packet_id: int, codes: bytes, *, level: int, reason: str = "") -> bytes:
    """Write a SUBACK with one code per filter."""
    properties = write_properties(_reason(reason)) if level >= LEVEL_5 else b""
    return packet(0x90, packet_id.to_bytes(2, "big") + properties + codes)


def unsuback(packet_id: int, codes: bytes, *, level: int) -> bytes:
    """Write an UNSUBACK, in MQTT 5 with one code per filter."""
    if level < LEVEL_5:
        return pack_answer(_UNSUBACK_HEAD, packet_id)
    return packet(0xB0, packet_id.to_bytes(2, "big") + write_properties(()) + codes)


def disconnect(code: int, reason: str = "") -> bytes:
    """Write a DISCONNECT of MQTT 5."""
    body = bytes((code,))
    return packet(0xE0, body + write_properties(_reason(reason)) if reason else body)


def _reason(text: str) -> list[tuple[Property, Any]]:
    return [(Property.REASON_STRING, text)] if text else []
