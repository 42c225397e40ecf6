"""Starvation windows of days written by hand: each hub of the export is one case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.report import DATE

if TYPE_CHECKING:
    from datetime import datetime

    from tests.support.report import Results

pytestmark = pytest.mark.timeout(300)


def windows(results: Results, hub: str) -> list[tuple[int, str, str, int]]:
    """Return priority, kind, time of the start, and length in seconds, of a hub's windows."""
    found = results.table("starvation_windows", f"hub = '{hub}'")
    return sorted(
        (row["priority"], row["kind"], clock(row["start"]), row["length_ms"] // 1000)
        for row in found
    )


def clock(moment: datetime) -> str:
    """Return the time of day."""
    return f"{moment:%H:%M:%S}"


def only(results: Results, hub: str) -> dict[str, Any]:
    """Return a hub's only window."""
    [window] = results.table("starvation_windows", f"hub = '{hub}'")
    return window


def test_a_queue_behind_a_better_one_is_starved(results: Results):
    """From its first row to its first service, with all rows that waited in between."""
    window = only(results, "starved")
    assert (window["kind"], window["priority"], window["served"]) == ("starved", 5, [0])
    assert (window["length_ms"], window["idle_ms"]) == (3_600_000, 0)
    assert (window["rows"], window["bytes"], window["expired"]) == (2, 350, 0)
    assert f"{window['start']:%Y-%m-%d %H:%M:%S}" == f"{DATE} 10:00:00"


def test_queues_served_in_turns_are_not_starved(results: Results):
    """Each of them waits for the other, and never for long."""
    assert windows(results, "alternating") == []


def test_an_empty_queue_does_not_starve(results: Results):
    """A window ends when the last row leaves, for whatever reason; the next row begins another."""
    assert windows(results, "emptied") == [
        (5, "starved", "10:00:00", 600),
        (5, "starved", "10:40:00", 600),
    ]
    first = min(
        results.table("starvation_windows", "hub = 'emptied'"), key=lambda row: row["start"]
    )
    assert (first["rows"], first["expired"]) == (1, 1)


def test_windows_end_and_begin_at_midnight(results: Results):
    """What was carried in waits from 00:00, what is carried out until 24:00."""
    assert windows(results, "midnights") == [
        (5, "starved", "00:00:00", 3600),
        (5, "starved", "23:00:00", 3600),
    ]


def test_a_hub_that_does_not_run_starves_nobody(results: Results):
    """A stop ends a window, the start may begin another."""
    assert windows(results, "restarted") == [
        (5, "starved", "10:00:00", 1800),
        (5, "starved", "11:00:00", 1200),
    ]


def test_a_step_of_the_clock_changes_no_duration(results: Results):
    """Lengths are differences of hub time; the clock only places them."""
    assert windows(results, "clock-step") == [(5, "starved", "10:00:00", 1800)]


def test_an_idle_link_is_no_starvation(results: Results):
    """Nothing sent at all is a fault; after better rows the idle part is shown by itself."""
    found = results.table("starvation_windows", "hub = 'idle'")
    assert sorted((row["kind"], row["length_ms"], row["idle_ms"]) for row in found) == [
        ("idle", 1_200_000, 1_200_000),
        ("starved", 1_200_000, 620_000),
    ]


def test_idle_after_a_refusal_is_held_back(results: Results):
    """The endpoint had asked for patience."""
    window = only(results, "held-back")
    assert (window["kind"], window["idle_ms"], window["retried"]) == ("held_back", 1_200_000, 1)


def test_a_link_that_is_down_starves_nobody(results: Results):
    """The window begins when the link is back."""
    assert windows(results, "cut-link") == [(5, "starved", "10:40:00", 300)]


def test_an_endpoint_that_nothing_serves_is_no_idle_link(results: Results):
    """The time is named as such, on the page too, and only for endpoints that had rows."""
    assert windows(results, "unserved") == []
    columns = ("hub", "endpoint", "times", "length_ms")
    found = [tuple(row[name] for name in columns) for row in results.table("unserved")]
    assert found == [("unserved", "upstream", 1, 1_260_000)]
    page = results.page.read_text("utf-8")
    hub = '<a href="hubs/unserved.html">unserved</a>'
    assert f"<b>{hub}</b>: no upstream was named for 21 min;" in page


def test_a_window_has_a_shortest_length(results: Results):
    """Sixty seconds count, a millisecond less does not."""
    assert windows(results, "limits") == [(5, "starved", "10:00:00", 60)]


def test_a_worse_priority_does_not_starve(results: Results):
    """Waiting while worse rows leave has other reasons."""
    assert windows(results, "worse") == []


def test_another_endpoint_does_not_starve(results: Results):
    """Each link has its own turn; this one was idle."""
    assert windows(results, "elsewhere") == [(5, "idle", "10:00:00", 600)]


def test_the_default_priority_is_behind_nine(results: Results):
    """A queue without a priority starves behind the last explicit one."""
    assert windows(results, "default") == [(2_000_000_000, "starved", "10:00:00", 600)]


def test_a_window_over_several_hours_is_one(results: Results):
    """The pieces that the work is split into do not show."""
    window = only(results, "long")
    assert (window["length_ms"], window["rows"], window["bytes"]) == (11_400_000, 4, 400)


def test_a_demoted_row_waits_anew_in_its_new_queue(results: Results):
    """It empties one queue and fills another; both starved."""
    assert windows(results, "moved") == [
        (1, "starved", "10:00:00", 900),
        (5, "starved", "10:15:00", 900),
    ]


def test_an_open_day_ends_with_its_last_line(results: Results):
    """What still waits has starved up to there."""
    assert windows(results, "open") == [(5, "starved", "10:00:00", 580)]


def test_windows_are_summed_up_per_queue(results: Results):
    """Number, longest, total, rows and bytes."""
    [queue] = results.table("starvation", "hub = 'emptied'")
    assert (queue["windows"], queue["longest_ms"], queue["total_ms"]) == (2, 600_000, 1_200_000)
    assert (queue["rows"], queue["bytes"], queue["expired"]) == (2, 200, 1)
