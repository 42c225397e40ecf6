"""Counters and statistics of the listener, with the reasons of drops and closes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.telemetry.losses import (
    LOOP_HINT,
    LOOP_LOSS,
    ON_BEHALF_HINT,
    ON_BEHALF_LOSS,
    Loss,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.devices.bounds import BoundStatistics
    from edgehub.heads.mqtt.local.statistics import LocalStatistics
    from edgehub.mqtt.packets import ConnectCode


class DropReason(StrEnum):
    """Why a message of a client was dropped."""

    TOPIC_NOT_ALLOWED = "topic_not_allowed"  # neither of the dialect nor of the local space
    BRIDGE_STATE = "bridge_state"  # of a Mosquitto bridge about itself; acknowledged
    NOT_AUTHORIZED = "not_authorized"  # a topic that the identity may not publish to
    FOREIGN_IDENTITY = "foreign_identity"  # MQTT 5: as the close reason; that of a batch, a record
    LOOP = "loop"  # of another hub, and has been here before; acknowledged
    RETAINED_FULL = "retained_full"  # no room for another retained message
    BAG_MALFORMED = "bag_malformed"
    BATCH_MALFORMED = "batch_malformed"  # or one record of it
    PROPERTY_UNFIT = "property_unfit"  # local: a text that some receiver would close over
    BODY_NOT_UTF8 = "body_not_utf8"  # though the sender declared it as text
    TOO_LARGE = "too_large"
    INVALID = "invalid"  # the store can never take it
    UNAVAILABLE = "unavailable"  # the election of its hub is not possible; sent again as with LIMIT
    RESERVED = "reserved"  # has the content type of batches, and is none of a hub
    QUEUE_DEPTH = "queue_depth"  # to a device for which as many wait as may
    LIMIT = "limit"  # refused by a limit; QoS 1 and 2 of MQTT 3.1.1 is sent again and not counted
    QOS0_BACKLOG = "qos0_backlog"  # QoS 0 while too much waits for the disk
    QOS0_OFFLINE = "qos0_offline"  # QoS 0 while the uplink is down and store_qos0 is false
    CLOSING = "closing"  # QoS 0 or a will while the hub shuts down


_NO_LOSS: Final = frozenset(
    {
        DropReason.UNAVAILABLE,
        DropReason.LIMIT,
        DropReason.QOS0_OFFLINE,
        DropReason.CLOSING,
        DropReason.BRIDGE_STATE,
    }
)
"""Not taken with the sender's knowledge, by the settings, or nothing to store."""

_LOST_AS: Final = {
    DropReason.TOPIC_NOT_ALLOWED: "on topics outside of the hub's {was} dropped",
    DropReason.NOT_AUTHORIZED: "on topics that {their} sender may not use {was} dropped",
    DropReason.QUEUE_DEPTH: "to a device for which too many wait {was} dropped",
    DropReason.TOO_LARGE: "{was} dropped because of {their} size",
    DropReason.FOREIGN_IDENTITY: ON_BEHALF_LOSS,
    DropReason.LOOP: LOOP_LOSS,
}
_HINTS: Final = {
    DropReason.TOPIC_NOT_ALLOWED: "devices send to devices/<id>/messages/events/, or to topics of"
    " mqtt.local_topics",
    DropReason.QUEUE_DEPTH: "see device_bound.waiting_max; edgehub device messages lists them",
    DropReason.TOO_LARGE: "see mqtt.message_bytes_max",
    DropReason.FOREIGN_IDENTITY: ON_BEHALF_HINT,
    DropReason.LOOP: LOOP_HINT,
}


class CloseReason(StrEnum):
    """Why a connection ended."""

    DISCONNECT = "disconnect"  # the client sent DISCONNECT
    LOST = "lost"  # the peer or the network closed it
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    KEEP_ALIVE = "keep_alive"
    STALLED = "stalled"  # was paused for longer than its keep-alive
    TAKEN_OVER = "taken_over"
    PROTOCOL_ERROR = "protocol_error"
    BATCH_TOO_LARGE = "batch_too_large"  # its messages may not be; the child sends smaller ones
    BATCH_UNREADABLE = "batch_unreadable"  # a zstd batch, and no library for it here
    FOREIGN_IDENTITY = "foreign_identity"  # MQTT 3.1.1: another's identity, outside on_behalf
    PACKET_TOO_LARGE = "packet_too_large"  # MQTT 5: larger than CONNACK allows
    RECEIVE_MAXIMUM = "receive_maximum"  # MQTT 5: more unacknowledged than CONNACK allows
    LIMIT = "limit"  # MQTT 3.1.1: a PUBLISH was refused by a limit
    UNRESPONSIVE = "unresponsive"  # too many deliveries without PUBACK
    REVOKED = "revoked"  # its identity was removed, disabled or changed
    EXPIRED = "expired"  # its shared access signature has ended
    STORE_FAILED = "store_failed"  # its session could not be stored
    ENDED = "ended"  # its session was ended by an operator
    TOO_MANY = "too_many"
    HUB_CLOSED = "hub_closed"


class ListenerCounters:
    """Totals since the start; one writer, the loop's thread."""

    def __init__(self) -> None:
        self.accepted_total = 0
        self.received_total = 0
        self.acknowledged_total = 0
        self.delivered_total = 0
        self.wills_total = 0
        self.sessions_evicted_total = 0
        self.dropped = dict.fromkeys(DropReason, 0)
        self.newest_dropped: dict[DropReason, str] = {}
        """Client and details of the last dropped message, by reason."""
        self.closed = dict.fromkeys(CloseReason, 0)
        self.refused_connects: dict[str, int] = {}

    def count_refused_connect(self, code: ConnectCode) -> None:
        """Count a sign-in that was refused."""
        name = code.name.lower()
        self.refused_connects[name] = self.refused_connects.get(name, 0) + 1

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start; see `edgehub.telemetry.losses`."""
        # A client of MQTT 3.1.1 is closed over it instead.
        closed = {DropReason.FOREIGN_IDENTITY: self.closed[CloseReason.FOREIGN_IDENTITY]}
        return [
            Loss(
                key=("mqtt", reason.value),
                total=total + closed.get(reason, 0),
                what=_LOST_AS.get(reason, f"{{was}} dropped ({reason.value})"),
                example=self.newest_dropped.get(reason, ""),
                hint=_HINTS.get(reason, ""),
                event="mqtt.loop_found" if reason is DropReason.LOOP else "",
                fields={"newest": self.newest_dropped.get(reason, "")},
            )
            for reason, total in self.dropped.items()
            if reason not in _NO_LOSS
        ]

    def count_delivered(self) -> None:
        """Count a delivery that arrived."""
        self.delivered_total += 1


class ListenerStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot of the listener.

    Attributes:
        connections: Open connections, signed in or not.
        clients: Connections that are signed in.
        paused: Clients that are not being read.
        stored_sessions: Sessions that outlive their connection.
        sessions_evicted_total: Stored sessions of anonymous clients that were evicted.
        bounds: Usage of the bounds that clients share.
        accepted_total: Connections accepted.
        handshakes_refused_total: Connections closed because too many TLS handshakes were under way.
        received_total: PUBLISHes read.
        acknowledged_total: PUBACKs and PUBRECs written.
        delivered_total: Deliveries that clients confirmed, or got with QoS 0.
        wills_total: Wills submitted.
        dropped: Messages dropped, by reason.
        closed: Connections closed, by reason.
        refused_connects: Sign-ins refused, by name of the return code of MQTT 3.1.1.
        unacknowledged_bytes: Bytes taken from clients that are not settled yet.
        local: The local topic space.
    """

    connections: int
    clients: int
    paused: int
    stored_sessions: int
    sessions_evicted_total: int
    bounds: Sequence[BoundStatistics]
    accepted_total: int
    handshakes_refused_total: int
    received_total: int
    acknowledged_total: int
    delivered_total: int
    wills_total: int
    dropped: Mapping[str, int]
    closed: Mapping[str, int]
    refused_connects: Mapping[str, int]
    unacknowledged_bytes: int
    local: LocalStatistics
