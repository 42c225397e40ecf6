"""Which of the rows that were read may leave now.

Owns no rows: what may not leave is put back, or expires, by its lane. Invariants: the time to live
is checked before each send; a row that was refused before leaves alone for its sender; none leaves
before its predecessor is confirmed, or while the peer refuses its sender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.message import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import DeliveryRules, Row
    from edgehub.pump.dependencies import Dependencies
    from edgehub.pump.order import Holds
    from edgehub.pump.poison import Poison
    from edgehub.pump.pumped_queue import PumpedQueue


class Admission:
    """See the module.

    Args:
        holds: Who is kept back.
        rules: Gives the delivery rules of a row; called for refused rows only.
        poison: Keeps back what the peer refuses.

    Attributes:
        dependencies: Keeps rows back behind their predecessors, None = rows have none.
    """

    __slots__ = ("_holds", "_poison", "_rules", "dependencies")

    def __init__(
        self,
        holds: Holds,
        rules: Callable[[Row], DeliveryRules],
        poison: Poison,
    ) -> None:
        self._holds = holds
        self._rules = rules
        self._poison = poison
        self.dependencies: Dependencies | None = None

    def sift(
        self, pumped: PumpedQueue, rows: Sequence[Row], *, now: float, now_ms: int, idle: bool
    ) -> list[Row]:
        """Return the rows that may leave; the lane takes the others.

        Args:
            pumped: Where the rows were taken from.
            rows: In the order in which they were read.
            now: Monotonic seconds.
            now_ms: Hub time.
            idle: Nothing is in flight.
        """
        admitted: list[Row] = []
        alone = idle and len(rows) == 1
        keeps_any = self._poison.keeps_any
        kept_back: set[str] = set()
        any_held = self._holds.count > 0
        for row in rows:
            if row.expires_ms <= now_ms:
                pumped.expired.append(row)
                continue
            if keeps_any and (
                row.message.sender in kept_back
                or self._poison.keeps_back(pumped, row, self._holds, now, alone=alone)
            ):
                kept_back.add(row.message.sender)
                pumped.put_back(row, now_ms, attempted=False)
                continue
            if row.attempts or any_held:
                # A row admitted here may start a trial, which holds the rows behind it.
                any_held = True
                if not self._admit(pumped, row):
                    pumped.put_back(row, now_ms, attempted=False)
                    continue
            if row.predecessor is not None and self._keeps_back(pumped, row):
                any_held = True
                pumped.put_back(row, now_ms, attempted=False)
                continue
            admitted.append(row)
        return admitted

    def _keeps_back(self, pumped: PumpedQueue, row: Row) -> bool:
        if self.dependencies is None or not self.dependencies.keep_back(pumped, row):
            return False
        self._holds.end_trial(row.offset)
        return True

    def _admit(self, pumped: PumpedQueue, row: Row) -> bool:
        if self._holds.holds_sender(pumped, row.message.sender):
            return False
        if row.attempts and self._rules(row).order is Order.STRICT:
            self._holds.start_trial(pumped, row)
        return True
