"""The pump of one endpoint: sends it batch after batch, and settles their rows by its results.

Owns its parts and the turns in which they work together: `PumpedQueues` choose and read,
`Admission` decides which rows may be sent, `SendWindow` how many, `InFlight` and `Refusals` settle
them.
Invariants: a batch holds rows of one priority, chosen from the best queue that has any; every row
taken from a queue is confirmed, given back, expired or dead-lettered exactly once.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.clock import Pause
from edgehub.pump.admission import Admission
from edgehub.pump.dependencies import Dependencies
from edgehub.pump.in_flight import InFlight
from edgehub.pump.options import PumpOptions
from edgehub.pump.poison import Poison
from edgehub.pump.pumped_queues import PumpedQueues
from edgehub.pump.refusals import Refusals
from edgehub.pump.stall_detector import StallDetector
from edgehub.pump.statistics import PumpStatistics
from edgehub.pump.wait_observer import WaitObserver
from edgehub.pump.wake_up import WakeUp
from edgehub.pump.window import SendWindow

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.message import DeliveryRules, Priority, QueueId, Row
    from edgehub.pump.dependency_tracker import DependencyTracker
    from edgehub.pump.poison import CloseCounts, Suspicion
    from edgehub.pump.pumped_queue import PumpedQueue
    from edgehub.pump.queue import PumpQueue
    from edgehub.pump.wait_observer import PumpListener

LOOK_AGAIN_MIN_S: Final = 0.002
"""Shortest wait for unsent bytes to leave; shorter ones would only burn the processor."""

FRESH_ROW_RETRY_S: Final = 5.0
"""A row better than any waiting cuts a link back-off to this."""

CULPRIT_RETRY_S: Final = 2.0
"""Likewise while a row is looked for over which the peer closes the connection."""

# A queue that claims to have rows and returns none (all expired while being read) is read again
# after this time, so that it can neither hang the pump nor spin it.
EMPTY_READ_RETRY_S: Final = 0.1

log = structlog.get_logger(__name__)


class Pump:
    """Sends the rows of one endpoint; the `EndpointListener` of that endpoint.

    Args:
        endpoint: Where rows go.
        queues: Returns the endpoint's queues; called again when an unknown one has rows.
        rules: Returns the delivery rules of a row; called for refused rows only.
        clock: Timers; back-off counts monotonic time.
        now_ms: Hub time.
        rng: Randomness for jitter.
        options: Bounds.
        close_counts: Keeps counts of closes by the peer over restarts.
        dependency_tracker: Knows which creations are confirmed.
        listener: Notified of why rows wait, None = there is none.
    """

    def __init__(  # noqa: PLR0913 - what it works with, each by name
        self,
        endpoint: Endpoint,
        *,
        queues: Callable[[], Sequence[PumpQueue]],
        rules: Callable[[Row], DeliveryRules],
        clock: Clock,
        now_ms: Callable[[], int],
        rng: random.Random,
        close_counts: CloseCounts,
        dependency_tracker: DependencyTracker,
        options: PumpOptions | None = None,
        listener: PumpListener | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._options = options = options or PumpOptions()
        self._clock = clock
        self._now_ms = now_ms
        self._wake = WakeUp(clock)
        self._window = SendWindow(options)
        self._poison = poison = Poison(endpoint.id, self._window, rng, close_counts)
        self._refusals = Refusals(endpoint.id, rules, rng, poison, clock)
        self._holds = self._refusals.holds
        self._dependencies = dependencies = Dependencies(
            endpoint.id, dependency_tracker, self._holds, queues=queues, wake=self._wake.now
        )
        self._pumped_queues = PumpedQueues(
            queues, dependencies, clock=clock, rng=rng, options=options
        )
        self._admission = Admission(self._holds, rules, poison, dependencies)
        self._in_flight = InFlight(
            self._pumped_queues,
            self._window,
            self._refusals,
            poison,
            dependencies,
            self._wake.now,
        )
        self._stall_detector = StallDetector()
        self._wait_observer = WaitObserver(listener, endpoint.id)
        self._settled = Pause()
        self._link_up = False
        self._down_reason = self._parked_reason = ""
        self._best_waiting: float = math.inf
        self._draining = False

    async def run(self) -> None:
        """Keep the endpoint's link and send until cancelled."""
        self._observe()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.endpoint.run(self), name=f"endpoint[{self.endpoint.id}]")
                group.create_task(self._pump(), name=f"pump[{self.endpoint.id}]")
        finally:
            self._link_up = False
            self._take_results()
            self._in_flight.give_back_all(self._now_ms())
            self._dependencies.close()
            self._holds.release_all()
            self._wake.stop()
            self._observe()

    async def drain(self, deadline: float) -> None:
        """Choose nothing more, let what is in flight settle, give the rest back.

        Args:
            deadline: Monotonic time of the clock at which waiting ends.
        """
        self._draining = True
        try:
            while self._in_flight and (left_s := deadline - self._clock.monotonic()) > 0:
                await self._settled.wait(self._clock, left_s)
        finally:
            self._take_results()
            self._in_flight.give_back_all(self._now_ms())

    def rows_ready(self, queue: PumpQueue) -> None:
        """Record that a queue of this endpoint has new rows; called by the store."""
        self._pumped_queues.rows_ready(queue)
        if not self._link_up or self._refusals.paused_until > 0:
            self._yield_to(queue.priority)
        self._wake.now()

    def adjust(self, options: PumpOptions) -> None:
        """Apply changed bounds while sending goes on."""
        self._window.adjust(options)
        self._pumped_queues.adjust(options)
        self._wake.now()

    def retry_now(self) -> None:
        """Try again at once, after a reload or an operator's command."""
        self._parked_reason = ""
        self._refusals.link_up()
        self._poison.retry(self._holds, self._clock.monotonic())
        self.endpoint.retry_now()
        self._wake.now()

    def link_up(self, *, rows_max: int | None) -> None:
        """Start the sending of what waits."""
        self._take_results()
        self._refusals.link_up()
        self._poison.connected()
        self._window.reset(rows_max)
        self._pumped_queues.refresh()
        self._link_up = True
        self._down_reason = self._parked_reason = ""
        self._wake.now()

    def link_down(self, reason: str, *, parked: bool) -> None:
        """Record that the link is down; rows in flight were settled. Parked = needs an operator."""
        self._take_results()
        if self._poison.should_reconnect_soon():
            self.endpoint.retry_within(CULPRIT_RETRY_S)
        self._link_up = False
        if parked and reason != self._parked_reason:
            self._parked_reason = reason
            log.error("pump.endpoint_parked", endpoint_id=self.endpoint.id, reason=reason)
        self._down_reason = reason
        self._best_waiting = self._pumped_queues.best_ready()
        self._observe()
        self._wake.now()

    def pumped(self, queue_id: QueueId) -> PumpedQueue | None:
        """Return the pump's state of one queue, None = it was not seen yet."""
        return self._pumped_queues.of(queue_id)

    def kept_out_rows(self, queue_id: QueueId) -> int:
        """Return how many rows of a queue are in hand and not sent."""
        return self._poison.kept_out_rows(queue_id)

    def suspicion(self, row: Row) -> Suspicion | None:
        """Return the closes that are counted against a row of this endpoint, None = none."""
        return self._poison.suspicion(row, self._clock.monotonic())

    @property
    def narrow_rows(self) -> int:
        """Rows still to be sent one by one to find the one over which the peer closes."""
        return self._poison.narrow_rows

    def statistics(self) -> PumpStatistics:
        """Return a snapshot for status and metrics."""
        window = self._window
        refusals = self._refusals
        paused_s = refusals.paused_until - self._clock.monotonic()
        state = "parked" if refusals.parked else self.endpoint.state
        return PumpStatistics(
            state="draining" if self._draining else state,
            reason=self._down_reason or refusals.reason,
            in_flight_rows=window.in_flight_rows,
            in_flight_bytes=window.in_flight_bytes,
            window_bytes=window.window_bytes,
            rate_bytes_s=window.rate_bytes_s,
            rate_bytes_s_max=window.cap_bytes_s,
            min_rtt_s=window.min_rtt_s,
            unsent_bytes=self.endpoint.unsent_bytes() if self._link_up else 0,
            sent_total=self._in_flight.sent_total,
            sent_bytes_total=self._in_flight.sent_bytes_total,
            failures=dict(refusals.counts),
            holds=self._holds.count,
            refused_senders=self._poison.refused_senders(self._clock.monotonic()),
            backoff_remaining_s=paused_s if paused_s > 0 else self.endpoint.retry_in_s,
            latency={
                pumped.queue.priority: summary
                for pumped in self._pumped_queues
                if (summary := pumped.latency.summary()) is not None
            },
        )

    def stalled_s(self) -> float:
        """Return the seconds for which the pump has had something to do and did nothing.

        A link that is down, a pause after a refusal and rows that the peer has not confirmed do not
        count: those have time-outs of their own.
        """
        now = self._clock.monotonic()
        is_busy = self._in_flight.has_results or self._could_send(now)
        return self._stall_detector.stalled_s(now, is_busy=is_busy)

    def _could_send(self, now: float) -> bool:
        if not self._link_up or self._draining or self._in_flight:
            return False
        if self._window.room(now, self._unsent_bytes())[0] == 0:
            # Under a cap a large message is waited for afterwards.
            return False
        return self._refusals.paused_until <= now and self._pumped_queues.could_send(now)

    async def _pump(self) -> None:
        self._pumped_queues.refresh()
        while True:
            await self._wake.wait()
            if self._in_flight.has_results:
                self._stall_detector.steps += 1
                self._take_results()
            self._holds.release_due(self._clock.monotonic())
            await self._send_while_room()
            self._check_poison()
            self._observe()
            self._wake.at(min(self._holds.next_end, self._wait_observer.due_at))

    def _check_poison(self) -> None:
        idle = self._link_up and not self._in_flight and not self._pumped_queues.has_ready
        due = self._poison.check(self._clock.monotonic(), self._now_ms(), idle=idle)
        self._pumped_queues.flush()
        self._wake.at(due)

    def _observe(self) -> None:
        now = self._clock.monotonic()
        paused = self._refusals.paused_until > now
        self._wait_observer.observe(
            self._pumped_queues,
            now,
            link_up=self._link_up,
            paused=paused,
            handed_bytes=self._in_flight.handed_bytes_total,
        )

    async def _send_while_room(self) -> None:
        self._pumped_queues.begin_turn()
        while self._may_send():
            now = self._clock.monotonic()
            unsent = self._unsent_bytes()
            rows_max, bytes_max = self._window.room(now, unsent)
            if rows_max == 0:
                self._schedule_check(unsent, now)
                return
            pumped, look_at = self._pumped_queues.next(now)
            self._wake.at(look_at)
            if pumped is None:
                self._window.ran_dry()
                return
            failures = self._refusals.total
            rows_max = min(rows_max, self._options.batch_rows_max)
            # Compressed rows take less of the link than of their queue.
            bytes_max = int(bytes_max * self._in_flight.row_bytes_per_wire_byte)
            rows = await self._pumped_queues.read(pumped, rows_max, bytes_max)
            if rows is not None:
                self._stall_detector.steps += 1
            if not rows:
                self._wake.at(now + EMPTY_READ_RETRY_S)
            elif self._may_send() and self._refusals.total == failures:
                self._send(pumped, rows)
            else:
                # Rows returned during the read precede these, though the link is up again.
                pumped.queue.give_back(rows, attempted=False)
            if self._in_flight.has_results:
                # An endpoint that settles at once must not keep the loop from other tasks.
                await asyncio.sleep(0)
                self._take_results()
                self._pumped_queues.begin_turn()  # a row on trial may have let its sender go on

    def _unsent_bytes(self) -> int:
        # The kernel is only asked where its answer counts.
        return self.endpoint.unsent_bytes() if self._window.counts_unsent else 0

    def _may_send(self) -> bool:
        if not self._link_up or self._draining:
            return False
        paused_until = self._refusals.paused_until
        if paused_until == 0.0:
            return True
        if paused_until > self._clock.monotonic():
            self._wake.at(paused_until)
            return False
        self._refusals.paused_until = 0.0
        return True

    def _send(self, pumped: PumpedQueue, rows: list[Row]) -> None:
        now = self._clock.monotonic()
        batch = self._admission.select(
            pumped, rows, now=now, now_ms=self._now_ms(), idle=not self._in_flight
        )
        if batch:
            self._in_flight.add(pumped, batch, self.endpoint.wire_bytes(batch), now)
            self._pumped_queues.sent(pumped, now)
            self.endpoint.send_batch(batch, self._in_flight.settle)
        pumped.flush()

    def _take_results(self) -> None:
        if not self._in_flight.has_results:
            return
        now = self._clock.monotonic()
        failed = self._in_flight.take(now, self._now_ms())
        if failed and self._refusals.paused_until > now:
            self._best_waiting = self._pumped_queues.best_ready()
        self._settled.cut()

    def _yield_to(self, priority: Priority) -> None:
        if priority < self._best_waiting:
            self._best_waiting = priority
            self.endpoint.retry_within(FRESH_ROW_RETRY_S)
            self._refusals.retry_within(self._clock.monotonic(), FRESH_ROW_RETRY_S)

    def _schedule_check(self, unsent: int, now: float) -> None:
        wait_s = self._window.wait_s(now, unsent)
        if wait_s is not None:
            self._wake.at(now + max(wait_s, LOOK_AGAIN_MIN_S))
