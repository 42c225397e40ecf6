"""Properties of MQTT 5 packets: identifiers, parsing, writing.

Owns the table of property identifiers; pure. Invariant: the result of `read_properties` is allowed
in its packet, of the right type and, but for user properties, without duplicates. Source: MQTT 5,
section 2.2.2.
"""

from __future__ import annotations

from enum import Flag, IntEnum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from edgehub.errors import ProtocolError
from edgehub.message import PROPERTIES_MAX
from edgehub.mqtt.fields import Reader, binary, decoded, variable
from edgehub.mqtt.reasons import ReasonCode, ReasonedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class _Type(NamedTuple):
    """How values are read and written; MQTT 5, section 1.5."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


_BYTE: Final = _Type(Reader.byte, lambda value: bytes((value,)))
_SHORT: Final = _Type(Reader.short, lambda value: value.to_bytes(2, "big"))
_LONG: Final = _Type(Reader.long, lambda value: value.to_bytes(4, "big"))
_VARIABLE: Final = _Type(Reader.variable, variable)
_BINARY: Final = _Type(Reader.binary, binary)
_TEXT: Final = _Type(lambda reader: reader.text("property"), lambda value: binary(value.encode()))
_PAIR: Final = _Type(
    lambda reader: (reader.binary(), reader.binary()),
    lambda pair: binary(pair[0].encode()) + binary(pair[1].encode()),
)


class _In(Flag):
    """Packets that have properties, of a client unless they are named as a server's."""

    CONNECT = auto()
    WILL = auto()
    PUBLISH = auto()
    MESSAGE = WILL | PUBLISH
    ACKNOWLEDGEMENT = auto()  # of both, also SUBACK and UNSUBACK
    SUBSCRIBE = auto()
    UNSUBSCRIBE = auto()
    DISCONNECT = auto()
    CONNACK = auto()
    OPENING = CONNECT | CONNACK
    SERVER_DISCONNECT = auto()
    CLOSING = DISCONNECT | SERVER_DISCONNECT
    ANY = OPENING | MESSAGE | ACKNOWLEDGEMENT | SUBSCRIBE | UNSUBSCRIBE | CLOSING


class Property(IntEnum):
    """Property identifiers, with the type of their values and the packets that they may be in.

    Source: MQTT 5, table 2-4.
    """

    PAYLOAD_FORMAT_INDICATOR = 0x01, _BYTE, _In.MESSAGE
    MESSAGE_EXPIRY_INTERVAL = 0x02, _LONG, _In.MESSAGE
    CONTENT_TYPE = 0x03, _TEXT, _In.MESSAGE
    RESPONSE_TOPIC = 0x08, _TEXT, _In.MESSAGE
    CORRELATION_DATA = 0x09, _BINARY, _In.MESSAGE
    SUBSCRIPTION_IDENTIFIER = 0x0B, _VARIABLE, _In.SUBSCRIBE
    SESSION_EXPIRY_INTERVAL = 0x11, _LONG, _In.OPENING | _In.DISCONNECT
    ASSIGNED_CLIENT_IDENTIFIER = 0x12, _TEXT, _In.CONNACK
    SERVER_KEEP_ALIVE = 0x13, _SHORT, _In.CONNACK
    AUTHENTICATION_METHOD = 0x15, _TEXT, _In.OPENING
    AUTHENTICATION_DATA = 0x16, _BINARY, _In.OPENING
    REQUEST_PROBLEM_INFORMATION = 0x17, _BYTE, _In.CONNECT
    WILL_DELAY_INTERVAL = 0x18, _LONG, _In.WILL
    REQUEST_RESPONSE_INFORMATION = 0x19, _BYTE, _In.CONNECT
    RESPONSE_INFORMATION = 0x1A, _TEXT, _In.CONNACK
    SERVER_REFERENCE = 0x1C, _TEXT, _In.CONNACK | _In.SERVER_DISCONNECT
    REASON_STRING = 0x1F, _TEXT, _In.CONNACK | _In.ACKNOWLEDGEMENT | _In.CLOSING
    RECEIVE_MAXIMUM = 0x21, _SHORT, _In.OPENING
    TOPIC_ALIAS_MAXIMUM = 0x22, _SHORT, _In.OPENING
    TOPIC_ALIAS = 0x23, _SHORT, _In.PUBLISH
    MAXIMUM_QOS = 0x24, _BYTE, _In.CONNACK
    RETAIN_AVAILABLE = 0x25, _BYTE, _In.CONNACK
    USER_PROPERTY = 0x26, _PAIR, _In.ANY
    MAXIMUM_PACKET_SIZE = 0x27, _LONG, _In.OPENING
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28, _BYTE, _In.CONNACK
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29, _BYTE, _In.CONNACK
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A, _BYTE, _In.CONNACK

    kind: _Type
    packets: _In

    def __new__(cls, identifier: int, kind: _Type, packets: _In) -> Self:
        """Build a member from its row of the table."""
        member = int.__new__(cls, identifier)
        member._value_ = identifier
        member.kind = kind
        member.packets = packets
        return member


P = Property
_READERS: Final[Mapping[int, Callable[[Reader], Any]]] = {int(p): p.kind.read for p in P}
_WRITERS: Final[Mapping[int, Callable[[Any], bytes]]] = {int(p): p.kind.write for p in P}


def _allowed(packet: _In) -> frozenset[Property]:
    return frozenset(each for each in Property if each.packets & packet)


IN_CONNECT: Final = _allowed(_In.CONNECT)
IN_WILL: Final = _allowed(_In.WILL)
IN_PUBLISH: Final = _allowed(_In.PUBLISH)
IN_ACKNOWLEDGEMENT: Final = _allowed(_In.ACKNOWLEDGEMENT)
IN_SUBSCRIBE: Final = _allowed(_In.SUBSCRIBE)
IN_UNSUBSCRIBE: Final = _allowed(_In.UNSUBSCRIBE)
IN_DISCONNECT: Final = _allowed(_In.DISCONNECT)
IN_CONNACK: Final = _allowed(_In.CONNACK)
IN_SERVER_DISCONNECT: Final = _allowed(_In.SERVER_DISCONNECT)

_SWITCHES: Final = frozenset(
    {
        P.PAYLOAD_FORMAT_INDICATOR,
        P.REQUEST_PROBLEM_INFORMATION,
        P.REQUEST_RESPONSE_INFORMATION,
    }
)
_NEVER_0: Final = frozenset({P.RECEIVE_MAXIMUM, P.MAXIMUM_PACKET_SIZE, P.SUBSCRIPTION_IDENTIFIER})

_NO_PROPERTIES: Final[Mapping[int, Any]] = {}
_USER_PROPERTY: Final = int(P.USER_PROPERTY)


def read_properties(reader: Reader, allowed: frozenset[Property]) -> Mapping[int, Any]:
    """Read a property block, its length in front.

    Returns:
        Value by identifier; user properties as a list of pairs in the peer's order.

    Raises:
        ProtocolError: If it is malformed, holds what its packet may not, or something twice.
    """
    length = reader.variable()
    if not length:
        return _NO_PROPERTIES
    return parse_properties(reader.take(length), allowed)


def parse_properties(block: bytes, allowed: frozenset[Property]) -> Mapping[int, Any]:
    """Read a property block without its length; see `read_properties`."""
    values: dict[int, Any] = {}
    pairs: list[tuple[str, str]] = []
    at = 0
    end = len(block)
    while at < end:
        identifier = block[at]
        if identifier not in allowed:
            raise ProtocolError(f"property {identifier:#04x} does not belong in this packet")
        if identifier == _USER_PROPERTY:
            # Without calls: devices put what is new in each message here.
            value_at = at + 5
            if value_at <= end:
                value_at += block[at + 1] << 8 | block[at + 2]
            if value_at > end:
                raise ProtocolError("packet ends inside a field")
            stop = value_at + (block[value_at - 2] << 8 | block[value_at - 1])
            if stop > end:
                raise ProtocolError("packet ends inside a field")
            name = decoded(block[at + 3 : value_at - 2], "user property")
            pairs.append((name, decoded(block[value_at:stop], "user property")))
            if len(pairs) > PROPERTIES_MAX:
                raise ReasonedError(
                    ReasonCode.QUOTA_EXCEEDED, f"more than {PROPERTIES_MAX} user properties"
                )
            at = stop
            continue
        if identifier in values:
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, f"property {identifier:#04x} twice")
        reader = Reader(block, at + 1)
        value = _READERS[identifier](reader)
        at = reader.at
        _check(identifier, value)
        values[identifier] = value
    if pairs:
        values[_USER_PROPERTY] = pairs
    return values


def without_identifiers(block: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split a property block of a PUBLISH to a client from its subscription identifiers.

    Returns:
        The identifiers, of which there may be several, and the block without them.

    Raises:
        ProtocolError: If it is malformed.
    """
    numbers: list[int] = []
    rest: list[bytes] = []
    at = 0
    while at < len(block):
        identifier = block[at]
        reader = Reader(block, at + 1)
        read = _READERS.get(identifier)
        if read is None:
            raise ProtocolError(f"property {identifier:#04x} does not exist")
        value = read(reader)
        if identifier == P.SUBSCRIPTION_IDENTIFIER:
            numbers.append(value)
        else:
            rest.append(block[at : reader.at])
        at = reader.at
    return tuple(numbers), b"".join(rest)


def write_properties(values: Iterable[tuple[Property, Any]]) -> bytes:
    """Write a property block, its length in front."""
    block = write_block(values)
    return variable(len(block)) + block


def write_block(values: Iterable[tuple[Property, Any]]) -> bytes:
    """Write a property block without its length."""
    return b"".join(
        bytes((identifier,)) + _WRITERS[identifier](value) for identifier, value in values
    )


def _check(identifier: int, value: Any) -> None:
    if identifier in _SWITCHES:
        if value > 1:
            raise ReasonedError(
                ReasonCode.PROTOCOL_ERROR, f"property {identifier:#04x} is neither 0 nor 1"
            )
    elif value == 0 and identifier in _NEVER_0:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, f"property {identifier:#04x} is 0")
