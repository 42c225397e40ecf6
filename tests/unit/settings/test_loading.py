"""Settings: precedence, limits, and faults that name their place and mend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from edgehub.settings import (
    MqttEndpointSettings,
    Settings,
    SettingsError,
    find_hub,
    load_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
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


def _faults(path: Path | None, flags: Mapping[str, object] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, flags)
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
    assert "mqtt.port: must be at most 65535, got 99999" in text
    assert "upstream.hots: unknown key (did you mean 'host'?)" in text
    assert "upstream.host: is missing" in text
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
    with pytest.raises(ValueError, match=r"pattern|at most 63 characters"):
        Settings(endpoints={name: {"type": "file", "path": "x"}})


def test_half_a_certificate_is_refused():
    """A certificate without its key cannot work, and says so."""
    with pytest.raises(ValueError, match="belong together"):
        Settings(upstream={"type": "mqtt", "host": "a", "tls": True, "certificate_file": "c"})
    with pytest.raises(ValueError, match="without tls"):
        Settings(upstream={"type": "mqtt", "host": "a", "ca_file": "c"})


def test_relative_paths_of_the_file_count_from_its_folder(tmp_path, monkeypatch):
    """A settings file works from every working folder; other places mean the working folder."""
    path = _file(
        tmp_path,
        """
        data_dir = "state"
        manifest = "conf/routes.json"
        control_socket = "/run/edgehub.sock"
        [mqtt]
        identities_file = "identities"
        [upstream]
        type = "mqtt"
        host = "parent"
        password_file = "secret"
        [broker]
        host = "127.0.0.1"
        username = "gateway"
        password_file = "broker"
        [endpoints.path]
        type = "file"
        path = "out.jsonl"
        """,
    )
    settings = load_settings(path)
    assert settings.data_dir == tmp_path / "state"
    assert settings.manifest == tmp_path / "conf" / "routes.json"
    assert str(settings.control_socket) == "/run/edgehub.sock"
    assert settings.mqtt.identities_file == tmp_path / "identities"
    assert isinstance(settings.upstream, MqttEndpointSettings)
    assert settings.upstream.host == "parent"
    assert settings.upstream.password_file == tmp_path / "secret"
    assert settings.broker is not None
    assert settings.broker.password_file == tmp_path / "broker"
    assert settings.endpoints["path"].model_dump()["path"] == tmp_path / "out.jsonl"
    monkeypatch.setenv("EDGEHUB_MANIFEST", "other.json")
    settings = load_settings(path, {"data_dir": "here"})
    assert (str(settings.manifest), str(settings.data_dir)) == ("other.json", "here")


def test_a_fault_is_blamed_on_the_place_it_stands_in(tmp_path, monkeypatch):
    """A wrong variable is named itself, even where the file has that key too; so is a flag."""
    path = _file(tmp_path, "[mqtt]\nport = 1\nhost = ''\n")
    monkeypatch.setenv("edgehub_mqtt__port", "many")
    monkeypatch.setenv("CHECKENTIREQUEUEONCLEANUP", "maybe")
    faults = _faults(path, {"drain_timeout_s": -1})
    assert [fault.split(": ")[:-1] for fault in faults] == [
        ["drain_timeout_s"],
        ["CHECKENTIREQUEUEONCLEANUP"],
        [str(path), "mqtt.host"],
        ["edgehub_mqtt__port"],
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[mqtt]\nport = true", "mqtt.port: a number belongs here, got True"),
        ("drain_timeout_s = false", "drain_timeout_s: a number belongs here, got False"),
        ("data_dir = ''", "data_dir: is empty, got ''"),
        ("manifest = ''", "manifest: is empty, got ''"),
        ("mqtt = 5", "mqtt: a section belongs here, got 5 (write [mqtt] with its keys below)"),
        ("endpoints = 5", "endpoints: a section belongs here, got 5"),
        ("[endpoints]\nx = 5", "endpoints.x: a section belongs here, got 5"),
        (
            "[upstream]\nhost = 'a'",
            "upstream.type: is missing (mqtt or file or http or cumulocity)",
        ),
        ("[upstream]\ntype = 'mqt'", "upstream.type: 'mqt' is not a kind of endpoint"),
        ("[upstream]\ntype = 'mqtt'\nhost = ''", "upstream.host: is empty, got ''"),
        ("[upstream]\ntype = 'mqtt'\nhost = 'a'\nclient_id = ''", "client_id: is empty"),
        ("[endpoints.x]\ntype = 5", "endpoints.x.type: "),
    ],
)
def test_faults_are_said_in_the_words_of_the_file(tmp_path, text, fault):
    """What a validator calls a union tag or a model is a type and a section here."""
    assert fault in _faults(_file(tmp_path, text))[0]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("EDGEHUB_LOG_LEVEL", "EDGEHUB_LOG__LEVEL"),
        ("EDGEHUB_MQTT_PORT", "EDGEHUB_MQTT__PORT"),
        ("EDGEHUB_UPSTREAM_HOST", "EDGEHUB_UPSTREAM__HOST"),
    ],
)
def test_one_underscore_instead_of_two_is_found(monkeypatch, name, meant):
    """The commonest slip would otherwise do nothing, without a word."""
    monkeypatch.setenv(name, "1884")
    assert f"did you mean {meant}, with two underscores?" in _faults(None)[0]


def test_a_service_called_edgehub_mqtt_is_no_mistake(monkeypatch):
    """Kubernetes gives its address in a variable that looks like a slip of ours."""
    monkeypatch.setenv("EDGEHUB_MQTT_PORT", "tcp://10.0.0.1:1883")
    assert load_settings(None).mqtt.port == 1883


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Editors on Windows write one."""
    assert load_settings(_file(tmp_path, "\ufeff[mqtt]\nport = 5\n")).mqtt.port == 5


def test_a_file_nested_without_end_is_named(tmp_path):
    """Depth is no reason for a traceback."""
    for value in ("[" * 100_000, "9" * 5_000):
        assert "not TOML" in _faults(_file(tmp_path, f"x = {value}"))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data_dir = 'd'\n[upstream]\ntypo = 1\n", "d/control.sock"),
        ("data_dir = 'd'\ncontrol_socket = 'c'\n[upstream]\ntypo = 1\n", "c"),
        ("data_dir = 'd'\n[upstream]\nno TOML\n", "d/control.sock"),
    ],
)
def test_wrong_settings_still_say_where_the_hub_is(tmp_path, monkeypatch, text, expected):
    """What can be read of data_dir and control_socket counts, the environment before the file."""
    path = _file(tmp_path, text)
    with pytest.raises(SettingsError):
        load_settings(path)
    assert find_hub(path).control_path == tmp_path / expected
    monkeypatch.setenv("EDGEHUB_CONTROL_SOCKET", "/x/e.sock")
    assert str(find_hub(path).control_path) == "/x/e.sock"


@pytest.mark.parametrize("text", ["data_dir = d\n", "data_dir = 5\n", 'control_socket = ["a"]\n'])
def test_settings_that_do_not_say_where_the_hub_is_name_no_other(tmp_path, text):
    """The default might be another hub, and a command might change that."""
    assert find_hub(_file(tmp_path, text)) is None
    assert find_hub(tmp_path / "absent.toml") is None
