"""What the demo reads from the hubs' status and the link."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.clock import ManualClock
from edgehub.lab.demo.ledger import DownTimes, Ledger
from edgehub.lab.demo.scenario import PRIORITIES, TRAFFIC
from edgehub.lab.demo.snapshot import (
    BACKLOG_ROWS,
    LinkMeter,
    link_is_up,
    link_wait,
    queue_figures,
    rows_waiting,
)
from edgehub.lab.demo.thin_link import Pacer


def a_queue(priority: int, depth: int) -> dict[str, Any]:
    """Describe a queue as a hub's status does."""
    return {
        "priority": priority,
        "depth": depth,
        "sent": 4,
        "expired": 2,
        "oldest_age_s": 1.5,
    }


def test_the_link_is_up_when_the_upstream_endpoint_is():
    """Only the endpoint `upstream` counts."""
    other = {"id": "archive", "state": "up"}
    assert link_is_up({"endpoints": [{"id": "upstream", "state": "up"}]})
    assert not link_is_up({"endpoints": [{"id": "upstream", "state": "connecting"}, other]})


@pytest.mark.parametrize(
    ("state", "wait_s", "reason", "words"),
    [
        ("up", None, "", ""),
        ("down", 2.25, "Connection refused", "next try in 2.2 s: Connection refused"),
        ("connecting", None, "closed by the peer", "trying to connect: closed by the peer"),
        ("connecting", None, "", "trying to connect"),
    ],
)
def test_a_link_that_is_down_has_a_reason(
    state: str, wait_s: float | None, reason: str, words: str
):
    """What the gateway waits for before it connects again, and since what."""
    upstream = {"id": "upstream", "state": state, "backoff_remaining_s": wait_s, "reason": reason}
    assert link_wait({"endpoints": [{"id": "archive", "state": "up"}, upstream]}) == words
    assert link_wait({"endpoints": []}) == ""


def test_rows_are_counted_per_priority_or_in_all():
    """Depths add up."""
    status = {"queues": [a_queue(0, 3), a_queue(7, 5)]}
    assert rows_waiting(status) == 8
    assert rows_waiting(status, 7) == 5


def test_a_priority_without_a_queue_shows_zeros():
    """The table has all its rows from the first moment on."""
    figures = queue_figures({"queues": [a_queue(7, 5)]}, Ledger(TRAFFIC, DownTimes()))
    assert [f.priority for f in figures] == list(PRIORITIES)
    assert (figures[0].waiting, figures[0].oldest_age_s) == (0, None)
    assert (figures[-1].waiting, figures[-1].expired) == (5, 2)


async def test_the_meter_gives_the_share_of_the_rate():
    """100 of 1 000 bytes a second are a tenth."""
    clock = ManualClock()
    pacer = Pacer(rate_bit_s=8_000, delay_s=0, clock=clock)
    meter = LinkMeter(pacer)
    meter.sample(0.0, link_up=True, waiting=0)
    assert meter.use_now == 0.0
    pacer.put(100, lambda: None)
    await clock.advance(1)
    meter.sample(1.0, link_up=True, waiting=0)
    assert meter.use_now == pytest.approx(0.1)


async def test_busy_use_counts_only_time_with_a_backlog_and_a_link():
    """Idle seconds and outages do not lower it."""
    clock = ManualClock()
    pacer = Pacer(rate_bit_s=8_000, delay_s=0, clock=clock)
    meter = LinkMeter(pacer)
    meter.sample(0.0, link_up=True, waiting=0)
    meter.sample(1.0, link_up=True, waiting=0)
    meter.sample(2.0, link_up=False, waiting=BACKLOG_ROWS)
    assert meter.use_busy is None
    pacer.put(900, lambda: None)
    await clock.advance(1)
    meter.sample(3.0, link_up=True, waiting=BACKLOG_ROWS)
    assert meter.use_busy == pytest.approx(0.9)
