"""Rows that were handed to the endpoint and are not settled, and their results.

Owns the rows in flight and the results that are not applied yet; updates window, holds and queues.
Invariant: a row is removed exactly once: delivered, failed or given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import Row, SendResult
    from edgehub.pump.delivery_rate import Flight
    from edgehub.pump.dependencies import Dependencies
    from edgehub.pump.poison import Poison
    from edgehub.pump.pumped_queue import PumpedQueue, Sent
    from edgehub.pump.pumped_queues import PumpedQueues
    from edgehub.pump.refusals import Refusals
    from edgehub.pump.window import SendWindow

_MEAN_SHARE: Final = 0.25


class InFlight:
    """The rows in flight of one pump.

    Args:
        pumped_queues: Where rows go back to.
        window: Counts what is in flight.
        refusals: Settles what failed.
        poison: Counts what was sent and delivered.
        dependencies: Notified of creations that were delivered.
        wake: Called when there are results.

    Attributes:
        row_bytes_per_wire_byte: Recent ratio of queue bytes to bytes on the link; at least 1.
        sent_total: Rows delivered.
        sent_bytes_total: Their bytes on the link.
        handed_bytes_total: Bytes of all rows that were handed to the link, delivered or not.
    """

    def __init__(
        self,
        pumped_queues: PumpedQueues,
        window: SendWindow,
        refusals: Refusals,
        poison: Poison,
        dependencies: Dependencies,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
        self._dependencies = dependencies
        self._pumped_queues = pumped_queues
        self._window = window
        self._refusals = refusals
        self._holds = refusals.holds
        self._poison = poison
        self._rows: dict[int, Sent] = {}
        self._delivered: list[Row] = []
        self._failed: list[tuple[Row, SendResult]] = []
        self._is_measured = False
        self.row_bytes_per_wire_byte = 1.0
        self.sent_total = 0
        self.sent_bytes_total = 0
        self.handed_bytes_total = 0

    def __len__(self) -> int:
        """Return the number of rows that are not settled."""
        return len(self._rows)

    @property
    def has_results(self) -> bool:
        """Whether results wait for `take`."""
        return bool(self._delivered or self._failed)

    def add(
        self, pumped: PumpedQueue, rows: Sequence[Row], sizes: Sequence[int], now: float
    ) -> None:
        """Record a batch that is sent now."""
        wire_bytes = sum(sizes)
        self.handed_bytes_total += wire_bytes
        flight = self._window.sent(now, len(rows), wire_bytes)
        counted = sum([row.size for row in rows]) / wire_bytes
        if not self._is_measured:
            self._is_measured = True
            self.row_bytes_per_wire_byte = max(1.0, counted)
        change = counted - self.row_bytes_per_wire_byte
        self.row_bytes_per_wire_byte = max(1.0, self.row_bytes_per_wire_byte + change * _MEAN_SHARE)
        in_flight = self._rows
        for row, size in zip(rows, sizes, strict=True):
            in_flight[row.offset] = (row, pumped, size, flight)
        if self._poison.suspects:
            self._poison.sent(rows)

    def settle(self, row: Row, result: SendResult) -> None:
        """Record a result; it counts when `take` is called."""
        if not (self._delivered or self._failed):
            self._wake()
        if result.kind is None:
            self._delivered.append(row)
        else:
            self._failed.append((row, result))

    def take(self, now: float, now_ms: int) -> bool:
        """Apply the results; return whether some row failed.

        Args:
            now: Monotonic seconds.
            now_ms: Hub time.
        """
        delivered, self._delivered = self._delivered, []
        failed, self._failed = self._failed, []
        if failed:
            self._take_failed(failed, now, now_ms)
        if delivered:
            self._take_delivered(delivered, now, now_ms)
        self._pumped_queues.flush()
        return bool(failed)

    def give_back_all(self, now_ms: int) -> None:
        """Return all rows to their queues: there will be no results."""
        in_flight, self._rows = self._rows, {}
        for row, pumped, size, _ in in_flight.values():
            self._window.lost(1, size)
            self._holds.end_trial(row.offset)
            pumped.put_back(row, now_ms, attempted=False)
        self._refusals.follow_again.clear()
        self._poison.give_back(now_ms)
        self._pumped_queues.flush()

    def _take_failed(self, failed: list[tuple[Row, SendResult]], now: float, now_ms: int) -> None:
        settled: list[tuple[Sent, SendResult]] = []
        for row, result in failed:
            # Rows that a drain gave back at its deadline are settled late, to no effect.
            sent = self._rows.pop(row.offset, None)
            if sent is not None:
                self._window.lost(1, sent[2])
                settled.append((sent, result))
        self._refusals.take(settled, self._rows, now=now, now_ms=now_ms)

    def _take_delivered(self, rows: list[Row], now: float, now_ms: int) -> None:
        pop = self._rows.pop
        again = self._refusals.follow_again
        any_held = self._holds.count > 0
        count = size = took_ms = 0
        latest: Flight | None = None
        previous: Flight | None = None
        for row in rows:
            sent = pop(row.offset, None)
            if sent is None:
                continue
            _, pumped, row_size, flight = sent
            count += 1
            size += row_size
            flight.confirmed_bytes += row_size
            if flight is not previous:
                previous = flight
                took_ms = int((now - flight.sent_at) * 1000)
                if latest is None or flight.number > latest.number:
                    latest = flight
            if any_held:
                self._holds.end_trial(row.offset)
            if again and row.offset in again:
                again.discard(row.offset)
                pumped.put_back(row, now_ms, attempted=False)
                continue
            row.took_ms = took_ms
            pumped.confirmed.append(row)
        if latest is None:
            return
        self._window.delivered(now, count, size, latest)
        self._poison.delivered(rows, count, now_ms)
        self._refusals.reset()
        self.sent_bytes_total += size
        for pumped in self._pumped_queues.all():
            if pumped.confirmed:
                self.sent_total += len(pumped.confirmed)
                pumped.latency.add([now_ms - row.enqueued_ms for row in pumped.confirmed])
                pumped.throttle.reset()
        self._notify_dependencies()

    def _notify_dependencies(self) -> None:
        if not self._dependencies.expects_any:
            return
        creations = [
            row for pumped in self._pumped_queues.all() for row in pumped.confirmed if row.creation
        ]
        if creations:
            self._dependencies.delivered(creations)
