"""The structure that ARCHITECTURE.md describes: what is where, and that imports make no circle."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "edgehub"

FOLDERS = {
    "cli",
    "control",
    "decoders",
    "device_bound",
    "devices",
    "endpoints",
    "entities",
    "heads",
    "http1",
    "hub",
    "journal",
    "lab",
    "lora",
    "methods",
    "mqtt",
    "notify",
    "operations",
    "pump",
    "redis_link",
    "routes",
    "settings",
    "storage",
    "store",
    "sync",
    "telemetry",
    "twins",
    "web",
}
MODULES = {
    "__init__",
    "__main__",
    "clock",
    "errors",
    "hub_id",
    "lifecycle",
    "local_message",
    "message",
    "router",
}

IMPORT = re.compile(r"^ *from (edgehub\.[\w.]+) import (\([^)]*\)|.*?)(?:  #|$)", re.MULTILINE)

CIRCLES = {}
"""Modules of the largest circle of each folder that has one; none may grow, none may be added."""


SHARED_NAMES = {
    "Comparison",
    "Copy",
    "Device",
    "Failure",
    "Fault",
    "Ledger",
    "Options",
    "Origin",
    "OutOfTurn",
    "Phase",
    "Presence",
    "Reader",
    "Report",
    "Section",
    "Target",
}
"""Class names that two modules have; none may be added."""


@cache
def modules() -> dict[str, str]:
    """Return the text of every module of the package by its name."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = file.read_text("utf-8")
    return found


def imports(text: str) -> set[str]:
    """Return the modules of the package that a module imports, for types alone or not."""
    found = set()
    for module, names in IMPORT.findall(text):
        for name in re.findall(r"\w+", names):
            inner = f"{module}.{name}"
            found.add(inner if inner in modules() else module)
    return found


def circles() -> list[set[str]]:
    """Return the circles of imports: every module of one reaches every other (Tarjan)."""
    graph = {name: imports(text) - {name} for name, text in modules().items()}
    place: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found = []

    def visit(name: str) -> None:
        place[name] = lowest[name] = len(place)
        open_.append(name)
        for other in graph[name]:
            if other not in place:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in open_:
                lowest[name] = min(lowest[name], place[other])
        if lowest[name] == place[name]:
            at = open_.index(name)
            circle = set(open_[at:])
            del open_[at:]
            if len(circle) > 1:
                found.append(circle)

    for name in graph:
        if name not in place:
            visit(name)
    return found


def test_the_top_level_is_as_described() -> None:
    """A new folder, or a loose module, is a decision and not an accident."""
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found == FOLDERS
    assert {path.stem for path in PACKAGE.glob("*.py")} == MODULES


def test_the_table_of_layers_names_every_folder() -> None:
    """And nothing that is not there."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    table = text.split("| layer | folder |")[1].split("\n\n")[0]
    assert {name for name in FOLDERS if f"`{name}/`" not in table} == set()
    loose = MODULES - {"__init__", "__main__"}
    assert {name for name in loose if f"`{name}.py`" not in table} == set()


def test_no_circle_of_imports_is_added() -> None:
    """Pieces that must know each other are one file."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for circle in circles():
        folder = min(circle).rpartition(".")[0]
        sizes[folder] = max(sizes[folder], len(circle))
    assert dict(sizes) == CIRCLES


def test_no_class_name_is_used_twice() -> None:
    """One word, one meaning; names that are shared already are listed, and leave the list."""
    named = Counter(
        name
        for text in modules().values()
        for name in re.findall(r"^class ([A-Z]\w+)", text, re.MULTILINE)
    )
    assert {name for name, count in named.items() if count > 1} == SHARED_NAMES


def test_words_are_those_of_the_field() -> None:
    """As `make check` has it: no word that the project does not use."""
    command = [sys.executable, str(ROOT / ".ci" / "check-words"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_helper_of_the_tests_has_its_line() -> None:
    """The list of `tests/support` names what is there, and nothing else."""
    folder = ROOT / "tests" / "support"
    there = {path.name for path in folder.glob("*.c")} | {
        path.stem
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    rows = re.findall(r"^\| (`.*?`) \|", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(.*?)`", " ".join(rows))) == sorted(there)
