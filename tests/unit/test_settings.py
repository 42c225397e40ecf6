"""Settings: precedence, limits, and faults that name their place and mend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from edgehub.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("EDGEHUB_") and name != "EDGEHUB_CASES":
            monkeypatch.delenv(name)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "edgehub.toml"
    path.write_text(text, "utf-8")
    return path


def _faults(path: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    return [str(fault) for fault in caught.value.faults]


def test_an_empty_file_gives_the_defaults(tmp_path):
    """C-07: the defaults as shipped are consistent."""
    settings = load_settings(_file(tmp_path, ""))
    assert settings.model_dump() == load_settings(None).model_dump()
    assert (settings.mqtt.host, settings.mqtt.port) == ("127.0.0.1", 1883)
    assert settings.upstream is None
    assert settings.drain_timeout_s == 20


def test_flags_beat_the_environment_which_beats_the_file(tmp_path, monkeypatch):
    """One precedence: flag, environment, file, default."""
    path = _file(tmp_path, "[mqtt]\nport = 1\nclients_max = 5\n")
    assert load_settings(path).mqtt.port == 1
    monkeypatch.setenv("EDGEHUB_MQTT__PORT", "2")
    assert load_settings(path).mqtt.port == 2
    settings = load_settings(path, {"mqtt": {"port": 3}})
    assert (settings.mqtt.port, settings.mqtt.clients_max) == (3, 5)


@pytest.mark.parametrize(
    "name", ["checkEntireQueueOnCleanup", "CHECKENTIREQUEUEONCLEANUP", "CheckEntireQueueOnCleanup"]
)
def test_the_seeds_cleanup_variable_works_in_any_case(monkeypatch, name):
    """The variable of the seed sets the store's clean-up mode."""
    monkeypatch.setenv(name, "false")
    assert load_settings(None).store.check_entire_queue_on_cleanup is False


def test_all_faults_are_reported_at_once_with_hints(tmp_path):
    """L-05, C-08: unknown or misplaced keys are errors that name the near miss."""
    faults = _faults(
        _file(
            tmp_path,
            """
            storeAndForwrdConfiguration = 1
            [mqtt]
            prot = 1883
            port = 99999
            [upstream]
            type = "mqtt"
            hots = "a"
            [endpoints.lab]
            type = "file"
            path = "x"
            timeToLiveSecs = 5
            """,
        )
    )
    text = "\n".join(faults)
    assert "storeAndForwrdConfiguration: unknown key" in text
    assert "mqtt.prot: unknown key (did you mean 'port'?)" in text
    assert "mqtt.port: Input should be less than or equal to 65535, got 99999" in text
    assert "upstream.hots: unknown key (did you mean 'host'?)" in text
    assert "upstream.host: Field required" in text
    assert "endpoints.lab.timeToLiveSecs: unknown key" in text


def test_a_misspelt_environment_variable_is_an_error(monkeypatch):
    """A variable with our prefix that means nothing stops the start."""
    monkeypatch.setenv("EDGEHUB_MQT__PORT", "1")
    monkeypatch.setenv("EDGEHUB_HUBID", "x")
    with pytest.raises(SettingsError) as caught:
        load_settings(None)
    text = str(caught.value)
    assert "EDGEHUB_MQT__PORT: unknown environment variable (did you mean EDGEHUB_MQTT?)" in text
    assert "EDGEHUB_HUBID: unknown environment variable (did you mean EDGEHUB_HUB_ID?)" in text


def test_variables_of_others_with_our_prefix_are_no_mistake(monkeypatch):
    """Kubernetes names a service's address after the service; that is not a setting."""
    for name in ("EDGEHUB_SERVICE_HOST", "EDGEHUB_PORT_1883_TCP_ADDR", "EDGEHUB_CASES"):
        monkeypatch.setenv(name, "x")
    assert load_settings(None).hub_id is None


@pytest.mark.parametrize("text", ["= 1", "[mqtt\nport=1", '\x00 = "x"'])
def test_a_file_that_is_not_toml_is_named(tmp_path, text):
    """A syntax error says which file."""
    assert "edgehub.toml: not TOML" in _faults(_file(tmp_path, text))[0]


def test_a_missing_file_is_named(tmp_path):
    """A wrong path is said, not treated as an empty file."""
    assert "No such file" in _faults(tmp_path / "absent.toml")[0]


@pytest.mark.parametrize("name", ["Bad", "-x", "a" * 64, "a_b", ""])
def test_endpoint_names_are_checked(name):
    """Names of endpoints are lower case, digits and dashes, at most 63 characters."""
    with pytest.raises(ValueError, match="pattern"):
        Settings(endpoints={name: {"type": "file", "path": "x"}})


def test_half_a_certificate_is_refused():
    """A certificate without its key cannot work, and says so."""
    with pytest.raises(ValueError, match="belong together"):
        Settings(upstream={"type": "mqtt", "host": "a", "tls": True, "certificate_file": "c"})
    with pytest.raises(ValueError, match="without tls"):
        Settings(upstream={"type": "mqtt", "host": "a", "ca_file": "c"})
