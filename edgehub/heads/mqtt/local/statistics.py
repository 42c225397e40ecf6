"""Counters and statistics of the local topic space."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class LocalDrop(StrEnum):
    """Why a subscriber did not get a message."""

    QUEUE_FULL = "queue_full"  # QoS 1: too much waits for this client
    QUEUES_FULL = "queues_full"  # QoS 1: too much waits for all clients
    SLOW_READER = "slow_reader"  # QoS 0: the client does not read
    EXPIRED = "expired"  # its message expiry interval was over
    PACKET_TOO_LARGE = "packet_too_large"  # larger than the client takes
    NO_RIGHT = "no_right"  # queued for a client that has lost the right to it
    SESSION_ENDED = "session_ended"  # QoS 1: queued for a session that ended


class LocalCounters:
    """Totals since the start."""

    def __init__(self) -> None:
        self.published_total = 0
        self.delivered_total = 0
        self.subscriptions_refused_total = 0
        self.dropped = dict.fromkeys(LocalDrop, 0)


class LocalStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot of the local topic space.

    Attributes:
        subscriptions: Subscriptions of clients, connected or not.
        subscription_bytes: Memory that they take.
        subscription_branches: Branches of their filters that one topic passes through at most.
        subscriptions_refused_total: Subscriptions for which a bound of all clients had no room.
        retained: Retained messages.
        retained_bytes: Their bytes.
        queued: Messages that wait for clients, or for their PUBACK.
        queued_bytes: Their bytes.
        queues: Sessions with queued messages.
        published_total: Messages published into the space.
        delivered_total: Copies that clients confirmed, or got with QoS 0.
        dropped: Copies that were not delivered, by reason.
    """

    subscriptions: int
    subscription_bytes: int
    subscription_branches: int
    subscriptions_refused_total: int
    retained: int
    retained_bytes: int
    queued: int
    queued_bytes: int
    queues: int
    published_total: int
    delivered_total: int
    dropped: Mapping[str, int]
