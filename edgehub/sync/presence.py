"""What hubs of one table say of themselves, and who has applied a change.

Owns this hub's report. There is no channel for acknowledgements: each hub reports the revision up
to which it has applied everything and what it could not build, and who wants to know looks. So one
who comes late or died is no riddle, and a hub that failed to apply is not taken for one that did.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.storage import DEFAULTS, FAILED_SHOWN_MAX, Report
from edgehub.sync.views import Applied

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from edgehub.clock import Clock
    from edgehub.routes.tenant import RouteKey
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import TableStorage, WriteResult

POLL_S: Final = (0.004, 0.1)
"""First and longest wait between two checks of what the others have applied."""

RETRY_S: Final = 1.0
"""Wait before a report is tried again that the storage did not take."""

FORGOTTEN_S: Final = 60.0
"""A hub without a report counts as behind for this time; then it is not waited for. Longer than a
restart of the storage takes, after which hubs need a moment to report again."""

log = structlog.get_logger(__name__)


class Presence:
    """Reports of the hubs of one table.

    Args:
        storage: Where hubs meet.
        reconciler: What this hub has applied.
        instance: Names this running hub.
        hub_id: The hub.
        clock: For waits.
        beat_s: Time between two reports when nothing happens.
        stale: Why the table of this hub may be old; empty = it is not.
        may_lack_reports: Whether reports may have been lost a moment ago, and are not all renewed.
    """

    def __init__(
        self,
        storage: TableStorage,
        reconciler: Reconciler,
        *,
        instance: str,
        hub_id: str,
        clock: Clock,
        beat_s: float,
        stale: Callable[[], str],
        may_lack_reports: Callable[[], bool],
    ) -> None:
        self._storage = storage
        self._reconciler = reconciler
        self._instance = instance
        self._hub_id = hub_id
        self._clock = clock
        self._beat_s = beat_s
        self._stale = stale
        self._may_lack_reports = may_lack_reports
        self._due = asyncio.Event()
        self.duplicate_hub = ""
        """Another running hub with this one's id, as a copied disk makes it; empty = none."""
        self._duplicate_at = 0.0
        self._has_reported = False

    def report_soon(self) -> None:
        """Renew this hub's report soon."""
        self._due.set()

    async def run(self) -> None:
        """Report after each change and at every beat, until cancelled."""
        while True:
            self._due.clear()
            try:
                await self.report()
            except StorageUnavailableError as error:
                log.debug("sync.report_failed", reason=error.reason)
                await self._clock.sleep(RETRY_S)
                continue
            timer = self._clock.call_later(self._beat_s, self._due.set)
            try:
                await self._due.wait()
            finally:
                timer.cancel()

    async def join(self) -> None:
        """Report this hub before the first change is made; without a storage, later."""
        try:
            await self.report()
        except StorageUnavailableError as error:
            log.debug("sync.report_failed", reason=error.reason)

    async def report(self) -> None:
        """Store this hub's report, and detect another hub of the same id."""
        before = await self._storage.report(self.own(), expires_s=FORGOTTEN_S + self._beat_s)
        now = self._clock.monotonic()
        if self._has_reported and before not in {"", self._instance}:
            if not self.duplicate_hub:
                log.warning("sync.duplicate_hub_id", hub_id=self._hub_id, instance=before)
            self.duplicate_hub, self._duplicate_at = before, now
        elif self.duplicate_hub and now - self._duplicate_at > FORGOTTEN_S:
            self.duplicate_hub = ""
        self._has_reported = True

    async def leave(self) -> None:
        """Remove the report: this hub stops."""
        try:
            await self._storage.leave(self._hub_id)
        except StorageUnavailableError as error:
            log.debug("sync.leave_failed", reason=error.reason)

    def own(self) -> Report:
        """Return the report of this hub."""
        reconciler = self._reconciler
        failures = list(reversed(reconciler.failures.items()))
        return Report(
            instance=self._instance,
            hub_id=self._hub_id,
            epoch=reconciler.applied.epoch,
            revision=reconciler.applied.revision,
            routes=len(reconciler.rows) - (DEFAULTS in reconciler.rows),
            failed={str(key): each.reason for key, each in failures[:FAILED_SHOWN_MAX]},
            failed_total=len(failures),
            stale=self._stale(),
        )

    async def all_reports(self) -> list[Report]:
        """Return the reports of all hubs, this one's as it is now."""
        others = [each for each in await self._storage.reports() if each.instance != self._instance]
        return [self.own(), *sorted(others, key=lambda each: (each.hub_id, each.instance))]

    async def applied(
        self, keys: Collection[RouteKey], result: WriteResult, timeout_s: float
    ) -> Applied:
        """Wait until every hub has applied a write of this hub, which has done so already.

        A storage that becomes unreachable is no error: the write is stored.
        """
        deadline = self._clock.monotonic() + timeout_s
        wait_s, longest_s = POLL_S
        reports: list[Report] | None = None
        while True:
            try:
                reports = await self.all_reports()
            except StorageUnavailableError as error:
                log.debug("sync.reports_unread", reason=error.reason)
                wait_s = longest_s
            outcome = self._judge(reports or [self.own()], keys, result)
            if reports is None:
                outcome = replace(outcome, result="timeout")
            left_s = deadline - self._clock.monotonic()
            if (outcome.result != "timeout" and not self._may_lack_reports()) or left_s <= 0:
                return outcome
            await self._clock.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, longest_s)

    def _judge(
        self, reports: list[Report], keys: Collection[RouteKey], result: WriteResult
    ) -> Applied:
        names = [str(key) for key in keys]
        by: list[str] = []
        behind: list[str] = []
        failed: list[dict[str, str]] = []
        for report in reports:
            reason = next((report.failed[n] for n in names if n in report.failed), None)
            at_place = report.epoch == result.epoch and report.revision >= result.revision
            if not at_place and report.instance != self._instance:
                behind.append(report.instance)
            elif reason is not None:
                failed.append({"instance": report.instance, "reason": reason})
            else:
                by.append(report.instance)
        word = "timeout" if behind else "failed" if failed else "complete"
        return Applied(result=word, by=tuple(by), behind=tuple(behind), failed=tuple(failed))
