"""Commits that fail: why, since when, and how long to wait before the next try.

Invariants: the pause doubles with each try, up to a bound; the first failure is logged, and later
ones at a bounded rate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct

from edgehub.errors import StoreError
from edgehub.message import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

BACK_OFF_MIN_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
LOG_PERIOD_S: Final = 30.0

log = structlog.get_logger(__name__)


def refusal_of(stored: asyncio.Future[Any], event: str) -> Refusal | None:
    """Return why a change is refused whose transaction has ended, None = it is on disk.

    Args:
        stored: The transaction's future, done.
        event: Logged for an error that is not of the store.
    """
    if stored.cancelled() or isinstance(error := stored.exception(), StoreError):
        return Refusal.CLOSED
    if error is None:
        return None
    log.error(event, error=str(error))
    return Refusal.INVALID


def settling() -> tuple[Callable[[int, Refusal | None], None], asyncio.Future[Refusal | None]]:
    """Return a `settle` and the future of what it is called with, None = it is on disk."""
    settled: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def settle(_token: int, refusal: Refusal | None) -> None:
        if not settled.done():
            settled.set_result(refusal)

    return settle, settled


class Failure(Struct):
    """The failures since the last commit that succeeded."""

    reason: str
    since_s: float
    logged_s: float
    attempts: int = 0

    def report(self, reason: str, now_s: float, pending_bytes: int) -> None:
        """Log why a try failed, before it is counted."""
        self.reason = reason
        if self.attempts and now_s - self.logged_s < LOG_PERIOD_S:
            return
        self.logged_s = now_s
        log.warning(
            "store.commit_failed",
            error=reason,
            attempts=self.attempts + 1,
            failing_for_s=round(now_s - self.since_s, 1),
            pending_bytes=pending_bytes,
        )

    def delay_s(self) -> float:
        """Return the pause before the next try: a full disk may be emptied any moment."""
        return min(BACK_OFF_MIN_S * 2.0 ** min(self.attempts, 10), BACK_OFF_MAX_S)
