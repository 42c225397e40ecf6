"""A client's connection to an MQTT server, MQTT 3.1.1 and 5.

Owns the socket, keep-alive, packet ids and pending requests. Messages in flight belong to its user,
who writes PUBLISHes as bytes and gets the PUBACKs of a whole read at once: a call or a task for
each message would cost more than all the rest. Invariants: only the user acknowledges messages from
the server; no callback is called once the connection is closed or aborted; the connection never
reconnects by itself; bytes leave in the order in which they were written.

QoS 2 from the server: the user's acknowledgement is the PUBREC, and the server's PUBREL is answered
at once. QoS 2 to the server: its PUBREC is answered at once, and its PUBCOMP confirms. So no state
of either is kept.

Source: MQTT 3.1.1 and 5, sections 3 and 4.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from edgehub.errors import EdgeHubError, ProtocolError
from edgehub.mqtt import client_packets, server_packets
from edgehub.mqtt.client_decoder import ClientDecoder, IncomingPublish
from edgehub.mqtt.client_packets import (
    Connack,
    RefusedPublish,
    Suback,
)
from edgehub.mqtt.fields import PACKET_ID_MAX, REMAINING_LENGTH_MAX
from edgehub.mqtt.packets import (
    LEVEL_5,
    NEVER_S,
    Connect,
    ConnectProperties,
    Disconnect,
    Pubcomp,
    Pubrel,
    pubcomp,
    pubrel,
    session_expiry,
)
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode, code_name, reason_of
from edgehub.mqtt.tcp import unsent_in_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from edgehub.clock import Clock, TimerHandle
    from edgehub.mqtt.client_packets import ServerPacket

CLOSE_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 10.0
"""For SUBACK and UNSUBACK."""

# Linux from 4.19 on: bytes_sent and bytes_retrans of struct tcp_info (include/uapi/linux/tcp.h).
_TCP_INFO_SENT_AT: Final = 200
_TCP_INFO_BYTES: Final = 216

_REFUSED_FOR_GOOD: Final = frozenset(
    {
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
    }
)


class LinkError(EdgeHubError):
    """The connection cannot be made, or has ended.

    Attributes:
        reason: For status and logs.
        parked: Whether an operator must change something first.
        connect_refused: The server answered CONNECT by a refusal, by closing, or not in MQTT.
    """

    def __init__(self, reason: str, *, parked: bool = False, connect_refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parked = parked
        self.connect_refused = connect_refused


class ClientOptions(Struct, frozen=True, kw_only=True):
    """Identity of the client, and limits of the server.

    Attributes:
        client_id: MQTT client id.
        level: Protocol level, 4 = MQTT 3.1.1, 5 = MQTT 5.
        username: User name, None = none.
        password: Password, None = none.
        clean_session: False keeps subscriptions and messages at the server.
        keep_alive_s: Seconds without a packet before PINGREQ; a silent server is noticed after
            twice this time.
        session_expiry_s: MQTT 5: how long the server keeps a session that is not clean.
        receive_maximum: MQTT 5: messages without acknowledgement that the server may send.
        incoming_bytes_max: Packets from the server that are larger lose their body.
    """

    client_id: str
    level: int = 4
    username: str | None = None
    password: str | None = None
    clean_session: bool = False
    keep_alive_s: int = 60
    session_expiry_s: int = NEVER_S
    receive_maximum: int = PACKET_ID_MAX
    incoming_bytes_max: int = REMAINING_LENGTH_MAX


class Client(asyncio.Protocol):
    """One connection; see the module.

    Args:
        options: See `ClientOptions`.
        clock: Timers.
        on_confirmed: Gets the packet ids of confirmed PUBLISHes.
        on_messages: Gets messages from `begin` on; each is acknowledged by `acknowledge`.
        on_unmatched: Gets, before they are confirmed, the packet ids of PUBLISHes that a server of
            MQTT 5 delivers to no client.
        on_refused: Gets the PUBLISHes that a server of MQTT 5 refused.
        on_closed: Called once with the reason at the end of a connection that was made.

    Attributes:
        socket: The socket, for TCP statistics of the kernel; None = closed.
        is_open: Whether packets can be sent.
        level: Protocol level.
        connack: CONNACK of the server.
        unsent_at_close: Bytes that had not left this machine when the server closed; None = it did
            not close.
        close_code: Reason code of the server's DISCONNECT, None = there was none.
    """

    __slots__ = (
        "_abort_timer",
        "_answers",
        "_clock",
        "_closed",
        "_decoder",
        "_early",
        "_end_reason",
        "_heard_at",
        "_keep_alive",
        "_keep_alive_s",
        "_on_closed",
        "_on_confirmed",
        "_on_messages",
        "_on_refused",
        "_on_unmatched",
        "_opening",
        "_options",
        "_packet_id",
        "_pauses",
        "_pinged_at",
        "_sent_at",
        "_tcp",
        "_transport",
        "_was_open",
        "_written",
        "close_code",
        "connack",
        "is_open",
        "level",
        "socket",
        "unsent_at_close",
    )

    def __init__(
        self,
        options: ClientOptions,
        *,
        clock: Clock,
        on_confirmed: Callable[[list[int]], None],
        on_messages: Callable[[list[IncomingPublish]], None],
        on_unmatched: Callable[[list[int]], None] | None = None,
        on_refused: Callable[[list[RefusedPublish]], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self.level = options.level
        self._clock = clock
        self._on_confirmed = on_confirmed
        self._on_messages = on_messages
        self._on_unmatched = on_unmatched
        self._on_refused = on_refused
        self._on_closed = on_closed
        self._decoder = ClientDecoder(level=options.level, bytes_max=options.incoming_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._tcp: asyncio.Transport | None = None
        """Below the transport with TLS, the same without."""
        self.socket: socket.socket | None = None
        self._opening: asyncio.Future[Connack] | None = None
        self._closed: asyncio.Future[str] | None = None
        self.is_open = self._was_open = False
        self._early: list[IncomingPublish] | None = []
        """Messages received before `begin`, of a session that the server has kept; None = begun."""
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._packet_id = 0
        self._pauses = 0
        self._written = 0
        self._heard_at = self._sent_at = 0.0
        self._pinged_at = -math.inf
        self._keep_alive: TimerHandle | None = None
        self._keep_alive_s = options.keep_alive_s
        self._abort_timer: TimerHandle | None = None
        self._end_reason = ""
        self.connack = Connack()
        self.unsent_at_close: int | None = None
        self.close_code: int | None = None

    # Start and end.

    async def open(
        self, sock: socket.socket, *, tls: ssl.SSLContext | None = None, host: str | None = None
    ) -> Connack:
        """Sign in over a connected socket, which belongs to this object from now on.

        The caller bounds the time. Left by an error or a cancel, the connection is closed.

        Args:
            sock: Connected; plain, its TLS handshake is made here.
            tls: None = no TLS.
            host: Name of the server in its certificate.

        Raises:
            LinkError: If the server refuses, closes, or breaks the protocol.
            OSError: If the TLS handshake fails.
        """
        loop = asyncio.get_running_loop()
        self.socket = sock
        self._opening = loop.create_future()
        self._closed = loop.create_future()
        try:
            await loop.create_connection(lambda: self, sock=sock)
            if tls is not None:
                assert self._tcp is not None
                self._transport = await loop.start_tls(self._tcp, self, tls, server_hostname=host)
            self.write(client_packets.connect(_connect_of(self._options)))
            connack = await self._signed_in(self._opening)
        except BaseException:
            self.abort("closed by this hub")
            raise
        self.connack = connack
        if connack.keep_alive_s is not None:
            self._keep_alive_s = connack.keep_alive_s
        self.is_open = self._was_open = True
        self._watch_keep_alive()
        return connack

    async def _signed_in(self, opening: asyncio.Future[Connack]) -> Connack:
        connack = await opening
        if connack.code:
            raise _refused(connack)
        if self._end_reason or self._transport is None:
            raise LinkError(self._end_reason or "closed by the peer")
        return connack

    def begin(self) -> None:
        """Pass messages to `on_messages`, first those received since CONNACK."""
        early, self._early = self._early, None
        if early:
            self._on_messages(early)

    async def close(self) -> None:
        """Send DISCONNECT and close; earlier bytes leave first, within a second."""
        assert self._closed is not None
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._end_reason = self._end_reason or "closed by this hub"
            self.is_open = False
            transport.write(client_packets.DISCONNECT)
            transport.close()
            self._abort_timer = self._clock.call_later(CLOSE_TIMEOUT_S, transport.abort)
        try:
            await asyncio.shield(self._closed)
        except asyncio.CancelledError:
            self.abort("closed by this hub")
            raise

    def abort(self, reason: str) -> None:
        """Close the connection at once, without DISCONNECT; `wait_closed` returns the reason."""
        self._end_reason = self._end_reason or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> str:
        """Wait for the end of the connection; returns the reason."""
        assert self._closed is not None
        return await asyncio.shield(self._closed)

    # Sending.

    def next_packet_id(self, in_use: Collection[int]) -> int:
        """Return a packet id, 1 to 65 535, that is neither in use nor awaits an answer."""
        packet_id = self._packet_id
        while True:
            packet_id = packet_id % PACKET_ID_MAX + 1
            if packet_id not in in_use and packet_id not in self._answers:
                self._packet_id = packet_id
                return packet_id

    def write(self, data: bytes) -> None:
        """Write whole packets; nothing once the connection is closed."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._sent_at = self._clock.monotonic()
            self._written += len(data)
            transport.write(data)

    def acknowledge(self, message: IncomingPublish) -> None:
        """Acknowledge a message of this connection."""
        self.acknowledge_all((message,))

    def acknowledge_all(self, messages: Iterable[IncomingPublish]) -> None:
        """Acknowledge messages of this connection, in order."""
        acknowledgement = client_packets.acknowledgement
        written = [acknowledgement(each.packet_id, each.qos) for each in messages if each.packet_id]
        if written:
            self.write(b"".join(written))

    def request_subscribe(
        self, filters: Iterable[tuple[str, int]], *, identifier: int | None = None
    ) -> asyncio.Future[bytes]:
        """Send a SUBSCRIBE; see `client_packets.subscribe`.

        Returns:
            A future of one reason code a filter; its error is a `LinkError`.
        """
        packet_id, answer = self._request()
        self.write(
            client_packets.subscribe(packet_id, filters, level=self.level, identifier=identifier)
        )
        return answer

    async def subscribe(
        self, filters: Sequence[str], *, options: int = 1, identifier: int | None = None
    ) -> list[str]:
        """Subscribe; returns the filters that the server refused.

        Args:
            filters: Topic filters.
            options: Quality of service and, in MQTT 5, the other options of each.
            identifier: Subscription identifier, None = none; MQTT 5 only.

        Raises:
            LinkError: If the server does not answer in time, or closes.
        """
        wanted = [(each, options) for each in filters]
        codes = await _answer("SUBSCRIBE", self.request_subscribe(wanted, identifier=identifier))
        if len(codes) != len(wanted):
            raise LinkError(f"{len(codes)} codes in SUBACK for {len(wanted)} filters")
        return [each for each, code in zip(filters, codes, strict=True) if code >= FIRST_FAILURE]

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe.

        Raises:
            LinkError: If the server does not answer in time, or closes.
        """
        packet_id, answer = self._request()
        self.write(client_packets.unsubscribe(packet_id, filters, level=self.level))
        await _answer("UNSUBSCRIBE", answer)

    def _request(self) -> tuple[int, asyncio.Future[bytes]]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        packet_id = self.next_packet_id(())
        if self.is_open:
            self._answers[packet_id] = answer
        else:
            answer.set_exception(LinkError(self._end_reason or "the connection is closed"))
            answer.exception()  # its receiver may not wait for it
        return packet_id, answer

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: in this process and in the kernel."""
        transport, tcp, sock = self._transport, self._tcp, self.socket
        if transport is None or tcp is None or sock is None:
            return 0
        unsent = tcp.get_write_buffer_size() + unsent_in_kernel(sock)
        return unsent if transport is tcp else unsent + transport.get_write_buffer_size()

    # Receiving.

    def pause_reading(self) -> None:
        """Pause reading; PINGRESPs are not read either, so not for long.

        Each call needs a `resume_reading` of its own.
        """
        self._pauses += 1
        if self._pauses == 1 and self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """End a pause."""
        assert self._pauses
        self._pauses -= 1
        if not self._pauses and self._transport is not None and self.is_open:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's is none by its type.
        self._transport = self._tcp = cast("asyncio.Transport", transport)
        self._heard_at = self._sent_at = self._clock.monotonic()

    def data_received(self, data: bytes) -> None:
        """Decode bytes and hand over what they complete."""
        if self._end_reason:
            return
        self._heard_at = self._clock.monotonic()
        try:
            self._decoder.feed(data)
        except ProtocolError as error:
            self._hand_over()
            self._end_for(error)
        else:
            self._hand_over()

    def eof_received(self) -> None:
        """End the connection, and record what had not been sent."""
        if not self._end_reason:
            self.unsent_at_close = self.unsent_bytes()
            self.abort("closed by the peer")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending requests and report the end."""
        if not self._end_reason:
            if isinstance(exc, ConnectionResetError | BrokenPipeError):
                self.unsent_at_close = self._unsent_at_reset()
            self._end_reason = "closed by the peer" if exc is None else words(exc)
        self.is_open = False
        self._transport = self._tcp = self.socket = None
        for timer in (self._keep_alive, self._abort_timer):
            if timer is not None:
                timer.cancel()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(LinkError(self._end_reason))
                answer.exception()  # its receiver may not wait for it any more
        opening, closed = self._opening, self._closed
        assert opening is not None
        assert closed is not None
        if not opening.done():
            opening.set_exception(LinkError(self._end_reason, connect_refused=True))
            opening.exception()  # its receiver may have been cancelled
        closed.set_result(self._end_reason)
        if self._was_open and self._on_closed is not None:
            self._on_closed(self._end_reason)

    def _hand_over(self) -> None:
        received = self._decoder.take()
        assert self._opening is not None
        if any(received) and not self._opening.done():
            first = received.packets.pop(0) if received.packets else None
            if not isinstance(first, Connack):
                self._end_for(ProtocolError("the first packet is not CONNACK"))
                return
            self._opening.set_result(first)
        if received.unmatched and self._on_unmatched is not None:
            self._on_unmatched(received.unmatched)
        if received.confirmed:
            self._on_confirmed(received.confirmed)
        if received.refused and self._on_refused is not None:
            self._on_refused(received.refused)
        if received.messages:
            if self._early is not None:
                self._early += received.messages
            else:
                self._on_messages(received.messages)
        self._take_packets(received.packets)

    def _take_packets(self, packets: Iterable[ServerPacket]) -> None:
        for packet in packets:
            match packet:
                case Suback():
                    answer = self._answers.pop(packet.packet_id, None)
                    if answer is not None and not answer.done():
                        answer.set_result(packet.codes)
                case RefusedPublish():
                    self._take_pubrec(packet)
                case Pubcomp():
                    self._on_confirmed([packet.packet_id])
                case Pubrel():
                    self.write(pubcomp(packet.packet_id))
                case Connack():
                    self._end_for(ProtocolError("a second CONNACK"))
                case Disconnect():
                    self._take_disconnect(packet)
                case _:
                    pass  # PINGRESP

    def _take_pubrec(self, pubrec: RefusedPublish) -> None:
        if pubrec.code < FIRST_FAILURE:
            self.write(pubrel(pubrec.packet_id))
        elif self._on_refused is not None:
            self._on_refused([pubrec])

    def _take_disconnect(self, packet: Disconnect) -> None:
        self.close_code = packet.code
        text = f"closed by the peer: {code_name(packet.code)}"
        self.unsent_at_close = self.unsent_bytes()
        self.abort(f"{text} ({packet.reason})" if packet.reason else text)

    def _end_for(self, error: ProtocolError) -> None:
        transport = self._transport
        if self.level >= LEVEL_5 and transport is not None and not transport.is_closing():
            transport.write(server_packets.disconnect(reason_of(error)))
        self.abort(f"the peer broke the MQTT protocol: {error.reason}")

    def _unsent_at_reset(self) -> int:
        # A reset empties the queues of process and kernel, but not the kernel's count of what has
        # left. Under TLS that count is of more bytes; there it makes this too small.
        assert self.socket is not None
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        if len(info) < _TCP_INFO_BYTES:
            return 0
        sent, sent_again = struct.unpack_from("QQ", info, _TCP_INFO_SENT_AT)
        return max(0, self._written - int(sent - sent_again))

    # Keep-alive.

    def _watch_keep_alive(self) -> None:
        if self._keep_alive_s:
            # The client owes the server a packet in this time; the server owes PINGRESP.
            patience = 1 if self._pinged_at < self._heard_at else 2
            due = min(self._sent_at, self._heard_at + (patience - 1) * self._keep_alive_s)
            left_s = due + self._keep_alive_s - self._clock.monotonic()
            self._keep_alive = self._clock.call_later(max(0.0, left_s), self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        now, keep_alive_s = self._clock.monotonic(), self._keep_alive_s
        silent_s = now - self._heard_at
        is_asked = self._pinged_at >= self._heard_at
        if is_asked and silent_s >= 2 * keep_alive_s:
            self.abort(f"no answer to PINGREQ, silent for {silent_s:.0f} s")
            return
        if now - self._sent_at >= keep_alive_s or (silent_s >= keep_alive_s and not is_asked):
            self.write(client_packets.PINGREQ)
            self._pinged_at = now
        self._watch_keep_alive()


async def _answer(what: str, answer: asyncio.Future[bytes]) -> bytes:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise LinkError(f"no answer to {what} within {ANSWER_TIMEOUT_S:g} s") from None


def _connect_of(options: ClientOptions) -> Connect:
    password = None if options.password is None else options.password.encode()
    properties = None
    if options.level >= LEVEL_5:
        expiry_s = 0 if options.clean_session else options.session_expiry_s
        properties = ConnectProperties(
            session_expiry_s=session_expiry(expiry_s), receive_maximum=options.receive_maximum
        )
    return Connect(
        level=options.level,
        client_id=options.client_id,
        clean_session=options.clean_session,
        keep_alive_s=options.keep_alive_s,
        user_name=options.username,
        password=password,
        will=None,
        properties=properties,
    )


def _refused(connack: Connack) -> LinkError:
    hint = ""
    if connack.code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
        hint = " (set client_id to the user's id)"
    reason = f": {connack.reason}" if connack.reason else ""
    return LinkError(
        f"refused: {code_name(connack.code)}{reason}{hint}",
        parked=connack.code in _REFUSED_FOR_GOOD,
        connect_refused=True,
    )


def words(error: Exception) -> str:
    """Return the text of a network error."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        # asyncio puts the address into the text, and the address is in the settings already.
        return os.strerror(error.errno) if error.errno else str(error)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
