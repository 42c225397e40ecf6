"""Whose twins the peer upstream has, by the settings."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.settings import Settings, SettingsError, check_settings
from edgehub.settings.derived import twin_warnings, twins_upstream


def settings(**upstream: Any) -> Settings:
    """Return settings with this upstream."""
    section = {"type": "mqtt", "host": "parent.example.com", **upstream}
    return check_settings({"hub_id": "gw", "upstream": section}, file=None)


AZURE = "x.azure-devices.net"


@pytest.mark.parametrize(
    ("upstream", "has"),
    [
        ({"twins": True}, {"gw", "d", "d/m", "gw/m"}),
        ({"twins": True, "host": AZURE}, {"gw"}),
        ({"twins": True, "host": AZURE, "identity": "device"}, {"gw", "d"}),
        ({}, set()),
    ],
    ids=["a parent hub", "Azure", "Azure, sessions of devices", "without twins"],
)
def test_whose_twins_the_peer_has(upstream: dict[str, Any], has: set[str]) -> None:
    """Where that of a device is never synchronised, the check of the settings says so."""
    found = settings(**upstream)
    assert set(filter(twins_upstream(found, "gw"), ("gw", "d", "d/m", "gw/m"))) == has
    assert bool(list(twin_warnings(found))) == (has == {"gw"})


def test_no_upstream_has_twins_without_settings() -> None:
    """A hub that only collects serves them alone."""
    found = check_settings({"hub_id": "gw"}, file=None)
    assert not twins_upstream(found, "gw")("gw")
    assert not list(twin_warnings(found))


def test_a_plain_broker_has_no_twins() -> None:
    """A topic of its own makes it one."""
    with pytest.raises(SettingsError, match="twins = true with topic"):
        settings(twins=True, topic="a/{device}")


def test_other_endpoints_have_none() -> None:
    """There is one peer that says what is desired."""
    endpoint = {"type": "mqtt", "host": "other.example.com", "twins": True}
    with pytest.raises(SettingsError, match="only upstream has twins"):
        check_settings({"endpoints": {"other": endpoint}}, file=None)


@pytest.mark.parametrize(
    ("upstream", "fault"),
    [
        ({"twins": True}, "manifest_topic with twins = true"),
        ({"host": AZURE}, "manifest_topic with Azure IoT Hub"),
        ({"manifest_topic": "fleet/+/manifest"}, "manifest_topic"),
        ({"manifest_topic": ""}, "manifest_topic"),
    ],
)
def test_a_manifest_comes_on_one_way(upstream: dict[str, Any], fault: str) -> None:
    """By the twin or on a topic, and a topic has no wildcards."""
    with pytest.raises(SettingsError, match=fault):
        settings(**{"manifest_topic": "fleet/gw/manifest", **upstream})


def test_only_upstream_has_a_manifest() -> None:
    """Another endpoint has none to give."""
    more = {"type": "mqtt", "host": "other.example.com", "manifest_topic": "m"}
    with pytest.raises(SettingsError, match="only upstream has a manifest"):
        check_settings({"hub_id": "gw", "endpoints": {"more": more}}, file=None)
