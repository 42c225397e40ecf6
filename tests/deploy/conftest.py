"""Fixtures of the long tests: a Debian and the hub's wheels, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.debian_root import make_root, make_wheels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a small Debian with Python and systemd; nobody changes it."""
    packages = ("systemd", "dbus", "python3", "python3-venv", "ca-certificates")
    return make_root(tmp_path_factory.mktemp("debian") / "root", *packages)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all wheels that the hub needs there, and those to build it."""
    return make_wheels(tmp_path_factory.mktemp("wheels"), "setuptools>=77")
