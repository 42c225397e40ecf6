"""Every reason for which a message or a connection ends is in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgehub.heads.mqtt.local.statistics import LocalDrop
from edgehub.heads.mqtt.statistics import CloseReason, DropReason

REFERENCE = (Path(__file__).parents[4] / "docs" / "reference" / "mqtt.md").read_text("utf-8")


@pytest.mark.parametrize("reason", DropReason)
def test_drop_reasons_are_listed(reason: DropReason) -> None:
    """With what the client is told."""
    assert f"`dropped.{reason.value}`" in REFERENCE


@pytest.mark.parametrize("reason", CloseReason)
def test_close_reasons_are_listed(reason: CloseReason) -> None:
    """Likewise."""
    assert f"`closed.{reason.value}`" in REFERENCE


@pytest.mark.parametrize("reason", LocalDrop)
def test_reasons_of_the_local_space_are_listed(reason: LocalDrop) -> None:
    """A subscriber that missed a message finds out why."""
    assert f"`{reason.value}`" in REFERENCE
