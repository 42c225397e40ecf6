"""Limits of the local topic space."""

from __future__ import annotations

from typing import Final

LEVELS_MAX: Final = 64
"""Levels of a topic or filter."""

FILTER_BYTES_MAX: Final = 4096
SUBSCRIPTION_BYTES_MAX: Final = 64 * 2**20
"""Memory of all subscriptions."""

BRANCHES_MAX: Final = 4096
"""Branches of the filters that one topic may pass through, at most a microsecond for each.

Filters of up to ten levels cannot have more: at each level a topic passes to its name and to `+`,
and each branch may have a `#`. Filters of nine levels have less than half.
"""

LEVEL_BYTES: Final = 256
"""Memory of a level of a filter in addition to its text."""

MESSAGE_BYTES: Final = 256
"""Added to topic, payload and properties of each message."""

WINDOW: Final = 100
"""Messages of QoS 1 and 2 that a client may have unacknowledged, unless it takes fewer."""

NUMBERED_MAX: Final = 30_000
"""Packet ids of one session; as many are left for other deliveries."""

DEPARTED_MAX: Final = 1000
"""Clients that left and are still published as not connected."""
