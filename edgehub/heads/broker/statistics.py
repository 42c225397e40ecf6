"""Counters and statistics of the broker head."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.telemetry.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Mapping


class BrokerDrop(StrEnum):
    """Why a message from the broker was acknowledged and dropped."""

    MALFORMED = "malformed"  # topic is not UTF-8, or properties that are none
    TOPIC_NOT_ALLOWED = "topic_not_allowed"  # local: control characters, or too many levels
    PROPERTY_UNFIT = "property_unfit"  # local: a text that some clients close over
    OWN = "own"  # published by this hub itself, over another connection
    TOO_LARGE = "too_large"
    INVALID = "invalid"  # the store can never take it
    RESERVED = "reserved"  # has the content type of batches, which only hubs send
    LIMIT = "limit"  # QoS 0, refused by a limit
    QOS0_BACKLOG = "qos0_backlog"  # QoS 0 while too much waits for the disk
    QOS0_OFFLINE = "qos0_offline"  # QoS 0 while the uplink is down and store_qos0 is false
    CLOSING = "closing"  # QoS 0 while the hub shuts down


_NO_LOSS: Final = frozenset({BrokerDrop.QOS0_OFFLINE, BrokerDrop.CLOSING, BrokerDrop.OWN})
"""By the settings, at a stop, or published by this hub itself."""


class BrokerCounters:
    """Totals since the start; one writer, the loop's thread."""

    def __init__(self) -> None:
        self.connects_total = 0
        self.received_total = 0
        self.redelivered_total = 0
        self.overlapping_total = 0
        self.acknowledged_total = 0
        self.put_off_total = 0
        self.published_total = 0
        self.refused_publishes_total = 0
        self.dropped: Counter[BrokerDrop] = Counter()
        self.newest_dropped: dict[BrokerDrop, str] = {}

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start; see `edgehub.telemetry.losses`."""
        return [
            Loss(
                key=("broker", reason.value),
                total=total,
                what=f"of the broker {{was}} acknowledged and dropped ({reason.value})",
                example=self.newest_dropped.get(reason, ""),
            )
            for reason, total in self.dropped.items()
            if reason not in _NO_LOSS
        ]


class BrokerStatistics(Struct, frozen=True, kw_only=True):
    """The broker head at one moment.

    Attributes:
        state: As of an endpoint: `connecting`, `up`, `down`, `parked`, `draining`.
        reason: Why it is not up, empty = it is, or was not tried yet.
        retry_in_s: Seconds until the next try, None = it does not wait for one.
        session_kept: Whether the broker had kept the session at the last connect, None = there was
            no connect yet.
        holding: Whether a limit refuses messages, so nothing is acknowledged until there is room.
        subscriptions: Topic filters that the broker granted.
        refused_subscriptions: Those that it refused.
        left_out_subscriptions: Those over which it closed the connection; they are retried now and
            then.
        connects_total: Connections made.
        received_total: PUBLISHes read.
        redelivered_total: Of those, ones that the broker may have sent before.
        overlapping_total: Further copies of one message, for filters that take the same topic.
        acknowledged_total: PUBACKs written.
        put_off_total: Messages left unacknowledged at the broker because too many waited here.
        dropped: Messages acknowledged and dropped, by reason.
        waiting: Messages taken and not settled.
        waiting_bytes: Their bytes.
        published_total: Local messages that the broker confirmed.
        refused_publishes_total: Local messages that the broker refused.
        unpublished: Local messages that wait for the broker.
    """

    state: str
    reason: str
    retry_in_s: float | None
    session_kept: bool | None
    holding: bool
    subscriptions: tuple[str, ...]
    refused_subscriptions: tuple[str, ...]
    left_out_subscriptions: tuple[str, ...]
    connects_total: int
    received_total: int
    redelivered_total: int
    overlapping_total: int
    acknowledged_total: int
    put_off_total: int
    dropped: Mapping[str, int]
    waiting: int
    waiting_bytes: int
    published_total: int
    refused_publishes_total: int
    unpublished: int
