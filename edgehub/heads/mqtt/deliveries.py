"""What one client is sent and has to confirm: packet ids, time limits and results.

Owns the deliveries in flight of one connection. Invariants: each delivery is settled exactly once;
a packet id is not used again before its PUBACK came, so that a late one confirms nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.packets import PACKET_ID_MAX, STRING_BYTES_MAX, publish
from edgehub.message import DELIVERED, FailureKind, SendResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle

    Settle = Callable[[SendResult], None]

ABANDONED_MAX: Final = 100
"""Deliveries that may time out on one connection before it is given up."""

_GONE: Final = SendResult(FailureKind.DISCONNECTED, "the client went away")
_LATE: Final = SendResult(FailureKind.TIMEOUT, "no PUBACK in time")
_LONG_TOPIC: Final = SendResult(FailureKind.TOO_LARGE, "properties do not fit into a topic")
_NO_ID: Final = SendResult(FailureKind.THROTTLED, "all packet ids are in flight", 1.0)


class Deliveries:
    """Deliveries to one client.

    Args:
        clock: For the time limit.
        ack_timeout_s: A client's time to confirm.
        write: Takes the bytes of a packet.
        unresponsive: Called when too many deliveries were never confirmed.
        delivered: Called for each delivery that arrived, for the count.
    """

    __slots__ = (
        "_abandoned",
        "_ack_timeout_s",
        "_clock",
        "_delivered",
        "_in_flight",
        "_next_id",
        "_timer",
        "_unresponsive",
        "_write",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        ack_timeout_s: float,
        write: Callable[[bytes], None],
        unresponsive: Callable[[], None],
        delivered: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._ack_timeout_s = ack_timeout_s
        self._write = write
        self._unresponsive = unresponsive
        self._delivered = delivered
        self._in_flight: dict[int, tuple[float, Settle]] = {}
        self._abandoned: set[int] = set()
        self._next_id = 1
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._in_flight)

    def send(self, topic: str, body: bytes, qos: int, settle: Settle) -> None:
        """Write a message and settle it when it is confirmed, late, or the client gone."""
        name = topic.encode()
        if len(name) > STRING_BYTES_MAX:
            settle(_LONG_TOPIC)
        elif not qos:
            self._write(publish(name, body, qos=0, packet_id=0))
            self._delivered()
            settle(DELIVERED)
        elif len(self._in_flight) + len(self._abandoned) >= PACKET_ID_MAX:
            settle(_NO_ID)
        else:
            packet_id = self._free_id()
            self._in_flight[packet_id] = (self._clock.monotonic() + self._ack_timeout_s, settle)
            self._write(publish(name, body, qos=1, packet_id=packet_id))
            if self._timer is None:
                self._timer = self._clock.call_later(self._ack_timeout_s, self._check)

    def acknowledge(self, packet_id: int) -> None:
        """Take a PUBACK; one that belongs to nothing is passed over."""
        delivery = self._in_flight.pop(packet_id, None)
        if delivery is None:
            self._abandoned.discard(packet_id)
        else:
            self._delivered()
            delivery[1](DELIVERED)

    def close(self) -> None:
        """Settle what is in flight: the client is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        for _, settle in in_flight:
            settle(_GONE)

    def _free_id(self) -> int:
        packet_id = self._next_id
        while packet_id in self._in_flight or packet_id in self._abandoned:
            packet_id = packet_id % PACKET_ID_MAX + 1
        self._next_id = packet_id % PACKET_ID_MAX + 1
        return packet_id

    def _check(self) -> None:
        # One timer for the oldest; deliveries stand in order of their deadlines.
        self._timer = None
        now_s = self._clock.monotonic()
        late = []
        for packet_id, (deadline_s, _) in self._in_flight.items():
            if deadline_s > now_s:
                self._timer = self._clock.call_later(deadline_s - now_s, self._check)
                break
            late.append(packet_id)
        for packet_id in late:
            _, settle = self._in_flight.pop(packet_id)
            self._abandoned.add(packet_id)
            settle(_LATE)
        if len(self._abandoned) >= ABANDONED_MAX:
            self._unresponsive()
