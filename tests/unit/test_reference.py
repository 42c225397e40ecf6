"""The reference is whole: settings, commands, exit codes and log events."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from edgehub.cli import main
from edgehub.settings import ENDPOINT_TYPES, Settings
from edgehub.settings.change import LIVE_KEYS
from edgehub.settings.sections import endpoint_kind, section_types

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SETTINGS = (REFERENCE / "settings.md").read_text("utf-8")
CLI = (REFERENCE / "cli.md").read_text("utf-8")
EVENTS = (REFERENCE / "log-events.md").read_text("utf-8")
LOGGED = re.compile(r'\.(info|warning|error|exception)\(\s*"([a-z_]+\.[a-z_]+)"')
LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}


def test_every_section_of_the_settings_is_described():
    """Each has a table that the generator fills."""
    types = {f"endpoints.{endpoint_kind(kind)}" for kind in ENDPOINT_TYPES}
    sections = {name for name, info in Settings.model_fields.items() if section_types(info)}
    expected = sections - {"upstream"} | types | {"endpoints", "tenants"}
    found = set(re.findall(r"<!-- generated: settings (\S+) -->", SETTINGS))
    assert found == expected


def test_every_setting_that_a_reload_takes_over_is_listed():
    """The section on reloading names each live key as it is written in the settings."""
    section = SETTINGS.split("\n## Reload\n")[1].split("\n## ")[0]
    assert sorted(key for key in LIVE_KEYS if f"`{key}`" not in section) == []


def test_every_command_that_prints_json_shows_it():
    """An example of its document is in its section, and is JSON."""
    pages = "\n".join(page.read_text("utf-8") for page in (REFERENCE / "cli").glob("*.md"))
    sections = {part.partition("`\n")[0]: part for part in pages.split("\n## `edgehub ")}
    missing = []
    for name, section in sections.items():
        documents = re.findall(r"^```json\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for document in documents:
            json.loads(document)
        help_text = section.partition("<!-- end -->")[0]
        if " --json " in help_text and not documents:
            missing.append(name)
    assert missing == []


def test_every_exit_code_is_described():
    """Success, usage, and the codes of the command line."""
    codes = [0, 2, *(value for name, value in vars(main).items() if name.startswith("EXIT_"))]
    assert [code for code in codes if f"\n| {code} | " not in CLI] == []


def test_every_log_event_is_described():
    """Each has a row with its level, and no row is about an event that is gone."""
    code = "".join(file.read_text("utf-8") for file in (ROOT / "edgehub").rglob("*.py"))
    logged: defaultdict[str, set[str]] = defaultdict(set)
    for method, event in LOGGED.findall(code):
        logged[event].add(LEVELS[method])
    # Losses name the event of the line that is written about them.
    losses = set(re.findall(r'\bevent="([a-z_]+\.[a-z_]+)"', code))
    described = dict(re.findall(r"^\| `([a-z_.]+)` \| (\w+) \| ", EVENTS, re.MULTILINE))
    assert sorted((set(logged) | losses) - set(described)) == []
    assert [event for event in described if f'"{event}"' not in code] == []
    assert [event for event in logged if described[event] not in logged[event]] == []
