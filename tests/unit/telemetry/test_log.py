"""The log's level can change while loggers are in use."""

from __future__ import annotations

import json

import pytest
import structlog

from edgehub.telemetry.log import configure, set_level


@pytest.fixture(autouse=True)
def _own_set_up():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


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
