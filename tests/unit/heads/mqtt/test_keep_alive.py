"""The watch over a silent client: when it closes, and that it ends with its connection."""

from __future__ import annotations

from edgehub.clock import ManualClock
from edgehub.heads.mqtt.keep_alive import KeepAlive
from edgehub.heads.mqtt.statistics import CloseReason


class Watched:
    """A connection that records why it is closed."""

    pauses = 0

    def __init__(self, clock: ManualClock) -> None:
        self.closed: list[CloseReason] = []
        self.heard_s = clock.monotonic()

    def close(self, reason: CloseReason) -> None:
        """See `ClientConnection`."""
        self.closed.append(reason)


async def test_a_silent_client_is_closed_at_one_and_a_half_times_its_keep_alive() -> None:
    """Counted from when it was heard last."""
    clock = ManualClock()
    connection = Watched(clock)
    KeepAlive(connection, clock, keep_alive_s=10)
    await clock.advance(10)
    connection.heard_s = clock.monotonic()
    await clock.advance(14)
    assert connection.closed == []
    await clock.advance(1)
    assert connection.closed == [CloseReason.KEEP_ALIVE]


async def test_the_watch_ends_with_its_connection() -> None:
    """No timer holds a connection for hours that its client has long left."""
    clock = ManualClock()
    connection = Watched(clock)
    KeepAlive(connection, clock, keep_alive_s=10).close()
    await clock.advance(100)
    assert connection.closed == []
