"""Do the counts close? One export, a hub per case, judged once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from analytics import quality, readers
from analytics.args import parse_args
from analytics.errors import QualityError
from analytics.files import Files
from analytics.hubs import survey
from analytics.quality import HubDay
from analytics.tables import share
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def _carried_over(journal: HandJournal) -> None:
    journal.add("carried", "00:00:00", edge="in", rows=5)
    journal.left("sent", "10:00:00", count=2, bytes=200)
    journal.add("carried", "23:59:59.999", edge="out", rows=3)


def _empty_at_midnight(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00")
    journal.left("sent", "10:00:01")


def _waiting(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", count=3)


def _stopped(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", count=3)
    journal.add("carried", "10:30:00", edge="stop", rows=3)


def _stopped_twice(journal: HandJournal) -> None:
    _stopped(journal)
    journal.add("carried", "11:00:00", edge="start", rows=3)
    journal.left("sent", "11:10:00")
    journal.add("carried", "11:30:00", edge="stop", rows=2)


def _went_on(journal: HandJournal) -> None:
    _stopped(journal)
    journal.add("carried", "11:00:00", edge="start", rows=3)
    journal.left("sent", "11:10:00")


def _moved(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=1)
    journal.left("moved", "10:15:00", priority=1, reason="recency", to_endpoint="upstream")
    journal.left("sent", "10:20:00")


def _from_nowhere(journal: HandJournal) -> None:
    journal.left("sent", "10:00:00")


def _bytes_missing(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", bytes=300)
    journal.left("sent", "10:00:01", bytes=299)
    journal.add("carried", "24:00:00", priority=3, edge="out", rows=0)


def _line_missing(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=2, count=3)
    journal.left("sent", "10:00:01", priority=2)
    journal.add("carried", "24:00:00", priority=2, edge="out", rows=1)


CASES: dict[str, tuple[Callable[[HandJournal], None], str, list[tuple[int, int, int]]]] = {
    "carried-over": (_carried_over, "closed", []),
    "empty-at-midnight": (_empty_at_midnight, "closed", []),
    "waiting": (_waiting, "open", []),
    "stopped": (_stopped, "closed", []),
    "stopped-twice": (_stopped_twice, "closed", []),
    "went-on": (_went_on, "open", []),
    "moved": (_moved, "closed", []),
    "from-nowhere": (_from_nowhere, "unbalanced", [(2_000_000_000, -1, -100)]),
    "bytes-missing": (_bytes_missing, "unbalanced", [(2_000_000_000, 0, 1)]),
    "line-missing": (_line_missing, "unbalanced", [(2, 1, 100)]),
}


@pytest.fixture(scope="module")
def balanced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return the equations of all cases."""
    export = tmp_path_factory.mktemp("export")
    for name, (write, _, _) in CASES.items():
        journal = HandJournal(DATE, hub=name)
        write(journal)
        journal.write(export)
    args = parse_args([f"--input={export}", "--output=unused", f"--date={DATE}"])
    lines = readers.read_lines(spark, survey(spark, Files(spark), args), args)
    return share(readers.good_lines(lines), has_several_stores=False).balanced.cache()


@pytest.mark.parametrize("hub", CASES)
def test_a_day_is_judged(balanced: DataFrame, hub: str):
    """Closed, open, or with the queues and the differences that are wrong."""
    _, state, wrong = CASES[hub]
    rows = balanced.where(f"hub = '{hub}'").collect()
    assert {row["state"] for row in rows} == {state}
    if state != "open":
        names = ("priority", "difference_rows", "difference_bytes")
        found = [tuple(row[name] for name in names) for row in rows]
        assert [row for row in found if row[1:] != (0, 0)] == wrong


def test_a_breach_is_reported_whole(balanced: DataFrame):
    """Which hub, which queue, by how much, and what to do."""
    sound = {hub: HubDay(hub=hub, state="ok") for hub in CASES}
    days = quality.balanced(balanced, sound)
    assert {hub: day.state for hub, day in days.items()} == {
        hub: {"closed": "ok"}.get(state, state) for hub, (_, state, _) in CASES.items()
    }
    quality.check(days.values(), (), is_strict=False)
    with pytest.raises(QualityError) as raised:
        quality.check(days.values(), (), is_strict=True)
    assert raised.value.exit_code == 5
    assert (
        "hub line-missing: unbalanced: queue upstream_Pri2: in - out = 1 message, 100 bytes"
        in str(raised.value)
    )
    assert "hub from-nowhere: unbalanced: queue upstream: in - out = -1 message," in str(
        raised.value
    )
    assert "--exclude-hub" in str(raised.value)
    assert "waiting" not in str(raised.value)
