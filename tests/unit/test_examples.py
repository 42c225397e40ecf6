"""What readers copy from the documents works: settings, routes and commands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from edgehub.cli.main import cli
from edgehub.routes.manifest import parse_manifest
from edgehub.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [PAGES[0], *sorted((ROOT / "docs" / "howto").glob("*.md"))]
SECTIONS = set(Settings.model_fields)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the code blocks of some languages, those in lists too."""
    text = page.read_text("utf-8")
    for indent, language, block in re.findall(
        r"^( *)```(\w+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL
    ):
        if language in languages:
            yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def commands(page: Path) -> Iterator[str]:
    """Yield the lines of shell blocks that call the hub's command line."""
    for block in blocks(page, "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^\$ |^|&& |exec edgehub )(edgehub [a-z].*)$", line)
            if found:
                yield re.split(r" #| \| | && | [<>]|;| \.\.\.", found[1])[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_settings_are_valid(page: Path, tmp_path: Path) -> None:
    """Whole sections are; single keys are checked by their section's reference."""
    for block in blocks(page, "toml"):
        if set(tomllib.loads(block)) <= SECTIONS:
            file = tmp_path / "edgehub.toml"
            file.write_text(block, "utf-8")
            load_settings(file)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_routes_compile(page: Path) -> None:
    """Entries of a manifest, and whole manifests."""
    for block in blocks(page, "json"):
        if '"FROM ' not in block:
            continue
        text = block if block.lstrip().startswith("{") else f"{{{block}}}"
        document = json.loads(text)
        if "schemaVersion" not in document:
            routes = {"example": document} if "route" in document else document
            document = {"schemaVersion": "1.1", "routes": routes}
            document["storeAndForwardConfiguration"] = {"timeToLiveSecs": 7200}
        parse_manifest(document, file=page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_commands_exist(page: Path) -> None:
    """Each names a command, and only options that it has."""
    wrong = []
    for line in commands(page):
        _, *words = shlex.split(line)
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.get_command(context, words.pop(0)) or click.Command("unknown")
        known = {name for parameter in command.params for name in (*parameter.opts,)}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if command.name == "unknown" or options - known - {"--help"}:
            wrong.append(line)
    assert wrong == []
