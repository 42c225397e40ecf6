"""MQTT control packets as values, and the bytes of those that client and server both send.

Owns the values of both protocol versions; pure. Source: MQTT 3.1.1 and 5, sections 2 and 3.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import decoded, variable
from edgehub.mqtt.reasons import ReasonCode, ReasonedError
from edgehub.mqtt.topic_filter import WILDCARDS

if TYPE_CHECKING:
    from edgehub.mqtt.message_properties import MessageProperties

LEVEL_3_1_1: Final = 4
LEVEL_5: Final = 5

PINGRESP: Final = b"\xd0\x00"
SUBACK_FAILURE: Final = 0x80

CLEAN_SESSION: Final = 0x02
WILL: Final = 0x04
WILL_RETAIN: Final = 0x20
PASSWORD: Final = 0x40
USER_NAME: Final = 0x80
QOS_2: Final = 2

NEVER_S: Final = 0xFFFF_FFFF
"""Session expiry interval of a session that does not expire."""

REFUSED_SENDER: Final = "refused_sender"
"""User property of a PUBACK that names a sender whose messages were refused."""

RETAIN: Final = 0x01
HAS_PROPERTIES: Final = 0x02

TYPE: Final = 0xF0
"""Bits of the first byte that are the type of a packet."""

PUBLISH: Final = 0x30
DUP: Final = 0x08
BAD_PUBLISH: Final = (
    "PUBLISH without a topic or packet id, with quality of service 3, or DUP with 0"
)

PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
PUBACK_HEAD: Final = 0x4002
PUBREC_HEAD: Final = 0x5002
_PUBREL_HEAD: Final = PUBREL << 8 | 2
_PUBCOMP_HEAD: Final = PUBCOMP << 8 | 2

pack_answer: Final = struct.Struct(">HH").pack
"""Writes a short answer from its head and a packet id; without a call for the message path."""

PACKET_ID_BYTES: Final = 2
pack_uint16: Final = struct.Struct(">H").pack
_PUBLISH_START_1: Final = struct.Struct(">BBH").pack
_PUBLISH_START_2: Final = struct.Struct(">BBBH").pack
"""Write the bytes of a PUBLISH before its topic: with one and two bytes of remaining length."""


class ConnectCode(IntEnum):
    """CONNACK return codes of MQTT 3.1.1."""

    ACCEPTED = 0
    PROTOCOL_LEVEL = 1
    IDENTIFIER = 2
    UNAVAILABLE = 3
    CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class UnsupportedLevelError(ProtocolError):
    """A CONNECT of a protocol level that the server does not speak."""


class Will(Struct, frozen=True, kw_only=True):
    """The message that the server publishes for a client that vanishes.

    Attributes:
        delay_s: Seconds to wait for the client's return before it is published.
        properties: Those of MQTT 5, None = there are none.
    """

    topic: bytes
    body: bytes
    qos: int
    retain: bool
    delay_s: int = 0
    properties: MessageProperties | None = None


class ConnectProperties(Struct, frozen=True, kw_only=True):
    """Properties of a CONNECT of MQTT 5.

    Attributes:
        session_expiry_s: Seconds that the session outlives the connection, None = for ever.
        receive_maximum: Unconfirmed PUBLISHes that the client takes.
        packet_bytes_max: Largest packet that the client takes, None = any.
        problem_information: Whether the client wants reason strings.
        authentication_method: Name of an extended authentication, None = none.
    """

    session_expiry_s: int | None = 0
    receive_maximum: int = 65_535
    packet_bytes_max: int | None = None
    problem_information: bool = True
    authentication_method: str | None = None


class Connect(Struct, frozen=True, kw_only=True):
    """CONNECT.

    Attributes:
        clean_session: Clean session of MQTT 3.1.1, clean start of MQTT 5.
        bridge: Whether it is a Mosquitto bridge, all of whose subscriptions have the options no
            local and retain as published of MQTT 5.
        properties: Those of MQTT 5, None = MQTT 3.1.1.
    """

    level: int
    client_id: str
    clean_session: bool
    keep_alive_s: int
    user_name: str | None
    password: bytes | None
    will: Will | None
    properties: ConnectProperties | None = None
    bridge: bool = False


class Publish(Struct, eq=False, gc=False):
    """PUBLISH.

    Attributes:
        topic: Topic name as sent, not yet checked.
        body: Payload, None = over the packet limit, was read and discarded.
        packet_id: 0 with QoS 0.
        qos: 0 to 2.
        flags: `RETAIN`, and `HAS_PROPERTIES` on a `Publish5`; 0 = none.
    """

    topic: bytes
    body: bytes | None
    packet_id: int
    qos: int
    flags: int


class OversizedPublish(Publish, eq=False, gc=False):
    """PUBLISH over the packet limit; its body was read and discarded."""

    body_bytes: int


class Publish5(Publish, eq=False, gc=False):
    """PUBLISH of MQTT 5 with properties."""

    properties: MessageProperties


class Acknowledgement(Struct, gc=False):
    """PUBACK, PUBREC, PUBREL or PUBCOMP.

    Attributes:
        code: Reason code of MQTT 5; 0 with MQTT 3.1.1.
    """

    packet_id: int
    code: int = 0


class Puback(Acknowledgement, gc=False):
    """PUBACK: the receiver owns a message of QoS 1."""


class Pubrec(Acknowledgement, gc=False):
    """PUBREC: the receiver owns a message of QoS 2."""


class Pubrel(Acknowledgement, gc=False):
    """PUBREL: the sender has released a message of QoS 2."""


class Pubcomp(Acknowledgement, gc=False):
    """PUBCOMP: the packet id of a message of QoS 2 is free again."""


A = TypeVar("A", bound=Acknowledgement)


class Subscribe(Struct, frozen=True, kw_only=True):
    """SUBSCRIBE: filters with their options, in the client's order; see `subscription_options`."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


class Unsubscribe(Struct, frozen=True, kw_only=True):
    """UNSUBSCRIBE."""

    packet_id: int
    filters: tuple[str, ...]


class Pingreq(Struct, frozen=True, kw_only=True):
    """PINGREQ."""


class Disconnect(Struct, frozen=True, kw_only=True):
    """DISCONNECT of a client, in MQTT 5 also of a server.

    Attributes:
        code: Reason code of MQTT 5; only 0 cancels the will.
        session_expiry: New session expiry interval as in the packet, None = unchanged.
        reason: Reason string of a server, may be empty.
    """

    code: int = 0
    session_expiry: int | None = None
    reason: str = ""


Packet = Connect | Publish | Acknowledgement | Subscribe | Unsubscribe | Pingreq | Disconnect


def session_expiry(interval: int) -> int | None:
    """Return a session expiry interval in seconds, None = never."""
    return None if interval == NEVER_S else interval


def topic_name(raw: bytes) -> str:
    """Parse the topic of a PUBLISH.

    Raises:
        ProtocolError: If it is ill-formed, empty, or holds wildcards.
    """
    topic = decoded(raw, "topic")
    if not topic or any(sign in topic for sign in WILDCARDS):
        raise ReasonedError(ReasonCode.PROTOCOL_ERROR, "topic is empty, or holds wildcards")
    return topic


def puback(packet_id: int) -> bytes:
    """Write a PUBACK."""
    return pack_answer(PUBACK_HEAD, packet_id)


def pubrel(packet_id: int) -> bytes:
    """Write a PUBREL."""
    return pack_answer(_PUBREL_HEAD, packet_id)


def pubcomp(packet_id: int) -> bytes:
    """Write a PUBCOMP."""
    return pack_answer(_PUBCOMP_HEAD, packet_id)


def publish_bytes(topic_bytes: int, body_bytes: int, properties_bytes: int = 0) -> int:
    """Return the length of a whole PUBLISH with QoS 1, header included."""
    remaining = topic_bytes + body_bytes + properties_bytes + 4
    if remaining < 0x80:  # noqa: PLR2004 - a length byte carries seven bits
        return remaining + 2
    return remaining + 1 + (remaining.bit_length() + 6) // 7


def publish(
    topic: bytes,
    body: bytes,
    packet_id: int,
    *,
    qos: int = 1,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    """Return the bytes of a PUBLISH.

    Args:
        topic: Topic name, at most `STRING_BYTES_MAX` bytes.
        body: Payload.
        packet_id: 1 to `PACKET_ID_MAX`, 0 with QoS 0.
        qos: 0 to 2.
        retain: The retain flag.
        dup: The DUP flag: it may have been sent before.
        properties: Property block of MQTT 5 with its length in front, empty with MQTT 3.1.1.
    """
    assert (packet_id > 0) == (qos > 0)
    head = PUBLISH | dup << 3 | qos << 1 | retain
    packed_id = pack_uint16(packet_id) if qos else b""
    start = publish_start(topic, len(packed_id) + len(properties) + len(body), head)
    return b"".join((start, packed_id, properties, body))


def publish_start(topic: bytes, more_bytes: int, head: int = PUBLISH | 1 << 1) -> bytes:
    """Return the bytes of a PUBLISH up to its topic; packet id, properties and body follow.

    Args:
        topic: Topic name, at most `STRING_BYTES_MAX` bytes.
        more_bytes: Length of what follows.
        head: First byte, flags included.
    """
    topic_bytes = len(topic)
    remaining = 2 + topic_bytes + more_bytes
    # Without a call for the lengths that nearly all messages have.
    if remaining < 0x80:  # noqa: PLR2004 - one byte carries seven bits
        return _PUBLISH_START_1(head, remaining, topic_bytes) + topic
    if remaining < 0x4000:  # noqa: PLR2004 - two bytes carry fourteen
        low = remaining & 0x7F | 0x80
        return _PUBLISH_START_2(head, low, remaining >> 7, topic_bytes) + topic
    return bytes((head,)) + variable(remaining) + pack_uint16(topic_bytes) + topic
