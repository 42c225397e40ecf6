"""The end of a shared access signature: when it closes, whatever happens to the clock."""

from __future__ import annotations

from edgehub.clock import ManualClock
from edgehub.devices.identities import CLOCK_TOLERANCE_S, Identities
from edgehub.heads.mqtt.signature_expiry import CHECK_S, SignatureExpiry
from edgehub.heads.mqtt.statistics import CloseReason


class Watched:
    """A connection that records why it is closed."""

    def __init__(self) -> None:
        self.closed: list[CloseReason] = []

    def close(self, reason: CloseReason) -> None:
        """See `ClientConnection`."""
        self.closed.append(reason)


def watched(clock: ManualClock, left_s: int) -> tuple[Watched, SignatureExpiry]:
    """Watch a signature that ends in so many seconds."""
    connection = Watched()
    identities = Identities(lambda: clock.wall_ms() / 1000 if clock.is_synchronized else None)
    expires_s = clock.wall_ms() // 1000 + left_s - CLOCK_TOLERANCE_S
    return connection, SignatureExpiry(connection, clock, identities, expires_s)


async def test_it_ends() -> None:
    """The connection is closed at the expiry, not before."""
    clock = ManualClock()
    connection, _ = watched(clock, 3600)
    await clock.advance(3599)
    assert connection.closed == []
    await clock.advance(1)
    assert connection.closed == [CloseReason.EXPIRED]
    await clock.advance(7200)
    assert connection.closed == [CloseReason.EXPIRED]


async def test_the_clock_is_set() -> None:
    """A step of the clock moves the end with it."""
    clock = ManualClock()
    ahead, _ = watched(clock, 3600)
    clock.step_wall(-3_600_000)
    await clock.advance(3600)
    assert ahead.closed == []
    clock.step_wall(3_600_000)
    await clock.advance(CHECK_S)
    assert ahead.closed == [CloseReason.EXPIRED]


async def test_the_clock_is_not_trusted() -> None:
    """Until it is, nothing ends."""
    clock = ManualClock(is_synchronized=False)
    connection, _ = watched(clock, 10)
    await clock.advance(100_000)
    assert connection.closed == []
    clock.is_synchronized = True
    await clock.advance(CHECK_S)
    assert connection.closed == [CloseReason.EXPIRED]


async def test_it_ends_with_its_connection() -> None:
    """No timer holds a connection that its client has left."""
    clock = ManualClock()
    connection, expiry = watched(clock, 10)
    expiry.close()
    await clock.advance(100)
    assert connection.closed == []
