"""The listener's limits and times, with their defaults and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgehub.mqtt.fields import REMAINING_LENGTH_MAX, STRING_BYTES_MAX

# PUBLISH beside its body: topic with length, packet id.
_PUBLISH_OVERHEAD: Final = 2 + STRING_BYTES_MAX + 2

READ_BYTES_MAX: Final = 256_000
"""Most bytes that the event loop hands over in one read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """Settings of the listener.

    Attributes:
        host: Address or name to bind; all addresses of a name are bound.
        port: 0 = any free port.
        tls_port: For MQTT over TLS, where there is a certificate; 0 = any free port.
        anonymous: Let clients in without a password; holds on loopback addresses only.
        clients_max: Signed-in clients; as many again may be about to sign in.
        message_bytes_max: Body plus property names and values.
        connect_timeout_s: From the TCP connection to the end of the sign-in.
        ack_timeout_s: A client's time to confirm a delivery.
        store_qos0: False drops QoS 0 messages while the uplink is down.
        connection_bytes_max: Unacknowledged bytes of one connection.
        unacknowledged_bytes_max: Unacknowledged bytes over all connections.
        stall_timeout_s: Stands in for the keep-alive of a client that has none, once it is paused.
        limit_pause_s: Least time between two closes of one client because of a limit.
        write_buffer_bytes_max: Unsent bytes above which a client counts as a slow reader.
        stored_sessions_max: Sessions kept for clients that are away.
        subscriptions_max: Subscriptions of one session.
        backlog: TCP connections that may wait to be accepted.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    tls_port: int = 8883
    anonymous: bool = True
    clients_max: int = 1000
    message_bytes_max: int = 262_144
    connect_timeout_s: float = 30.0
    ack_timeout_s: float = 30.0
    store_qos0: bool = True
    connection_bytes_max: int = 2**20
    unacknowledged_bytes_max: int = 64 * 2**20
    stall_timeout_s: float = 60.0
    limit_pause_s: float = 10.0
    write_buffer_bytes_max: int = 256 * 1024
    stored_sessions_max: int = 10_000
    subscriptions_max: int = 100
    backlog: int = 1024

    @property
    def packet_bytes_max(self) -> int:
        """Longest remaining length of a PUBLISH that is kept."""
        return min(self.message_bytes_max + _PUBLISH_OVERHEAD, REMAINING_LENGTH_MAX)
