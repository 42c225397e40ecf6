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
    "html.entities": "pygments",
    "http.client": "commands that fetch",
    "pydantic_settings": "variables with settings",
    "pygments": "rich",
    "redis": "a shared table",
    "rich": "tables of commands",
    "unittest": "tests",
    "xml": "reports",
}
"""Modules, and what they are for."""


def test_a_hub_loads_nothing_that_it_does_not_use() -> None:
    """Its command imports whatever a hub without sections of settings runs on."""
    program = (
        "import sys, edgehub.cli.main, edgehub.cli.run\n"
        "from edgehub.settings import load_settings\n"
        "load_settings(None)\n"
        f"print(*({set(UNUSED)} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={"EDGEHUB_CONFIG": "edgehub.toml"},
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == []
