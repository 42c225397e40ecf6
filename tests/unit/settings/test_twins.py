"""Whose twins the peer upstream has, by the settings."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.settings import Settings, SettingsError, check_settings
from edgehub.settings.derived import peer_has_twin, twin_warnings


def settings(**upstream: Any) -> Settings:
    """Return settings with this upstream."""
    section = {"type": "mqtt", "host": "parent.example.com", **upstream}
    return check_settings({"hub_id": "gw", "upstream": section}, file=None)


def test_only_the_peer_that_the_settings_name_has_twins() -> None:
    """A parent hub those of all, Azure that of the gateway, which is said; others none."""
    parent, azure = settings(twins=True), settings(twins=True, host="x.azure-devices.net")
    assert [peer_has_twin(parent, each, "gw") for each in ("gw", "d")] == [True, True]
    assert [peer_has_twin(azure, each, "gw") for each in ("gw", "d")] == [True, False]
    assert not peer_has_twin(settings(), "gw", "gw")
    assert not peer_has_twin(check_settings({"hub_id": "gw"}, file=None), "gw", "gw")
    assert list(twin_warnings(parent)) == []
    assert "stay on this hub" in next(twin_warnings(azure))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topic": "a/{device}"}, "twins = true with topic"),
        ({"identity": "device"}, "identity = device with twins"),
    ],
)
def test_what_has_no_twins_is_refused(changed: dict[str, Any], said: str) -> None:
    """A plain broker, and sessions of devices."""
    with pytest.raises(SettingsError, match=said):
        settings(twins=True, **changed)


def test_other_endpoints_have_none() -> None:
    """There is one peer that says what is desired."""
    endpoint = {"type": "mqtt", "host": "other.example.com", "twins": True}
    with pytest.raises(SettingsError, match="only upstream has twins"):
        check_settings({"endpoints": {"other": endpoint}}, file=None)
