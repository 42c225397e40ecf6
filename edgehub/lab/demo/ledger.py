"""The books of the demonstration: which messages were acknowledged, which arrived, how late.

Owns the ids that are on their way and the times of the link; calls nothing. Bounded by what waits:
an id leaves the books on delivery, or once its time to live is long over. Invariant: for each kind,
acknowledged = delivered + on their way + lapsed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgehub.lab.demo.scenario import Kind, Traffic

LATENCIES_MAX: Final = 1024
OUTAGES_MAX: Final = 256


class DownTimes:
    """When the link carried nothing: from a loss to the next accepted connection."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque(maxlen=OUTAGES_MAX)
        self._since: float | None = None

    def down(self, now_s: float) -> None:
        """Record that the link went away; more than once is harmless."""
        if self._since is None:
            self._since = now_s

    def up(self, now_s: float) -> None:
        """Record that the link carries messages again."""
        if self._since is not None:
            self._spans.append((self._since, now_s))
            self._since = None

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """Return how much of the time from `start_s` to `end_s` the link was down."""
        spans: Iterable[tuple[float, float]] = self._spans
        if self._since is not None:
            spans = [*spans, (self._since, end_s)]
        return sum(max(0.0, min(end_s, end) - max(start_s, start)) for start, end in spans)


class _Sent(Struct):
    published_s: float
    acknowledged: bool = False


class Account:
    """The messages of one kind.

    Attributes:
        traffic: What they are.
        acknowledged: How many the gateway has taken over.
        delivered: How many different ones the collector has seen.
        undelivered: Acknowledged ones still on their way.
        lapsed: Acknowledged ones that the books gave up, long after their time to live.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.acknowledged = 0
        self.delivered = 0
        self.undelivered = 0
        self.lapsed = 0
        self._sent: dict[str, _Sent] = {}
        self._waits_s: deque[float] = deque(maxlen=LATENCIES_MAX)

    def publish(self, message_id: str, now_s: float) -> None:
        """Record that a device begins to publish."""
        self._sent[message_id] = _Sent(now_s)

    def acknowledge(self, message_id: str) -> None:
        """Record the PUBACK; the message may have arrived already."""
        self.acknowledged += 1
        sent = self._sent.get(message_id)
        if sent is not None:
            sent.acknowledged = True
            self.undelivered += 1

    def abandon(self, message_id: str) -> None:
        """Record that no PUBACK came: nothing was promised, so nothing can be missing."""
        self._sent.pop(message_id, None)

    def deliver(self, message_id: str, now_s: float, downs: DownTimes) -> bool:
        """Record an arrival; False = seen before, or given up."""
        sent = self._sent.pop(message_id, None)
        if sent is None:
            return False
        self.delivered += 1
        if sent.acknowledged:
            self.undelivered -= 1
        self._waits_s.append(now_s - sent.published_s - downs.overlap_s(sent.published_s, now_s))
        return True

    def lapse(self, published_before_s: float) -> None:
        """Remove acknowledged messages from before that time, so that the ledger stays small."""
        while self._sent:
            message_id, sent = next(iter(self._sent.items()))
            if sent.published_s >= published_before_s or not sent.acknowledged:
                return
            del self._sent[message_id]
            self.undelivered -= 1
            self.lapsed += 1

    @property
    def waits_s(self) -> Sequence[float]:
        """Time from publish to arrival while the link was up, of the latest deliveries."""
        return tuple(self._waits_s)


class Ledger:
    """All accounts, and the copies that came more than once."""

    def __init__(self, traffic: Iterable[Traffic], downs: DownTimes) -> None:
        self.accounts: dict[Kind, Account] = {entry.kind: Account(entry) for entry in traffic}
        self.downs = downs
        self.duplicates = 0

    def deliver(self, kind: Kind, message_id: str, now_s: float) -> None:
        """Record an arrival at the collector."""
        if not self.accounts[kind].deliver(message_id, now_s, self.downs):
            self.duplicates += 1

    def of_priority(self, priority: int) -> list[Account]:
        """Return the accounts that share a queue."""
        return [a for a in self.accounts.values() if a.traffic.priority == priority]

    def waits_s(self, priority: int) -> list[float]:
        """Return the waits of the latest deliveries of one priority."""
        return [wait for account in self.of_priority(priority) for wait in account.waits_s]

    @property
    def acknowledged(self) -> int:
        """Messages that the gateway has taken over."""
        return sum(account.acknowledged for account in self.accounts.values())

    @property
    def delivered(self) -> int:
        """Different messages that have arrived."""
        return sum(account.delivered for account in self.accounts.values())

    def missing(self, priority: int, *, waiting: int, expired: int) -> int:
        """Count acknowledged messages of a priority that nothing accounts for.

        Args:
            priority: The queue.
            waiting: Rows of it that are on a disk somewhere.
            expired: Rows whose time to live has ended, since the start.
        """
        absent = sum(a.undelivered + a.lapsed for a in self.of_priority(priority))
        lasting = sum(a.undelivered for a in self.of_priority(priority) if a.traffic.ttl_s is None)
        # What never expires must be waiting; expiry can only explain the rest.
        return max(0, absent - waiting - expired, lasting - waiting)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of the values do not exceed, None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
