"""The log's level can change while loggers are in use."""

from __future__ import annotations

import json

import structlog

from edgehub.store.committer import log as store_log
from edgehub.telemetry.log import configure, set_level


def test_the_level_changes_for_loggers_in_use(capsys):
    """A logger that has logged before obeys the new level, in both directions."""
    configure(level="error", fmt="json")
    log = structlog.get_logger("x").bind(part="a")
    log.warning("test.dropped")
    log.error("test.first")
    set_level("debug")
    log.debug("test.second")
    set_level("warning")
    log.info("test.dropped")
    try:
        int("x")
    except ValueError:
        log.exception("test.third")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["test.first", "test.second", "test.third"]
    assert lines[2]["level"] == "error"


def test_a_set_up_ends_with_its_test_first():
    """What the next test checks: this one sets the log up and uses a logger of the product."""
    configure(level="error", fmt="json")
    store_log.warning("test.dropped")


def test_a_set_up_ends_with_its_test_second(capsys):
    """A logger of the product writes as if no test before had set the log up."""
    store_log.warning("test.seen")
    assert "test.seen" in capsys.readouterr().out
