"""Where each setting comes from, and what is never shown."""

from __future__ import annotations

import pytest

from edgehub.settings import Settings, SettingsError
from edgehub.settings.origin import (
    LoadedSettings,
    SettingsSource,
    flat_settings,
    setting_documents,
)


def test_every_value_names_its_origin(tmp_path, monkeypatch):
    """Flag, environment, file and default, each with its place; the strongest counts."""
    file = tmp_path / "edgehub.toml"
    file.write_text(
        '[mqtt]\nport = 1\nclients_max = 5\n[endpoints.lab]\ntype = "file"\npath = "a"\n', "utf-8"
    )
    monkeypatch.setenv("EDGEHUB_MQTT__PORT", "2")
    monkeypatch.setenv("EDGEHUB_LOG__LEVEL", "error")
    monkeypatch.setenv("EDGEHUB_STORE", '{"cache_bytes": 5}')
    monkeypatch.setenv("checkEntireQueueOnCleanup", "false")
    loaded = SettingsSource(file, {"data_dir": tmp_path, "log": {"level": "debug"}}).read()
    found = {
        key: (entry["value"], entry["origin"], entry["place"])
        for key, entry in setting_documents(loaded).items()
    }
    assert found["mqtt.port"] == (2, "environment", "EDGEHUB_MQTT__PORT")
    assert found["mqtt.clients_max"] == (5, "file", str(file))
    assert found["mqtt.host"] == ("127.0.0.1", "default", "")
    assert found["data_dir"] == (str(tmp_path), "flag", "--data-dir")
    assert found["log.level"] == ("debug", "flag", "--log-level")
    assert found["store.cache_bytes"] == (5, "environment", "EDGEHUB_STORE")
    assert found["store.commit_delay_ms"] == (0, "default", "")
    legacy = "checkEntireQueueOnCleanup"
    assert found["store.check_entire_queue_on_cleanup"] == (False, "environment", legacy)
    assert found["endpoints.lab.path"] == (str(tmp_path / "a"), "file", str(file))
    assert found["endpoints.lab.order"] == ("strict", "default", "")
    assert found["upstream"] == (None, "default", "")


def test_a_key_of_its_own_in_the_environment_is_the_origin(monkeypatch):
    """Not the section that is given whole beside it, whichever was set first."""
    monkeypatch.setenv("EDGEHUB_MQTT__PORT", "2")
    monkeypatch.setenv("EDGEHUB_MQTT", '{"port": 1}')
    entry = setting_documents(SettingsSource(None).read())["mqtt.port"]
    assert (entry["value"], entry["place"]) == (2, "EDGEHUB_MQTT__PORT")


def test_a_file_that_goes_while_it_is_in_force_is_a_fault(tmp_path):
    """Found by itself or named: a hub does not go back to its defaults in silence."""
    file = tmp_path / "edgehub.toml"
    source = SettingsSource(None, find=lambda: file if file.exists() else None)
    assert source.read().settings.mqtt.port == Settings().mqtt.port
    file.write_text("[mqtt]\nport = 1\n", "utf-8")
    assert source.read().settings.mqtt.port == 1
    file.unlink()
    with pytest.raises(SettingsError, match=str(file)):
        source.read()


def test_no_setting_is_left_out():
    """Each plain key of the model has one entry."""
    settings = Settings(upstream={"type": "mqtt", "host": "a"})
    keys = flat_settings(settings)
    for name in type(settings).model_fields:
        assert any(key == name or key.startswith(f"{name}.") for key in keys) or name == "endpoints"
    assert {f"mqtt.{name}" for name in type(settings.mqtt).model_fields} <= keys.keys()
    assert "upstream.password_file" in keys


def test_settings_given_by_a_program_are_defaults_or_values():
    """Without origins every value is shown as a default."""
    documents = setting_documents(LoadedSettings(settings=Settings(), origins={}))
    assert {entry["origin"] for entry in documents.values()} == {"default"}
