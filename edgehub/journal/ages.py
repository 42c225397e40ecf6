"""How long the rows of one queue have waited, in a bounded number of steps.

Owns the number of rows by the time at which they were enqueued. Invariant: the rows of all steps
add up to those that wait in the queue.
"""

from __future__ import annotations

from typing import Any, Final

STEP_MS: Final = 600_000
STEPS_MAX: Final = 64
"""Beyond it steps become twice as long."""


class Ages:
    """Rows of one queue by the step of hub time in which they were enqueued.

    Attributes:
        step_ms: Length of a step.
    """

    __slots__ = ("_rows", "step_ms")

    def __init__(self, step_ms: int = STEP_MS) -> None:
        self._rows: dict[int, int] = {}
        self.step_ms = step_ms

    def change(self, enqueued_ms: int, rows: int) -> None:
        """Add rows that were enqueued at a hub time, or remove some (a negative number).

        Where fewer are known of that time, as where only sums are, the oldest go.
        """
        step = enqueued_ms // self.step_ms
        left = self._rows.get(step, 0) + rows
        if left > 0:
            self._rows[step] = left
            if len(self._rows) > STEPS_MAX:
                self._regroup(2 * self.step_ms)
            return
        self._rows.pop(step, None)
        for oldest in sorted(self._rows) if left else ():
            left += self._rows.pop(oldest)
            if left >= 0:
                if left:
                    self._rows[oldest] = left
                return

    def move_back(self, before_ms: int, by_ms: int) -> None:
        """Record that what was enqueued before some time has waited so much longer."""
        self._regroup(self.step_ms, before_ms, by_ms)

    def of(self, now_ms: int) -> list[list[int]]:
        """Return the least age of each step and its rows, the oldest first."""
        return [
            [max(0, now_ms - (step + 1) * self.step_ms), rows]
            for step, rows in sorted(self._rows.items())
        ]

    def document(self) -> list[Any]:
        """Return what JSON can hold."""
        return [self.step_ms, [[step, rows] for step, rows in self._rows.items()]]

    @classmethod
    def load(cls, document: list[Any]) -> Ages:
        """Undo `document`."""
        step_ms, rows = document
        ages = cls(step_ms)
        ages._rows = dict(rows)
        return ages

    def _regroup(self, step_ms: int, before_ms: int = 0, by_ms: int = 0) -> None:
        before, self._rows = self._rows, {}
        for step, rows in before.items():
            begin_ms = step * self.step_ms
            place = (begin_ms - by_ms if begin_ms < before_ms else begin_ms) // step_ms
            self._rows[place] = self._rows.get(place, 0) + rows
        self.step_ms = step_ms
