"""Responses to a client in its own protocol version.

Owns the reason codes of closed connections. Invariant: no packet is larger than the client takes;
what MQTT 3.1.1 has no field for is left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgehub.heads.mqtt.ingress5 import RECEIVE_MAXIMUM
from edgehub.heads.mqtt.limits import publish_length_max
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.mqtt import packets, server_packets
from edgehub.mqtt.packets import LEVEL_3_1_1, LEVEL_5, PUBCOMP, PUBREL, SUBACK_FAILURE, ConnectCode
from edgehub.mqtt.properties import Property
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode, ReasonedError
from edgehub.mqtt.server_decoder import TOPIC_ALIAS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.errors import ProtocolError
    from edgehub.heads.mqtt.sign_in import SignInError
    from edgehub.mqtt.packets import Connect, ConnectProperties

_HEADER_BYTES_MAX: Final = 5

_DISCONNECTS: Final = {
    CloseReason.KEEP_ALIVE: (ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet for too long"),
    CloseReason.STALLED: (ReasonCode.SERVER_BUSY, "messages cannot be stored at present"),
    CloseReason.TAKEN_OVER: (ReasonCode.SESSION_TAKEN_OVER, "connected again elsewhere"),
    CloseReason.PROTOCOL_ERROR: (ReasonCode.PROTOCOL_ERROR, ""),
    CloseReason.PACKET_TOO_LARGE: (ReasonCode.PACKET_TOO_LARGE, ""),
    CloseReason.RECEIVE_MAXIMUM: (ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "see CONNACK"),
    CloseReason.BATCH_TOO_LARGE: (ReasonCode.PACKET_TOO_LARGE, "send smaller batches"),
    CloseReason.BATCH_UNREADABLE: (
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        "zstd batches cannot be read here",
    ),
    CloseReason.UNRESPONSIVE: (
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        "too many messages without PUBACK",
    ),
    CloseReason.REVOKED: (ReasonCode.ADMINISTRATIVE_ACTION, "the identity has changed"),
    CloseReason.EXPIRED: (ReasonCode.NOT_AUTHORIZED, "the shared access signature has expired"),
    CloseReason.STORE_FAILED: (ReasonCode.UNSPECIFIED_ERROR, "the session cannot be stored"),
    CloseReason.ENDED: (ReasonCode.ADMINISTRATIVE_ACTION, "the session was ended"),
    CloseReason.TOO_MANY: (ReasonCode.QUOTA_EXCEEDED, "too many clients"),
    CloseReason.HUB_CLOSED: (ReasonCode.SERVER_SHUTTING_DOWN, "the hub shuts down"),
}


_AVAILABLE: Final = (
    (Property.RETAIN_AVAILABLE, 1),
    (Property.WILDCARD_SUBSCRIPTION_AVAILABLE, 1),
    (Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1),
    (Property.SHARED_SUBSCRIPTION_AVAILABLE, 1),
)
"""The defaults of a CONNACK without them, so that they can be left out where there is no room."""


class Responses:
    """Responses in MQTT 3.1.1; also to clients whose version is not known yet."""

    __slots__ = ()

    def accepted(self, client_id: str, *, session_present: bool) -> bytes:
        """Write the CONNACK of a client that is signed in."""
        del client_id
        return server_packets.connack(ConnectCode.ACCEPTED, session_present=session_present)

    def refused(self, error: SignInError) -> bytes:
        """Write the CONNACK of a client whose sign-in is refused."""
        return server_packets.connack(error.code)

    def suback(self, packet_id: int, codes: Sequence[int]) -> bytes:
        """Write a SUBACK, empty = it does not fit."""
        codes_3 = bytes(min(code, SUBACK_FAILURE) for code in codes)
        return server_packets.suback(packet_id, codes_3, level=LEVEL_3_1_1)

    def unsuback(self, packet_id: int, codes: Sequence[int]) -> bytes:
        """Write an UNSUBACK, empty = it does not fit."""
        return server_packets.unsuback(packet_id, bytes(codes), level=LEVEL_3_1_1)

    def pubrel(self, packet_id: int) -> bytes:
        """Write a PUBREL for a PUBREC with an unknown packet id."""
        return packets.pubrel(packet_id)

    def pubcomp(self, packet_id: int) -> bytes:
        """Write a PUBCOMP for a PUBREL with an unknown packet id."""
        return packets.pubcomp(packet_id)

    def disconnect(
        self, reason: CloseReason, detail: str = "", code: ReasonCode | None = None
    ) -> bytes:
        """Write the DISCONNECT of a connection that the hub closes, empty = none.

        Args:
            reason: Why it is closed.
            detail: Reason string in place of the usual one.
            code: Reason code in place of the usual one.
        """
        del reason, detail, code
        return b""


class Responses5(Responses):
    """Responses in MQTT 5.

    Args:
        connect: What the client sent.
        packet_bytes_max: Largest packet that it may send.
    """

    __slots__ = ("_has_client_id", "_packet_bytes_max", "_properties")

    def __init__(
        self, connect: Connect, properties: ConnectProperties, *, packet_bytes_max: int
    ) -> None:
        self._has_client_id = bool(connect.client_id)
        self._properties = properties
        self._packet_bytes_max = packet_bytes_max

    def accepted(self, client_id: str, *, session_present: bool) -> bytes:
        """Write the CONNACK with the limits of this listener."""
        values: list[tuple[Property, Any]] = [
            (Property.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM),
            (Property.MAXIMUM_PACKET_SIZE, self._packet_bytes_max),
            (Property.TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS_MAX),
        ]
        if not self._has_client_id:
            values.append((Property.ASSIGNED_CLIENT_IDENTIFIER, client_id))
        build = partial(server_packets.connack, ReasonCode.SUCCESS, session_present=session_present)
        return self._fitting(build([*values, *_AVAILABLE]), build(values))

    def refused(self, error: SignInError) -> bytes:
        """Write the CONNACK with reason code and reason string."""
        return self._fitting(
            server_packets.connack(error.reason_code, self._reason(error.reason)),
            server_packets.connack(error.reason_code, ()),
        )

    def suback(self, packet_id: int, codes: Sequence[int]) -> bytes:
        """Write a SUBACK, with a reason string if a filter is refused."""
        answer = server_packets.suback(packet_id, bytes(codes), level=LEVEL_5)
        if max(codes) < FIRST_FAILURE or not self._properties.problem_information:
            return self._fitting(answer)
        reason = "not a filter of the client's own topics or of the local space, or no right to it"
        longer = server_packets.suback(packet_id, bytes(codes), level=LEVEL_5, reason=reason)
        return self._fitting(longer, answer)

    def unsuback(self, packet_id: int, codes: Sequence[int]) -> bytes:
        """Write an UNSUBACK with a reason code for each filter."""
        return self._fitting(server_packets.unsuback(packet_id, bytes(codes), level=LEVEL_5))

    def pubrel(self, packet_id: int) -> bytes:
        """Write a PUBREL with the reason code for an unknown packet id."""
        return self._fitting(server_packets.not_found(PUBREL, packet_id))

    def pubcomp(self, packet_id: int) -> bytes:
        """Write a PUBCOMP with the reason code for an unknown packet id."""
        return self._fitting(server_packets.not_found(PUBCOMP, packet_id))

    def disconnect(
        self, reason: CloseReason, detail: str = "", code: ReasonCode | None = None
    ) -> bytes:
        """Write the DISCONNECT for a reason, empty = the reason has none."""
        usual = _DISCONNECTS.get(reason)
        if usual is None:
            return b""
        code = code or usual[0]
        text = (detail or usual[1]) if self._properties.problem_information else ""
        return self._fitting(server_packets.disconnect(code, text), server_packets.disconnect(code))

    def _reason(self, text: str) -> list[tuple[Property, Any]]:
        return [(Property.REASON_STRING, text)] if self._properties.problem_information else []

    def _fitting(self, *answers: bytes) -> bytes:
        bytes_max = self._properties.packet_bytes_max
        for answer in answers:
            if bytes_max is None or len(answer) <= bytes_max:
                return answer
        return b""


MQTT_3_1_1: Final = Responses()


def responses_to(connect: Connect, message_bytes_max: int) -> Responses:
    """Return the responses in the protocol version of a client."""
    if connect.properties is None:
        return MQTT_3_1_1
    bytes_max = publish_length_max(message_bytes_max) + _HEADER_BYTES_MAX
    return Responses5(connect, connect.properties, packet_bytes_max=bytes_max)


def response_to_error(error: ProtocolError) -> bytes:
    """Write the CONNACK for a CONNECT that is malformed, empty = none."""
    if isinstance(error, packets.UnsupportedLevelError):
        return server_packets.connack(ConnectCode.PROTOCOL_LEVEL)
    return server_packets.connack(error.code, ()) if isinstance(error, ReasonedError) else b""
