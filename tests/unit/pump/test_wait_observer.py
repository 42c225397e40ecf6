"""What the journal is notified of: bytes of each minute, once, when the minute is over."""

from __future__ import annotations

from edgehub.message import UPSTREAM, EndpointId, Priority
from edgehub.pump.wait_observer import WaitObserver


class Listener:
    """Keeps what it is notified of."""

    def __init__(self) -> None:
        self.traffic: list[tuple[EndpointId, int, float]] = []

    def pump_changed(self, endpoint_id: EndpointId, state: int) -> None:
        """Ignore it."""

    def queue_delayed(self, endpoint_id: EndpointId, priority: Priority, delayed: bool) -> None:
        """Ignore it."""

    def link_traffic(self, endpoint_id: EndpointId, size: int, ago_s: float) -> None:
        """Keep it."""
        self.traffic.append((endpoint_id, size, ago_s))


def observed(*turns: tuple[float, int]) -> list[tuple[int, float]]:
    """Return what is recorded of turns: monotonic seconds, and bytes handed over by then."""
    listener = Listener()
    observer = WaitObserver(listener, UPSTREAM)
    for now, handed in turns:
        observer.observe([], now, link_up=True, paused=False, handed_bytes=handed)
    assert {endpoint_id for endpoint_id, _, _ in listener.traffic} <= {UPSTREAM}
    return [(size, ago_s) for _, size, ago_s in listener.traffic]


def test_a_minute_is_recorded_once_it_is_over() -> None:
    """The bytes of a turn are of the minute of the turn, however late the next one comes."""
    assert observed((1, 0), (61, 100), (119, 250)) == []
    assert observed((1, 0), (61, 100), (119, 250), (120, 250)) == [(250, 60.0)]
    assert observed((61, 100), (3661, 700), (3720, 700)) == [(100, 3601.0), (600, 60.0)]


def test_a_link_that_is_down_ends_its_minute() -> None:
    """Nothing can follow, and the pump may end."""
    listener = Listener()
    observer = WaitObserver(listener, UPSTREAM)
    observer.observe([], 61, link_up=True, paused=False, handed_bytes=100)
    observer.observe([], 62, link_up=False, paused=False, handed_bytes=100)
    assert listener.traffic == [(UPSTREAM, 100, 2.0)]
