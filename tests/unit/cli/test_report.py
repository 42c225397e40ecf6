"""`edgehub report`: what its help says."""

from __future__ import annotations

from click.testing import CliRunner

from analytics.args import parser
from edgehub.cli.report import report


def test_the_date_has_a_name() -> None:
    """In the usage and in the error, not as a pattern of strftime."""
    help_ = CliRunner().invoke(report, ["--help"]).output
    assert "[OPTIONS] DATE" in help_
    missing = CliRunner().invoke(report, [])
    assert missing.exit_code == 2
    assert "Missing argument 'DATE'" in missing.output
    wrong = CliRunner().invoke(report, ["28.11.2026", "--input", "a", "--output", "b"])
    assert wrong.exit_code == 2
    assert "'28.11.2026' is no date: write 2026-11-28, or yesterday" in wrong.output


def test_the_pause_that_counts_as_idle_is_the_shortest() -> None:
    """In the command line and in the job's own help alike."""
    help_ = " ".join(CliRunner().invoke(report, ["--help"]).output.split())
    assert "Shortest pause of a link that counts as idle" in help_
    job = " ".join(parser().format_help().split())
    assert "shortest pause of a link that counts as idle" in job
