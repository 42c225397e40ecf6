"""Deliveries to one client: packet ids, time limits and results.

Owns the deliveries of one connection: those in flight, and those that wait for the receive maximum.
Invariants: each delivery is settled exactly once; a packet id is not used again before its PUBACK
or PUBCOMP, so that a late one confirms nothing else; no more than the client's receive maximum is
in flight.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.clock import Clock, Timer
from edgehub.message import DELIVERED, FailureKind, RefusedByClient, SendResult
from edgehub.mqtt.fields import PACKET_ID_MAX, STRING_BYTES_MAX
from edgehub.mqtt.message_properties import write_message_properties
from edgehub.mqtt.packets import ConnectProperties, Puback, Pubcomp, Pubrec, publish, pubrel
from edgehub.mqtt.property_bag import RETAIN_PROPERTY
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode
from edgehub.mqtt.subscription_options import QOS, RETAIN_AS_PUBLISHED, write_identifiers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from edgehub.message import Message
    from edgehub.mqtt.packets import Acknowledgement

    Settle = Callable[[SendResult], None]
    Progress = Callable[[bool], None]

ABANDONED_MAX: Final = 100
"""Deliveries that may time out before the connection is closed."""

IN_FLIGHT_MAX: Final = 30_000
"""Packet ids that may be in use; as many are left for the local topic space."""

WAITING_BYTES_MAX: Final = 2**20
"""Bytes that may wait for a client whose receive maximum is reached."""

_DISCONNECTED: Final = SendResult(FailureKind.DISCONNECTED, "the client disconnected")
_LATE: Final = SendResult(FailureKind.TIMEOUT, "no PUBACK in time")
_EXPIRED: Final = SendResult(FailureKind.TRANSIENT, "its time ended before it could be sent")
_LONG_TOPIC: Final = SendResult(FailureKind.TOO_LARGE, "properties do not fit into a topic")
_LARGE: Final = SendResult(FailureKind.TOO_LARGE, "larger than the client takes")
_NO_ID: Final = SendResult(FailureKind.THROTTLED, "all packet ids are in flight", 1.0)
_FULL: Final = SendResult(FailureKind.THROTTLED, "the client's receive maximum is reached", 1.0)

# Permanent and throttling reason codes of a client; all others are transient.
_REFUSED: Final[dict[int, FailureKind]] = {
    ReasonCode.NOT_AUTHORIZED: FailureKind.REJECTED,
    ReasonCode.TOPIC_NAME_INVALID: FailureKind.REJECTED,
    ReasonCode.PAYLOAD_FORMAT_INVALID: FailureKind.REJECTED,
    ReasonCode.QUOTA_EXCEEDED: FailureKind.THROTTLED,
}


class ClientDelivery(Struct, eq=False):
    """A message on its way to a client.

    Attributes:
        topic: With the property bag.
        message: The message.
        options: Of the subscription, the granted quality of service in the lowest two bits.
        settle: Called once.
        expires_in_ms: What is left of its time to live, None = not known or endless.
        dup: The client may have got it on an earlier connection.
        written: Called when it is written, which it may wait for; None = nothing is.
        deadline_s: Monotonic time at which it is late, set when it is sent.
        expires_s: Likewise, at which its time to live ends.
    """

    topic: bytes
    message: Message
    options: int
    settle: Settle
    expires_in_ms: int | None = None
    dup: bool = False
    written: Callable[[], None] | None = None
    deadline_s: float = 0.0
    expires_s: float | None = None


class Deliveries:
    """Deliveries to one client.

    Args:
        clock: For the time limit.
        ack_timeout_s: A client's time to confirm.
        write: Takes the bytes of a packet.
        unresponsive: Called when too many deliveries were never confirmed.
        delivered: Called for each confirmed delivery, or one of QoS 0.
        properties: Limits of a client of MQTT 5, None = it uses MQTT 3.1.1.

    Attributes:
        with_properties: Whether the client uses MQTT 5.
        freed: Called after each acknowledgement, when there may be room for more.
        reserved: Packet ids that the client's session in the local topic space uses.
    """

    __slots__ = (
        "_abandoned",
        "_ack_timeout_s",
        "_clock",
        "_delivered",
        "_in_flight",
        "_local",
        "_next_id",
        "_terms",
        "_timer",
        "_unresponsive",
        "_waiting",
        "_write",
        "freed",
        "reserved",
        "waiting_bytes",
        "with_properties",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        ack_timeout_s: float,
        write: Callable[[bytes], None],
        unresponsive: Callable[[], None],
        delivered: Callable[[], None],
        properties: ConnectProperties | None,
    ) -> None:
        self._clock = clock
        self._ack_timeout_s = ack_timeout_s
        self._write = write
        self._unresponsive = unresponsive
        self._delivered = delivered
        self._terms = properties or ConnectProperties()
        self.with_properties = properties is not None
        self._in_flight: dict[int, tuple[float, Settle]] = {}
        self._waiting: deque[ClientDelivery] = deque()
        self.waiting_bytes = 0
        self._abandoned: set[int] = set()
        # Of the local topic space, whose sessions keep the messages: the acknowledgement that is
        # awaited, and its callback.
        self._local: dict[int, tuple[type[Acknowledgement] | None, Progress]] = {}
        self.reserved: Collection[int] = ()
        self.freed: Callable[[], None] | None = None
        self._next_id = 1
        # One timer for the oldest; deliveries stand in order of their deadlines.
        self._timer = Timer(clock, self._check)

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting) + len(self._local)

    def send(self, delivery: ClientDelivery) -> None:
        """Write a message, and settle it when it is confirmed or late, or the connection closed."""
        if len(delivery.topic) > STRING_BYTES_MAX:
            delivery.settle(_LONG_TOPIC)
            return
        now_s = self._clock.monotonic()
        if delivery.expires_in_ms is not None:
            delivery.expires_s = now_s + delivery.expires_in_ms / 1000
        delivery.deadline_s = now_s + self._ack_timeout_s
        used = self._used
        if not delivery.options & QOS:
            self._write_now(delivery, now_s)
        elif used >= IN_FLIGHT_MAX:
            delivery.settle(_NO_ID)
        elif self._waiting or used >= self._terms.receive_maximum:
            self._wait(delivery)
        else:
            self._write_now(delivery, now_s)

    def acknowledge(self, packet_id: int, code: int = 0) -> None:
        """Settle a delivery by its PUBACK; one with an unknown packet id is ignored."""
        delivery = self._in_flight.pop(packet_id, None)
        if delivery is None:
            if not self._progress(Puback, packet_id, is_over=True):
                self._abandoned.discard(packet_id)
        elif code < FIRST_FAILURE:
            self._delivered()
            delivery[1](DELIVERED)
        else:
            kind = _REFUSED.get(code, FailureKind.TRANSIENT)
            retry_after_s = 1.0 if kind is FailureKind.THROTTLED else None
            reason = f"the client refused it with reason code {code:#04x}"
            delivery[1](RefusedByClient(kind, reason, retry_after_s))
        self._make_use_of_room()

    def received(self, packet_id: int, code: int = 0) -> bool:
        """Handle a PUBREC; returns whether its packet id is known."""
        awaited = self._local.get(packet_id)
        if awaited is None:
            return False
        if awaited[0] is Pubcomp:
            # A repeated PUBREC: the PUBREL was lost.
            self._write(pubrel(packet_id))
        elif code >= FIRST_FAILURE:
            self._progress(Pubrec, packet_id, is_over=True)
            self._make_use_of_room()
        else:
            self._progress(Pubrec, packet_id, is_over=False)
        return True

    def completed(self, packet_id: int) -> None:
        """Handle a PUBCOMP; one with an unknown packet id is ignored."""
        if self._progress(Pubcomp, packet_id, is_over=True):
            self._make_use_of_room()

    # For the local topic space, which has its own queues; see `local.client`.

    def has_room(self, local_max: int) -> bool:
        """Return whether another message may be in flight, with at most `local_max` local ones."""
        most = self._terms.receive_maximum
        return not self._waiting and len(self._local) < local_max and self._used < most

    def fits(self, data: bytes) -> bool:
        """Return whether the client takes a packet of this size."""
        bytes_max = self._terms.packet_bytes_max
        return bytes_max is None or len(data) <= bytes_max

    def hold(self, packet_id: int, awaited: type[Acknowledgement], progress: Progress) -> None:
        """Call `progress` with each acknowledgement of a packet of the local topic space.

        There is no time limit.

        Args:
            packet_id: Of the packet.
            awaited: The acknowledgement that the client has to send.
            progress: `progress(False)` is called with a PUBREC after which PUBREL has to follow.
        """
        self._local[packet_id] = awaited, progress

    def close(self) -> None:
        """Settle all deliveries: the connection is closed."""
        self._timer.cancel()
        settles = [settle for _, settle in self._in_flight.values()]
        settles += [delivery.settle for delivery in self._waiting]
        self._in_flight.clear()
        self._local.clear()
        self._waiting.clear()
        self.freed = None
        self.waiting_bytes = 0
        for settle in settles:
            settle(_DISCONNECTED)

    def _write_now(self, delivery: ClientDelivery, now_s: float) -> None:
        message = delivery.message
        options = delivery.options
        properties = b""
        retain = False
        if self.with_properties:
            left_ms = None
            if delivery.expires_s is not None:
                left_ms = int((delivery.expires_s - now_s) * 1000)
                if left_ms <= 0:
                    delivery.settle(_EXPIRED)
                    return
            properties = write_message_properties(message, left_ms, write_identifiers(options))
            if options & RETAIN_AS_PUBLISHED:
                retain = message.properties.get(RETAIN_PROPERTY) == "true"
        # The dialect has no QoS 2, since a repeated message has another packet id.
        qos = min(options & QOS, 1)
        packet_id = self.free_id() if qos else 0
        data = publish(
            delivery.topic,
            message.body,
            qos=qos,
            packet_id=packet_id,
            retain=retain,
            dup=delivery.dup and qos > 0,
            properties=properties,
        )
        bytes_max = self._terms.packet_bytes_max
        if bytes_max is not None and len(data) > bytes_max:
            delivery.settle(_LARGE)
        elif qos:
            self._in_flight[packet_id] = (delivery.deadline_s, delivery.settle)
            self._write(data)
            if delivery.written is not None:
                delivery.written()
            self._timer.start(delivery.deadline_s - now_s)
        else:
            self._write(data)
            if delivery.written is not None:
                delivery.written()
            self._delivered()
            delivery.settle(DELIVERED)

    def _wait(self, delivery: ClientDelivery) -> None:
        size = _size(delivery)
        if self._waiting and self.waiting_bytes + size > WAITING_BYTES_MAX:
            delivery.settle(_FULL)
            return
        self._waiting.append(delivery)
        self.waiting_bytes += size
        self._timer.start(self._ack_timeout_s)

    def _write_waiting(self) -> None:
        now_s = self._clock.monotonic()
        most = self._terms.receive_maximum - len(self._abandoned) - len(self._local)
        while self._waiting and len(self._in_flight) < most:
            delivery = self._waiting.popleft()
            self.waiting_bytes -= _size(delivery)
            self._write_now(delivery, now_s)

    @property
    def _used(self) -> int:
        return len(self._in_flight) + len(self._abandoned) + len(self._local)

    def _progress(self, kind: type[Acknowledgement], packet_id: int, *, is_over: bool) -> bool:
        awaited, progress = self._local.get(packet_id, _UNKNOWN)
        if awaited is not kind:
            return False
        if is_over:
            del self._local[packet_id]
        else:
            # The id stays in use until the PUBREL is sent and answered.
            self._local[packet_id] = None, progress
        progress(is_over)
        return True

    def _make_use_of_room(self) -> None:
        if self._waiting:
            self._write_waiting()
        if self.freed is not None:
            self.freed()

    def free_id(self) -> int:
        """Return a packet id that nothing uses."""
        packet_id = self._next_id
        while (
            packet_id in self._in_flight
            or packet_id in self._abandoned
            or packet_id in self._local
            or packet_id in self.reserved
        ):
            packet_id = packet_id % PACKET_ID_MAX + 1
        self._next_id = packet_id % PACKET_ID_MAX + 1
        return packet_id

    def _check(self) -> None:
        now_s = self._clock.monotonic()
        late = []
        for packet_id, (deadline_s, _) in self._in_flight.items():
            if deadline_s > now_s:
                self._timer.start(deadline_s - now_s)
                break
            late.append(packet_id)
        for packet_id in late:
            _, settle = self._in_flight.pop(packet_id)
            self._abandoned.add(packet_id)
            settle(_LATE)
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            delivery = self._waiting.popleft()
            self.waiting_bytes -= _size(delivery)
            delivery.settle(_LATE)
        if self._waiting:
            self._timer.start(self._waiting[0].deadline_s - now_s)
        if len(self._abandoned) >= min(ABANDONED_MAX, self._terms.receive_maximum):
            self._unresponsive()


def _ignore(_is_over: bool) -> None:
    """Ignore the progress of an unknown packet id."""


_UNKNOWN: Final = (None, _ignore)


def _size(delivery: ClientDelivery) -> int:
    return len(delivery.topic) + len(delivery.message.body)
