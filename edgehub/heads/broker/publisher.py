"""From the local topic space to the broker: messages of the hub and of local clients.

Owns the packet ids in flight on the present connection. The messages wait in a stored session of
the space until the broker has confirmed them. Invariants: a message leaves that session only with
its PUBACK, also with one that refuses it; messages of the broker are not sent back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.local.frames import frame
from edgehub.heads.mqtt.local.options import WINDOW
from edgehub.heads.mqtt.local.rights import LocalRights
from edgehub.mqtt.packets import LEVEL_5

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.heads.broker.statistics import BrokerCounters
    from edgehub.heads.mqtt.local.session import LocalSession
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.local.tables import LocalEntry
    from edgehub.local_message import LocalMessage
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_packets import RefusedPublish
    from edgehub.telemetry.log_limit import LogLimit

UNSENT_BYTES_MAX: Final = 256 * 1024
"""Unsent bytes to the broker above which QoS 0 is dropped and QoS 1 waits."""

_FULL: Final = LocalRights()


class BrokerPublisher:
    """The `Link` of the broker's session in the local topic space.

    Args:
        space: The local topic space.
        session: The broker's session there.
        connection: Where messages go.
        counters: Of the head.
        log: For refused messages.
        level: Protocol level of the connection.
    """

    def __init__(
        self,
        space: LocalSpace,
        session: LocalSession,
        connection: Client,
        counters: BrokerCounters,
        *,
        log: LogLimit,
        level: int,
    ) -> None:
        self._space = space
        self._session = session
        self._connection = connection
        self._counters = counters
        self._log = log
        self._level = level
        self._window = min(WINDOW, connection.connack.receive_maximum)
        self._in_flight: dict[int, Callable[[bool], None]] = {}

    def attach(self) -> None:
        """Send the waiting messages, and later ones as they are published."""
        self._session.attach(self, _FULL)

    def detach(self) -> None:
        """Stop sending; unconfirmed messages stay in the session."""
        self._in_flight.clear()
        self._session.detach(self)

    def confirmed(self, packet_ids: list[int]) -> None:
        """Remove confirmed messages from the session."""
        for packet_id in packet_ids:
            confirm = self._in_flight.pop(packet_id, None)
            if confirm is not None:
                self._counters.published_total += 1
                confirm(True)
        self._session.pump()

    def refused(self, refused: list[RefusedPublish]) -> None:
        """Remove refused messages from the session; the broker would refuse them again."""
        for each in refused:
            confirm = self._in_flight.pop(each.packet_id, None)
            if confirm is not None:
                self._counters.refused_publishes_total += 1
                self._log.warning("broker.publish_refused", reason_code=f"{each.code:#04x}")
                confirm(True)
        self._session.pump()

    # As `session.Link`.

    @property
    def is_writable(self) -> bool:
        """Whether few enough bytes wait for the broker."""
        return self._connection.unsent_bytes() < UNSENT_BYTES_MAX

    @property
    def has_room(self) -> bool:
        """Whether the window has room; one message may always be in flight."""
        return len(self._in_flight) < self._window and (not self._in_flight or self.is_writable)

    def write(self, message: LocalMessage, *, retain: bool, identifiers: bytes) -> bool:
        """Send a message with QoS 0; False = larger than the broker takes."""
        del identifiers
        data = self._frame(message, 0, retain=retain, dup=False)
        if self._is_too_large(data):
            return False
        self._connection.write(data)
        return True

    def new_packet_id(self) -> int:
        """Return a packet id that is not in use on this connection."""
        return self._connection.next_packet_id(self._in_flight)

    def send(self, entry: LocalEntry, progress: Callable[[bool], None]) -> int:
        """Send an entry with QoS 1 and a packet id of this connection."""
        own_id = self.new_packet_id()
        data = self._frame(entry.message, own_id, retain=entry.retain, dup=entry.is_sent)
        if self._is_too_large(data):
            return 0
        self._in_flight[own_id] = progress
        self._connection.write(data)
        return own_id

    def _is_too_large(self, data: bytes) -> bool:
        limit = self._connection.connack.packet_bytes_max
        return limit is not None and len(data) > limit

    def _frame(self, message: LocalMessage, packet_id: int, *, retain: bool, dup: bool) -> bytes:
        return frame(
            message,
            qos=1 if packet_id else 0,
            packet_id=packet_id,
            retain=retain and self._connection.connack.retains,
            dup=dup,
            now_ms=self._space.now_ms(),
            with_properties=self._level >= LEVEL_5,
        )
