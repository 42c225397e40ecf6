"""From the local topic space to a broker that reads slowly, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.heads.broker.publisher import UNSENT_BYTES_MAX, BrokerPublisher
from edgehub.heads.broker.statistics import BrokerCounters
from edgehub.heads.mqtt.local.tables import LocalEntry
from edgehub.local_message import LocalMessage
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Collection


class Link:
    """A connection to a broker, and the session that sends over it."""

    def __init__(self) -> None:
        self.connack = SimpleNamespace(receive_maximum=2, packet_bytes_max=None, retains=True)
        self.unsent = 0
        self.written: list[bytes] = []
        self.mid = 0
        self.publisher = BrokerPublisher(
            SimpleNamespace(now_ms=lambda: 0),
            SimpleNamespace(pump=lambda: None),
            self,
            BrokerCounters(),
            log=LogLimit(ManualClock()),
            level=5,
        )

    def unsent_bytes(self) -> int:
        """Return what the test says has not left."""
        return self.unsent

    def next_packet_id(self, _in_use: Collection[int]) -> int:
        """Return another packet id."""
        self.mid += 1
        return self.mid

    def write(self, data: bytes) -> None:
        """Record what is sent."""
        self.written.append(data)

    def send(self) -> int:
        """Send a message of QoS 1; returns its packet id."""
        message = LocalMessage("a", b"x", publisher="c", qos=1)
        return self.publisher.send(LocalEntry(message), lambda _owned: None)


def test_something_is_always_under_way_that_goes_on_with_what_waits() -> None:
    """Behind a full buffer one message is sent: its PUBACK is what wakes the rest."""
    link = Link()
    link.unsent = UNSENT_BYTES_MAX
    assert link.publisher.has_room
    mid = link.send()
    assert not link.publisher.has_room
    link.publisher.confirmed([mid])
    assert link.publisher.has_room


def test_no_more_is_under_way_than_the_broker_takes() -> None:
    """The receive maximum of its CONNACK bounds what waits for a PUBACK."""
    link = Link()
    mids = [link.send() for _ in range(2)]
    assert not link.publisher.has_room
    link.publisher.confirmed(mids[:1])
    assert link.publisher.has_room
