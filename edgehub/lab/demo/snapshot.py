"""One moment of the demonstration, gathered from the hubs' status, the link and the books.

Owns the meter of the link's use; reads the rest. Invariant: what the view shows and what the
verdict judges come from the same figures.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.lab.demo.ledger import quantile
from edgehub.lab.demo.scenario import PRIORITIES
from edgehub.message import UPSTREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.lab.demo.ledger import Ledger
    from edgehub.lab.demo.thin_link import Pacer

METER_WINDOW_S: Final = 3.0
# A queue with fewer rows may run empty between two messages; the link then idles rightly.
BACKLOG_ROWS: Final = 20


class QueueFigures(Struct, frozen=True, kw_only=True):
    """What the gateway and the collector say of one priority."""

    priority: int
    kinds: str
    waiting: int
    sent: int
    expired: int
    oldest_age_s: float | None
    p50_s: float | None
    p99_s: float | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that is shown at one moment.

    Attributes:
        elapsed_s: Since the devices began.
        link_up: Whether the gateway is connected to its parent.
        link_wait: Why it is not, and when it tries again; empty while it is.
        link_use: Share of the link's rate used over the last seconds, 0 to 1.
        queues: Per priority, best first.
        acknowledged: Messages that were acknowledged to devices.
        delivered: Different messages at the collector.
        parent_waiting: Rows on the parent's disk.
        news: The latest turns of events, oldest first.
    """

    elapsed_s: float
    link_up: bool
    link_wait: str
    link_use: float
    queues: tuple[QueueFigures, ...]
    acknowledged: int
    delivered: int
    parent_waiting: int
    news: tuple[str, ...]

    def of_priority(self, priority: int) -> QueueFigures:
        """Return the figures of one priority."""
        return next(queue for queue in self.queues if queue.priority == priority)


class LinkMeter:
    """How much of the link is used: now, and on the whole while there was a backlog to send."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._samples: deque[tuple[float, int]] = deque()
        self._busy_s = 0.0
        self._busy_bytes = 0

    def sample(self, now_s: float, *, link_up: bool, waiting: int) -> None:
        """Take a reading; `waiting` rows could be sent since the one before."""
        passed = self._pacer.bytes_passed
        if self._samples and link_up and waiting >= BACKLOG_ROWS:
            before_s, before = self._samples[-1]
            self._busy_s += now_s - before_s
            self._busy_bytes += passed - before
        self._samples.append((now_s, passed))
        while now_s - self._samples[0][0] > METER_WINDOW_S:
            self._samples.popleft()

    @property
    def use_now(self) -> float:
        """Share of the rate over the last seconds."""
        if len(self._samples) < 2:  # noqa: PLR2004 - a rate needs two readings
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) / self._pacer.rate_bytes_s

    @property
    def use_busy(self) -> float | None:
        """Share of the rate over all the time that a backlog waited on a link that was up."""
        if self._busy_s <= 0:
            return None
        return self._busy_bytes / self._busy_s / self._pacer.rate_bytes_s


def link_is_up(status: Mapping[str, Any]) -> bool:
    """Read from the gateway's status whether it is connected to its parent."""
    return any(e["id"] == UPSTREAM and e["state"] == "up" for e in status["endpoints"])


def link_wait(status: Mapping[str, Any]) -> str:
    """Read from the gateway's status what it waits for before it connects; empty = nothing."""
    upstream = next((e for e in status["endpoints"] if e["id"] == UPSTREAM), None)
    if upstream is None or upstream["state"] == "up":
        return ""
    wait_s = upstream["backoff_remaining_s"]
    when = "trying to connect" if wait_s is None else f"next try in {wait_s:.1f} s"
    return f"{when}: {upstream['reason']}" if upstream["reason"] else when


def rows_waiting(status: Mapping[str, Any], priority: int | None = None) -> int:
    """Count the rows of a hub, of all priorities or of one."""
    return sum(
        int(queue["depth"])
        for queue in status["queues"]
        if priority is None or queue["priority"] == priority
    )


def queue_figures(status: Mapping[str, Any], ledger: Ledger) -> tuple[QueueFigures, ...]:
    """Return the figures of every priority of the scenario, also of those not used yet."""
    queues = {queue["priority"]: queue for queue in status["queues"]}
    return tuple(_figures(priority, queues.get(priority), ledger) for priority in PRIORITIES)


def _figures(priority: int, queue: Mapping[str, Any] | None, ledger: Ledger) -> QueueFigures:
    waits_s = ledger.waits_s(priority)
    return QueueFigures(
        priority=priority,
        kinds=", ".join(account.traffic.kind for account in ledger.of_priority(priority)),
        waiting=queue["depth"] if queue else 0,
        sent=queue["sent"] if queue else 0,
        expired=queue["expired"] if queue else 0,
        oldest_age_s=queue["oldest_age_s"] if queue else None,
        p50_s=quantile(waits_s, 0.50),
        p99_s=quantile(waits_s, 0.99),
    )
