"""The operating guide is whole: settings, commands, exit codes and log events."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from edgehub.cli import main
from edgehub.settings import (
    FileEndpointSettings,
    LogSettings,
    MqttEndpointSettings,
    MqttSettings,
    Settings,
    StoreSettings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operating.md").read_text("utf-8")
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
LOG_METHODS = {"info", "warning", "error", "exception", "critical"}
SECTIONS: list[type[BaseModel]] = [
    StoreSettings,
    MqttSettings,
    MqttEndpointSettings,
    FileEndpointSettings,
    LogSettings,
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_setting_of_a_section_is_described(section: type[BaseModel]):
    """A key that exists has a row in the guide."""
    assert [name for name in section.model_fields if f"`{name}`" not in GUIDE] == []


def test_every_top_level_setting_is_described():
    """Plain keys have a row, sections a heading."""
    missing = [
        name
        for name in Settings.model_fields
        if f"| `{name}` |" not in GUIDE and f"### `[{name}]`" not in GUIDE
    ]
    assert missing == []


def test_every_command_is_described():
    """What `edgehub --help` lists stands in the guide."""
    commands = main.cli.list_commands(click.Context(main.cli))
    assert [name for name in commands if f"`edgehub {name}" not in GUIDE] == []


def test_every_exit_code_is_described():
    """Success, usage, and the codes of the command line."""
    codes = [0, 2, *(value for name, value in vars(main).items() if name.startswith("EXIT_"))]
    assert [code for code in codes if f"\n| {code} | " not in GUIDE] == []


def test_every_log_event_is_described():
    """Warnings and errors, and what tells of a change of state."""
    events = {event for file in (ROOT / "edgehub").rglob("*.py") for event in log_events(file)}
    assert events
    assert sorted(event for event in events if f"`{event}`" not in GUIDE) == []


def log_events(file: Path) -> Iterator[str]:
    """Give the event names, `part.past_tense`, of all calls that log above debug."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in LOG_METHODS or not node.args:
            continue
        event = node.args[0]
        if isinstance(event, ast.Constant) and EVENT.fullmatch(str(event.value)):
            yield str(event.value)
