"""What the local topic space holds, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEVELS_MAX: Final = 64
"""Levels of a topic or filter."""

FILTER_BYTES_MAX: Final = 4096
SUBSCRIPTION_BYTES_MAX: Final = 64 * 2**20
"""What all subscriptions may take in memory."""

BRANCHES_MAX: Final = 4096
"""Branches of the filters that one topic may pass through, a microsecond or less for each.

Filters of up to ten levels cannot have more: at each level a topic goes on to its name and to `+`,
and `#` may hang on each branch. Those of nine levels stay below the half.
"""

LEVEL_BYTES: Final = 256
"""What a level of a filter takes in memory beside its text."""

MESSAGE_BYTES: Final = 256
"""What a message counts beside topic, payload and properties."""

WINDOW: Final = 100
"""Messages of QoS 1 and 2 that a client may have unacknowledged, unless it takes fewer."""

NUMBERED_MAX: Final = 30_000
"""Packet ids that the messages of one session may have; as many are left for other deliveries."""

DEPARTED_MAX: Final = 1000
"""Clients that went and are still shown as not connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Settings of the local topic space.

    Attributes:
        topics: Filters of topics that are in it, beside `ALWAYS_LOCAL`.
        retained_max: Retained messages.
        retained_bytes_max: Their bytes.
        queue_max: Messages that wait for one client.
        queue_bytes_max: Their bytes.
        queues_bytes_max: Bytes that wait for all clients.
    """

    topics: tuple[str, ...] = ()
    retained_max: int = 10_000
    retained_bytes_max: int = 16 * 2**20
    queue_max: int = 10_000
    queue_bytes_max: int = 4 * 2**20
    queues_bytes_max: int = 64 * 2**20
