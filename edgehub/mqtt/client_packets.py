"""Packets of the client's side: the bytes of what a client sends, and what servers send.

Both protocol versions; pure, without sockets or state. Framing belongs to the decoder. Invariant:
nothing but `ProtocolError` leaves a parser. Source: MQTT 3.1.1 and 5, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import PACKET_ID_MAX, Reader, binary, packet
from edgehub.mqtt.packets import (
    CLEAN_SESSION,
    LEVEL_5,
    NEVER_S,
    PACKET_ID_BYTES,
    PASSWORD,
    PUBACK_HEAD,
    PUBREC_HEAD,
    PUBREL,
    REFUSED_SENDER,
    USER_NAME,
    Disconnect,
    Pubcomp,
    Pubrel,
    pack_answer,
)
from edgehub.mqtt.properties import (
    IN_ACKNOWLEDGEMENT,
    IN_CONNACK,
    IN_SERVER_DISCONNECT,
    Property,
    read_properties,
    write_properties,
)
from edgehub.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgehub.mqtt.packets import Connect

PINGREQ: Final = b"\xc0\x00"
DISCONNECT: Final = b"\xe0\x00"
"""Of both versions: reason code 0 may be left out."""

_SHORT_CONNACK_BYTES: Final = 2
_CODE_BYTES: Final = 3

# Return codes of MQTT 3.1.1, as the reason codes of MQTT 5 that mean the same.
_CONNECT_CODES: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)


class Connack(Struct, frozen=True, kw_only=True):
    """CONNACK.

    Attributes:
        code: Reason code as MQTT 5 has it, also with MQTT 3.1.1; 0 = connected.
        session_present: Whether the server has kept the session.
        receive_maximum: PUBLISHes without PUBACK that the server takes.
        packet_bytes_max: Largest packet that it takes, None = any.
        keep_alive_s: Server keep-alive, None = the client's.
        retains: Whether it supports retained messages.
        shares: Whether it supports shared subscriptions.
        identifies: Whether it supports subscription identifiers.
        reason: Reason string, may be empty.
    """

    code: int = 0
    session_present: bool = False
    receive_maximum: int = PACKET_ID_MAX
    packet_bytes_max: int | None = None
    keep_alive_s: int | None = None
    retains: bool = True
    shares: bool = True
    identifies: bool = True
    reason: str = ""


class RefusedPublish(NamedTuple):
    """A PUBACK or PUBREC; of MQTT 5 also one with a failure code.

    Attributes:
        packet_id: Of the PUBLISH.
        code: Reason code, a failure from 0x80 on.
        reason: Reason string, may be empty.
        senders: Senders of refused messages of a batch, as a parent hub names them; may be empty.
    """

    packet_id: int
    code: int
    reason: str = ""
    senders: frozenset[str] = frozenset()


class Suback(Struct, frozen=True, kw_only=True):
    """SUBACK or UNSUBACK.

    Attributes:
        codes: One a filter, from 0x80 on a refusal; an UNSUBACK of MQTT 3.1.1 has none.
    """

    packet_id: int
    codes: bytes


class Pingresp(Struct, frozen=True, kw_only=True):
    """PINGRESP."""


ServerPacket = Connack | Suback | RefusedPublish | Pubrel | Pubcomp | Pingresp | Disconnect

_PINGRESP: Final = Pingresp()


def connect(values: Connect) -> bytes:
    """Return the bytes of a CONNECT without a will."""
    assert values.will is None
    flags = CLEAN_SESSION if values.clean_session else 0
    properties = b""
    payload = binary(values.client_id.encode())
    if values.user_name is not None:
        flags |= USER_NAME
        payload += binary(values.user_name.encode())
    if values.password is not None:
        flags |= PASSWORD
        payload += binary(values.password)
    if values.level == LEVEL_5:
        properties = write_properties(_connect_properties(values))
    head = binary(b"MQTT") + bytes((values.level, flags)) + values.keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head + properties + payload)


def _connect_properties(values: Connect) -> list[tuple[Property, Any]]:
    said = values.properties
    assert said is not None
    expiry_s = NEVER_S if said.session_expiry_s is None else said.session_expiry_s
    properties: list[tuple[Property, Any]] = []
    if expiry_s:
        properties.append((Property.SESSION_EXPIRY_INTERVAL, expiry_s))
    if said.receive_maximum != PACKET_ID_MAX:
        properties.append((Property.RECEIVE_MAXIMUM, said.receive_maximum))
    if said.packet_bytes_max is not None:
        properties.append((Property.MAXIMUM_PACKET_SIZE, said.packet_bytes_max))
    return properties


def subscribe(
    packet_id: int,
    filters: Iterable[tuple[str, int]],
    *,
    level: int,
    identifier: int | None = None,
) -> bytes:
    """Return the bytes of a SUBSCRIBE.

    Args:
        packet_id: 1 to `PACKET_ID_MAX`.
        filters: Each with its quality of service and, in MQTT 5, its other options.
        level: Protocol level.
        identifier: Subscription identifier, None = none; MQTT 5 only.
    """
    said = [] if identifier is None else [(Property.SUBSCRIPTION_IDENTIFIER, identifier)]
    wanted = [binary(name.encode()) + bytes((options,)) for name, options in filters]
    return packet(0x82, _numbered(packet_id, said, level) + b"".join(wanted))


def unsubscribe(packet_id: int, filters: Iterable[str], *, level: int) -> bytes:
    """Return the bytes of an UNSUBSCRIBE."""
    unwanted = [binary(name.encode()) for name in filters]
    return packet(0xA2, _numbered(packet_id, [], level) + b"".join(unwanted))


def _numbered(packet_id: int, said: Sequence[tuple[Property, Any]], level: int) -> bytes:
    properties = write_properties(said) if level == LEVEL_5 else b""
    return packet_id.to_bytes(2, "big") + properties


def acknowledgement(packet_id: int, qos: int) -> bytes:
    """Return the bytes that confirm a PUBLISH: a PUBACK, or with QoS 2 a PUBREC."""
    return pack_answer(PUBACK_HEAD if qos == 1 else PUBREC_HEAD, packet_id)


def parse_acknowledgement(data: bytes) -> RefusedPublish:
    """Parse the body of a PUBACK, PUBREC, PUBREL or PUBCOMP; a code below 0x80 confirms."""
    reader = Reader(data)
    packet_id = reader.packet_id()
    code = ReasonCode.SUCCESS if reader.at_end else reader.byte()
    said: Mapping[int, Any] = {}
    if len(data) > _CODE_BYTES:
        said = read_properties(reader, IN_ACKNOWLEDGEMENT)
    reader.finish()
    senders = [
        value for name, value in said.get(Property.USER_PROPERTY, ()) if name == REFUSED_SENDER
    ]
    return RefusedPublish(packet_id, code, said.get(Property.REASON_STRING, ""), frozenset(senders))


def parse_server_packet(head: int, data: bytes, level: int) -> ServerPacket:
    """Parse the body of a packet of a server other than PUBLISH and PUBACK.

    Args:
        head: First byte of the packet, flags included.
        data: The bytes after its length.
        level: Protocol level.

    Raises:
        ProtocolError: If it is malformed, or not for a server to send.
    """
    match head:
        case 0x20:
            return _parse_connack(data, level)
        case 0x50 | 0x62 | 0x70 if level == LEVEL_5 or len(data) == PACKET_ID_BYTES:
            acknowledgement = parse_acknowledgement(data)
            if head == 0x50:  # noqa: PLR2004 - a PUBREC
                return acknowledgement
            kind = Pubrel if head == PUBREL else Pubcomp
            return kind(acknowledgement.packet_id, acknowledgement.code)
        case 0x90 | 0xB0:
            return _parse_suback(head, data, level)
        case 0xD0:
            Reader(data).finish()
            return _PINGRESP
        case 0xE0 if level == LEVEL_5:
            return _parse_disconnect(data)
        case _:
            raise ProtocolError(f"packet {head:#04x} is not for a server to send")


def _parse_connack(data: bytes, level: int) -> Connack:
    reader = Reader(data)
    flags, code = reader.byte(), reader.byte()
    if flags > 1:
        raise ProtocolError(f"CONNACK with flags {flags:#04x}")
    # A server without MQTT 5 sends a CONNACK of MQTT 3.1.1.
    if level != LEVEL_5 or len(data) == _SHORT_CONNACK_BYTES:
        reader.finish()
        if code >= len(_CONNECT_CODES):
            raise ProtocolError(f"CONNACK with return code {code}")
        if level == LEVEL_5 and not code:
            # It ignores the version, and would read properties as topics and bodies.
            raise ProtocolError("an answer of MQTT 3.1.1 to a CONNECT of MQTT 5")
        return Connack(code=_CONNECT_CODES[code], session_present=bool(flags))
    said = read_properties(reader, IN_CONNACK)
    reader.finish()
    return Connack(
        code=code,
        session_present=bool(flags),
        receive_maximum=said.get(Property.RECEIVE_MAXIMUM, PACKET_ID_MAX),
        packet_bytes_max=said.get(Property.MAXIMUM_PACKET_SIZE),
        keep_alive_s=said.get(Property.SERVER_KEEP_ALIVE),
        retains=bool(said.get(Property.RETAIN_AVAILABLE, 1)),
        shares=bool(said.get(Property.SHARED_SUBSCRIPTION_AVAILABLE, 1)),
        identifies=bool(said.get(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1)),
        reason=said.get(Property.REASON_STRING, ""),
    )


def _parse_suback(head: int, data: bytes, level: int) -> Suback:
    reader = Reader(data)
    packet_id = reader.packet_id()
    if level == LEVEL_5:
        read_properties(reader, IN_ACKNOWLEDGEMENT)
    codes = data[reader.at :]
    if bool(codes) != (head == 0x90 or level == LEVEL_5):  # noqa: PLR2004 - a SUBACK
        raise ProtocolError(f"packet {head:#04x} with {len(codes)} codes")
    return Suback(packet_id=packet_id, codes=codes)


def _parse_disconnect(data: bytes) -> Disconnect:
    if not data:
        return Disconnect()
    reader = Reader(data)
    code = reader.byte()
    said = {} if reader.at_end else read_properties(reader, IN_SERVER_DISCONNECT)
    reader.finish()
    return Disconnect(code=code, reason=said.get(Property.REASON_STRING, ""))
