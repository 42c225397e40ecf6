"""Limits and times of the listener that no setting changes, with their units."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from edgehub.mqtt.fields import REMAINING_LENGTH_MAX, STRING_BYTES_MAX

# A PUBLISH without its body: the topic with its length, and the packet id.
_PUBLISH_OVERHEAD: Final = 2 + STRING_BYTES_MAX + 2

READ_BYTES_MAX: Final = 256_000
"""Largest read of the event loop."""

STALL_TIMEOUT_S: Final = 60.0
"""Keep-alive of a client without one, once it is paused."""

BACKLOG: Final = 1024
"""TCP connections that may wait to be accepted."""


class ListenerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the listener.

    Attributes:
        connection_bytes_max: Unacknowledged bytes of one connection.
        unacknowledged_bytes_max: Unacknowledged bytes over all connections.
        limit_pause_s: Least time between two closes of one client because of a limit.
        write_buffer_bytes_max: Unsent bytes above which a client counts as a slow reader.
        stored_sessions_max: Sessions kept for clients that are not connected.
        subscriptions_max: Subscriptions of one session.
    """

    connection_bytes_max: int = 2**20
    unacknowledged_bytes_max: int = 64 * 2**20
    limit_pause_s: float = 10.0
    write_buffer_bytes_max: int = 256 * 1024
    stored_sessions_max: int = 10_000
    subscriptions_max: int = 100


LIMITS: Final = ListenerLimits()


def publish_length_max(message_bytes_max: int) -> int:
    """Return the longest remaining length of a PUBLISH that is kept."""
    return min(message_bytes_max + _PUBLISH_OVERHEAD, REMAINING_LENGTH_MAX)
