"""Rows that share payloads wait for company where that costs little, and nobody waits long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.hub.endpoints import BATCH_PIECE_SHARE
from edgehub.pump.options import PumpOptions
from edgehub.pump.window import PAYLOAD_BYTES, SendWindow
from tests.support.endpoints import FlakyEndpoint
from tests.support.memory_queue import a_row
from tests.support.simulated_link import HEAD_OF_LINE_S
from tests.support.simulated_link import SimulatedLink as Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench


class PackingEndpoint(FlakyEndpoint):
    """Delivers at once; a row takes a fifth of its bytes on the link."""

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """See `Endpoint`."""
        return [row.size // 5 for row in rows]


async def test_rows_linger_after_a_batch_that_emptied_their_queue(
    start: Callable[..., Bench],
) -> None:
    """The first leaves at once, what comes within the next second leaves with it, once."""
    endpoint = PackingEndpoint({})
    bench = start(endpoint, linger_s=1.0)
    await bench.settle()
    bench.queue(3).put(a_row(1))
    await bench.settle()
    for offset in (2, 3, 4):
        bench.queue(3).put(a_row(offset))
        await bench.clock.advance(0.3)
    assert endpoint.batches == [[1]]
    assert bench.pump.stalled_s() == 0
    await bench.clock.advance(0.1)
    assert endpoint.batches == [[1], [2, 3, 4]]
    await bench.clock.advance(1.0)
    bench.queue(3).put(a_row(5))
    await bench.settle()
    assert endpoint.batches[-1] == [5]


async def test_the_best_priority_never_lingers(start: Callable[..., Bench]) -> None:
    """Rows of priority 0 leave as they come, also while others wait."""
    endpoint = PackingEndpoint({})
    bench = start(endpoint, linger_s=60.0)
    await bench.settle()
    bench.queue(1).put(a_row(1))
    await bench.settle()
    bench.queue(1).put(a_row(2))
    for offset in (3, 4):
        bench.queue(0).put(a_row(offset))
        await bench.settle()
    assert endpoint.batches == [[1], [3], [4]]


async def test_a_backlog_does_not_linger(start: Callable[..., Bench]) -> None:
    """What waits already fills batches by itself."""
    endpoint = PackingEndpoint({})
    bench = start(endpoint, linger_s=60.0, batch_rows_max=10)
    bench.queue(2).put(*(a_row(offset) for offset in range(100)))
    await bench.settle()
    assert len(endpoint.received) == 100


async def test_a_time_to_live_that_ends_while_lingering_ends_the_row(
    start: Callable[..., Bench],
) -> None:
    """It is checked when the batch leaves, not when the row came."""
    endpoint = PackingEndpoint({})
    bench = start(endpoint, linger_s=10.0)
    await bench.settle()
    bench.queue(2).put(a_row(1))
    await bench.settle()
    short = a_row(2, expires_ms=bench.clock.boottime_ms() + 5000)
    bench.queue(2).put(short, a_row(3))
    await bench.clock.advance(10.0)
    assert endpoint.batches == [[1], [3]]
    assert bench.queue(2).expired == [2]


async def test_small_rows_fill_the_window_of_the_link(start: Callable[..., Bench]) -> None:
    """A batch is read by what its rows take on the link, not by what they take in their queue."""
    endpoint = PackingEndpoint({})
    bench = start(endpoint, rate_bytes_s_max=26_400, piece_share=0.4, batch_rows_max=512)
    bench.queue(2).put(*(a_row(offset) for offset in range(4000)))
    await bench.settle()
    await bench.clock.advance(2.0)
    # A row takes 52 bytes on the link: two seconds carry about a thousand, in pieces of a hundred.
    assert 900 < len(endpoint.received) < 1300
    largest = sorted(len(batch) for batch in endpoint.batches)[-5:]
    assert min(largest) > 50


@pytest.mark.parametrize("kbit_s", [10, 64, 256])
@pytest.mark.parametrize("rtt_s", [0.001, 0.2, 0.6])
def test_payloads_fill_a_thin_link(kbit_s: int, rtt_s: float) -> None:
    """Full with rows of 50 bytes in payloads of a fifth of a second; an alarm waits little.

    On the thinnest link a payload takes two thirds of a second, and a gap behind it may be left.
    """
    rate = kbit_s * 125
    link = Link(
        rate, rtt_s, modem=True, alarm_every_s=max(0.5, 1000 / rate), piece_share=BATCH_PIECE_SHARE
    )
    link.size = 50
    link.run(20)
    link.waits_s.clear()
    rows, sends = link.sent_rows, link.sends
    payload_s = PAYLOAD_BYTES / rate
    assert link.used(120) > (0.93 if payload_s < 0.2 else 0.8)
    assert link.alarm_wait_s(0.99) < max(HEAD_OF_LINE_S, 1.5 * payload_s) + max(rtt_s, 0.2)
    # Alarms that leave alone are counted too.
    assert (link.sent_rows - rows) / (link.sends - sends) > min(20, rate * 0.1 / 50)


@pytest.mark.parametrize("kbit_s", [10, 64, 256])
@pytest.mark.parametrize("rtt_s", [0.05, 0.2, 0.6])
def test_payloads_behind_a_peer_that_holds_confirmations_back(kbit_s: int, rtt_s: float) -> None:
    """Nagle's algorithm at the peer does not pass for a queue; alarms stay in the floor.

    At the longest way the empty round trip is measured anew each minute, which costs a tenth.
    """
    rate = kbit_s * 125
    link = Link(
        rate,
        rtt_s,
        holds=True,
        modem=True,
        alarm_every_s=max(0.5, 1000 / rate),
        piece_share=BATCH_PIECE_SHARE,
    )
    link.size = 50
    link.run(20)
    link.waits_s.clear()
    assert link.used(120) > (0.95 if rtt_s < 0.6 and kbit_s > 10 else 0.88)
    # On the thinnest link a payload takes two thirds of a second.
    assert link.alarm_wait_s(0.99) < (1.5 if kbit_s > 10 else 2.0)


@pytest.mark.parametrize("kbit_s", [64, 256])
@pytest.mark.parametrize("rtt_s", [0.02, 0.05])
def test_a_short_way_is_full_of_payloads_too(kbit_s: int, rtt_s: float) -> None:
    """What the way holds is added to the window, so the link does not rest behind each payload."""
    link = Link(kbit_s * 125, rtt_s, modem=True, alarm_every_s=1.0, piece_share=BATCH_PIECE_SHARE)
    link.size = 50
    link.run(20)
    link.waits_s.clear()
    assert link.used(60) > (0.9 if rtt_s < 0.05 else 0.97)
    assert link.alarm_wait_s(0.99) < HEAD_OF_LINE_S


def test_under_a_cap_rows_wait_for_each_other() -> None:
    """A cap is given out in pieces as well, not in single rows."""
    window = SendWindow(PumpOptions(rate_bytes_s_max=10_000, piece_share=0.4))
    for at in range(1, 20):
        flight = window.sent(at, 100, 2000)
        window.delivered(at + 0.1, 100, 2000, flight)
    window.sent(50.0, 100, 2000)
    assert window.room(50.02, 0) == (0, 0)
    wait_s = window.wait_s(50.02, 0)
    assert wait_s is not None
    assert 0.1 < wait_s < 0.2
    assert window.room(50.02 + wait_s, 0)[1] > 1000
