"""The MQTT endpoint: rows as PUBLISHes with QoS 1 to a parent hub, Azure IoT Hub or any broker.

Owns the link, its back-off and what is in flight on the present connection. Invariants: a row is
settled exactly once; a PUBACK counts only on the connection that carried its PUBLISH; the pump's
window is the only bound on what is handed over, so nothing is queued here for later.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.endpoints.aiomqtt_bridge import LinkError, connect
from edgehub.endpoints.backoff import Backoff, RetryWait
from edgehub.endpoints.device_bound import DeviceBoundRelay
from edgehub.endpoints.mqtt_packet import build_publish, publish_bytes
from edgehub.endpoints.mqtt_topic import TOPIC_BYTES_MAX, IotHubTopics, TopicError
from edgehub.message import DELIVERED, FailureKind, SendResult

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock, TimerHandle
    from edgehub.endpoints.aiomqtt_bridge import Connection, Incoming, LinkOptions
    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.mqtt_topic import Topics
    from edgehub.message import EndpointId, Row

ROWS_IN_FLIGHT_MAX: Final = 60_000
"""Packet ids end at 65 535."""

PARKED_RETRY_S: Final = 60.0

# A peer that lets us in and closes soon after must not be asked once a second for ever.
STABLE_S: Final = 30.0

_CHECKS_PER_TIMEOUT: Final = 4
_MEMO_MAX: Final = 8192

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """One MQTT endpoint.

    Attributes:
        link: Whom to connect to.
        topics: How rows are named, None = the IoT Hub dialect.
        rows_max: Unconfirmed PUBLISHes that the peer allows, None = it sets no bound.
        row_bytes_max: Largest packet that the peer takes, None = not known.
        ack_timeout_s: A peer that neither confirms nor takes bytes for so long is given up.
    """

    link: LinkOptions
    topics: Topics | None = None
    rows_max: int | None = None
    row_bytes_max: int | None = None
    ack_timeout_s: float = 30.0


class MqttEndpoint:
    """See the module; implements `Endpoint`.

    Args:
        endpoint_id: Its name.
        options: See `MqttOptions`.
        clock: Timers.
        rng: Randomness for jitter.
        device_bound: Delivers device-bound messages to connected devices, None = no relay.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        options: MqttOptions,
        *,
        clock: Clock,
        rng: random.Random,
        device_bound: Deliver | None = None,
    ) -> None:
        self.id = endpoint_id
        self._options = options
        self._topics = options.topics or IotHubTopics()
        self._clock = clock
        self._backoff = Backoff(rng)
        self._retry = RetryWait(clock)
        self._relay = None if device_bound is None else DeviceBoundRelay(endpoint_id, device_bound)
        self._state = "connecting"
        self._up_at: float | None = None
        self._told = ""
        self._connection: Connection | None = None
        self._in_flight: dict[int, tuple[Row, Settle, int]] = {}
        """By packet id, in the order of sending: the row, who hears of it, bytes of its packet."""
        self._memo: dict[int, bytes | SendResult] = {}
        self._progress_at = 0.0
        self._unsent_seen = 0
        self._confirmed_some = False
        self._oldest: tuple[Row, Settle, int] | None = None
        self._overtaken_at = math.inf
        self._watch: TimerHandle | None = None

    @property
    def state(self) -> str:
        """See `Endpoint`; `connecting` until the first connection."""
        return self._state

    @property
    def retry_in_s(self) -> float | None:
        """See `Endpoint`."""
        return self._retry.remaining_s

    @property
    def row_bytes_max(self) -> int | None:
        """See `Endpoint`."""
        return self._options.row_bytes_max

    @property
    def relays(self) -> bool:
        """Whether device-bound messages come this way."""
        return self._relay is not None

    def wire_bytes(self, row: Row) -> int:
        """See `Endpoint`; the whole packet, topic and header included."""
        topic = self._topic(row)
        if isinstance(topic, SendResult):
            return row.size
        if len(self._memo) >= _MEMO_MAX:
            self._memo.clear()
        # Sending follows at once, and building the topic is the dearest part of it.
        self._memo[row.offset] = topic
        return publish_bytes(len(topic), len(row.message.body))

    def unsent_bytes(self) -> int:
        """See `Endpoint`."""
        return 0 if self._connection is None else self._connection.unsent_bytes()

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `Endpoint`."""
        connection = self._connection
        assert connection is not None
        packets: list[bytes] = []
        in_flight = self._in_flight
        was_idle = not in_flight
        row_bytes_max = self._options.row_bytes_max
        for row in rows:
            topic = self._memo.pop(row.offset, None) or self._topic(row)
            if isinstance(topic, SendResult):
                settle(row, topic)
                continue
            mid = connection.next_mid()
            while mid in in_flight:
                mid = connection.next_mid()
            packet = build_publish(topic, mid, row.message.body)
            if row_bytes_max is not None and len(packet) > row_bytes_max:
                settle(row, _too_large("packet", len(packet), row_bytes_max))
                continue
            in_flight[mid] = (row, settle, len(packet))
            packets.append(packet)
        if packets:
            if was_idle:
                self._watch_progress()
            connection.write(b"".join(packets))

    async def run(self, listener: EndpointListener) -> None:
        """See `Endpoint`."""
        try:
            while True:
                wait_s = await self._keep_link(listener)
                await self._retry.wait(wait_s, patient=self._state == "parked")
        finally:
            await self.close()

    def retry_now(self) -> None:
        """See `Endpoint`."""
        if self._state != "up":
            self._retry.end()

    def retry_within(self, seconds: float) -> None:
        """See `Endpoint`."""
        if self._state != "up":
            self._retry.cut(seconds)

    async def close(self) -> None:
        """See `Endpoint`; the connection itself ends with `run`."""
        self._end_connection("closed by this hub")
        self._state = "down"

    def subscribe_device(self, device_id: str) -> None:
        """Take device-bound messages of a device that is connected and wants them."""
        if self._relay is not None:
            self._relay.subscribe(device_id)

    def unsubscribe_device(self, device_id: str) -> None:
        """Take no more device-bound messages of a device."""
        if self._relay is not None:
            self._relay.unsubscribe(device_id)

    async def _keep_link(self, listener: EndpointListener) -> float:
        # Gives the seconds to wait before the next try.
        self._state = "connecting"
        try:
            async with connect(
                self._options.link, on_pubacks=self._take_pubacks, on_message=self._take_message
            ) as connection:
                self._link_up(connection, listener)
                return self._link_down(await self._use(connection), listener, parked=False)
        except LinkError as error:
            return self._link_down(error.reason, listener, parked=error.parked)
        finally:
            self._end_connection("closed by this hub")

    async def _use(self, connection: Connection) -> str:
        if self._relay is None:
            return await connection.wait_closed()
        async with asyncio.TaskGroup() as group:
            relay = group.create_task(
                self._keep_relay(self._relay, connection), name=f"device-bound[{self.id}]"
            )
            reason = await connection.wait_closed()
            relay.cancel()
        return reason

    async def _keep_relay(self, relay: DeviceBoundRelay, connection: Connection) -> None:
        try:
            await relay.run(connection)
        except LinkError as error:
            connection.abort(error.reason)

    def _link_up(self, connection: Connection, listener: EndpointListener) -> None:
        self._connection = connection
        self._state = "up"
        self._up_at = self._clock.monotonic()
        self._told = ""
        self._retry.forget()
        log.info("endpoint.link_up", endpoint_id=self.id)
        rows_max = self._options.rows_max
        listener.link_up(
            rows_max=ROWS_IN_FLIGHT_MAX if rows_max is None else min(rows_max, ROWS_IN_FLIGHT_MAX)
        )

    def _link_down(self, reason: str, listener: EndpointListener, *, parked: bool) -> float:
        up_at = None if self._connection is None else self._up_at
        self._end_connection(reason)
        if up_at is not None and self._clock.monotonic() - up_at >= STABLE_S:
            self._backoff.reset()
        wait_s = PARKED_RETRY_S if parked else self._backoff.next_s()
        if parked:
            self._state = "parked"
        else:
            self._state = "connecting" if self._up_at is None else "down"
        if reason != self._told:
            # One line for each state of affairs, not for each try.
            self._told = reason
            log.warning(
                "endpoint.link_down", endpoint_id=self.id, reason=reason, retry_s=round(wait_s, 1)
            )
        listener.link_down(reason, parked=parked)
        return wait_s

    def _end_connection(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._oldest = None
        in_flight, self._in_flight = self._in_flight, {}
        whole = _left_whole(in_flight, connection)
        for count, (row, settle, _) in enumerate(in_flight.values()):
            kind = FailureKind.CLOSED if count < whole else FailureKind.DISCONNECTED
            settle(row, SendResult(kind, reason))

    def _take_pubacks(self, mids: list[int]) -> None:
        pop = self._in_flight.pop
        known = False
        for mid in mids:
            # Unknown ids are answers to rows that were given up, or made up; they prove nothing.
            entry = pop(mid, None)
            if entry is not None:
                known = True
                entry[1](entry[0], DELIVERED)
        if known:
            self._confirmed_some = True
            self._progress_at = self._clock.monotonic()
            self._backoff.reset()

    def _take_message(self, incoming: Incoming) -> None:
        if self._relay is not None:
            self._relay.take(incoming)

    def _topic(self, row: Row) -> bytes | SendResult:
        try:
            topic = self._topics.topic(row)
        except TopicError as error:
            return SendResult(FailureKind.REJECTED, str(error))
        if len(topic) > TOPIC_BYTES_MAX:
            return _too_large("topic", len(topic), TOPIC_BYTES_MAX)
        return topic

    def _watch_progress(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._unsent_seen = self.unsent_bytes()
        self._overtaken_at = math.inf
        if self._watch is None:
            self._watch_later()

    def _watch_later(self) -> None:
        self._watch = self._clock.call_later(
            self._options.ack_timeout_s / _CHECKS_PER_TIMEOUT, self._check_progress
        )

    def _check_progress(self) -> None:
        # A half-open connection looks alive for a quarter of an hour; a slow one is alive as long
        # as bytes leave, even if one large message takes minutes.
        self._watch = None
        connection = self._connection
        if connection is None or not self._in_flight:
            return
        now = self._clock.monotonic()
        unsent = connection.unsent_bytes()
        if unsent < self._unsent_seen:
            self._progress_at = now
        self._unsent_seen = unsent
        self._note_overtaken(now)
        silent_s = now - min(self._progress_at, self._overtaken_at)
        if silent_s < self._options.ack_timeout_s:
            self._watch_later()
            return
        mid = next(iter(self._in_flight))
        row, settle, _ = self._in_flight.pop(mid)
        reason = f"no acknowledgement for {silent_s:.0f} s"
        # The peer is silent as a whole; only the row it owes first counts as tried.
        settle(row, SendResult(FailureKind.TIMEOUT, reason))
        connection.abort(reason)

    def _note_overtaken(self, now: float) -> None:
        # A row whose confirmation got lost would stay in flight as long as younger ones are
        # confirmed, and neither come again nor expire. That they are proves that it has left.
        oldest = next(iter(self._in_flight.values()))
        if oldest is not self._oldest:
            self._oldest = oldest
            self._overtaken_at = math.inf
        elif self._confirmed_some:
            self._overtaken_at = min(self._overtaken_at, now)
        self._confirmed_some = False


def _left_whole(
    in_flight: Mapping[int, tuple[Row, Settle, int]], connection: Connection | None
) -> int:
    """Count the rows, oldest first, that had left whole when the peer closed; 0 = it did not."""
    unsent = None if connection is None else connection.unsent_at_close
    if unsent is None:
        return 0
    whole = len(in_flight)
    for _, _, size in reversed(list(in_flight.values())):
        if unsent <= 0:
            break
        unsent -= size
        whole -= 1
    return whole


def _too_large(what: str, size: int, limit: int) -> SendResult:
    return SendResult(FailureKind.TOO_LARGE, f"{what} of {size} bytes, the peer takes {limit}")
