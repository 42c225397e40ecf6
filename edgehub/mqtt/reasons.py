"""Reason codes of MQTT 5, and the error that carries one.

Source: MQTT 5, section 2.4. Invariant: an error without a code of its own is a malformed packet.
"""

from __future__ import annotations

from enum import IntEnum

from edgehub.errors import ProtocolError


class ReasonCode(IntEnum):
    """Reason codes that the hub sends or interprets."""

    SUCCESS = 0x00
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99


ACKNOWLEDGEMENTS = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
"""Reason codes of a PUBACK or PUBREC; sections 3.4.2.1 and 3.5.2.1."""

RELEASES = frozenset({0x00, 0x92})
"""Reason codes of a PUBREL or PUBCOMP; sections 3.6.2.1 and 3.7.2.1."""

DISCONNECTS = frozenset({0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)})
"""Reason codes of a DISCONNECT of a client; section 3.14.2.1."""

FIRST_FAILURE = 0x80
"""The first reason code of a failure."""


class ReasonedError(ProtocolError):
    """A peer broke the protocol in a way that has its own reason code.

    Attributes:
        code: The reason code.
    """

    def __init__(self, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class OversizedPublishError(ReasonedError):
    """A PUBLISH is larger than CONNACK allows, and was not read.

    Attributes:
        packet_bytes: Remaining length of the packet.
    """

    def __init__(self, packet_bytes: int, reason: str) -> None:
        super().__init__(ReasonCode.PACKET_TOO_LARGE, reason)
        self.packet_bytes = packet_bytes


def code_name(code: int) -> str:
    """Return the name of a reason code, or its number if it has none here."""
    try:
        return ReasonCode(code).name.replace("_", " ").capitalize()
    except ValueError:
        return f"reason code {code:#04x}"


def reason_of(error: ProtocolError) -> ReasonCode:
    """Return the reason code for an error."""
    return error.code if isinstance(error, ReasonedError) else ReasonCode.MALFORMED_PACKET
