"""The pump of one endpoint: chooses batches from its queues and settles what comes back.

Owns what is in flight, the window and the order of sending; calls the queues and the endpoint it
was given. Invariants: a batch holds rows of one priority, chosen from the best queue that has any;
every row taken from a queue is confirmed, given back, expired or dead-lettered exactly once.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.endpoints.backoff import Backoff
from edgehub.errors import StoreError
from edgehub.message import Order
from edgehub.pump.choice import Choice
from edgehub.pump.lane import Lane
from edgehub.pump.options import PumpOptions
from edgehub.pump.poison import Poison
from edgehub.pump.progress import Progress
from edgehub.pump.refusals import Refusals
from edgehub.pump.statistics import PumpStatistics
from edgehub.pump.watch import Watch
from edgehub.pump.window import SendWindow

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock, TimerHandle
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.message import DeliveryRules, Priority, QueueId, Row, SendResult
    from edgehub.pump.delivery_rate import Flight
    from edgehub.pump.poison import CloseCounts
    from edgehub.pump.queue import PumpQueue
    from edgehub.pump.refusals import Sent
    from edgehub.pump.watch import PumpListener

LOOK_AGAIN_MIN_S: Final = 0.002
"""Shortest wait for unsent bytes to leave; shorter ones would only burn the processor."""

FRESH_ROW_RETRY_S: Final = 5.0
"""A row better than any waiting cuts a link back-off to this."""

# A queue that says it has rows and then gives none (all expired while being read) is asked again
# after this time, so that a disagreement can neither hang the pump nor spin it.
EMPTY_READ_RETRY_S: Final = 0.1

log = structlog.get_logger(__name__)


class Pump:
    """See the module. It is the `EndpointListener` of its endpoint.

    Args:
        endpoint: Where rows go.
        queues: Gives the endpoint's queues; asked again when an unknown one has rows.
        rules: Gives the delivery rules of a row; called for refused rows only.
        clock: Timers; back-off counts monotonic time.
        now_ms: Hub time.
        rng: Randomness for jitter.
        options: Bounds.
        listener: Hears why rows wait, None = nobody does.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        queues: Callable[[], Sequence[PumpQueue]],
        rules: Callable[[Row], DeliveryRules],
        clock: Clock,
        now_ms: Callable[[], int],
        rng: random.Random,
        options: PumpOptions | None = None,
        listener: PumpListener | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._options = options or PumpOptions()
        self._queues = queues
        self._rules = rules
        self._clock = clock
        self._now_ms = now_ms
        self._rng = rng
        self._window = SendWindow(
            head_of_line_s=self._options.head_of_line_ms / 1000,
            rows_max=self._options.rows_in_flight_max,
            bytes_max=self._options.bytes_in_flight_max,
            cap_bytes_s=self._options.rate_bytes_s_max or math.inf,
        )
        self._choice = Choice(self._options.aging_s)
        self._poison = Poison(endpoint.id, self._window)
        self._refusals = Refusals(endpoint.id, rules, rng, self._poison)
        self._holds = self._refusals.holds
        self._reads = Backoff(rng)
        self._progress = Progress()
        self._watch = Watch(listener, endpoint.id)
        self._lanes: list[Lane] = []
        self._lane_of: dict[QueueId, Lane] = {}
        self._empty: set[Lane] = set()
        self._in_flight: dict[int, Sent] = {}
        self._results: list[tuple[Row, SendResult]] = []
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._timer: TimerHandle | None = None
        self._look_at = math.inf
        self._link_up = False
        self._down_reason = ""
        self._best_waiting: float = math.inf
        self._draining = False
        self._sent_total = 0
        self._sent_bytes_total = 0

    async def run(self) -> None:
        """Keep the endpoint's link and send until cancelled."""
        self._look()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.endpoint.run(self), name=f"endpoint[{self.endpoint.id}]")
                group.create_task(self._pump(), name=f"pump[{self.endpoint.id}]")
        finally:
            self._link_up = False
            self._take_results()
            self._give_back_all()
            self._holds.release_all()
            self._stop_timer()
            self._look()

    async def drain(self, deadline: float) -> None:
        """Choose nothing more, let what is in flight settle, give the rest back.

        Args:
            deadline: Monotonic time of the clock at which waiting ends.
        """
        self._draining = True
        timer = self._clock.call_later(
            max(0.0, deadline - self._clock.monotonic()), self._settled.set
        )
        try:
            while self._in_flight and self._clock.monotonic() < deadline:
                self._settled.clear()
                await self._settled.wait()
        finally:
            timer.cancel()
            self._take_results()
            self._give_back_all()

    def rows_ready(self, queue: PumpQueue) -> None:
        """Take note that a queue of this endpoint has new rows; the store calls this."""
        if queue.id not in self._lane_of:
            self._learn_queues()
        self._empty.discard(self._lane_of[queue.id])
        if self._choice.aging_s:
            lane = self._lane_of[queue.id]
            lane.waits_since = min(lane.waits_since, self._clock.monotonic())
        if not self._link_up or self._refusals.paused_until > 0:
            self._hurry_for(queue.priority)
        self._wake.set()

    def adjust(self, options: PumpOptions) -> None:
        """Take over other bounds of window and choice while sending goes on."""
        self._window.adjust(
            head_of_line_s=options.head_of_line_ms / 1000,
            rows_max=options.rows_in_flight_max,
            cap_bytes_s=options.rate_bytes_s_max or math.inf,
        )
        self._choice.aging_s = options.aging_s
        self._wake.set()

    def remember_closes(self, counts: CloseCounts) -> None:
        """Keep counts of closes by the peer where they outlast this pump; before `run`."""
        self._poison.counts = counts

    def retry_now(self) -> None:
        """Try at once, on a reload or an operator's word."""
        self._refusals.link_up()
        self.endpoint.retry_now()
        self._wake.set()

    def link_up(self, *, rows_max: int | None) -> None:
        """See `EndpointListener`; alone it starts the sending of what waits."""
        self._take_results()
        self._refusals.link_up()
        self._poison.connected()
        self._window.reset(rows_max)
        self._learn_queues()
        self._link_up = True
        self._down_reason = ""
        self._wake.set()

    def link_down(self, reason: str, *, parked: bool) -> None:
        """See `EndpointListener`."""
        self._take_results()
        self._link_up = False
        self._down_reason = reason
        self._note_waiting()
        self._look()
        if parked:
            log.error("pump.endpoint_parked", endpoint_id=self.endpoint.id, reason=reason)
        self._wake.set()

    def lane(self, queue_id: QueueId) -> Lane | None:
        """Give what is known of the service of one queue, None = it was not seen yet."""
        return self._lane_of.get(queue_id)

    def statistics(self) -> PumpStatistics:
        """Give a snapshot for status and metrics."""
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
            sent_total=self._sent_total,
            sent_bytes_total=self._sent_bytes_total,
            failures=dict(refusals.counts),
            holds=self._holds.count,
            backoff_remaining_s=paused_s if paused_s > 0 else self.endpoint.retry_in_s,
            latency={
                lane.queue.priority: summary
                for lane in self._lanes
                if (summary := lane.latency.summary()) is not None
            },
        )

    def stalled_s(self) -> float:
        """Give the seconds for which the pump owed a step and took none, as far as looks tell.

        Neither a link that is down, nor a pause after a refusal, nor rows that a peer has yet to
        confirm are its fault: those have time-outs of their own.
        """
        now = self._clock.monotonic()
        return self._progress.stalled_s(now, owes=bool(self._results) or self._could_send(now))

    def _could_send(self, now: float) -> bool:
        if not self._link_up or self._draining or self._in_flight:
            return False
        if self._window.room(now, self.endpoint.unsent_bytes())[0] == 0:
            # Under a cap a large message is paid for afterwards.
            return False
        return self._refusals.paused_until <= now and any(
            lane.delayed_until <= now and lane.queue.has_ready() for lane in self._lanes
        )

    async def _pump(self) -> None:
        self._learn_queues()
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._look_at = math.inf
            if self._results:
                self._progress.steps += 1
                self._take_results()
            self._holds.release_due(self._clock.monotonic())
            await self._send_while_room()
            self._look_at = min(self._look_at, self._look_at_poison())
            self._look()
            self._start_timer()

    def _look_at_poison(self) -> float:
        idle = self._link_up and not self._in_flight
        idle = idle and not any(lane.queue.has_ready() for lane in self._lanes)
        due = self._poison.look(self._clock.monotonic(), self._now_ms(), idle=idle)
        for lane in self._lanes:
            lane.flush()
        return due

    def _look(self) -> None:
        now = self._clock.monotonic()
        paused = self._refusals.paused_until > now
        self._watch.look(self._lanes, now, link_up=self._link_up, paused=paused)

    async def _send_while_room(self) -> None:
        self._empty.clear()
        while self._may_send():
            now = self._clock.monotonic()
            unsent = self.endpoint.unsent_bytes()
            rows_max, bytes_max = self._window.room(now, unsent)
            if rows_max == 0:
                self._look_again_for(unsent, now)
                return
            lane, look_at = self._choice.next(self._lanes, now, self._empty)
            self._look_at = min(self._look_at, look_at)
            if lane is None:
                self._window.ran_dry()
                return
            failures = self._refusals.total
            rows = await self._read(lane, min(rows_max, self._options.batch_rows_max), bytes_max)
            if not rows:
                self._empty.add(lane)
                lane.waits_since = math.inf
                self._look_at = min(self._look_at, now + EMPTY_READ_RETRY_S)
            elif self._may_send() and self._refusals.total == failures:
                self._send(lane, rows)
            else:
                # What came back during the read stands before these, though the link is up again.
                lane.queue.give_back(rows, attempted=False)
            if self._results:
                # An endpoint that settles at once must not keep the loop from everybody else.
                await asyncio.sleep(0)
                self._take_results()
                self._empty.clear()  # a row that was on trial may have let its sender go on

    def _may_send(self) -> bool:
        if not self._link_up or self._draining:
            return False
        paused_until = self._refusals.paused_until
        if paused_until == 0.0:
            return True
        if paused_until > self._clock.monotonic():
            self._look_at = min(self._look_at, paused_until)
            return False
        self._refusals.paused_until = 0.0
        return True

    async def _read(self, lane: Lane, rows_max: int, bytes_max: int) -> list[Row]:
        try:
            rows = await lane.queue.read_batch(rows_max, bytes_max)
        except StoreError as error:
            wait_s = self._reads.next_s()
            lane.delayed_until = self._clock.monotonic() + wait_s
            log.warning(
                "pump.read_failed", queue_id=lane.queue.id, error=str(error), retry_s=wait_s
            )
            return []
        self._reads.reset()
        self._progress.steps += 1
        return rows

    def _send(self, lane: Lane, rows: list[Row]) -> None:
        now_ms = self._now_ms()
        wire_bytes = self.endpoint.wire_bytes
        batch: list[Row] = []
        sizes: list[int] = []
        any_held = self._holds.count > 0
        for row in rows:
            if row.expires_ms <= now_ms:
                lane.expired.append(row)
                continue
            if row.attempts or any_held:
                # A row admitted here may start a trial, which holds the rows behind it.
                any_held = True
                if not self._admit(lane, row):
                    lane.put_back(row, now_ms, attempted=False)
                    continue
            batch.append(row)
            sizes.append(wire_bytes(row))
        if batch:
            now = self._clock.monotonic()
            flight = self._window.sent(now, len(batch), sum(sizes))
            self._choice.took(lane, now)
            in_flight = self._in_flight
            for row, size in zip(batch, sizes, strict=True):
                in_flight[row.offset] = (row, lane, size, flight)
            if self._poison.suspects:
                self._poison.sent(batch)
            self.endpoint.send_batch(batch, self._settle)
        lane.flush()

    def _admit(self, lane: Lane, row: Row) -> bool:
        if self._holds.holds_sender(lane, row.message.sender):
            return False
        if row.attempts and self._rules(row).order is Order.STRICT:
            self._holds.start_trial(lane, row)
        return True

    def _settle(self, row: Row, result: SendResult) -> None:
        self._results.append((row, result))
        self._wake.set()

    def _take_results(self) -> None:
        results = self._results
        if not results:
            return
        self._results = []
        now = self._clock.monotonic()
        now_ms = self._now_ms()
        failed = [item for item in results if item[1].kind is not None]
        if failed:
            self._take_failed(failed, now, now_ms)
        if len(failed) < len(results):
            self._take_delivered(results, now, now_ms)
        for lane in self._lanes:
            lane.flush()
        if failed and self._refusals.paused_until > now:
            self._note_waiting()
        self._settled.set()

    def _take_failed(self, failed: list[tuple[Row, SendResult]], now: float, now_ms: int) -> None:
        settled: list[tuple[Sent, SendResult]] = []
        for row, result in failed:
            # Rows that a drain gave back at its deadline are settled late; nobody waits for them.
            sent = self._in_flight.pop(row.offset, None)
            if sent is not None:
                self._window.lost(1, sent[2])
                settled.append((sent, result))
        self._refusals.take(settled, self._in_flight, now=now, now_ms=now_ms)

    def _take_delivered(
        self, results: list[tuple[Row, SendResult]], now: float, now_ms: int
    ) -> None:
        pop = self._in_flight.pop
        again = self._refusals.follow_again
        any_held = self._holds.count > 0
        count = size = 0
        latest: Flight | None = None
        for row, result in results:
            if result.kind is not None:
                continue
            sent = pop(row.offset, None)
            if sent is None:
                continue
            _, lane, row_size, flight = sent
            count += 1
            size += row_size
            flight.confirmed_bytes += row_size
            if latest is None or flight.number > latest.number:
                latest = flight
            if any_held:
                self._holds.end_trial(row.offset)
            if again and row.offset in again:
                again.discard(row.offset)
                lane.put_back(row, now_ms, attempted=False)
                continue
            lane.confirmed.append(row)
            lane.latency.add(now_ms - row.enqueued_ms)
        if latest is None:
            return
        self._window.delivered(now, count, size, latest)
        self._poison.delivered(results, count)
        self._refusals.worked()
        self._sent_bytes_total += size
        for lane in self._lanes:
            if lane.confirmed:
                self._sent_total += len(lane.confirmed)
                lane.throttle.reset()

    def _give_back_all(self) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        now_ms = self._now_ms()
        for row, lane, size, _ in in_flight.values():
            self._window.lost(1, size)
            self._holds.end_trial(row.offset)
            lane.put_back(row, now_ms, attempted=False)
        self._refusals.follow_again.clear()
        self._poison.give_back_all(now_ms)
        for lane in self._lanes:
            lane.flush()

    def _learn_queues(self) -> None:
        for queue in self._queues():
            if queue.id not in self._lane_of:
                lane = self._lane_of[queue.id] = Lane(queue, self._rng)
                self._lanes.append(lane)
        self._lanes.sort(key=lambda lane: lane.queue.priority)

    def _note_waiting(self) -> None:
        self._best_waiting = min(
            (lane.queue.priority for lane in self._lanes if lane.queue.has_ready()),
            default=math.inf,
        )

    def _hurry_for(self, priority: Priority) -> None:
        if priority < self._best_waiting:
            self._best_waiting = priority
            self.endpoint.retry_within(FRESH_ROW_RETRY_S)
            self._refusals.retry_within(self._clock.monotonic(), FRESH_ROW_RETRY_S)

    def _look_again_for(self, unsent: int, now: float) -> None:
        wait_s = self._window.wait_s(now, unsent)
        if wait_s is not None:
            self._look_at = min(self._look_at, now + max(wait_s, LOOK_AGAIN_MIN_S))

    def _start_timer(self) -> None:
        self._stop_timer()
        due = min(self._look_at, self._holds.next_end)
        if due < math.inf:
            self._timer = self._clock.call_later(
                max(0.0, due - self._clock.monotonic()), self._wake.set
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
