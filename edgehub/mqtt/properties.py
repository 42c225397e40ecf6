"""Properties of MQTT 5 packets: identifiers, parsing, writing.

Owns the table of property identifiers; pure. Invariant: the result of `read_properties` is allowed
in its packet, of the right type and, but for user properties, without duplicates. Source: MQTT 5,
section 2.2.2.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ProtocolError
from edgehub.message import PROPERTIES_MAX
from edgehub.mqtt.fields import Reader, binary, decoded, variable
from edgehub.mqtt.reasons import ReasonCode, ReasonedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Property(IntEnum):
    """Property identifiers."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class _Type(IntEnum):
    BYTE = 0
    SHORT = 1
    LONG = 2
    VARIABLE = 3
    BINARY = 4
    TEXT = 5
    PAIR = 6


P = Property
_TYPES: Final[Mapping[int, _Type]] = {
    P.PAYLOAD_FORMAT_INDICATOR: _Type.BYTE,
    P.MESSAGE_EXPIRY_INTERVAL: _Type.LONG,
    P.CONTENT_TYPE: _Type.TEXT,
    P.RESPONSE_TOPIC: _Type.TEXT,
    P.CORRELATION_DATA: _Type.BINARY,
    P.SUBSCRIPTION_IDENTIFIER: _Type.VARIABLE,
    P.SESSION_EXPIRY_INTERVAL: _Type.LONG,
    P.ASSIGNED_CLIENT_IDENTIFIER: _Type.TEXT,
    P.SERVER_KEEP_ALIVE: _Type.SHORT,
    P.AUTHENTICATION_METHOD: _Type.TEXT,
    P.AUTHENTICATION_DATA: _Type.BINARY,
    P.REQUEST_PROBLEM_INFORMATION: _Type.BYTE,
    P.WILL_DELAY_INTERVAL: _Type.LONG,
    P.REQUEST_RESPONSE_INFORMATION: _Type.BYTE,
    P.RESPONSE_INFORMATION: _Type.TEXT,
    P.SERVER_REFERENCE: _Type.TEXT,
    P.REASON_STRING: _Type.TEXT,
    P.RECEIVE_MAXIMUM: _Type.SHORT,
    P.TOPIC_ALIAS_MAXIMUM: _Type.SHORT,
    P.TOPIC_ALIAS: _Type.SHORT,
    P.MAXIMUM_QOS: _Type.BYTE,
    P.RETAIN_AVAILABLE: _Type.BYTE,
    P.USER_PROPERTY: _Type.PAIR,
    P.MAXIMUM_PACKET_SIZE: _Type.LONG,
    P.WILDCARD_SUBSCRIPTION_AVAILABLE: _Type.BYTE,
    P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _Type.BYTE,
    P.SHARED_SUBSCRIPTION_AVAILABLE: _Type.BYTE,
}

# Properties that a client may send, by packet.
IN_CONNECT: Final = frozenset(
    {
        P.SESSION_EXPIRY_INTERVAL,
        P.RECEIVE_MAXIMUM,
        P.MAXIMUM_PACKET_SIZE,
        P.TOPIC_ALIAS_MAXIMUM,
        P.REQUEST_RESPONSE_INFORMATION,
        P.REQUEST_PROBLEM_INFORMATION,
        P.USER_PROPERTY,
        P.AUTHENTICATION_METHOD,
        P.AUTHENTICATION_DATA,
    }
)
IN_WILL: Final = frozenset(
    {
        P.WILL_DELAY_INTERVAL,
        P.PAYLOAD_FORMAT_INDICATOR,
        P.MESSAGE_EXPIRY_INTERVAL,
        P.CONTENT_TYPE,
        P.RESPONSE_TOPIC,
        P.CORRELATION_DATA,
        P.USER_PROPERTY,
    }
)
IN_PUBLISH: Final = frozenset(
    {
        P.PAYLOAD_FORMAT_INDICATOR,
        P.MESSAGE_EXPIRY_INTERVAL,
        P.CONTENT_TYPE,
        P.RESPONSE_TOPIC,
        P.CORRELATION_DATA,
        P.TOPIC_ALIAS,
        P.USER_PROPERTY,
    }
)
IN_ACKNOWLEDGEMENT: Final = frozenset({P.REASON_STRING, P.USER_PROPERTY})
"""Also of SUBACK and UNSUBACK."""
IN_SUBSCRIBE: Final = frozenset({P.SUBSCRIPTION_IDENTIFIER, P.USER_PROPERTY})
IN_UNSUBSCRIBE: Final = frozenset({P.USER_PROPERTY})
IN_DISCONNECT: Final = frozenset({P.SESSION_EXPIRY_INTERVAL, P.REASON_STRING, P.USER_PROPERTY})

# Properties that a server may send, by packet.
IN_CONNACK: Final = frozenset(
    {
        P.SESSION_EXPIRY_INTERVAL,
        P.ASSIGNED_CLIENT_IDENTIFIER,
        P.SERVER_KEEP_ALIVE,
        P.AUTHENTICATION_METHOD,
        P.AUTHENTICATION_DATA,
        P.RESPONSE_INFORMATION,
        P.SERVER_REFERENCE,
        P.REASON_STRING,
        P.RECEIVE_MAXIMUM,
        P.TOPIC_ALIAS_MAXIMUM,
        P.MAXIMUM_QOS,
        P.RETAIN_AVAILABLE,
        P.USER_PROPERTY,
        P.MAXIMUM_PACKET_SIZE,
        P.WILDCARD_SUBSCRIPTION_AVAILABLE,
        P.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        P.SHARED_SUBSCRIPTION_AVAILABLE,
    }
)
IN_SERVER_DISCONNECT: Final = frozenset({P.SERVER_REFERENCE, P.REASON_STRING, P.USER_PROPERTY})

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
        value = _READERS[_TYPES[identifier]](reader)
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
        kind = _TYPES.get(identifier)
        if kind is None:
            raise ProtocolError(f"property {identifier:#04x} does not exist")
        if kind is _Type.PAIR:
            reader.binary()
            reader.binary()
        elif identifier == P.SUBSCRIPTION_IDENTIFIER:
            numbers.append(reader.variable())
        else:
            _READERS[kind](reader)
        if identifier != P.SUBSCRIPTION_IDENTIFIER:
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
        bytes((identifier,)) + _WRITERS[_TYPES[identifier]](value) for identifier, value in values
    )


def _check(identifier: int, value: Any) -> None:
    if identifier in _SWITCHES:
        if value > 1:
            raise ReasonedError(
                ReasonCode.PROTOCOL_ERROR, f"property {identifier:#04x} is neither 0 nor 1"
            )
    elif value == 0 and identifier in _NEVER_0:
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, f"property {identifier:#04x} is 0")


_READERS: Final[Mapping[_Type, Callable[[Reader], Any]]] = {
    _Type.BYTE: Reader.byte,
    _Type.SHORT: Reader.short,
    _Type.LONG: Reader.long,
    _Type.VARIABLE: Reader.variable,
    _Type.BINARY: Reader.binary,
    _Type.TEXT: lambda reader: reader.text("property"),
}

_WRITERS: Final[Mapping[_Type, Callable[[Any], bytes]]] = {
    _Type.BYTE: lambda value: bytes((value,)),
    _Type.SHORT: lambda value: value.to_bytes(2, "big"),
    _Type.LONG: lambda value: value.to_bytes(4, "big"),
    _Type.VARIABLE: variable,
    _Type.BINARY: binary,
    _Type.TEXT: lambda value: binary(value.encode()),
    _Type.PAIR: lambda pair: binary(pair[0].encode()) + binary(pair[1].encode()),
}
