"""Who sent a message of a broker, by its topic."""

from __future__ import annotations

import pytest

from edgehub.heads.broker.senders import Senders
from edgehub.settings import SettingsError, check_settings


@pytest.mark.parametrize(
    ("topic", "sender"),
    [
        ("site/press-1", ("press-1", None)),
        ("site/press-1/temp/x", ("press-1", None)),
        ("line/4/oven/fan", ("oven", "fan")),
        ("line/4/oven/fan/x", ("gw", None)),
        ("site", ("gw", None)),
        ("other/press-1", ("gw", None)),
        ("site/", ("gw", None)),
        ("site/no blank/x", ("gw", None)),
        ("site/" + "x" * 129, ("gw", None)),
    ],
)
def test_the_first_pattern_that_fits_names_the_sender(
    topic: str, sender: tuple[str, str | None]
) -> None:
    """What no pattern fits, or is no id, is the hub's own."""
    senders = Senders(["site/{device}/#", "line/+/{device}/{module}"], hub_id="gw")
    assert senders.of(topic) == sender


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "site/#",
        "site/x{device}/#",
        "{device}/{device}",
        "{module}/x",
        "a/#/{device}",
        "{dev}/x",
    ],
)
def test_a_pattern_that_names_no_device_is_refused(pattern: str) -> None:
    """With the name of the setting."""
    with pytest.raises(SettingsError) as error:
        check_settings({"broker": {"host": "x", "devices": [pattern]}}, file=None)
    assert "broker.devices" in str(error.value)
