"""The connection of a client: its states, timers and packets.

Owns the transport and the packets that wait. Invariants: only CONNECT is handled before the sign-in
is done; the connection is left once, whatever ends it, and then releases all that it holds.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from edgehub.errors import ProtocolError
from edgehub.heads.mqtt.close_reasons import close_reason, log_close
from edgehub.heads.mqtt.connected_client import ConnectedClient, connect_client
from edgehub.heads.mqtt.fairness import READ_BYTES_MIN, SHARE_BYTES_MIN, Turn
from edgehub.heads.mqtt.limits import publish_length_max
from edgehub.heads.mqtt.responses import MQTT_3_1_1, response_to_error, responses_to
from edgehub.heads.mqtt.sign_in import SignInError, sign_in
from edgehub.heads.mqtt.statistics import CloseReason, DropReason
from edgehub.heads.mqtt.topics import DIALECT
from edgehub.heads.mqtt.transport import (
    BACKLOG,
    DRAINING,
    SIGNING_IN,
    STORING,
    TURN,
    WRITING,
    ClientTransport,
)
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.packets import (
    PINGRESP,
    Acknowledgement,
    Connect,
    ConnectCode,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
    Subscribe,
    Unsubscribe,
    UnsupportedLevelError,
)
from edgehub.mqtt.reasons import FIRST_FAILURE
from edgehub.mqtt.server_decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.clock import TimerHandle
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.deliveries import ClientDelivery
    from edgehub.heads.mqtt.ingress import Ingress
    from edgehub.heads.mqtt.responses import Responses
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.message import Refusal
    from edgehub.mqtt.packets import Packet
    from edgehub.mqtt.reasons import ReasonCode

_SLOW: Final = SendResult(FailureKind.THROTTLED, "the client reads too slowly", 1.0)
_LONG_TOPIC: Final = 1024
"""Bytes of a topic that may hold hundreds of properties."""

_CLOSING: Final = SendResult(FailureKind.TRANSIENT, "the connection is closing")


class State(StrEnum):
    """State of a connection."""

    NEW = "new"
    SIGNING_IN = "signing_in"
    OPEN = "open"
    CLOSED = "closed"


# Reading a member off its class takes as long as two calls, and this is done for each packet.
_OPEN: Final = State.OPEN
_CLOSED: Final = State.CLOSED


class MqttConnection(asyncio.Protocol):
    """One TCP connection to the listener; see `ClientConnection`.

    Attributes:
        connected: The parts that it has once its client is signed in, None before that.
        heard_s: Monotonic time of the last received bytes of a signed-in client.
    """

    __slots__ = (
        "_context",
        "_decoder",
        "_deferred",
        "_deferred_error",
        "_flush_due",
        "_ingress",
        "_is_lost",
        "_limit_timer",
        "_monotonic",
        "_responses",
        "_stalled",
        "_state",
        "_task",
        "_timer",
        "_transport",
        "_turn",
        "connected",
        "heard_s",
    )

    def __init__(self, context: ListenerContext) -> None:
        self._context = context
        self._monotonic = context.clock.monotonic
        self._transport = ClientTransport(context.clock)
        self._decoder = Decoder(
            publish_bytes_max=publish_length_max(context.settings.message_bytes_max),
            blocks=context.blocks,
        )
        self._responses: Responses = MQTT_3_1_1
        self._turn = Turn(context.clock, context.share, self)
        self._state = State.NEW
        self.connected: ConnectedClient | None = None
        self.heard_s = 0.0
        # One of its parts, for the message path.
        self._ingress: Ingress | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False
        self._timer: TimerHandle | None = None
        self._limit_timer: TimerHandle | None = None
        self._deferred: list[Packet] = []
        self._deferred_error: ProtocolError | None = None
        self._flush_due = False
        # Whether messages of the local topic space wait for room in the write buffer.
        self._stalled = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the transport, and start the time limit of the sign-in."""
        context = self._context
        settings, limits = context.settings, context.limits
        self._transport.attach(transport, write_buffer_bytes_max=limits.write_buffer_bytes_max)
        context.connections.add(self)
        context.counters.accepted_total += 1
        is_crowded = len(context.connections) > 2 * settings.clients_max
        if context.draining or (is_crowded and not context.silent):
            self.refuse()
            return
        if is_crowded:
            # Silent connections must not keep out clients.
            next(iter(context.silent)).refuse()
        context.silent[self] = None
        self._timer = context.clock.call_later(
            settings.connect_timeout_s, lambda: self.close(CloseReason.CONNECT_TIMEOUT)
        )

    def refuse(self) -> None:
        """Close a connection of which there are too many."""
        self._leave(CloseReason.TOO_MANY)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Decode and handle packets; the responses are written together at the end."""
        # As few calls as can be: many clients send one message a read.
        if self._state is not _OPEN:
            self._handle_early(data)
            return
        self.heard_s = self._monotonic()
        if len(data) > READ_BYTES_MIN or self._turn.is_waiting:
            self._turn.add(data)
            if not self._turn.is_waiting:
                self._handle(*self._decode())
            return
        packets: list[Packet] = []
        try:
            self._decoder.feed(data, packets)
        except ProtocolError as error:
            self._handle(packets, error)
        else:
            self._handle(packets, None)

    def pause_writing(self) -> None:
        """Stop reading a client that does not read its responses."""
        self._transport.pause(WRITING)

    def resume_writing(self) -> None:
        """Read on: the client has caught up."""
        self._resume(WRITING)
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave, once the packets received before the end have had their turns."""
        del exc
        self._is_lost = True
        self._transport.lost()
        if not (self._state is _OPEN and self._turn.is_waiting):
            self._leave(CloseReason.LOST)
            self._context.connections.discard(self)

    # Called by the listener and by the other parts of the connection.

    @property
    def client(self) -> SignedInClient | None:
        """The signed-in client, None before that."""
        return None if self._ingress is None else self._ingress.client

    @property
    def subscriptions(self) -> Mapping[str, int]:
        """Options of the client's subscriptions by topic filter."""
        return {} if self.connected is None else self.connected.subscriber.subscriptions

    @property
    def pauses(self) -> int:
        """Reasons not to read the client at present, as bits of `transport`."""
        return self._transport.pauses

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent; if not, its local session goes on later."""
        if self._state is not _OPEN or self._context.draining:
            return False
        has_room = self._transport.has_room(self._context.limits.write_buffer_bytes_max)
        self._stalled = self._stalled or not has_room
        return has_room

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait until the client reads, or confirms what it has."""
        connected = self.connected
        waiting = 0 if connected is None else connected.deliveries.waiting_bytes
        return self._transport.unsent_bytes + waiting

    def deliver(self, delivery: ClientDelivery) -> None:
        """Send a message to the client; see `Deliveries.send`."""
        if self._state is not _OPEN or self._context.draining:
            delivery.settle(_CLOSING)
        elif self._transport.pauses & WRITING:
            delivery.settle(_SLOW)
        else:
            assert self.connected is not None
            self.connected.deliveries.send(delivery)

    def write(self, data: bytes) -> None:
        """Send bytes with the next flush."""
        if self._state is not _CLOSED:
            self._transport.add(data)
            self.request_flush()

    def session_stored(self, refusal: Refusal | None) -> None:
        """Read on, or close a client whose session cannot be stored."""
        if refusal is not None:
            self.close(CloseReason.STORE_FAILED)
        elif self.connected is not None and not self.connected.subscriber.must_pause:
            self._resume(STORING)

    def request_flush(self) -> None:
        """Write what was collected at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._context.request_flush(self)

    def flush(self) -> None:
        """Write what was collected, and read on if the client was paused for its backlog."""
        self._flush_due = False
        ingress = self._ingress
        if ingress is not None:
            acks = ingress.acks
            if acks:
                self._transport.out += acks
                self._context.counters.acknowledged_total += len(acks)
                acks.clear()
            if ingress.bytes <= ingress.wake_bytes:
                ingress.wake_bytes = -1
                self._turn.wake()
        self._transport.flush()
        if self._transport.pauses & BACKLOG:
            self._resume_if_settled()
        if self._stalled:
            self._pump()

    def close(self, reason: CloseReason, detail: str = "", code: ReasonCode | None = None) -> None:
        """End the connection; what was collected is still written, and in MQTT 5 why it ends.

        Args:
            reason: For counts and logs.
            detail: What exactly, for the log and the client.
            code: Reason code for the client in place of the one that goes with `reason`.
        """
        if self._state is _CLOSED:
            return
        self.flush()
        disconnect = b""
        if self._state is _OPEN:
            disconnect = self._responses.disconnect(reason, detail, code)
        self._leave(reason, detail)
        # A hub that shuts down does not wait for its clients to close.
        self._transport.close(disconnect, linger=reason is not CloseReason.HUB_CLOSED)

    def next_turn(self) -> None:
        """Handle deferred packets and the next slice, and read on if nothing is left."""
        if self._state is _OPEN:
            # PINGREQs may be among the bytes that wait.
            self.heard_s = self._monotonic()
            self._handle_next()
            if self._turn.is_waiting:
                return
            self._resume(TURN)
            if self._is_lost:
                self._leave(CloseReason.LOST)

    def drain(self) -> None:
        """Take no more messages; acknowledgements of deliveries in flight are still read."""
        if self._state is not _OPEN:
            self.close(CloseReason.HUB_CLOSED)
        elif self._limit_timer is not None:
            self._close_for_limit()
        else:
            assert self.connected is not None
            self.connected.ingress.hold(DropReason.CLOSING)
            if not len(self.connected.deliveries):
                self._transport.pause(DRAINING)

    def refused_by_limit(self) -> None:
        """Close the connection, but that of one client only every few seconds."""
        assert self._ingress is not None
        context = self._context
        wait_s = context.limit_wait_s(self._ingress.client.id)
        if wait_s <= 0:
            self._close_for_limit()
        elif self._limit_timer is None:
            self._ingress.hold(DropReason.LIMIT)
            self._limit_timer = context.clock.call_later(wait_s, self._close_for_limit)

    # Signing in.

    def _handle_early(self, data: bytes) -> None:
        # Packets that a client sends before its CONNACK wait until it is signed in.
        if self._state is _CLOSED:
            return
        self._turn.add(data)
        if self._state is State.SIGNING_IN:
            self._transport.pause(SIGNING_IN)
            return
        packets, error = self._decode()
        if packets:
            connect = packets.pop(0)
            assert isinstance(connect, Connect)
            self._state = State.SIGNING_IN
            self._context.silent.pop(self, None)
            self._transport.pause(SIGNING_IN)
            self._deferred, self._deferred_error = packets, error
            self._task = self._context.spawn(self._sign_in(connect), "mqtt[sign-in]")
        elif error is not None:
            if isinstance(error, UnsupportedLevelError):
                self._context.counters.count_refused_connect(ConnectCode.PROTOCOL_LEVEL)
            self.write(response_to_error(error))
            self.close(CloseReason.PROTOCOL_ERROR, error.reason)

    async def _sign_in(self, connect: Connect) -> None:
        context = self._context
        self._responses = responses_to(connect, context.settings.message_bytes_max)
        try:
            client = await sign_in(
                connect,
                context.identities,
                anonymous=context.anonymous,
                hub_id=context.space.hub_id,
                address=self._transport.host,
                certificate=self._transport.certificate,
                # Read on, to notice a client that leaves before its password is checked.
                waits=lambda: self._resume(SIGNING_IN),
            )
            if self._state is State.SIGNING_IN:
                self._connect(connect, client)
        except SignInError as refused:
            context.counters.count_refused_connect(refused.code)
            self._task = None
            self.write(self._responses.refused(refused))
            client_id = ascii(connect.client_id[:128])
            self.close(CloseReason.CONNECT_REFUSED, f"client {client_id}: {refused.reason}")

    def _connect(self, connect: Connect, client: SignedInClient) -> None:
        self.heard_s = self._monotonic()
        connected = connect_client(self, self._context, connect, client, self._responses)
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
        self.connected = connected
        self._ingress = connected.ingress
        connack = self._responses.accepted(client.id, session_present=connected.session_present)
        if not connack:
            connected.will = None
            detail = "CONNACK is larger than the client takes"
            self.close(CloseReason.PACKET_TOO_LARGE, detail)
            return
        address = self._transport.address
        self._context.log.info("mqtt.client_connected", client_id=client.id, address=address)
        self._state = _OPEN
        self.write(connack)
        connected.begin()
        self._resume(SIGNING_IN)
        self._handle_deferred()

    # Signed in.

    def _decode(self) -> tuple[list[Packet], ProtocolError | None]:
        """Decode the next slice of the bytes that wait for their turn."""
        packets: list[Packet] = []
        try:
            self._turn.decode(self._decoder, packets)
        except ProtocolError as error:
            return packets, error
        return packets, None

    def _handle(self, packets: list[Packet], error: ProtocolError | None) -> None:
        # One loop without calls for a PUBLISH: it runs once per message.
        ingress = self._ingress
        assert ingress is not None
        flush_due = self._flush_due
        # Messages that are settled at once need no flush of their own.
        self._flush_due = True
        for at, packet in enumerate(packets, 1):
            if isinstance(packet, Publish):
                ingress.publish(packet)
                if ingress.unfinished is not None or (
                    (len(packet.topic) > _LONG_TOPIC or not packet.topic.startswith(DIALECT))
                    and self._turn.is_long(self.heard_s)
                ):
                    # The rest of a batch, and later packets, wait for the next turn; so do those
                    # that follow local messages, each of which may have many receivers, and
                    # messages with hundreds of properties.
                    self._deferred, self._deferred_error = packets[at:], error
                    error = None
                    self._turn.charge(self.heard_s)
                    break
            elif isinstance(packet, Puback):
                assert self.connected is not None
                self.connected.deliveries.acknowledge(packet.packet_id, packet.code)
            else:
                self._control(packet)
            if self._state is _CLOSED:
                return
        if error is not None:
            self.close(*close_reason(error, ingress))
            return
        if ingress.acks or self._transport.out or self._stalled:
            self.flush()
            self._context.backlog.check()
        self._flush_due = flush_due
        if ingress.bytes > SHARE_BYTES_MIN or self._turn.is_over:
            self._end_turn(ingress)
        if ingress.must_pause:
            self._transport.pause(BACKLOG)
            self._resume_if_settled()

    def _handle_next(self) -> None:
        ingress = self._ingress
        assert ingress is not None
        ingress.go_on()
        if ingress.has_left:
            return
        if ingress.unfinished is not None:
            self._turn.charge(self.heard_s)
            self._end_turn(ingress)
        elif self._deferred or self._deferred_error is not None:
            self._handle_deferred()
        else:
            self._handle(*self._decode())

    def _handle_deferred(self) -> None:
        deferred, error = self._deferred, self._deferred_error
        self._deferred, self._deferred_error = [], None
        self._handle(deferred, error)

    def _end_turn(self, ingress: Ingress) -> None:
        ingress.wake_bytes = self._turn.end(ingress.bytes)
        if self._turn.is_waiting:
            self._transport.pause(TURN)

    def _control(self, packet: Packet) -> None:
        assert self.connected is not None
        if isinstance(packet, Disconnect):
            wrong = self.connected.disconnect(packet)
            self.close(CloseReason.PROTOCOL_ERROR if wrong else CloseReason.DISCONNECT, wrong)
        elif isinstance(packet, Acknowledgement):
            self._exchange(packet)
        elif self._context.draining:
            # Exchanges in progress are completed; no new ones begin.
            return
        elif isinstance(packet, Pingreq):
            self.write(PINGRESP)
        else:
            subscriber = self.connected.subscriber
            self._turn.charge(self.heard_s)
            if isinstance(packet, Subscribe):
                subscriber.subscribe(packet)
            else:
                assert isinstance(packet, Unsubscribe)
                subscriber.unsubscribe(packet)
            if subscriber.must_pause:
                self._transport.pause(STORING)

    def _exchange(self, packet: Acknowledgement) -> None:
        """Handle an acknowledgement of a QoS 2 exchange."""
        connected = self.connected
        assert connected is not None
        packet_id = packet.packet_id
        if isinstance(packet, Pubrel):
            if not connected.ingress.release(packet_id):
                self.write(self._responses.pubcomp(packet_id))
        elif isinstance(packet, Pubcomp):
            connected.deliveries.completed(packet_id)
        elif not connected.deliveries.received(packet_id, packet.code) and (
            packet.code < FIRST_FAILURE
        ):
            self.write(self._responses.pubrel(packet_id))

    def _close_for_limit(self) -> None:
        assert self._ingress is not None
        self._context.note_limit_close(self._ingress.client.id)
        self.close(CloseReason.LIMIT)

    def _pump(self) -> None:
        # The rest waits until the transport can be written to, or for the next flush.
        self._stalled = False
        if self.connected is not None and not self._transport.pauses & WRITING:
            self.connected.local.pump()

    # Reading and leaving.

    def _resume(self, why: int) -> None:
        # The keep-alive does not count while the client is not read.
        if self._transport.resume(why):
            self.heard_s = self._monotonic()

    def _resume_if_settled(self) -> None:
        ingress = self._ingress
        if self._state is _CLOSED or ingress is None or not ingress.may_resume:
            return
        if ingress.usage.is_full:
            self._context.backlog.wait(ingress.usage, self._resume_if_settled)
        else:
            self._resume(BACKLOG)

    def _leave(self, reason: CloseReason, detail: str = "") -> None:
        if self._state is _CLOSED:
            return
        self._state = _CLOSED
        self._context.silent.pop(self, None)
        if self._is_lost:
            self._context.connections.discard(self)
        context = self._context
        context.counters.closed[reason] += 1
        for timer in (self._timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        self._turn.close()
        if self._task is not None:
            self._task.cancel()
        log_close(context.log, reason, detail, self._transport.address, self._ingress)
        if self.connected is not None:
            self.connected.leave(context, self, hub_leaves=reason is CloseReason.HUB_CLOSED)
            context.backlog.check()
