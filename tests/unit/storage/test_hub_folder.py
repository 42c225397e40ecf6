"""The control socket is found without the settings, where that is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.settings import load_settings
from edgehub.storage.hub_folder import quick_control_path, settings_digest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "EDGEHUB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'data_dir = "data"\n',
        'data_dir = "/var/lib/hub"\n',
        'control_socket = "run/hub.sock"\n',
        'data_dir = "data"\ncontrol_socket = "/run/hub.sock"\n',
    ],
)
@pytest.mark.parametrize("runtime", [None, "/run/edgehub:/run/other"])
def test_it_is_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, runtime: str | None
) -> None:
    """Relative to the file, and in systemd's folder where no state folder is set."""
    if runtime is not None:
        monkeypatch.setenv("RUNTIME_DIRECTORY", runtime)
    file = tmp_path / "edgehub.toml"
    file.write_text(text, "utf-8")
    assert quick_control_path(file) == load_settings(file).control_path
    assert quick_control_path(None) == load_settings(None).control_path


@pytest.mark.parametrize(
    "text", ["data_dir = 7\n", 'data_dir = ""\n', "data_dir = [\n", "\udcff", 'control_socket = ""']
)
def test_what_only_the_settings_can_judge_is_left_to_them(tmp_path: Path, text: str) -> None:
    """Wrong values and files that cannot be read."""
    file = tmp_path / "edgehub.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert quick_control_path(file) is None
    assert quick_control_path(tmp_path / "absent.toml") is None


def test_variables_are_left_to_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of ours may be wrong; the one that names the file may not."""
    monkeypatch.setenv("EDGEHUB_CONFIG", "edgehub.toml")
    assert quick_control_path(None) is not None
    monkeypatch.setenv("EDGEHUB_DATA_DIR", "elsewhere")
    assert quick_control_path(None) is None


def test_a_digest_changes_with_the_content(tmp_path: Path) -> None:
    """And no file has one of its own."""
    file = tmp_path / "edgehub.toml"
    digests = {settings_digest(None)}
    for text in ("", "a = 1\n", "a = 2\n"):
        file.write_text(text, "utf-8")
        digests.add(settings_digest(file))
    assert len(digests) == 4
