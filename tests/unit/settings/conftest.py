"""Every test of the configuration starts without settings in the environment."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("EDGEHUB_") and name != "EDGEHUB_CASES":
            monkeypatch.delenv(name)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
