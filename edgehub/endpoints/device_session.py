"""One device's own upstream session, under the device's id.

Owns the connection and what is in flight on it. Invariants: a row is settled exactly once; when the
connection ends, by whatever way, its rows are settled as `away` and its end is told once; it never
connects again by itself, so a session that another hub has taken over stays there; the peer never
gets more unconfirmed rows, or a larger packet, than it said that it takes.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import structlog

from edgehub.endpoints.device_packets import (
    DISCONNECT,
    MID_MAX,
    PINGREQ,
    SESSION_TAKEN_OVER,
    Connack,
    Disconnect,
    PacketError,
    PacketParser,
    Puback,
    Publish,
    Suback,
    build_connect,
    build_message,
    build_puback,
    build_publish,
    build_subscribe,
    publish_properties,
)
from edgehub.endpoints.mqtt_channel import SIOCOUTQNSD
from edgehub.errors import ConfigError, EdgeHubError
from edgehub.message import DELIVERED, FailureKind, SendResult
from edgehub.mqtt.packets import publish_bytes
from edgehub.mqtt.tcp import connect_tcp
from edgehub.storage.credentials import client_context, read_secret

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.endpoints.endpoint import Settle
    from edgehub.message import Row
    from edgehub.storage.credentials import TlsOptions

CLOSE_TIMEOUT_S: Final = 1.0
_REFUSED: Final = 0x80
_NOT_AUTHORIZED: Final = 0x87
_TOO_LARGE: Final = 0x95
_QUOTA: Final = 0x97

log = structlog.get_logger(__name__)


class SessionError(EdgeHubError):
    """The session cannot be opened now; the text says why."""


class End(StrEnum):
    """How a session ended."""

    CLOSED = "closed"  # by this hub
    TAKEN_OVER = "taken_over"  # somebody else signed in as this device, says the peer
    DROPPED = "dropped"  # the peer closed it without a word, as for a take-over in MQTT 3.1.1
    LOST = "lost"  # the peer went away, or is silent


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Whom devices connect to.

    Attributes:
        host: Name or address.
        port: TCP port.
        version: 4 = MQTT 3.1.1, 5 = MQTT 5.
        username: Template of the user name, `{device}` is the device's id; None = none.
        password_file: Template of a file's path; its first line is the password. None = none.
        tls: None = plain TCP.
        keep_alive_s: A silent peer is noticed after twice this time.
        connect_timeout_s: For all of the opening.
        ack_timeout_s: A peer that confirms nothing for so long is given up.
        origin: Hub that messages name as the one that publishes them, None = not; MQTT 5 only.
    """

    host: str
    port: int
    version: int = 5
    username: str | None = None
    password_file: str | None = None
    tls: TlsOptions | None = None
    keep_alive_s: int = 60
    connect_timeout_s: float = 10.0
    ack_timeout_s: float = 60.0
    origin: str | None = None


class DeviceSession(asyncio.Protocol):
    """See the module.

    Args:
        device_id: Client id.
        options: See `SessionOptions`.
        clock: Timers.
        ended: Told how it ended, once for each time it was open.
        message: Gets messages to the device; its acknowledgement is `acknowledge`.
    """

    def __init__(
        self,
        device_id: str,
        options: SessionOptions,
        *,
        clock: Clock,
        ended: Callable[[str, End, str], None],
        message: Callable[[str, Publish], None] | None = None,
    ) -> None:
        self.device_id = device_id
        self._options = options
        self._clock = clock
        self._ended = ended
        self._message = message
        self._properties = publish_properties(version=options.version, origin=options.origin)
        self._transport: asyncio.Transport | None = None
        self._parser = PacketParser(version=options.version)
        self._answer: asyncio.Future[Connack] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._is_open = False
        self._end: tuple[End, str] | None = None
        self._welcome = Connack(code=0)
        self._in_flight: dict[int, tuple[Row, Settle, int]] = {}
        self._waiting: deque[tuple[Row, Settle, bytes, int]] = deque()
        """Rows beyond what the peer takes without confirming; they leave with its PUBACKs."""
        self._waiting_bytes = 0
        self._question_bytes_max = 0
        """Largest packet of QoS 0 on this connection."""
        self._listening: dict[str, asyncio.Future[int]] = {}
        self._subscribing: dict[int, asyncio.Future[int]] = {}
        self._mid = 0
        self._heard_s = 0.0
        self._progress_s = 0.0
        self._timer: TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether rows can be handed over."""
        transport = self._transport
        return self._is_open and transport is not None and not transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Tell whether it is closed, and neither being opened nor closed."""
        return self._transport is None and (self._gone is None or self._gone.done())

    @property
    def in_flight(self) -> int:
        """Give the number of unconfirmed rows, those that have not left included."""
        return len(self._in_flight) + len(self._waiting)

    async def open(self) -> None:
        """Connect and sign in; when cancelled or failed it is closed.

        Raises:
            SessionError: It cannot be opened.
        """
        loop = asyncio.get_running_loop()
        if self._gone is not None:
            await asyncio.shield(self._gone)  # the end of the one before
        options = self._options
        self._parser = PacketParser(version=options.version)
        self._answer, self._gone, self._end = loop.create_future(), loop.create_future(), None
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                password = await self._password()
                context = None
                if options.tls is not None:
                    context = await asyncio.to_thread(client_context, options.tls)
                await loop.create_connection(
                    lambda: self,
                    sock=await connect_tcp(options.host, options.port),
                    ssl=context,
                    server_hostname=None if context is None else options.host,
                )
                self._write(self._connect_packet(password))
                self._welcome = await self._answer
                self._question_bytes_max = 0
        except (OSError, ConfigError) as exc:
            self._abort()
            text = "no answer in time" if isinstance(exc, TimeoutError) else str(exc)
            raise SessionError(text or type(exc).__name__) from exc
        except BaseException:
            self._abort()
            raise
        if self._welcome.code:
            self._abort()
            raise SessionError(f"refused with code {self._welcome.code}")
        self._is_open = True
        self._heard_s = self._progress_s = self._clock.monotonic()
        self._watch()

    async def close(self) -> None:
        """Say goodbye and close; rows in flight are settled as `away`."""
        transport, gone = self._transport, self._gone
        if transport is None:
            return
        self._end = self._end or (End.CLOSED, "closed by this hub")
        transport.write(DISCONNECT)
        transport.close()
        assert gone is not None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(gone)
        except TimeoutError:
            self._abort()

    def abort(self, reason: str) -> None:
        """End it at once: the link as a whole is gone."""
        self._end = self._end or (End.CLOSED, reason)
        self._abort()

    def send(self, row: Row, topic: bytes, settle: Settle) -> None:
        """Publish a row; `settle` is called once, at once if the peer cannot take it."""
        size = publish_bytes(len(topic), len(row.message.body) + len(self._properties))
        limit = self._welcome.packet_bytes_max
        if limit is not None and size > limit:
            text = f"packet of {size} bytes, the peer takes {limit}"
            settle(row, SendResult(FailureKind.TOO_LARGE, text))
            return
        self._waiting.append((row, settle, topic, size))
        self._waiting_bytes += size
        self._send_waiting()

    def subscribe(self, topic_filter: str) -> asyncio.Future[int]:
        """Subscribe to messages to the device; returns a future of the peer's reason code."""
        mid = self._next_mid()
        answer = self._subscribing[mid] = asyncio.get_running_loop().create_future()
        self._write(build_subscribe(topic_filter, mid, version=self._options.version))
        return answer

    async def listen(self, topic_filter: str) -> None:
        """Have a subscription of QoS 0 that the peer has granted; one is enough for an opening.

        Raises:
            SessionError: The peer refuses it, or the session is not open any more.
        """
        if not self.is_open:
            raise SessionError("the session is not open")
        granted = self._listening.get(topic_filter)
        if granted is None:
            granted = asyncio.get_running_loop().create_future()
            mid = self._next_mid()
            self._listening[topic_filter] = self._subscribing[mid] = granted
            version = self._options.version
            self._write(build_subscribe(topic_filter, mid, version=version, qos=0))
        if await asyncio.shield(granted) >= _REFUSED:
            raise SessionError(f"the peer refuses a subscription to {topic_filter}")

    def publish(self, topic: bytes, body: bytes) -> None:
        """Publish with QoS 0: what is answered need not be confirmed.

        Raises:
            SessionError: The peer has said that it does not take so large a packet.
        """
        packet = build_message(topic, body, version=self._options.version)
        limit = self._welcome.packet_bytes_max
        if limit is not None and len(packet) > limit:
            raise SessionError(f"packet of {len(packet)} bytes, the peer takes {limit}")
        self._question_bytes_max = max(self._question_bytes_max, len(packet))
        self._write(packet)

    def acknowledge(self, message: Publish) -> None:
        """Confirm a message to the device."""
        if message.qos:
            self._write(build_puback(message.mid))

    def unsent_bytes(self) -> int:
        """Give the bytes that have not left this machine."""
        transport = self._transport
        if transport is None:
            return 0
        sock: socket.socket = transport.get_extra_info("socket")
        (in_kernel,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), SIOCOUTQNSD, b"\0\0\0\0"))
        return self._waiting_bytes + transport.get_write_buffer_size() + int(in_kernel)

    # The protocol's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's is none by its type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._heard_s = self._clock.monotonic()
        try:
            packets = self._parser.feed(data)
        except PacketError as exc:
            self._end = self._end or (End.LOST, str(exc))
            self._abort()
            return
        for packet in packets:
            match packet:
                case Puback():
                    self._take_puback(packet)
                case Connack():
                    if self._answer is not None and not self._answer.done():
                        self._answer.set_result(packet)
                case Disconnect():
                    self._take_disconnect(packet)
                case Publish():
                    self._take_message(packet)
                case Suback():
                    self._take_suback(packet)
                case _:
                    pass  # a sign of life

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        was_open, self._is_open, self._transport = self._is_open, False, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # MQTT 3.1.1 has no word for a take-over, and some brokers do not say it in MQTT 5 either.
        end, reason = self._end or (End.DROPPED, str(exc) if exc else "closed by the peer")
        rest = [(row, settle) for row, settle, _ in self._in_flight.values()]
        rest += [(row, settle) for row, settle, _, _ in self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        for row, settle in rest:
            settle(row, SendResult(FailureKind.AWAY, reason))
        self._listening.clear()
        for granted in self._subscribing.values():
            granted.set_exception(SessionError(f"the session ended: {reason}"))
            granted.exception()  # nobody may wait for it any more
        self._subscribing.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(reason))
            self._answer.exception()  # nobody may wait for it any more
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if was_open:
            self._ended(self.device_id, end, reason)

    def _take_message(self, packet: Publish) -> None:
        if self._message is not None:
            self._message(self.device_id, packet)
        else:
            self.acknowledge(packet)

    def _take_suback(self, packet: Suback) -> None:
        granted = self._subscribing.pop(packet.mid, None)
        if granted is not None:
            granted.set_result(packet.code)

    def _send_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < self._welcome.receive_maximum:
            row, settle, topic, size = self._waiting.popleft()
            self._waiting_bytes -= size
            mid = self._next_mid()
            if not self._in_flight:
                self._progress_s = self._clock.monotonic()
            self._in_flight[mid] = (row, settle, size)
            self._write(build_publish(topic, mid, row.message.body, properties=self._properties))

    def _take_disconnect(self, packet: Disconnect) -> None:
        end = End.TAKEN_OVER if packet.code == SESSION_TAKEN_OVER else End.LOST
        self._end = self._end or (end, f"closed by the peer, code {packet.code:#x}")
        if packet.code == _TOO_LARGE and self._in_flight:
            # If any of them is too large for the peer, the largest is; it would end each session.
            mid = max(self._in_flight, key=lambda mid: self._in_flight[mid][2])
            row, settle, size = self._in_flight[mid]
            if size <= self._question_bytes_max:
                return  # it may have been that
            del self._in_flight[mid]
            text = f"packet of {size} bytes, refused with code {packet.code:#x}"
            settle(row, SendResult(FailureKind.TOO_LARGE, text))

    def _take_puback(self, packet: Puback) -> None:
        entry = self._in_flight.pop(packet.mid, None)
        if entry is None:
            return
        self._progress_s = self._clock.monotonic()
        row, settle, _ = entry
        self._send_waiting()
        if packet.code < _REFUSED:
            settle(row, DELIVERED)
            return
        kind = FailureKind.REJECTED
        if packet.code == _TOO_LARGE:
            kind = FailureKind.TOO_LARGE
        elif packet.code == _NOT_AUTHORIZED:
            kind = FailureKind.NOT_AUTHORIZED
        elif packet.code == _QUOTA:
            kind = FailureKind.TRANSIENT
        settle(row, SendResult(kind, f"refused with code {packet.code:#x}"))

    def _watch(self) -> None:
        self._timer = self._clock.call_later(self._options.keep_alive_s / 2, self._look)

    def _look(self) -> None:
        now, options = self._clock.monotonic(), self._options
        unconfirmed_s = now - self._progress_s if self._in_flight else 0.0
        if now - self._heard_s > 2 * options.keep_alive_s or unconfirmed_s > options.ack_timeout_s:
            self._end = self._end or (End.LOST, "the peer is silent")
            self._abort()
            return
        self._write(PINGREQ)
        self._watch()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _abort(self) -> None:
        # `connection_lost` follows a turn later and tells; until then it counts as closed.
        if self._transport is not None:
            self._transport.abort()
        elif self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _next_mid(self) -> int:
        while True:
            self._mid = self._mid % MID_MAX + 1
            if self._mid not in self._in_flight and self._mid not in self._subscribing:
                return self._mid

    def _connect_packet(self, password: str | None) -> bytes:
        options, device = self._options, self.device_id
        username = (
            None if options.username is None else options.username.replace("{device}", device)
        )
        return build_connect(
            version=options.version,
            client_id=device,
            keep_alive_s=options.keep_alive_s,
            username=username,
            password=password,
        )

    async def _password(self) -> str | None:
        template = self._options.password_file
        if template is None:
            return None
        path = Path(template.replace("{device}", self.device_id))
        return await asyncio.to_thread(read_secret, "device_password_file", path)
