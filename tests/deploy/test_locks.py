"""The locks: what is installed is what was tested, by version and hash; and what an image holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
HOLDS = {
    "requirements.lock": (*EXTRAS, "build"),
    "deploy/hub.lock": ("lora", "lora-js", "redis", "zstd"),
    "deploy/report.lock": ("java", "spark"),
}


def read(name: str) -> dict[str, str]:
    """Return the entries of a lock or of constraints.txt, by name: pin, marker, hashes."""
    text = (ROOT / name).read_text("utf-8")
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    return {entry.partition("==")[0]: entry for entry in entries}


def pinned(entry: str) -> str:
    """Return an entry without its hashes."""
    return entry.partition(" --hash=")[0].rstrip()


def asked_for(name: str) -> list[Requirement]:
    """Return what the project asks for directly of a lock."""
    groups = {**EXTRAS, **PROJECT["dependency-groups"]}
    texts = [text for group in HOLDS[name] for text in groups[group]]
    return [Requirement(text) for text in (*PROJECT["project"]["dependencies"], *texts)]


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    """`make lock` writes both; a change of one alone is a mistake."""
    locked = {name: pinned(entry) for name, entry in read("requirements.lock").items()}
    assert locked == {name: pinned(entry) for name, entry in read("constraints.txt").items()}


@pytest.mark.parametrize(
    "name", [*HOLDS, "deploy/build.lock", "tests/azure.lock", "tests/peers.lock"]
)
def test_every_package_of_a_lock_has_hashes(name: str) -> None:
    """Exact versions with SHA-256, and no place from which they come."""
    entry = re.compile(r"[a-z0-9-]+==\S+( ; [^#\\]+?)?( --hash=sha256:[0-9a-f]{64})+")
    entries = read(name)
    assert [each for each in entries.values() if not entry.fullmatch(each)] == []
    assert "://" not in (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["deploy/hub.lock", "deploy/report.lock", "deploy/build.lock"])
def test_a_smaller_lock_is_a_part_of_the_whole(name: str) -> None:
    """Images get the versions and hashes that the tests ran with."""
    whole = read("requirements.lock")
    assert {key: entry for key, entry in read(name).items() if whole.get(key) != entry} == {}


@pytest.mark.parametrize("name", HOLDS)
def test_a_lock_has_all_that_is_needed(name: str) -> None:
    """What pyproject.toml asks for, in a version that it allows, and what that needs in turn."""
    entries = read(name)
    versions = {key: pinned(entry).split("==")[1].split()[0] for key, entry in entries.items()}
    wanted, seen = asked_for(name), set()
    while wanted:
        requirement = wanted.pop()
        key = canonicalize_name(requirement.name)
        assert key in versions, f"{requirement} is not in {name}: make lock"
        assert requirement.specifier.contains(versions[key]), f"{requirement}: make lock"
        marker = pinned(entries[key]).partition(" ; ")[2]
        if key in seen or (marker and not Marker(marker).evaluate()):
            continue
        seen.add(key)
        further = [Requirement(text) for text in metadata.requires(key) or ()]
        wanted += [
            each for each in further if not each.marker or each.marker.evaluate({"extra": ""})
        ]


def test_what_builds_the_project_is_locked() -> None:
    """Without an environment of its own a build takes what the lock has."""
    assert PROJECT["dependency-groups"]["build"] == PROJECT["build-system"]["requires"]
    (entry,) = read("deploy/build.lock").values()
    (requirement,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert requirement.specifier.contains(pinned(entry).split("==")[1])


def test_nothing_is_installed_without_a_hash() -> None:
    """Every pip of the Makefile that installs packages asks for hashes, or takes none."""
    lines = (ROOT / "Makefile").read_text("utf-8").splitlines()
    installs = [line for line in lines if re.search(r"\binstall --quiet\b", line)]
    by_hand = [line for line in installs if not re.search("--require-hashes|--no-deps", line)]
    # The tool that writes the locks is no part of what they are for.
    assert [line for line in by_hand if "uv==" not in line] == []
    assert len(installs) == len(by_hand) + 3


def test_a_bill_of_materials_names_what_is_installed() -> None:
    """Each distribution of the environment once, with its version."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "sbom.py"), "edgehub"],
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "edgehub")
    named = [component["purl"] for component in found["components"]]
    installed = {
        f"pkg:pypi/{canonicalize_name(each.name)}@{each.version}"
        for each in metadata.distributions()
    }
    assert (set(named), len(named)) == (installed, len(installed))
