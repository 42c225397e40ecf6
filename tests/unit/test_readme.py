"""The README's examples are right."""

from __future__ import annotations

import re
from pathlib import Path

from edgehub.routes.manifest import parse_manifest
from edgehub.settings import load_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def example(language: str) -> str:
    """Return the only code block of a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_it_is_short():
    """Start here, not a manual."""
    assert len(README.splitlines()) < 150


def test_the_settings_are_valid(tmp_path: Path):
    """The example file loads as it is."""
    file = tmp_path / "edgehub.toml"
    file.write_text(example("toml"), "utf-8")
    settings = load_settings(file)
    assert settings.upstream is not None
    assert settings.manifest == tmp_path / "routes.json"


def test_the_manifest_is_valid():
    """The example routes compile, without a warning."""
    manifest = parse_manifest(example("json"), file="README.md")
    assert [route.name for route in manifest.routes] == ["alarms", "raw", "rest"]
    assert list(manifest.warnings) == []


def test_it_says_where_devices_send():
    """The first thing that a person with sensors tries is another topic."""
    assert "devices/<id>/messages/events/" in README
    assert "mqtt.local_topics" in README


def test_no_text_names_a_package_index():
    """What has the name there may be another product: extras are installed as the hub was."""
    files = [*(ROOT / "edgehub").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = re.compile(r"pip install (-\S+ )*'?edgehub\b(?!-)|edgehub\[[a-z]+\]")
    assert [file.name for file in files if found.search(file.read_text("utf-8"))] == []


def test_the_make_targets_exist():
    """Every `make` that it names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"make ([a-z]+)", README))
    assert {name for name in named if f"\n{name}:" not in makefile} == set()
