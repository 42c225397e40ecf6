"""Folders and secrets that a service manager or a container hands over by environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from edgehub.cli.main import cli
from edgehub.errors import ConfigurationError
from edgehub.settings import MqttEndpointSettings, SettingsError, load_settings
from edgehub.settings.configuration import read_configuration
from edgehub.settings.origin import SettingsSource

UPSTREAM = '[upstream]\ntype = "mqtt"\nhost = "h"\nusername = "g"\npassword_file = "{}"\n'
VARIABLES = (
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "EDGEHUB_CONFIG",
)


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def settings_file(folder: Path, secret: str) -> Path:
    """Write settings whose upstream has a secret."""
    file = folder / "edgehub.toml"
    file.write_text(UPSTREAM.format(secret), "utf-8")
    return file


def password_file(folder: Path, secret: str) -> Path | None:
    """Load such settings and give the secret's file."""
    upstream = load_settings(settings_file(folder, secret)).upstream
    assert isinstance(upstream, MqttEndpointSettings)
    return upstream.password_file


def test_a_credential_is_a_file_of_the_services_folder(tmp_path, monkeypatch):
    """The settings name it; where it lies is the service manager's choice."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/edgehub.service")
    expected = Path("/run/credentials/edgehub.service/upstream-password")
    assert password_file(tmp_path, "credential:upstream-password") == expected


def test_a_credential_may_come_from_the_environment(tmp_path, monkeypatch):
    """It is a value like any other."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/secrets")
    monkeypatch.setenv("EDGEHUB_UPSTREAM__PASSWORD_FILE", "credential:other")
    assert password_file(tmp_path, "credential:x") == Path("/run/secrets/other")


def test_outside_of_the_service_the_settings_can_be_read(tmp_path):
    """`edgehub status` of an administrator needs the control socket, not the secrets."""
    assert password_file(tmp_path, "credential:x") == Path("credential:x")


def test_a_hub_without_its_credentials_says_why(tmp_path):
    """The start and `edgehub config validate` name the variable that is missing."""
    file = settings_file(tmp_path, "credential:x")
    with pytest.raises(ConfigurationError, match="CREDENTIALS_DIRECTORY is not set"):
        read_configuration(SettingsSource(file).read(), hub_id="h")


@pytest.mark.parametrize("name", ["", "../shadow", "a/b", ".hidden", "a b"])
def test_a_credential_is_one_name(tmp_path, name):
    """No way leads out of the folder."""
    with pytest.raises(SettingsError, match="not the name of a credential"):
        password_file(tmp_path, f"credential:{name}")


@pytest.mark.parametrize(
    ("environment", "data_dir", "control"),
    [
        ({}, "edgehub-data", "edgehub-data/control.sock"),
        ({"STATE_DIRECTORY": "/s"}, "/s", "/s/control.sock"),
        ({"STATE_DIRECTORY": "/s:/s-export"}, "/s", "/s/control.sock"),
        ({"STATE_DIRECTORY": "/s", "RUNTIME_DIRECTORY": "/r"}, "/s", "/r/control.sock"),
    ],
)
def test_state_and_control_socket_go_where_the_service_may_write(
    monkeypatch, environment, data_dir, control
):
    """Of several folders the first is the hub's."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(None)
    assert (str(settings.data_dir), str(settings.control_path)) == (data_dir, control)


def test_two_hubs_of_one_environment_have_two_sockets(monkeypatch):
    """A hub with a data_dir of its own, as in the demonstration, has its socket there."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/r")
    assert str(load_settings(None, {"data_dir": "a"}).control_path) == "a/control.sock"
    both = {"data_dir": "a", "control_socket": "/c"}
    assert str(load_settings(None, both).control_path) == "/c"


def test_the_services_folder_has_the_settings(tmp_path, monkeypatch):
    """It goes before the working folder, and `--config` before it."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "edgehub.toml").write_text('hub_id = "of-the-service"\n', "utf-8")
    (tmp_path / "edgehub.toml").write_text('hub_id = "of-the-folder"\n', "utf-8")
    (tmp_path / "own.toml").write_text('hub_id = "of-the-flag"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    assert "of-the-folder" in _shown()
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", str(tmp_path / "etc"))
    assert "of-the-service" in _shown()
    assert "of-the-flag" in _shown("--config", "own.toml")


def _shown(*options: str) -> str:
    done = CliRunner().invoke(cli, [*options, "config", "show"], standalone_mode=False)
    assert done.exception is None
    return str(done.output)
