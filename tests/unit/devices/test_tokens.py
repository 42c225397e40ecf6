"""Tokens: the file, its faults, and who is found by a token."""

from __future__ import annotations

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edgehub.devices.token_file import Role, Token, TokenFileError, changing_tokens, read_tokens
from edgehub.devices.tokens import Tokens, read_token_list


@pytest.fixture
def path(tmp_path):
    """Path of a tokens file that is not there yet."""
    return tmp_path / "tokens"


def test_a_token_is_found_by_its_text_alone(path):
    """Neither the name, nor another secret, nor another's name opens anything."""
    reader, text = Token.new("grafana", Role.READ)
    writer, other = Token.new("ops", Role.WRITE, "acme/press")
    with changing_tokens(path) as tokens:
        tokens |= {"grafana": reader, "ops": writer}
    in_force = Tokens()
    in_force.apply(read_token_list(path))
    assert in_force.are_required
    assert in_force.find(text) == reader
    assert in_force.find(other) == writer
    assert in_force.find(other).tenant == "acme/press"
    secret = text.partition(".")[2]
    for wrong in ("", ".", "grafana", "grafana.", f"ops.{secret}", secret, f"{text}x", text[:-1]):
        assert in_force.find(wrong) is None
    assert in_force.find(text + "x" * 10_000) is None


def test_the_file_holds_no_secret_and_is_its_owners_alone(path):
    """Only a salted hash is written; equal secrets could not be told from the file."""
    entry, text = Token.new("grafana", Role.READ)
    with changing_tokens(path) as tokens:
        tokens["grafana"] = entry
    assert text.partition(".")[2] not in path.read_text("utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Token.new("a", Role.READ)[0].salt != Token.new("a", Role.READ)[0].salt


@given(st.text(max_size=300))
def test_no_other_text_opens(text):
    """Whatever a client presents is looked at without failing, and opens nothing."""
    tokens = Tokens()
    assert tokens.find(text) is None
    assert Token.new("a", Role.READ)[0].matches(text) is False


def test_every_fault_of_a_file_is_reported_at_once(path):
    """With line and reason; nothing of the file is used."""
    good = {"name": "a", "role": "read", "hash": Token.new("a", Role.READ)[0].hash}
    lines = [
        "no json",
        "[]",
        json.dumps(good),
        json.dumps({**good, "name": "B"}),
        json.dumps({**good, "name": "c", "role": "admin"}),
        json.dumps({**good, "name": "d", "hash": "secret"}),
        json.dumps({**good, "name": "e", "rolle": "read"}),
        json.dumps({**good, "name": "f", "tenant": "acme"}),
        json.dumps(good),
    ]
    path.write_text("\n".join(lines), "utf-8")
    with pytest.raises(TokenFileError) as refused:
        read_tokens(path)
    told = {int(fault.key.rpartition(":")[2]): str(fault) for fault in refused.value.faults}
    assert sorted(told) == [1, 2, 4, 5, 6, 7, 8, 9]
    assert "did you mean role?" in told[7]
    assert "second entry" in told[9]


def test_an_absent_file_names_the_command_that_makes_it(path):
    """The error says what to do."""
    with pytest.raises(TokenFileError, match=r"edgehub token add NAME --file"):
        read_tokens(path)


def test_a_broken_file_is_not_written_over(path):
    """A command that changes it fails and leaves it as it is."""
    path.write_text("no json\n", "utf-8")
    with pytest.raises(TokenFileError), changing_tokens(path):
        pytest.fail("nothing may be changed")
    assert path.read_text("utf-8") == "no json\n"


def test_a_file_that_others_can_read_is_reported(path):
    """At each take-over, with the command that mends it."""
    with changing_tokens(path) as tokens:
        tokens["a"] = Token.new("a", Role.READ)[0]
    path.chmod(0o644)
    with capture_logs() as logs:
        Tokens().apply(read_token_list(path))
    assert [(line["event"], line.get("mode")) for line in logs] == [
        ("tokens.file_exposed", "0644"),
        ("tokens.loaded", None),
    ]
