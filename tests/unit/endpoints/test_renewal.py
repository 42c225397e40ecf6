"""The renewal of a signature: when a connection ends, and what may still be confirmed."""

from __future__ import annotations

from pathlib import Path

from edgehub.clock import ManualClock
from edgehub.endpoints.mqtt_link import SharedAccess
from edgehub.endpoints.renewal import CHECK_S, REASON, Renewal

HOUR = SharedAccess(file=Path("key"), setting="shared_access_key_file", lasts_s=3600)


class Watched:
    """A connection with rows in flight."""

    def __init__(self, clock: ManualClock, access: SharedAccess | None = HOUR) -> None:
        self.in_flight = 0
        self.ends: list[str] = []
        self.renewal = Renewal(
            access, clock=clock, is_idle=lambda: not self.in_flight, end=self.ends.append
        )
        self.renewal.begin()


async def test_an_idle_connection() -> None:
    """It ends at four fifths of the signature, once, and the next one has all of its time."""
    clock = ManualClock()
    watched = Watched(clock)
    for _ in range(2):
        await clock.advance(2879)
        assert (watched.ends, watched.renewal.is_due) == ([], False)
        await clock.advance(1)
        assert (watched.ends, watched.renewal.is_due) == ([REASON], True)
        watched.renewal.stop()
        assert not watched.renewal.is_due
        watched.ends.clear()
        watched.renewal.begin()


async def test_rows_in_flight() -> None:
    """They may be confirmed, and nothing new is sent; but not for ever."""
    clock = ManualClock()
    confirmed, stuck = Watched(clock), Watched(clock)
    confirmed.in_flight = stuck.in_flight = 1
    await clock.advance(2880)
    assert confirmed.renewal.is_due
    confirmed.in_flight = 0
    await clock.advance(CHECK_S)
    assert (confirmed.ends, stuck.ends) == ([REASON], [])
    await clock.advance(361)
    assert stuck.ends == [REASON]


async def test_without_a_signature() -> None:
    """Nothing ends; and nothing once the connection has ended by itself."""
    clock = ManualClock()
    without, stopped = Watched(clock, None), Watched(clock)
    stopped.renewal.stop()
    await clock.advance(10_000)
    assert without.ends == stopped.ends == []
