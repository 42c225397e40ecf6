"""The page: self-contained, whole, readable by a browser without a network."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from analytics.args import parse_args
from analytics.files import Files
from analytics.history import history
from analytics.page import headline, plots, words
from analytics.page.scenarios import scenarios
from analytics.transforms import balance
from tests.support.chromium import open_page
from tests.support.report import DATE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.report import Results

pytestmark = pytest.mark.timeout(300)


def test_a_browser_opens_it_without_a_network(results: Results, tmp_path: Path):
    """Nothing is missing, nothing is on the console, and all three pictures are there."""
    opened = open_page(results.page, tmp_path)
    assert opened.console == []
    assert f"Hub report, {DATE} UTC" in opened.document
    assert opened.document.count("<svg") == 3


def test_it_refers_to_nothing_outside(results: Results):
    """No script, no address, nothing else but the pages of hubs, which refer to it alone."""
    hubs = sorted((results.page.parent / "hubs").glob("*.html"))
    for page in (results.page, *hubs):
        text = page.read_text("utf-8")
        assert "<script" not in text
        assert re.findall(r"(?:https?:)?//[a-z]", text) == []
        assert re.findall(r"src=\"(?!data:,)", text) == []
    linked = re.findall(r"href=\"(?!data:,)([^\"]*)", results.page.read_text("utf-8"))
    assert {results.page.parent / unquote(link) for link in linked} == set(hubs)
    for page in hubs:
        assert re.findall(r"href=\"(?!data:,)([^\"]*)", page.read_text("utf-8")) == [
            "../report.html"
        ]


def test_each_hub_has_a_page(results: Results):
    """With its own rows, and nothing of another one."""
    pages = {page.stem: page.read_text("utf-8") for page in results.page.parent.glob("hubs/*.html")}
    balance = results.table("balance")
    assert pages.keys() == {row["hub"] for row in balance}
    for hub, page in pages.items():
        sums: Counter[str] = Counter()
        for row in balance:
            if row["hub"] == hub:
                sums.update({name: row[name] for name in ("sent_rows", "expired_rows")})
        assert f"<b>{words.count(sums['sent_rows'])}</b><span>sent, " in page
        assert f"<b>{words.count(sums['expired_rows'])}</b><span>expired, " in page
        rows = results.table("waiting", f"hub = '{hub}'")
        assert all(
            f"<td>{words.queue(row['endpoint'], row['priority'])}</td>" in page for row in rows
        )
        assert not any(f"{other} · " in page for other in pages if other != hub)
        assert "All hubs, every" not in page
        assert (f"{hub} · " in page) == bool(results.table("starvation", f"hub = '{hub}'"))


def test_it_has_a_dark_side(results: Results):
    """Colours follow the reader's preference."""
    assert "prefers-color-scheme: dark" in results.page.read_text("utf-8")


def test_the_worst_hubs_come_first(results: Results):
    """By the share of their messages that did not arrive, with a word for it."""
    page = results.page.read_text("utf-8")
    section = page.split("<h2>Worst hubs</h2>")[1].split("</section>")[0]
    named = re.findall(r"<tr><td><a [^>]+>([^<]+)</a></td><td>(.*?)</td>", section)
    shares: dict[str, list[int]] = {}
    for row in results.table("balance"):
        of_hub = shares.setdefault(row["hub"], [0, 0])
        of_hub[0] += headline.lost(row)
        of_hub[1] += headline.came(row)
    lost = {hub: lost / max(came, 1) for hub, (lost, came) in shares.items()}
    assert [lost[hub] for hub, _ in named] == sorted(lost.values(), reverse=True)[: len(named)]
    assert "severe" in named[0][1]
    assert {"model-0", "model-1"} <= {hub for hub, _ in named}
    assert "none" in named[-1][1]


def test_figures_stand_beside_those_of_the_week():
    """Yesterday's and the median of several days that have a report; without any, alone."""
    flows = (*balance.IN_FLOWS, *balance.OUT_FLOWS, "difference")
    quiet = {f"{flow}_{unit}": 0 for flow in flows for unit in ("rows", "bytes")}
    quiet |= {"starved_windows": 0, "longest_starved_ms": 0, "idle_windows": 0}
    quiet |= {"lines": 0, "quarantined": 0, "copies": 0}
    days = {ago: {**quiet, "enqueued_rows": rows} for ago, rows in ((1, 40), (3, 10), (6, 20))}
    shown = headline.tiles({**quiet, "enqueued_rows": 30}, days)
    first = "<b>30</b><span>messages to send</span><em>yesterday 40, median of 3 days 20</em>"
    assert first in shown
    assert "<em>" not in headline.tiles(quiet, {})
    assert "<em>median of 2 days 15</em>" in headline.tiles(quiet, {2: days[3], 6: days[6]})
    assert "<em>yesterday 40</em>" in headline.tiles(quiet, {1: days[1]})


def test_a_scenario_names_what_it_costs():
    """Rows and their priorities, with the hubs of which it is not known."""
    effect = {"scenario": "raw <1>", "arrived": 20, "of": 30, "costs": {"5": 1, "default": 1200}}
    effect |= {"net": -1181, "hubs": 4, "untold": 1}
    shown = scenarios({"best": None, "advised": False, "effects": [effect]})
    assert (
        "<li>raw &lt;1&gt;: 20 of 30 messages that did not arrive would have; costs 1 message of "
        "priority 5, 1\u202f200 messages of priority default. Cannot be told at 1 hub.</li>"
    ) in shown


def test_the_reports_of_a_week_are_read(spark: SparkSession, tmp_path: Path):
    """Of dates that have a page, and of this output alone."""
    args = parse_args([f"--input={tmp_path}", f"--output={tmp_path}", f"--date={DATE}"])
    for day, outcome in ((27, "done"), (26, "empty"), (22, "partial"), (20, "done")):
        folder = tmp_path / "report" / f"date=2026-11-{day}"
        folder.mkdir(parents=True)
        metrics = {"date": f"2026-11-{day}", "outcome": outcome}
        (folder / "metrics.json").write_text(json.dumps(metrics, indent=2))
    assert sorted(history(spark, Files(spark), args)) == [1, 6]


def test_a_queue_has_the_name_that_commands_take(results: Results):
    """With its priority, or without one for the default."""
    page = results.page.read_text("utf-8")
    section = page.split("<h2>Starvation</h2>")[1].split("</section>")[0]
    assert "<td>upstream_Pri5</td>" in section
    assert "<td>upstream</td>" in section
    assert "2000000000" not in page
    assert words.queue("upstream", 0) == "upstream_Pri0"


def test_names_from_outside_are_harmless():
    """Devices, reasons and hubs may hold anything."""
    assert (
        words.link("a/b <1>%")
        == '<a href="hubs/a%252Fb%2520%253C1%253E%2525.html">a/b &lt;1&gt;%</a>'
    )
    assert words.text("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert len(words.text("x" * 500)) < 60
    assert "not known" in words.text(None)


@pytest.mark.parametrize(
    ("value_ms", "expected"),
    [
        (None, "\u2013"),
        (0, "0"),
        (999, "999 ms"),
        (9_940, "9.9 s"),
        (59_000, "59 s"),
        (60_000, "1 min"),
        (61_000, "1 min 01 s"),
        (3_600_000, "1 h"),
        (86_340_000, "23 h 59 min"),
    ],
)
def test_durations(value_ms: int | None, expected: str):
    """The two largest units are enough."""
    assert words.duration(value_ms) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (250_000_000, "250 MB")]
)
def test_sizes(value: int, expected: str):
    """Decimal units, two or three digits."""
    assert words.size(value) == expected


def test_a_picture_of_nothing_is_a_picture():
    """An empty day has axes."""
    drawn = plots.bars([{} for _ in range(24)], {"rate": "c2"}, words.count)
    assert "<svg" in drawn
    assert "<rect" not in drawn


def test_a_bar_that_is_too_short_to_see_is_drawn():
    """A minute of a day is less than a pixel."""
    drawn = plots.lanes([("queue", [(0, 1_000, "starved", "a second")])])
    assert 'class="starved"' in drawn
    assert 'width="1.5"' in drawn
