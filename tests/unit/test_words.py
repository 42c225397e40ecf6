"""Words that the product does not use: each had a plain one of the field in its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GONE = {
    "carrier": "effect executor, session",
    "desk": "directory, commands",
    "foundation": "shared state",
    "endings": "close reasons",
    "outlet": "publisher",
    "outlook": "queue forecast",
    "RedisAway": "RedisUnavailable",
    "restoration": "rebuild",
    "ripe": "due",
    "roaming": "devices",
    "stray rows": "orphaned rows",
    "succession": "dependency tracker",
    "surroundings": "dependencies",
}
"""By what is written instead."""

OPENINGS = re.compile(r"(Give|Tell|Say|Let|Have|See|Take note)\b")
"""How no docstring begins; `Return`, `Check`, `Record` and the like say the same."""

OPENINGS_LEFT = {
    "devices": 31,
    "endpoints": 72,
    "heads": 57,
    "http1": 2,
    "journal": 14,
    "mqtt": 6,
    "pump": 27,
    "redis_link": 2,
    "router": 4,
    "storage": 2,
    "store": 66,
    "sync": 66,
}
"""Docstrings of each folder that still begin so; none may be added."""


def texts() -> dict[Path, str]:
    """Return code, tests and documents; decision records are not edited."""
    files = [*ROOT.glob("*.md"), *ROOT.rglob("edgehub/**/*.py"), *ROOT.rglob("tests/**/*.py")]
    files += [page for page in ROOT.rglob("docs/**/*.md") if page.parent.name != "adr"]
    own = {Path(__file__).resolve(), ROOT / "CHANGELOG.md"}
    return {file: file.read_text("utf-8") for file in files if file not in own}


@pytest.mark.parametrize("word", GONE)
def test_a_private_word_does_not_come_back(word: str) -> None:
    """Neither in prose nor in a name, one or many."""
    pattern = re.compile(rf"(?<![A-Za-z]){word}s?(?![a-z])", re.IGNORECASE)
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for file, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], f"write {GONE[word]}"


def openings() -> dict[str, int]:
    """Count the docstrings that begin with a verb of speech, by folder of the package."""
    found: dict[str, int] = {}
    for file in (ROOT / "edgehub").rglob("*.py"):
        folder = file.relative_to(ROOT / "edgehub").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                if OPENINGS.match(text):
                    found[folder] = found.get(folder, 0) + 1
    return found


def test_docstrings_begin_with_the_usual_verbs() -> None:
    """Return, Check, Record, Raise, Parse, Build, Send, Store, Remove, Start, Stop, Wait."""
    grown = {
        folder: count
        for folder, count in openings().items()
        if count > OPENINGS_LEFT.get(folder, 0)
    }
    assert grown == {}
