"""`edgehub journal show`: why rows have expired, and events that there are not."""

from click.testing import CliRunner

from edgehub.cli.journal import _line_cells, journal


def test_a_line_of_an_expired_row_says_what_it_waited_for():
    """The largest part of its wait; a line of another event says what it said before."""
    line = {
        "time": "2026-11-28T20:31:00.000Z",
        "event": "expired",
        "waited_ms": 900_000,
        "offline_ms": 700_000,
        "behind_ms": 150_000,
        "retry_ms": 0,
        "rate_ms": 50_000,
    }
    assert "700.0 s without link" in _line_cells(line)
    assert "800.0 s for the link's rate" in _line_cells({**line, "rate_ms": 800_000})
    assert not any("without" in cell for cell in _line_cells({**line, "event": "sent"}))


def test_an_unknown_event_is_wrong_use():
    """Before the hub is asked, with the one that was probably meant."""
    result = CliRunner().invoke(journal, ["show", "--event", "expire"], obj={"config": None})
    assert result.exit_code == 2
    assert "there is no event 'expire'. Did you mean 'expired'?" in result.output
    result = CliRunner().invoke(journal, ["show", "--event", "x"], obj={"config": None})
    assert "There are enqueued, " in result.output
