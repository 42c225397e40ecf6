"""One client's connection: its states, timers and packets.

Owns the socket and what is waiting to be written. Invariants: nothing but CONNECT is acted upon
before the sign-in is done; leaving happens once, whatever ends the connection, and gives back all
that the connection held.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.errors import ProtocolError
from edgehub.heads.mqtt.codec import Decoder
from edgehub.heads.mqtt.deliveries import Deliveries
from edgehub.heads.mqtt.ingress import Ingress
from edgehub.heads.mqtt.keep_alive import KeepAlive
from edgehub.heads.mqtt.packets import (
    PINGRESP,
    REMAINING_LENGTH_MAX,
    STRING_BYTES_MAX,
    Connect,
    ConnectCode,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    Unsubscribe,
    UnsupportedLevelError,
    connack,
    puback,
)
from edgehub.heads.mqtt.sign_in import SignInError, sign_in
from edgehub.heads.mqtt.statistics import ClientInfo, CloseReason, DropReason
from edgehub.heads.mqtt.subscriber import Subscriber
from edgehub.heads.mqtt.will import will_message
from edgehub.heads.mqtt.wire import BACKLOG, DRAINING, SIGNING_IN, STORING, WRITING, Wire
from edgehub.message import FailureKind, SendResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import TimerHandle
    from edgehub.errors import StoreError
    from edgehub.heads.mqtt.packets import Packet
    from edgehub.heads.mqtt.services import Services
    from edgehub.heads.mqtt.sign_in import Client
    from edgehub.message import Message

# PUBLISH beside its body: topic with length, packet id.
_PUBLISH_OVERHEAD: Final = 2 + STRING_BYTES_MAX + 2

_SLOW: Final = SendResult(FailureKind.THROTTLED, "the client reads too slowly", 1.0)
_AWAY: Final = SendResult(FailureKind.TRANSIENT, "the connection is closing")

_NORMAL_ENDS: Final = {CloseReason.DISCONNECT, CloseReason.LOST, CloseReason.HUB_CLOSED}
# The client said goodbye, or the hub itself leaves: no will.
_WITHOUT_WILL: Final = {CloseReason.DISCONNECT, CloseReason.HUB_CLOSED}


class State(StrEnum):
    """Where a connection stands."""

    NEW = "new"
    SIGNING_IN = "signing_in"
    OPEN = "open"
    CLOSED = "closed"


class Connection(asyncio.Protocol):
    """One TCP connection to the listener."""

    __slots__ = (
        "_clean",
        "_connected_s",
        "_context",
        "_decoder",
        "_deliveries",
        "_flush_due",
        "_held",
        "_held_error",
        "_ingress",
        "_keep_alive",
        "_limit_timer",
        "_services",
        "_state",
        "_subscriber",
        "_task",
        "_timer",
        "_will",
        "_wire",
    )

    def __init__(self, services: Services) -> None:
        context = services.context
        limit = context.options.message_bytes_max + _PUBLISH_OVERHEAD
        self._services = services
        self._context = context
        self._wire = Wire(context.clock)
        self._decoder = Decoder(publish_bytes_max=min(limit, REMAINING_LENGTH_MAX))
        self._state = State.NEW
        self._connected_s = context.clock.monotonic()
        self._keep_alive: KeepAlive | None = None
        self._clean = True
        self._will: Message | None = None
        self._ingress: Ingress | None = None
        self._deliveries: Deliveries | None = None
        self._subscriber: Subscriber[Connection] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._limit_timer: TimerHandle | None = None
        self._held: list[Packet] = []
        self._held_error: ProtocolError | None = None
        self._flush_due = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and give the client its time to sign in."""
        services = self._services
        context = self._context
        options = context.options
        self._wire.attach(transport, write_buffer_bytes_max=options.write_buffer_bytes_max)
        services.connections.add(self)
        context.counters.accepted_total += 1
        if len(services.connections) > 2 * options.clients_max or context.draining:
            self._leave(CloseReason.TOO_MANY)
            self._wire.abort()
            return
        self._timer = context.clock.call_later(
            options.connect_timeout_s, lambda: self.close(CloseReason.CONNECT_TIMEOUT)
        )

    def data_received(self, data: bytes) -> None:
        """Decode and act; what that causes is written once at the end."""
        if self._keep_alive is not None:
            self._keep_alive.heard_s = self._context.clock.monotonic()
        packets: list[Packet] = []
        error = None
        try:
            self._decoder.feed(data, packets)
        except ProtocolError as broken:
            error = broken
        if self._state is State.OPEN:
            self._take(packets, error)
        elif self._state is not State.CLOSED:
            self._take_early(packets, error)

    def pause_writing(self) -> None:
        """The client reads too slowly: take nothing more from it that wants an answer."""
        self._wire.pause(WRITING)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._resume(WRITING)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        del exc
        self._leave(CloseReason.LOST)
        self._wire.lost()
        self._services.connections.discard(self)

    # What the listener and the other parts of the connection call.

    @property
    def client(self) -> Client | None:
        """The signed-in client, None before that."""
        return None if self._ingress is None else self._ingress.client

    @property
    def pauses(self) -> int:
        """Reasons not to read the client at present, as bits of `wire`."""
        return self._wire.pauses

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the client to read."""
        return self._wire.unsent_bytes

    def info(self, client: Client) -> ClientInfo:
        """Describe the connection."""
        assert self._ingress is not None
        assert self._deliveries is not None
        assert self._subscriber is not None
        assert self._keep_alive is not None
        return ClientInfo(
            client_id=client.id,
            address=self._wire.address,
            authenticated=client.identity is not None,
            clean_session=self._clean,
            keep_alive_s=self._keep_alive.seconds,
            connected_s=self._context.clock.monotonic() - self._connected_s,
            subscriptions=dict(self._subscriber.subscriptions),
            received_total=self._ingress.received_total,
            dropped_total=sum(self._ingress.dropped.values()),
            unacknowledged_bytes=self._ingress.bytes,
            in_flight=len(self._deliveries),
            unsent_bytes=self.unsent_bytes,
            paused=self.pauses != 0,
        )

    def deliver(
        self, topic: str, body: bytes, qos: int, settle: Callable[[SendResult], None]
    ) -> None:
        """Send a message to the client; `settle` is called once."""
        if self._state is not State.OPEN or self._context.draining:
            settle(_AWAY)
        elif self._wire.pauses & WRITING:
            settle(_SLOW)
        else:
            assert self._deliveries is not None
            self._deliveries.send(topic, body, qos, settle)

    def write(self, data: bytes) -> None:
        """Send bytes with the next flush."""
        if self._state is not State.CLOSED:
            self._wire.add(data)
            self.request_flush()

    def session_stored(self, error: StoreError | None) -> None:
        """Read on, or close a client whose session cannot be stored."""
        if error is not None:
            self.close(CloseReason.STORE_FAILED, str(error))
        elif self._subscriber is not None and not self._subscriber.must_pause:
            self._resume(STORING)

    def request_flush(self) -> None:
        """Have what was collected written at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._context.request_flush(self)

    def flush(self) -> None:
        """Write what was collected, and read on if the client was paused for its backlog."""
        self._flush_due = False
        ingress = self._ingress
        if ingress is not None and ingress.acks:
            self._wire.add(b"".join(map(puback, ingress.acks)))
            self._context.counters.acknowledged_total += len(ingress.acks)
            ingress.acks.clear()
        self._wire.flush()
        if self._wire.pauses & BACKLOG:
            self._resume_if_settled()

    def close(self, reason: CloseReason, detail: str = "") -> None:
        """End the connection; what was collected is still written."""
        if self._state is State.CLOSED:
            return
        self.flush()
        self._leave(reason, detail)
        self._wire.close()

    def drain(self) -> None:
        """Take no more messages; PUBACKs of deliveries in flight are still read."""
        if self._state is not State.OPEN:
            self.close(CloseReason.HUB_CLOSED)
        elif self._limit_timer is not None:
            self._close_for_limit()
        else:
            assert self._ingress is not None
            assert self._deliveries is not None
            self._ingress.hold(DropReason.CLOSING)
            if not len(self._deliveries):
                self._wire.pause(DRAINING)

    def refused_by_limit(self) -> None:
        """Close, but the same client not more often than every few seconds."""
        assert self._ingress is not None
        context = self._context
        wait_s = context.limit_wait_s(self._ingress.client.id)
        if wait_s <= 0:
            self._close_for_limit()
        elif self._limit_timer is None:
            self._ingress.hold(DropReason.LIMIT)
            self._limit_timer = context.clock.call_later(wait_s, self._close_for_limit)

    # Signing in.

    def _take_early(self, packets: list[Packet], error: ProtocolError | None) -> None:
        # A client may send on before its CONNACK; that waits until it is signed in.
        if self._state is State.NEW and packets:
            connect = packets.pop(0)
            assert isinstance(connect, Connect)
            self._state = State.SIGNING_IN
            self._wire.pause(SIGNING_IN)
            self._task = self._services.spawn(self._sign_in(connect), "mqtt[sign-in]")
        self._held += packets
        self._held_error = self._held_error or error
        if error is not None and self._state is State.NEW:
            if isinstance(error, UnsupportedLevelError):
                self.write(connack(ConnectCode.PROTOCOL_LEVEL))
                self._count_refused(ConnectCode.PROTOCOL_LEVEL)
            self.close(CloseReason.PROTOCOL_ERROR, error.reason)

    async def _sign_in(self, connect: Connect) -> None:
        services = self._services
        try:
            client = await sign_in(connect, services.identities, anonymous=services.anonymous)
            if self._state is State.SIGNING_IN:
                self._admit(connect, client)
        except SignInError as refused:
            self._count_refused(refused.code)
            self._task = None
            self.write(connack(refused.code))
            client_id = ascii(connect.client_id[:128])
            self.close(CloseReason.CONNECT_REFUSED, f"client {client_id}: {refused.reason}")

    def _admit(self, connect: Connect, client: Client) -> None:
        services = self._services
        context = self._context
        will = None
        if connect.will is not None:
            limit = context.options.message_bytes_max
            will = will_message(connect.will, client, message_bytes_max=limit)
        clean = connect.clean_session
        present, subscriptions = services.sessions.admit(client.id, self, clean=clean)
        self._task = None
        self._will = will
        self._clean = clean
        if self._timer is not None:
            self._timer.cancel()
        self._keep_alive = KeepAlive(
            self,
            context.clock,
            keep_alive_s=connect.keep_alive_s,
            stall_timeout_s=context.options.stall_timeout_s,
        )
        self._ingress = Ingress(context, client, self)
        self._deliveries = Deliveries(
            clock=context.clock,
            ack_timeout_s=context.options.ack_timeout_s,
            write=self.write,
            unresponsive=lambda: self.close(CloseReason.UNRESPONSIVE),
            delivered=context.counters.count_delivered,
        )
        self._subscriber = Subscriber(
            self,
            client,
            services.index,
            subscriptions,
            subscriptions_max=context.options.subscriptions_max,
            save=None if clean else partial(services.sessions.save, client.id),
            log=context.log,
        )
        self._open(connack(ConnectCode.ACCEPTED, session_present=present), client)

    def _open(self, answer: bytes, client: Client) -> None:
        context = self._context
        context.log.info("mqtt.client_connected", client_id=client.id, address=self._wire.address)
        self._state = State.OPEN
        self.write(answer)
        assert self._subscriber is not None
        self._subscriber.restore()
        self._resume(SIGNING_IN)
        held, self._held = self._held, []
        self._take(held, self._held_error)

    def _count_refused(self, code: ConnectCode) -> None:
        refused = self._context.counters.refused_connects
        refused[code.name.lower()] = refused.get(code.name.lower(), 0) + 1

    # Signed in.

    def _take(self, packets: list[Packet], error: ProtocolError | None) -> None:
        ingress = self._ingress
        assert ingress is not None
        flush_due = self._flush_due
        # Nothing that is settled at once asks for a flush of its own.
        self._flush_due = True
        for packet in packets:
            if isinstance(packet, Publish):
                if packet.qos > 1:
                    self.close(CloseReason.QOS_2, "PUBLISH with quality of service 2")
                else:
                    ingress.publish(packet)
            elif isinstance(packet, Puback):
                assert self._deliveries is not None
                self._deliveries.acknowledge(packet.packet_id)
            else:
                self._control(packet)
            if self._state is State.CLOSED:
                return
        if error is not None:
            self.close(CloseReason.PROTOCOL_ERROR, error.reason)
            return
        self.flush()
        self._flush_due = flush_due
        self._context.backlog.check()
        if ingress.must_pause:
            self._wire.pause(BACKLOG)
            self._resume_if_settled()
        assert self._subscriber is not None
        if self._subscriber.must_pause:
            self._wire.pause(STORING)

    def _control(self, packet: Packet) -> None:
        assert self._subscriber is not None
        if isinstance(packet, Disconnect):
            self.close(CloseReason.DISCONNECT)
        elif self._context.draining:
            # Only PUBACKs leave a draining hub.
            return
        elif isinstance(packet, Pingreq):
            self.write(PINGRESP)
        elif isinstance(packet, Subscribe):
            self._subscriber.subscribe(packet)
        else:
            assert isinstance(packet, Unsubscribe)
            self._subscriber.unsubscribe(packet)

    def _close_for_limit(self) -> None:
        assert self._ingress is not None
        self._context.note_limit_close(self._ingress.client.id)
        self.close(CloseReason.LIMIT)

    # Reading and leaving.

    def _resume(self, why: int) -> None:
        # The client could not be heard while it was paused.
        if self._wire.resume(why) and self._keep_alive is not None:
            self._keep_alive.heard_s = self._context.clock.monotonic()

    def _resume_if_settled(self) -> None:
        ingress = self._ingress
        if self._state is State.CLOSED or ingress is None or not ingress.may_resume:
            return
        backlog = self._context.backlog
        if backlog.is_full:
            backlog.wait(self._resume_if_settled)
        else:
            self._resume(BACKLOG)

    def _leave(self, reason: CloseReason, detail: str = "") -> None:
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        context = self._context
        context.counters.closed[reason] += 1
        for timer in (self._timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        if self._keep_alive is not None:
            self._keep_alive.close()
        if self._task is not None:
            self._task.cancel()
        self._log_end(reason, detail)
        ingress = self._ingress
        if ingress is None:
            return
        assert self._subscriber is not None
        assert self._deliveries is not None
        self._services.sessions.leave(ingress.client.id, self)
        self._subscriber.leave()
        self._deliveries.close()
        ingress.leave()
        context.backlog.check()
        if self._will is not None and reason not in _WITHOUT_WILL:
            context.submit_will(self._will)

    def _log_end(self, reason: CloseReason, detail: str) -> None:
        log = self._context.log
        fields: dict[str, object] = {"reason": reason.value, "address": self._wire.address}
        if detail:
            fields["detail"] = detail
        if self._ingress is not None:
            fields["client_id"] = self._ingress.client.id
            if self._ingress.dropped:
                fields["dropped"] = {why.value: n for why, n in self._ingress.dropped.items()}
        if reason not in _NORMAL_ENDS:
            log.warning("mqtt.client_closed", **fields)
        elif self._ingress is not None:
            log.info("mqtt.client_left", **fields)
