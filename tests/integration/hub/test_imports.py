"""What a hub loads at its start: memory and time that all of its life is paid for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

UNUSED = {
    "aiomqtt": "devices of trials",
    "argparse": "pydantic-settings, where no variable has a setting",
    "cryptography": "LoRaWAN",
    "edgehub.devices.twin_source": "devices that are kept in twins",
    "edgehub.entities.mapper": "a mapper",
    "edgehub.operations.results": "the document of the HTTP API",
    "edgehub.lora.regions": "stations of LoRaWAN",
    "edgehub.store.salvage.salvage": "a damaged file",
    "gzip": "exports",
    "email": "dates of messages",
    "html.entities": "pygments",
    "http.client": "commands that fetch",
    "importlib.metadata": "plug-ins of libraries",
    "pydantic_settings": "variables with settings",
    "pygments": "rich",
    "redis": "a shared table",
    "rich": "tables of commands",
    "unittest": "tests",
    "zipfile": "packages in archives",
    "xml": "reports",
}
"""Modules, and what they are for."""


def test_a_hub_loads_nothing_that_it_does_not_use() -> None:
    """Its command imports whatever a hub without sections of settings runs on."""
    assert _after_loading(f"{set(UNUSED)} & set(sys.modules)") == []


def test_what_checks_settings_can_be_given_back() -> None:
    """No model of a section keeps a validator of its own, which lives as long as the process."""
    complete = "[each.__name__ for each in Section.__subclasses__() if each.__pydantic_complete__]"
    assert _after_loading(f"[*{complete}, Settings.__pydantic_complete__]") == ["False"]


def _after_loading(names: str) -> list[str]:
    """Return what there is of `names`, an expression, once a hub has read its settings."""
    program = (
        "import sys, edgehub.cli.main, edgehub.cli.run\n"
        "from edgehub.settings import Settings, load_settings\n"
        "from edgehub.settings.values import Section\n"
        "load_settings(None)\n"
        "import edgehub.hub.hub\n"
        f"print(*({names}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={"EDGEHUB_CONFIG": "edgehub.toml"},
        text=True,
        capture_output=True,
    )
    return done.stdout.split()
