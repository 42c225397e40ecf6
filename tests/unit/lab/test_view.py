"""What the demo prints."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from edgehub.lab.demo.ledger import DownTimes, Ledger
from edgehub.lab.demo.scenario import TRAFFIC
from edgehub.lab.demo.snapshot import Snapshot, queue_figures
from edgehub.lab.demo.view import LiveView, PlainView, plain_line, render


@pytest.fixture
def snapshot() -> Snapshot:
    """A moment with a backlog of bulk telemetry."""
    status = {
        "queues": [{"priority": 7, "depth": 42, "sent": 10, "expired": 3, "oldest_age_s": 8.25}]
    }
    return Snapshot(
        elapsed_s=12.0,
        link_up=True,
        link_wait="",
        link_use=0.93,
        queues=queue_figures(status, Ledger(TRAFFIC, DownTimes())),
        acknowledged=55,
        delivered=9,
        parent_waiting=1,
        news=("  10.0 s  link cut",),
    )


def test_a_plain_line_shows_every_priority(snapshot: Snapshot):
    """One line, best priority first."""
    line = plain_line(snapshot)
    assert line.startswith("  12.0 s  link up  93% | P0 waiting 0 ")
    assert line.endswith("P7 waiting 42 sent 10 expired 3 oldest 8.25 s p99 -")


def test_a_plain_line_says_when_the_link_is_down(snapshot: Snapshot):
    """Readable without colour."""
    assert "link DOWN    the link is cut |" in plain_line(replace(snapshot, link_up=False))


def test_a_link_that_waits_says_for_what(snapshot: Snapshot):
    """Between the return of the link and the next try there is a gap, and it has a reason."""
    wait = "next try in 2.3 s: Connection refused"
    waiting = replace(snapshot, link_up=False, link_wait=wait)
    assert f"link DOWN    {wait} |" in plain_line(waiting)
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(render(waiting))
    text = console.export_text()
    assert wait in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_panel_fits_80_columns(snapshot: Snapshot):
    """Every figure is visible on a small terminal."""
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(render(snapshot))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    for figure in ("42", "8.25 s", "93% of 64 kbit/s", "link cut", "55 acknowledged"):
        assert figure in text


def test_plain_view_prints_news_once(snapshot: Snapshot):
    """A turn of events stands on its own line, the first time only."""
    out = io.StringIO()
    view = PlainView(Console(file=out))
    with view.screen:
        view.show(snapshot)
        view.show(snapshot)
    assert out.getvalue().count("link cut") == 1
    assert out.getvalue().count("P7 waiting 42") == 2


def test_live_view_redraws_and_lets_go(snapshot: Snapshot):
    """The terminal is given back with the last picture on it."""
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=80))
    with view.screen:
        view.show(snapshot)
    assert "42" in out.getvalue()
