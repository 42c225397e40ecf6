"""The MQTT endpoint: rows as PUBLISHes with QoS 1 to a parent hub, Azure IoT Hub or any broker.

Owns the link, its back-off and what is in flight on the present connection. Invariants: a row is
settled exactly once; a PUBACK counts only on the connection that carried its PUBLISH; the pump's
window is the only bound on unsettled rows, so nothing is queued here for later.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.clock import Clock, Timer
from edgehub.endpoints.congestion import avoid_bbr_on_thin_path
from edgehub.endpoints.device_bound import DeviceBoundRelay
from edgehub.endpoints.link_state import LinkedEndpoint, LinkState
from edgehub.endpoints.mqtt_link import VersionChoice, connect, refusal
from edgehub.endpoints.mqtt_payload import SingleRows
from edgehub.endpoints.mqtt_topic import IotHubTopics
from edgehub.endpoints.renewal import Renewal
from edgehub.endpoints.subscription_guard import RETRY_S, SubscriptionGuard
from edgehub.message import DELIVERED, FailureKind, SendResult
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.packets import LEVEL_5, pack_uint16
from edgehub.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from edgehub.endpoints.device_bound import Accept
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.mqtt_link import LinkOptions
    from edgehub.endpoints.mqtt_payload import Payload, Payloads
    from edgehub.message import EndpointId, Row
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_packets import RefusedPublish

    Sent = tuple[Sequence[Row], Settle, int]
    """Rows of one PUBLISH, the callback for their results, bytes of its packet."""

ROWS_IN_FLIGHT_MAX: Final = 60_000
"""Packet ids end at 65 535."""

PATH_CHECK_S: Final = 5.0
"""Between two reads of what the kernel has measured."""

_CHECKS_PER_TIMEOUT: Final = 4

_NO_MESSAGE_AT_FAULT: Final = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.ADMINISTRATIVE_ACTION,
    }
)
"""DISCONNECTs of MQTT 5 for which no message is at fault."""

log = structlog.get_logger(__name__)


class MqttOptions(Struct, frozen=True, kw_only=True):
    """One MQTT endpoint.

    Attributes:
        link: The peer, and how to sign in.
        falls_back: Whether MQTT 3.1.1 follows where the peer refuses 5; see `VersionChoice`.
        payloads: What PUBLISHes carry, None = one row each, in the IoT Hub dialect.
        rows_max: Unconfirmed PUBLISHes that the peer allows, None = it sets no bound.
        row_bytes_max: Largest packet that the peer takes, None = not known.
        ack_timeout_s: After so long without a PUBACK or progress the link is closed.
        relays_own_only: Messages to the client of the link alone are relayed: the peer closes over
            a subscription to those of others.
    """

    link: LinkOptions
    falls_back: bool = False
    payloads: Payloads | None = None
    rows_max: int | None = None
    row_bytes_max: int | None = None
    ack_timeout_s: float = 30.0
    relays_own_only: bool = False


class Downlink(Protocol):
    """Handles messages of the peer."""

    async def run(self, connection: Client, guard: SubscriptionGuard) -> None:
        """Keep subscriptions as wanted while a connection lasts; raises `LinkError`."""

    def take(self, incoming: IncomingPublish) -> None:
        """Handle a message of that connection."""


class MqttEndpoint(LinkedEndpoint):
    """An endpoint that publishes to an MQTT server; implements `Endpoint`.

    Args:
        endpoint_id: Its name.
        options: See `MqttOptions`.
        clock: Timers.
        rng: Randomness for jitter.
        device_bound: Stores messages to devices, None = they are not subscribed to.
        clients: Builds what handles twins and methods before the relay, None = nothing does.
        downlink: Handles other messages of the peer, None = there are none.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        options: MqttOptions,
        *,
        clock: Clock,
        rng: random.Random,
        device_bound: Accept | None = None,
        clients: Callable[[DeviceBoundRelay | None], Downlink] | None = None,
        downlink: Downlink | None = None,
    ) -> None:
        self.id = endpoint_id
        self.row_bytes_max = options.row_bytes_max
        self._options = options
        self._payloads = options.payloads or SingleRows(IotHubTopics(), options.row_bytes_max)
        self._clock = clock
        self._version = VersionChoice(options.link.level, falls_back=options.falls_back)
        self._link = LinkState(endpoint_id, clock=clock, rng=rng)
        self._relay = None
        if device_bound is not None:
            only = options.link.client_id if options.relays_own_only else None
            self._relay = DeviceBoundRelay(endpoint_id, device_bound, only=only)
        self._downlink: Downlink | None = downlink or self._relay
        if clients is not None:
            self._downlink = clients(self._relay)
        self._guard = SubscriptionGuard(endpoint_id, clock)
        self._connection: Client | None = None
        # By packet id, in the order of sending.
        self._in_flight: dict[int, Sent] = {}
        self._receive_maximum = ROWS_IN_FLIGHT_MAX
        self._waiting: deque[tuple[Payload, Settle]] = deque()
        """PUBLISHes beyond what the peer takes without confirming; they leave with its PUBACKs."""
        self._progress_at = 0.0
        self._unsent_seen = 0
        self._confirmed_some = False
        self._path_checked_at = -math.inf
        self._oldest: Sent | None = None
        self._overtaken_at = math.inf
        self._watch = Timer(clock, self._check_progress)
        self._renewal = Renewal(
            options.link.shared_access,
            clock=clock,
            is_idle=lambda: not self._in_flight,
            end=self._renew,
        )

    @property
    def mqtt_version(self) -> str | None:
        """Return the version of MQTT in use, `3.1.1` or `5`; None = not connected."""
        connection = self._connection
        if connection is None:
            return None
        return "5" if connection.level == LEVEL_5 else "3.1.1"

    @property
    def left_out_filters(self) -> tuple[str, ...]:
        """Return suspended subscriptions, which the peer has answered by closing."""
        return self._guard.left_out

    @property
    def relays(self) -> bool:
        """Return whether device-bound messages are relayed."""
        return self._relay is not None

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes of each whole packet, topic and header included, or its share of one."""
        return self._payloads.wire_bytes(rows)

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""
        return 0 if self._connection is None else self._connection.unsent_bytes()

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        self._send(self._payloads.pack(rows, settle), settle)

    def _send(self, payloads: Iterable[Payload], settle: Settle) -> None:
        connection = self._connection
        assert connection is not None
        sent: list[bytes] = []
        in_flight = self._in_flight
        receive_maximum = 0 if self._renewal.is_due else self._receive_maximum
        was_idle = not in_flight
        for payload in payloads:
            if len(in_flight) >= receive_maximum:
                self._waiting.append((payload, settle))
                continue
            packed, start, rest, size = payload
            packet_id = connection.next_packet_id(in_flight)
            in_flight[packet_id] = (packed, settle, size)
            sent += (start, pack_uint16(packet_id), rest)
        if sent:
            if was_idle:
                self._watch_progress()
            connection.write(b"".join(sent))

    def _send_waiting(self) -> None:
        while (
            self._waiting
            and not self._renewal.is_due
            and len(self._in_flight) < self._receive_maximum
        ):
            payload, settle = self._waiting.popleft()
            self._send((payload,), settle)

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        try:
            while True:
                wait_s = await self._keep_link(listener)
                if wait_s is not None:
                    await self._link.wait(wait_s)
        finally:
            await self.close()

    def retry_now(self) -> None:
        """Stop a running connect back-off; suspended subscriptions are tried too."""
        self._guard.retry_now()
        self._version.forget()
        self._link.retry_now()

    async def close(self) -> None:
        """Settle rows in flight as disconnected; the connection itself ends with `run`."""
        self._end_connection("closed by this hub")
        self._link.closed()

    def subscribe_device(self, device_id: str) -> None:
        """Relay device-bound messages to a device that is connected and subscribed."""
        if self._relay is not None:
            self._relay.subscribe(device_id)

    def unsubscribe_device(self, device_id: str) -> None:
        """Stop relaying device-bound messages to a device."""
        if self._relay is not None:
            self._relay.unsubscribe(device_id)

    async def _keep_link(self, listener: EndpointListener) -> float | None:
        # Returns the seconds to wait before the next attempt, None = it follows at once.
        self._link.trying()
        self._guard.begins()
        try:
            async with connect(
                replace(self._options.link, level=self._version.level),
                clock=self._clock,
                on_confirmed=self._take_confirmed,
                on_refused=self._take_refused,
                on_messages=self._take_messages,
            ) as connection:
                self._version.connected()
                self._connection = connection
                connack = connection.connack
                self._receive_maximum = min(connack.receive_maximum, ROWS_IN_FLIGHT_MAX)
                self._payloads.use(connection.level, connack.packet_bytes_max)
                self._renewal.begin()
                reason = await self._use(connection, listener)
                renews = self._renewal.is_due
                wait_s = self._link_down(reason, listener, parked=False)
                return None if renews else wait_s
        except LinkError as error:
            if self._version.failed(error):
                log.info("mqtt.fell_back", endpoint_id=self.id, reason=error.reason)
                return None
            return self._link_down(error.reason, listener, parked=error.parked)
        finally:
            self._end_connection("closed by this hub")

    async def _use(self, connection: Client, listener: EndpointListener) -> str:
        is_probing = self._guard.is_probing
        if not is_probing:
            self._link_up(connection, listener)
        if self._downlink is None:
            connection.begin()
            return await connection.wait_closed()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    self._keep_downlink(self._downlink, connection), name=f"downlink[{self.id}]"
                )
            ]
            if is_probing:
                tasks.append(
                    group.create_task(
                        self._link_up_later(connection, listener), name=f"link_up[{self.id}]"
                    )
                )
            reason = await connection.wait_closed()
            for task in tasks:
                task.cancel()
        return reason

    def _renew(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort(reason)

    async def _link_up_later(self, connection: Client, listener: EndpointListener) -> None:
        # Rows in flight with a SUBSCRIBE would hide which of them the peer closes over.
        await self._guard.settled()
        self._link_up(connection, listener)

    async def _keep_downlink(self, downlink: Downlink, connection: Client) -> None:
        try:
            await downlink.run(connection, self._guard)
        except LinkError as error:
            connection.abort(error.reason)

    def _link_up(self, connection: Client, listener: EndpointListener) -> None:
        if self._connection is not connection:
            return
        self._path_checked_at = self._clock.monotonic()
        self._link.up()
        rows_max = self._options.rows_max or ROWS_IN_FLIGHT_MAX
        if self._payloads.rows_share_payloads:
            listener.link_up(rows_max=min(rows_max, ROWS_IN_FLIGHT_MAX))
        else:
            listener.link_up(rows_max=min(rows_max, self._receive_maximum))

    def _link_down(self, reason: str, listener: EndpointListener, *, parked: bool) -> float:
        self._end_connection(reason)
        wait_s = self._link.down(reason, listener, parked=parked)
        return min(wait_s, RETRY_S) if self._guard.blamed else wait_s

    def _end_connection(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        self._renewal.stop()
        self._watch.cancel()
        self._oldest = None
        if connection is not None:
            self._guard.ended(connection.unsent_at_close)
        in_flight, self._in_flight = self._in_flight, {}
        waiting, self._waiting = self._waiting, deque()
        whole = 0 if self._guard.blamed else _left_whole(in_flight, connection)
        if whole:
            self._payloads.closed()
        for count, (rows, settle, _) in enumerate(in_flight.values()):
            kind = FailureKind.CLOSED if count < whole else FailureKind.DISCONNECTED
            for row in rows:
                settle(row, SendResult(kind, reason))
        for (rows, *_), settle in waiting:
            for row in rows:
                settle(row, SendResult(FailureKind.DISCONNECTED, reason))

    def _take_confirmed(self, packet_ids: list[int]) -> None:
        pop = self._in_flight.pop
        known = False
        for packet_id in packet_ids:
            # Unknown ids belong to rows that were given up, or are made up; they prove nothing.
            entry = pop(packet_id, None)
            if entry is not None:
                known = True
                rows, settle, _ = entry
                for row in rows:
                    settle(row, DELIVERED)
        if known:
            self._payloads.confirmed()
            now = self._record_progress()
            self._link.worked()
            if now - self._path_checked_at >= PATH_CHECK_S and self._connection is not None:
                self._path_checked_at = now
                sock = self._connection.socket
                if sock is not None:
                    avoid_bbr_on_thin_path(sock)
            if self._waiting:
                self._send_waiting()

    def _take_refused(self, refused: list[RefusedPublish]) -> None:
        for each in refused:
            entry = self._in_flight.pop(each.packet_id, None)
            if entry is None:
                continue
            self._record_progress()
            self._settle_refused(each, *entry[:2])
        self._send_waiting()

    def _settle_refused(self, refused: RefusedPublish, rows: Sequence[Row], settle: Settle) -> None:
        result = refusal(refused)
        if len(rows) == 1 or result.kind is FailureKind.TRANSIENT:
            for row in rows:
                settle(row, result)
        elif any(row.message.sender in refused.senders for row in rows):
            # Of a batch a parent hub takes what is allowed, and names the senders of the rest.
            for row in rows:
                settle(row, result if row.message.sender in refused.senders else DELIVERED)
        else:
            # Sent singly, the row at fault is the one that is refused.
            for row in rows:
                self._send(self._payloads.pack((row,), settle), settle)

    def _record_progress(self) -> float:
        self._confirmed_some = True
        self._progress_at = now = self._clock.monotonic()
        return now

    def _take_messages(self, messages: list[IncomingPublish]) -> None:
        if self._downlink is not None:
            for incoming in messages:
                self._downlink.take(incoming)

    def _watch_progress(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._unsent_seen = self.unsent_bytes()
        self._overtaken_at = math.inf
        self._watch_later()

    def _watch_later(self) -> None:
        self._watch.start(self._options.ack_timeout_s / _CHECKS_PER_TIMEOUT)

    def _check_progress(self) -> None:
        # A half-open connection looks alive for a quarter of an hour; a slow one is alive as long
        # as bytes leave, even if one large message takes minutes.
        connection = self._connection
        if connection is None or not self._in_flight:
            return
        now = self._clock.monotonic()
        unsent = connection.unsent_bytes()
        if unsent < self._unsent_seen:
            self._progress_at = now
        self._unsent_seen = unsent
        self._record_overtaken(now)
        silent_s = now - min(self._progress_at, self._overtaken_at)
        if silent_s < self._options.ack_timeout_s:
            self._watch_later()
            return
        packet_id = next(iter(self._in_flight))
        rows, settle, _ = self._in_flight.pop(packet_id)
        reason = f"no acknowledgement for {silent_s:.0f} s"
        # The peer is silent as a whole; only the row it owes first counts as tried.
        settle(rows[0], SendResult(FailureKind.TIMEOUT, reason))
        for row in rows[1:]:
            settle(row, SendResult(FailureKind.DISCONNECTED, reason))
        connection.abort(reason)

    def _record_overtaken(self, now: float) -> None:
        # A row whose PUBACK is lost would stay in flight as long as younger ones are confirmed, and
        # neither be sent again nor expire. Their PUBACKs prove that it has left.
        oldest = next(iter(self._in_flight.values()))
        if oldest is not self._oldest:
            self._oldest = oldest
            self._overtaken_at = math.inf
        elif self._confirmed_some:
            self._overtaken_at = min(self._overtaken_at, now)
        self._confirmed_some = False


def _left_whole(in_flight: Mapping[int, Sent], connection: Client | None) -> int:
    """Count the PUBLISHes, oldest first, that had left whole at the peer's close; 0 = none did."""
    unsent = None if connection is None else connection.unsent_at_close
    if unsent is None or connection is None or connection.close_code in _NO_MESSAGE_AT_FAULT:
        return 0
    whole = len(in_flight)
    for _, _, size in reversed(list(in_flight.values())):
        if unsent <= 0:
            break
        unsent -= size
        whole -= 1
    return whole
