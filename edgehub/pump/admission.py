"""Which of the rows that were read may be sent now.

Owns no rows: what may not be sent is returned to its queue, or expires. Invariants: the time to
live is checked before each send; a row that was refused before is sent without later rows of its
sender; none is sent before the creation that it depends on is confirmed, or while the peer refuses
its sender.
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
    """Filters rows between a queue and the endpoint.

    Args:
        holds: Senders and rows that are held back.
        rules: Returns the delivery rules of a row; called for refused rows only.
        poison: Holds back what the peer refuses.
        dependencies: Holds rows back behind unconfirmed creations.
    """

    def __init__(
        self,
        holds: Holds,
        rules: Callable[[Row], DeliveryRules],
        poison: Poison,
        dependencies: Dependencies,
    ) -> None:
        self._holds = holds
        self._poison = poison
        self._rules = rules
        self._dependencies = dependencies

    def select(
        self, pumped: PumpedQueue, rows: Sequence[Row], *, now: float, now_ms: int, idle: bool
    ) -> list[Row]:
        """Return the rows that may be sent; the others go back to their queue, or expire.

        Args:
            pumped: Where the rows were taken from.
            rows: In the order in which they were read.
            now: Monotonic seconds.
            now_ms: Hub time.
            idle: Nothing is in flight.
        """
        admitted: list[Row] = []
        alone = idle and len(rows) == 1
        checks_senders = self._poison.checks_senders
        held_senders: set[str] = set()
        any_held = self._holds.count > 0
        for row in rows:
            if row.expires_ms <= now_ms:
                pumped.expired.append(row)
                continue
            if checks_senders and (
                row.message.sender in held_senders
                or self._poison.holds_back(pumped, row, self._holds, now, alone=alone)
            ):
                held_senders.add(row.message.sender)
                pumped.put_back(row, now_ms, attempted=False)
                continue
            if row.attempts or any_held:
                # A row admitted here may start a trial, which holds the rows behind it.
                any_held = True
                if not self._admit(pumped, row):
                    pumped.put_back(row, now_ms, attempted=False)
                    continue
            if row.predecessor is not None and self._dependencies.hold_back(pumped, row):
                self._holds.end_trial(row.offset)
                any_held = True
                pumped.put_back(row, now_ms, attempted=False)
                continue
            admitted.append(row)
        return admitted

    def _admit(self, pumped: PumpedQueue, row: Row) -> bool:
        if self._holds.holds_sender(pumped, row.message.sender):
            return False
        if row.attempts and self._rules(row).order is Order.STRICT:
            self._holds.start_trial(pumped, row)
        return True
