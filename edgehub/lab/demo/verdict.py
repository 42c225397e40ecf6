"""The judgement at the end: nothing acknowledged is missing, and the alarms were in time.

Pure functions over the books and the last snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.lab.demo.ledger import quantile
from edgehub.lab.demo.scenario import PRIORITIES, Kind

if TYPE_CHECKING:
    from edgehub.lab.demo.ledger import Ledger
    from edgehub.lab.demo.snapshot import Snapshot

ALARM_P99_MAX_S: Final = 1.5


class Verdict(Struct, frozen=True, kw_only=True):
    """How it went.

    Attributes:
        faults: What is wrong, empty = passed.
        figures: The numbers behind it, one line each.
    """

    faults: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return not self.faults

    def text(self) -> str:
        """Write the verdict as text."""
        head = "PASSED" if self.passed else "FAILED: " + "; ".join(self.faults)
        return "\n".join([head, *(f"  {line}" for line in self.figures)])


def missing(ledger: Ledger, snapshot: Snapshot) -> int:
    """Count acknowledged messages that neither arrived nor wait nor expired."""
    total = 0
    for priority in PRIORITIES:
        queue = snapshot.of_priority(priority)
        # The parent keeps one queue for all kinds; it has to be empty to distinguish them.
        waiting = queue.waiting + snapshot.parent_waiting
        total += ledger.missing(priority, waiting=waiting, expired=queue.expired)
    return total


def judge(ledger: Ledger, snapshot: Snapshot, *, link_use_busy: float | None) -> Verdict:
    """Judge the whole run.

    Args:
        ledger: The books, with nothing in flight any more.
        snapshot: The last one.
        link_use_busy: Share of the link used while a backlog waited, None = there was none.
    """
    lost = missing(ledger, snapshot)
    alarms = ledger.accounts[Kind.ALARM]
    p99_s = quantile(alarms.waits_s, 0.99)
    faults = []
    if lost:
        faults.append(f"{lost} acknowledged messages are missing")
    if alarms.undelivered:
        faults.append(f"{alarms.undelivered} acknowledged alarms were not delivered")
    if p99_s is None:
        faults.append("no alarm arrived")
    elif p99_s > ALARM_P99_MAX_S:
        faults.append(f"alarms took {p99_s:.2f} s (99th percentile), allowed {ALARM_P99_MAX_S} s")
    return Verdict(faults=tuple(faults), figures=_figures(ledger, snapshot, link_use_busy, lost))


def _figures(
    ledger: Ledger, snapshot: Snapshot, link_use_busy: float | None, lost: int
) -> tuple[str, ...]:
    expired = sum(queue.expired for queue in snapshot.queues)
    waiting = sum(queue.waiting for queue in snapshot.queues) + snapshot.parent_waiting
    alarms = ledger.accounts[Kind.ALARM]
    p50_s, p99_s = (quantile(alarms.waits_s, share) or 0.0 for share in (0.5, 0.99))
    use = "no backlog" if link_use_busy is None else f"{link_use_busy:.0%}"
    books = (
        f"{ledger.acknowledged} acknowledged: {ledger.delivered} delivered, {expired} expired by "
        f"their time to live, {waiting} still waiting, {lost} missing; "
        f"{ledger.duplicates} delivered twice"
    )
    twice = ledger.delivered + expired + waiting - ledger.acknowledged
    if twice > 0:
        # Cut off between arrival and confirmation; for the gateway such a row was still unsent.
        books += f"; {twice} expired or waiting after arrival, their confirmation was lost"
    late = (
        f"alarms: {alarms.delivered} of {alarms.acknowledged} delivered, p50 {p50_s:.2f} s, "
        f"p99 {p99_s:.2f} s while the link was up (allowed {ALARM_P99_MAX_S} s)"
    )
    return (books, late, f"link used while a backlog waited: {use}")
