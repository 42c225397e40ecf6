"""Settles rows that were not delivered: back to their place, held back, or a dead letter.

Owns the failure counts, the pauses of the whole endpoint and the set of rows that must be sent
again after a refused one. Invariant: a failure of one row never delays another queue, unless the
peer refuses its sender; only time-outs, lost links and refused credentials stop the endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

import structlog

from edgehub.endpoints.backoff import Backoff, delay_s
from edgehub.message import FailureKind, Order
from edgehub.pump.order import HOLDS_MAX, Holds
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.message import DeliveryRules, Row, SendResult
    from edgehub.pump.poison import Poison
    from edgehub.pump.pumped_queue import PumpedQueue, Sent

PARKED_RETRY_S: Final = 60.0
_ATTEMPTED: Final = frozenset(
    {FailureKind.TRANSIENT, FailureKind.TIMEOUT, FailureKind.NOT_AUTHORIZED}
)

log = structlog.get_logger(__name__)


class Refusals:
    """The failures of one pump.

    Args:
        endpoint_id: For log lines.
        rules: Delivery rules of a row.
        rng: Randomness for jitter.
        poison: Finds rows that the peer refuses by closing the connection.
        clock: Bounds the rate of log lines: a peer that refuses all must not fill the disk.
    """

    def __init__(
        self,
        endpoint_id: str,
        rules: Callable[[Row], DeliveryRules],
        rng: random.Random,
        poison: Poison,
        clock: Clock,
    ) -> None:
        self._endpoint_id = endpoint_id
        self._limited_log = LogLimit(clock)
        self._unreported = 0
        self._rules = rules
        self._rng = rng
        self._poison = poison
        self._link = Backoff(rng)
        self.holds = Holds()
        self.counts: dict[FailureKind, int] = dict.fromkeys(FailureKind, 0)
        self.follow_again: set[int] = set()
        self.paused_until = 0.0
        self.parked = False
        self.reason = ""

    @property
    def total(self) -> int:
        """Failures so far."""
        return sum(self.counts.values())

    def take(
        self,
        failed: Sequence[tuple[Sent, SendResult]],
        in_flight: Mapping[int, Sent],
        *,
        now: float,
        now_ms: int,
    ) -> None:
        """Settle the failures of one turn, before its deliveries.

        Args:
            failed: Rows already removed from `in_flight`, with their results.
            in_flight: Rows that are unsettled, or delivered in this very turn.
            now: Monotonic seconds.
            now_ms: Hub time.
        """
        barriers: dict[tuple[PumpedQueue, str], int] = {}
        dead: list[str] = []
        blamed = self._poison.closed(failed, now) if failed else None
        for (row, pumped, _, _), result in failed:
            kind = result.kind
            assert kind is not None
            self.counts[kind] += 1
            self.follow_again.discard(row.offset)
            if blamed is not None and row.offset == blamed.offset:
                self._pause(now, result.reason or kind.value)
                kind, reason = blamed.kind, blamed.reason
                is_kept = not reason
            else:
                reason = self._dead_letter_reason(row, kind, result.reason, now=now, now_ms=now_ms)
                is_kept = False
            if reason:
                pumped.dead_letter(row, kind, reason)
                self._poison.dead_lettered(row)
                dead.append(reason)
            elif not is_kept:
                self._retry(row, pumped, result, now=now, now_ms=now_ms)
                if self._rules(row).order is Order.STRICT:
                    key = (pumped, row.message.sender)
                    barriers[key] = min(row.offset, barriers.get(key, row.offset))
            self.holds.end_trial(row.offset)
        if barriers:
            for offset, (row, pumped, _, _) in in_flight.items():
                barrier = barriers.get((pumped, row.message.sender))
                if barrier is not None and offset > barrier:
                    self.follow_again.add(offset)
        if dead:
            self._poison.settled(len(dead))
            self._report(dead)

    def reset(self) -> None:
        """Reset the back-off of the link after a delivery."""
        self._link.reset()
        self.parked = False
        self.reason = ""

    def link_up(self) -> None:
        """End pauses that are about the old connection."""
        self.paused_until = 0.0
        self.parked = False
        self.reason = ""

    def retry_within(self, now: float, seconds: float) -> None:
        """Shorten a pause; a parked endpoint stays parked."""
        if not self.parked:
            self.paused_until = min(self.paused_until, now + seconds)

    def _report(self, dead: Sequence[str]) -> None:
        """Log rows that have become dead letters, or count them for the next line."""
        self._unreported += len(dead)
        endpoint_id, rows = self._endpoint_id, self._unreported
        if self._limited_log.warning(
            "pump.rows_dead_lettered", endpoint_id=endpoint_id, rows=rows, reason=dead[0]
        ):
            self._unreported = 0

    def _dead_letter_reason(
        self, row: Row, kind: FailureKind, reason: str, *, now: float, now_ms: int
    ) -> str:
        # Empty = it is none.
        reason = reason or kind.value
        if kind in {FailureKind.REJECTED, FailureKind.TOO_LARGE}:
            return reason
        if kind not in _ATTEMPTED:
            return ""
        if kind is FailureKind.NOT_AUTHORIZED and self._poison.refused(row, reason, now):
            return reason
        rules = self._rules(row)
        if rules.max_attempts and row.attempts + 1 >= rules.max_attempts:
            return f"max_attempts = {rules.max_attempts} reached: {reason}"
        if rules.max_age_s is not None and now_ms - row.enqueued_ms >= rules.max_age_s * 1000:
            return f"max_age_s = {rules.max_age_s:g} reached: {reason}"
        return ""

    def _retry(
        self, row: Row, pumped: PumpedQueue, result: SendResult, *, now: float, now_ms: int
    ) -> None:
        kind = result.kind
        refusal = f"{kind}: {result.reason}" if result.reason else kind
        match kind:
            case FailureKind.TRANSIENT:
                # The store may count the attempt on this very object: compute the wait first.
                until = now + delay_s(row.attempts, self._rng)
                if pumped.put_back(row, now_ms, attempted=True, refusal=refusal):
                    self._hold(row, pumped, until)
            case FailureKind.NOT_AUTHORIZED:
                # `Poison.holds_back` holds its sender, in every queue.
                pumped.put_back(row, now_ms, attempted=True, refusal=refusal)
            case FailureKind.THROTTLED:
                pumped.put_back(row, now_ms, attempted=False, refusal=refusal)
                self._throttle(pumped, now, result.retry_after_s)
            case FailureKind.TIMEOUT:
                pumped.put_back(row, now_ms, attempted=True, refusal=refusal)
                self._pause(now, result.reason or kind.value)
            case FailureKind.DISCONNECTED | FailureKind.CLOSED:
                pumped.put_back(row, now_ms, attempted=False)
                self._pause(now, result.reason or kind.value)
            case FailureKind.UNREACHABLE:
                # Its queue holds the device's rows back until its session is connected again.
                pumped.put_back(row, now_ms, attempted=False)
            case FailureKind.UNAUTHORIZED:
                pumped.put_back(row, now_ms, attempted=False)
                self._park(now, result.reason or kind.value)
            case FailureKind.REJECTED | FailureKind.TOO_LARGE | None:
                raise AssertionError(kind)
            case _:
                assert_never(kind)

    def _hold(self, row: Row, pumped: PumpedQueue, until: float) -> None:
        if pumped.holds >= HOLDS_MAX:
            pumped.delayed_until = max(pumped.delayed_until, until)
        else:
            is_strict = self._rules(row).order is Order.STRICT
            self.holds.hold(pumped, row.message.sender if is_strict else row.offset, until)

    def _throttle(self, pumped: PumpedQueue, now: float, retry_after_s: float | None) -> None:
        # Several rows of one batch have the same cause; only the first of them makes it longer.
        if retry_after_s is not None:
            pumped.delayed_until = max(pumped.delayed_until, now + retry_after_s)
        elif pumped.delayed_until <= now:
            pumped.delayed_until = now + pumped.throttle.next_s()

    def _pause(self, now: float, reason: str) -> None:
        if self.paused_until <= now:
            self.paused_until = now + self._link.next_s()
            self.reason = reason

    def _park(self, now: float, reason: str) -> None:
        if not self.parked:
            log.error("pump.endpoint_parked", endpoint_id=self._endpoint_id, reason=reason)
        self.parked = True
        self.paused_until = max(self.paused_until, now + PARKED_RETRY_S)
        self.reason = reason
