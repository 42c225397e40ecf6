"""`edgehub report`: what its help says."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from click.testing import CliRunner

from analytics.args import parse_args, parser
from edgehub.cli.report import report

if TYPE_CHECKING:
    import pytest


def test_the_date_has_a_name() -> None:
    """In the usage and in the error, not as a pattern of strftime."""
    help_ = CliRunner().invoke(report, ["--help"]).output
    assert "[OPTIONS] DATE..." in help_
    missing = CliRunner().invoke(report, [])
    assert missing.exit_code == 2
    assert "Missing argument 'DATE...'" in missing.output
    wrong = CliRunner().invoke(report, ["28.11.2026", "--input", "a", "--output", "b"])
    assert wrong.exit_code == 2
    assert "'28.11.2026' is no date: write 2026-11-28, today or yesterday" in wrong.output


def test_today_and_yesterday_are_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UTC, as the journal has them."""
    given: list[str] = []
    monkeypatch.setattr("os.execv", lambda _, command: given.append(command[3]))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    before = datetime.now(UTC).date()
    for word in ("today", "yesterday"):
        CliRunner().invoke(report, [word, "--input", "a", "--output", "b"])
    after = datetime.now(UTC).date()
    today, yesterday = (date.fromisoformat(each.removeprefix("--date=")) for each in given)
    assert before <= today <= after
    assert before <= yesterday + timedelta(days=1) <= after


def test_several_dates_go_to_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, and each once: a report on a day looks at those of the days before."""
    given: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, command: given.append(command[3:]))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    dates = ["2026-11-28", "2026-11-27", "2026-11-28"]
    CliRunner().invoke(report, [*dates, "--input", "a", "--output", "b"])
    days = parse_args(given[0]).each_day()
    assert [day.date.isoformat() for day in days] == ["2026-11-27", "2026-11-28"]
    assert {(day.input, day.output, day.later) for day in days} == {("a", "b", ())}


def test_the_pause_that_counts_as_idle_is_the_shortest() -> None:
    """In the command line and in the job's own help alike."""
    help_ = " ".join(CliRunner().invoke(report, ["--help"]).output.split())
    assert "Shortest pause of a link that counts as idle" in help_
    job = " ".join(parser().format_help().split())
    assert "shortest pause of a link that counts as idle" in job
