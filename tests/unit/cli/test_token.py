"""`edgehub token`: the file it writes and what it says."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgehub.cli.token import token
from edgehub.devices.token_file import Role, read_tokens


@pytest.fixture
def path(tmp_path):
    """Path of a tokens file that is not there yet."""
    return tmp_path / "tokens"


def run(path, *arguments):
    """Run a subcommand on the file."""
    return CliRunner().invoke(token, [*arguments, "--file", str(path)])


def test_add_prints_the_token_alone_on_standard_output(path):
    """So that a script can take it; what else there is to say goes to standard error."""
    result = run(path, "add", "grafana")
    assert result.exit_code == 0, result.output
    text = result.stdout.strip()
    entry = read_tokens(path)["grafana"]
    assert entry.role is Role.READ
    assert entry.matches(text.removeprefix("grafana."))
    assert "reload" in result.stderr
    assert text not in path.read_text("utf-8")


def test_list_shows_names_and_roles_but_no_hash(path):
    """Tenants are shown where there are any."""
    run(path, "add", "grafana")
    assert "tenant" not in run(path, "list").stdout
    run(path, "add", "ops", "--role", "write", "--tenant", "acme/press")
    told = run(path, "list").stdout
    assert "acme/press" in told
    assert "$sha256$" not in told
    assert json.loads(run(path, "list", "--json").stdout) == [
        {"name": "grafana", "role": "read", "tenant": None},
        {"name": "ops", "role": "write", "tenant": "acme/press"},
    ]


def test_a_name_is_given_once_and_removed_by_name(path):
    """A second one of the same name is refused; what is not there cannot be removed."""
    run(path, "add", "ops")
    assert run(path, "add", "ops").exit_code == 1
    assert run(path, "remove", "grafana").exit_code == 1
    assert run(path, "remove", "ops").exit_code == 0
    assert read_tokens(path) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "Grafana"),
        ("add", "a", "--role", "admin"),
        ("add", "a", "--tenant", "acme"),
        ("add",),
    ],
)
def test_wrong_use_writes_nothing(path, arguments):
    """Exit code 2, and no file."""
    assert run(path, *arguments).exit_code == 2
    assert not path.exists()


def test_without_a_file_it_says_what_to_do(monkeypatch, tmp_path):
    """Neither an option nor the settings name one."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(token, ["list"])
    assert result.exit_code == 2
    assert "web.token_file" in result.output
