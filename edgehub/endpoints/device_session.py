"""One device's own upstream session, under the device's id.

Owns the connection and what is in flight on it. Invariants: a row is settled exactly once; when the
connection ends, for whatever reason, its rows are settled as `unreachable` and its end is reported
once; it never reconnects by itself, so a session that another hub has taken over stays there; the
peer never gets more unconfirmed rows, or a larger packet, than it has announced to take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from edgehub.clock import Clock, Timer
from edgehub.endpoints.mqtt_link import (
    LinkOptions,
    VersionChoice,
    open_client,
    refusal,
)
from edgehub.endpoints.mqtt_payload import NO_PROPERTIES, too_large
from edgehub.endpoints.renewal import Renewal
from edgehub.errors import EdgeHubError
from edgehub.message import DELIVERED, FailureKind, SendResult
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.packets import LEVEL_5, publish, publish_bytes
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode, code_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.endpoint import Settle
    from edgehub.endpoints.mqtt_payload import RowProperties
    from edgehub.message import Row
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_packets import RefusedPublish

SESSION_EXPIRY_S: Final = 86_400
"""MQTT 5: how long the peer keeps a device's subscription and messages while it is away."""

INCOMING_BYTES_MAX: Final = 2**20
"""A device-bound message has 256 KiB at most, and no twin is longer."""

LASTED_S: Final = 30.0
"""Peers such as Azure IoT Hub close a session for reasons of their own once in a while. One that
was taken over, and is opened again, ends much sooner."""

_CHECKS_PER_TIMEOUT: Final = 4
_DEVICE: Final = "{device}"


class SessionError(EdgeHubError):
    """The session cannot be opened now; the text says why."""


class SessionEnd(StrEnum):
    """How a session ended."""

    CLOSED = "closed"  # by this hub
    TAKEN_OVER = "taken_over"  # another client signed in as this device, the peer says
    DROPPED = "dropped"  # the peer closed it without a reason, as for a take-over in MQTT 3.1.1
    DROPPED_LATE = "dropped_late"  # the same, and the session had lasted
    LOST = "lost"  # the peer is unreachable, or silent


class SessionOptions(LinkOptions, frozen=True, kw_only=True):
    """The peer of the devices' sessions, and how they sign in.

    `{device}` in the user name and in paths of files stands for the device's id, which is the
    client id.

    Attributes:
        falls_back: Whether 3.1.1 follows where the peer refuses 5; see `VersionChoice`.
        ack_timeout_s: After so long without a confirmation the session is closed.
        properties: Those of MQTT 5 that rows are published with, None = none.
        takes_modules: Whether the peer takes messages of modules over sessions of their devices.
    """

    client_id: str = ""
    level: int = LEVEL_5
    file_setting: str = "device_password_file"
    session_expiry_s: int = SESSION_EXPIRY_S
    incoming_bytes_max: int = INCOMING_BYTES_MAX
    falls_back: bool = False
    ack_timeout_s: float = 60.0
    properties: RowProperties | None = None
    takes_modules: bool = True

    def of(self, device_id: str) -> SessionOptions:
        """Return those of one device."""

        def path(template: Path | None) -> Path | None:
            return None if template is None else Path(str(template).replace(_DEVICE, device_id))

        access, tls = self.shared_access, self.tls
        if access is not None:
            access = replace(access, file=Path(str(access.file).replace(_DEVICE, device_id)))
        if tls is not None:
            tls = replace(
                tls, certificate_file=path(tls.certificate_file), key_file=path(tls.key_file)
            )
        return replace(
            self,
            client_id=device_id,
            username=self.username and self.username.replace(_DEVICE, device_id),
            password_file=path(self.password_file),
            shared_access=access,
            tls=tls,
        )


class DeviceSession:
    """The session of one device.

    Args:
        device_id: Client id.
        options: See `SessionOptions`.
        clock: Timers.
        ended: Called with how it ended, once for each time it was open.
        message: Called with messages to the device; `acknowledge` confirms them.
        version: What is known of the peer's versions, shared by its sessions; None = nothing yet.
    """

    def __init__(
        self,
        device_id: str,
        options: SessionOptions,
        *,
        clock: Clock,
        ended: Callable[[str, SessionEnd, str], None],
        message: Callable[[str, IncomingPublish], None] | None = None,
        version: VersionChoice | None = None,
    ) -> None:
        self.device_id = device_id
        self._options = options.of(device_id)
        self._clock = clock
        self._ended = ended
        self._message = message
        self._version = version or VersionChoice(options.level, falls_back=options.falls_back)
        self._client: Client | None = None
        self._is_opening = False
        self._end: tuple[SessionEnd, str] | None = None
        self._in_flight: dict[int, tuple[Row, Settle, int]] = {}
        self._waiting: deque[tuple[Row, Settle, bytes, bytes, int]] = deque()
        """Rows beyond what the peer takes without confirming; they leave with its PUBACKs."""
        self._waiting_bytes = 0
        self._request_bytes_max = 0
        """Largest packet of QoS 0 on this connection."""
        self._listening: dict[tuple[str, ...], asyncio.Future[bytes]] = {}
        self._progress_s = self._opened_s = 0.0
        self._timer = Timer(clock, self._check_progress)
        self._renewal = Renewal(
            self._options.shared_access,
            clock=clock,
            is_idle=lambda: not self._in_flight,
            end=lambda reason: self._abort(SessionEnd.LOST, reason),
        )

    @property
    def is_open(self) -> bool:
        """Return whether rows can be sent."""
        return self._client is not None and self._client.is_open

    @property
    def is_idle(self) -> bool:
        """Return whether it is closed, and neither being opened nor closed."""
        return self._client is None and not self._is_opening

    @property
    def in_flight(self) -> int:
        """Return the number of unconfirmed rows, those that have not left included."""
        return len(self._in_flight) + len(self._waiting)

    async def open(self) -> None:
        """Connect and sign in; when cancelled or failed it is closed.

        Raises:
            SessionError: It cannot be opened.
        """
        if self._client is not None:
            await self._client.wait_closed()
        self._is_opening = True
        self._end = None
        try:
            client = self._client = await self._connected()
        finally:
            self._is_opening = False
        self._request_bytes_max = 0
        self._opened_s = self._clock.monotonic()
        self._renewal.begin()
        client.begin()

    async def _connected(self) -> Client:
        while True:
            try:
                client = await open_client(
                    replace(self._options, level=self._version.level),
                    clock=self._clock,
                    on_confirmed=self._take_confirmed,
                    on_refused=self._take_refused,
                    on_messages=self._take_messages,
                    on_closed=self._take_end,
                )
            except LinkError as error:
                if not self._version.failed(error):
                    raise SessionError(error.reason) from error
            else:
                self._version.connected()
                return client

    async def close(self) -> None:
        """Send DISCONNECT and close; rows in flight are settled as `unreachable`."""
        client = self._client
        if client is not None:
            self._end = self._end or (SessionEnd.CLOSED, "closed by this hub")
            await client.close()

    def abort(self, reason: str) -> None:
        """Close it at once: the link as a whole is down."""
        self._abort(SessionEnd.CLOSED, reason)

    def send(self, row: Row, topic: bytes, settle: Settle) -> None:
        """Publish a row; `settle` is called once, at once if the peer cannot take it."""
        properties = self._properties(row)
        if isinstance(properties, SendResult):
            settle(row, properties)
            return
        size = publish_bytes(len(topic), len(row.message.body), len(properties))
        limit = self._open_client().connack.packet_bytes_max
        if limit is not None and size > limit:
            settle(row, too_large("packet", size, limit))
            return
        self._waiting.append((row, settle, topic, properties, size))
        self._waiting_bytes += size
        self._send_waiting()

    def subscribe(self, topic_filter: str) -> asyncio.Future[bytes]:
        """Subscribe to messages to the device; returns a future of the peer's answer."""
        return self._open_client().request_subscribe([(topic_filter, 1)])

    async def listen(self, *topic_filters: str) -> None:
        """Subscribe with QoS 0, once per connection, and wait until the peer has granted it.

        Raises:
            SessionError: The peer refuses it, or the session is not open any more.
        """
        if not self.is_open:
            raise SessionError("the session is not open")
        granted = self._listening.get(topic_filters)
        if granted is None:
            granted = self._open_client().request_subscribe([(each, 0) for each in topic_filters])
            self._listening[topic_filters] = granted
        try:
            codes = await asyncio.shield(granted)
        except LinkError as error:
            raise SessionError(f"the session ended: {error.reason}") from error
        if not codes or max(codes) >= FIRST_FAILURE:
            raise SessionError(f"the peer refuses a subscription to {' or '.join(topic_filters)}")

    def publish(self, topic: bytes, body: bytes) -> None:
        """Publish with QoS 0: a request that is answered need not be confirmed.

        Raises:
            SessionError: The peer has said that it does not take so large a packet.
        """
        client = self._open_client()
        none = NO_PROPERTIES if client.level >= LEVEL_5 else b""
        packet = publish(topic, body, 0, qos=0, properties=none)
        limit = client.connack.packet_bytes_max
        if limit is not None and len(packet) > limit:
            raise SessionError(f"packet of {len(packet)} bytes, the peer takes {limit}")
        self._request_bytes_max = max(self._request_bytes_max, len(packet))
        client.write(packet)

    def acknowledge(self, message: IncomingPublish) -> None:
        """Confirm a message to the device; nothing once its connection has ended."""
        if self._client is not None:
            self._client.acknowledge(message)

    def acknowledgement(self, message: IncomingPublish) -> Callable[[], None]:
        """Return what confirms a message later; it does nothing once its connection has ended."""
        client = self._client

        def acknowledge() -> None:
            if client is not None and client is self._client:
                client.acknowledge(message)

        return acknowledge

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine."""
        if self._client is None:
            return 0
        return self._waiting_bytes + self._client.unsent_bytes()

    def _properties(self, row: Row) -> bytes | SendResult:
        if self._open_client().level < LEVEL_5:
            return b""
        properties = self._options.properties
        return NO_PROPERTIES if properties is None else properties.writer()(row)

    def _open_client(self) -> Client:
        assert self._client is not None
        return self._client

    def _take_messages(self, messages: list[IncomingPublish]) -> None:
        for message in messages:
            if self._message is not None:
                self._message(self.device_id, message)
            else:
                self.acknowledge(message)

    def _take_confirmed(self, packet_ids: list[int]) -> None:
        for packet_id in packet_ids:
            self._settle(packet_id, DELIVERED)

    def _take_refused(self, refused: list[RefusedPublish]) -> None:
        for each in refused:
            self._settle(each.packet_id, refusal(each))

    def _settle(self, packet_id: int, result: SendResult) -> None:
        entry = self._in_flight.pop(packet_id, None)
        if entry is None:
            return
        self._progress_s = self._clock.monotonic()
        row, settle, _ = entry
        self._send_waiting()
        settle(row, result)

    def _send_waiting(self) -> None:
        client = self._open_client()
        if self._renewal.is_due:
            return
        while self._waiting and len(self._in_flight) < client.connack.receive_maximum:
            row, settle, topic, properties, size = self._waiting.popleft()
            self._waiting_bytes -= size
            packet_id = client.next_packet_id(self._in_flight)
            if not self._in_flight:
                self._progress_s = self._clock.monotonic()
                self._watch()
            self._in_flight[packet_id] = (row, settle, size)
            client.write(publish(topic, row.message.body, packet_id, properties=properties))

    def _take_end(self, reason: str) -> None:
        client, self._client = self._open_client(), None
        self._renewal.stop()
        self._timer.cancel()
        end, reason = self._end or (self._end_of(client), reason)
        if client.close_code == ReasonCode.PACKET_TOO_LARGE:
            self._settle_largest()
        rest = [(row, settle) for row, settle, _ in self._in_flight.values()]
        rest += [(row, settle) for row, settle, *_ in self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        for row, settle in rest:
            settle(row, SendResult(FailureKind.UNREACHABLE, reason))
        self._listening.clear()
        self._ended(self.device_id, end, reason)

    def _end_of(self, client: Client) -> SessionEnd:
        # MQTT 3.1.1 has no reason code for a take-over, and some brokers send none in MQTT 5
        # either.
        if client.close_code is None and client.unsent_at_close is not None:
            has_lasted = self._clock.monotonic() - self._opened_s >= LASTED_S
            return SessionEnd.DROPPED_LATE if has_lasted else SessionEnd.DROPPED
        taken_over = client.close_code == ReasonCode.SESSION_TAKEN_OVER
        return SessionEnd.TAKEN_OVER if taken_over else SessionEnd.LOST

    def _settle_largest(self) -> None:
        # If any of them is too large for the peer, the largest one is; it would end each session.
        if not self._in_flight:
            return
        packet_id = max(self._in_flight, key=lambda each: self._in_flight[each][2])
        row, settle, size = self._in_flight[packet_id]
        if size <= self._request_bytes_max:
            return  # it may have been a request
        del self._in_flight[packet_id]
        text = f"packet of {size} bytes, refused: {code_name(ReasonCode.PACKET_TOO_LARGE)}"
        settle(row, SendResult(FailureKind.TOO_LARGE, text))

    def _watch(self) -> None:
        self._timer.start(self._options.ack_timeout_s / _CHECKS_PER_TIMEOUT)

    def _check_progress(self) -> None:
        if not self._in_flight:
            return
        unconfirmed_s = self._clock.monotonic() - self._progress_s
        if unconfirmed_s >= self._options.ack_timeout_s:
            self._abort(SessionEnd.LOST, f"no acknowledgement for {unconfirmed_s:.0f} s")
        else:
            self._watch()

    def _abort(self, end: SessionEnd, reason: str) -> None:
        # `_take_end` follows a turn of the loop later; until then it counts as closed.
        if self._client is not None:
            self._end = self._end or (end, reason)
            self._client.abort(reason)
