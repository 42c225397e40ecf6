"""`edgehub identity`: the file it writes and what it says."""

import base64
import json

import pytest
from click.testing import CliRunner

from edgehub.cli.identity import identity
from edgehub.devices.identity_file import IdentityFileError, read_identities


@pytest.fixture
def path(tmp_path):
    """Path of an identities file that is not there yet."""
    return tmp_path / "identities.jsonl"


def run(path, *arguments, password="secret\n"):
    """Run a subcommand on the file; the password comes by standard input."""
    return CliRunner().invoke(identity, [*arguments, "--file", str(path)], input=password)


def test_add_from_standard_input(path):
    """The password is read from standard input, without its line end, and stored hashed."""
    result = run(path, "add", "dev1", "--on-behalf", "child-*", "--on-behalf", "x")
    assert result.exit_code == 0, result.output
    entry = read_identities(path)["dev1"]
    assert entry.password.matches(b"secret")
    assert entry.on_behalf == ("child-*", "x")
    assert b"secret" not in path.read_bytes()


def test_add_from_a_file(path, tmp_path):
    """The password can come from a file."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"from file\r\n\n")
    assert run(path, "add", "dev1", "--password-file", str(secret)).exit_code == 0
    assert read_identities(path)["dev1"].password.matches(b"from file")
    secret.write_bytes(b"\xef\xbb\xbfof Windows\r\n")
    assert run(path, "passwd", "dev1", "--password-file", str(secret)).exit_code == 0
    assert read_identities(path)["dev1"].password.matches(b"of Windows")
    secret.write_bytes(b"one\ntwo\n")
    assert run(path, "passwd", "dev1", "--password-file", str(secret)).exit_code == 1


def test_passwd_and_remove(path):
    """A password is replaced, rights stay; a removed identity is gone."""
    run(path, "add", "dev1", "--on-behalf", "a*")
    run(path, "add", "dev2")
    assert run(path, "passwd", "dev1", password="new").exit_code == 0
    entry = read_identities(path)["dev1"]
    assert entry.password.matches(b"new")
    assert entry.on_behalf == ("a*",)
    assert run(path, "remove", "dev1").exit_code == 0
    assert list(read_identities(path)) == ["dev2"]


def test_set_changes_the_rights_that_are_named(path):
    """What is given takes the place of what was; the password and other rights stay."""
    run(path, "add", "dev1", "--on-behalf", "a*", "--publish", "x/#")
    assert "identity set" in run(path, "add", "dev1", "--on-behalf", "b*").output
    result = run(path, "set", "dev1", "--on-behalf", "a*", "--on-behalf", "b*", "--no-subscribe")
    assert result.exit_code == 0, result.output
    entry = read_identities(path)["dev1"]
    assert (entry.on_behalf, entry.publish, entry.subscribe) == (("a*", "b*"), ("x/#",), ())
    assert entry.password.matches(b"secret")
    assert run(path, "set", "dev1", "--no-on-behalf", "--all-subscribe").exit_code == 0
    entry = read_identities(path)["dev1"]
    assert (entry.on_behalf, entry.publish, entry.subscribe) == ((), ("x/#",), None)


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["dev1"], 2),
        (["dev1", "--on-behalf", "a*", "--no-on-behalf"], 2),
        (["dev1", "--publish", "a", "--all-publish"], 2),
        (["dev1", "--no-publish", "--all-publish"], 2),
        (["dev2", "--on-behalf", "a*"], 1),
    ],
)
def test_set_refuses_what_makes_no_sense(path, arguments, exit_code):
    """Nothing to change, both of two, or an identity that there is not; the file stays."""
    run(path, "add", "dev1")
    before = path.read_bytes()
    assert run(path, "set", *arguments).exit_code == exit_code
    assert path.read_bytes() == before


def test_list(path):
    """The list shows rights and never hashes, as JSON and as a table."""
    run(path, "add", "dev1", "--on-behalf", "a*")
    result = run(path, "list", "--json")
    absent = dict.fromkeys(("publish", "subscribe", "tenant"))
    credentials = {"password": True, "keys": 0, "thumbprints": [], "certificates": [], "uid": None}
    assert json.loads(result.stdout) == [
        {"id": "dev1", **credentials, "on_behalf": ["a*"], **absent, "disabled": False}
    ]
    table = run(path, "list").stdout
    assert "dev1" in table
    assert "scrypt" not in table
    assert "tenant" not in table
    run(path, "add", "dev2", "--tenant", "acme/press")
    assert "acme/press" in run(path, "list").stdout
    assert json.loads(run(path, "list", "--json").stdout)[1]["tenant"] == "acme/press"


def test_other_credentials(path, tmp_path):
    """An identity can have keys and certificates with a password or in place of it."""
    keys = [tmp_path / "one.key", tmp_path / "two.key"]
    for number, key in enumerate(keys):
        key.write_text(base64.b64encode(bytes([number] * 32)).decode() + "\n")
    files = [part for key in keys for part in ("--key-file", str(key))]
    assert run(path, "add", "dev1", "--no-password", *files, password="").exit_code == 0
    assert run(path, "add", "dev2", "--thumbprint", "AB:" * 19 + "AB").exit_code == 0
    assert run(path, "set", "dev2", "--no-password").exit_code == 0
    assert run(path, "add", "dev3", "--certificate", "dev3.pem").exit_code == 0
    dev1, dev2, dev3 = read_identities(path).values()
    assert dev1.password is dev2.password is None
    assert [key.value for key in dev1.keys] == [bytes(32), b"\x01" * 32]
    assert (dev2.thumbprints, dev3.certificates) == (("ab" * 20,), ("dev3.pem",))
    table, document = run(path, "list").stdout, run(path, "list", "--json").stdout
    for shown in (table, document):
        assert keys[0].read_text().strip() not in shown
    assert json.loads(document)[0]["keys"] == 2
    assert "password, certificate" in table
    changed = run(path, "set", "dev3", "--no-certificates", "--thumbprint", "0" * 64)
    assert changed.exit_code == 0, changed.output
    assert run(path, "set", "dev1", *files[:2]).exit_code == 0
    dev1, _, dev3 = read_identities(path).values()
    assert (dev3.thumbprints, dev3.certificates) == (("0" * 64,), ())
    assert len(dev1.keys) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--password-file", "FILE", "--no-password"], "one or the other"),
        (["--key-file", "FILE"], "not base64"),
        (["--key-file", "EMPTY"], "is empty"),
        (["--thumbprint", "12"], "SHA-256"),
        (["--thumbprint", "0" * 64] * 3, "at most 2"),
        (["--certificate", "a"] * 3, "at most 2"),
        (["--certificate", "a", "--thumbprint", "0" * 64], "needs no thumbprint"),
    ],
)
def test_credentials_that_make_no_sense(path, tmp_path, arguments, says):
    """They are refused, and the file stays as it is."""
    run(path, "add", "dev1")
    before = path.read_bytes()
    files = {"FILE": tmp_path / "no key", "EMPTY": tmp_path / "empty"}
    files["FILE"].write_text("no base64")
    files["EMPTY"].touch()
    result = run(path, "add", "dev2", *(str(files.get(each, each)) for each in arguments))
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "password", "says"),
    [
        (["add", "dev1"], "x", "exists already"),
        (["add", "a b"], "x", "is not <device>"),
        (["add", "dev2", "--on-behalf", ""], "x", "pattern"),
        (["add", "dev2"], "", "0 bytes"),
        (["add", "dev2"], "x" * 2000, "allowed are 1 to 1024"),
        (["add", "dev2"], "\nx\n", "0 bytes"),
        (["add", "dev2"], "secret\0", "NUL byte"),
        (["passwd", "dev1"], "s\0e\0c\0\n", "NUL byte"),
        (["add", "dev2"], "x\nx\n", "more than one line; give it once"),
        (["add", "dev2"], "x" * 1024 + "\r\ny", "more than one line"),
        (["passwd", "dev1"], "x\r\n\r\ny", "more than one line"),
        (["passwd", "dev2"], "x", "is not in"),
        (["remove", "dev2"], "", "is not in"),
    ],
)
def test_refused(path, arguments, password, says):
    """What cannot be done says why and leaves the file alone."""
    run(path, "add", "dev1")
    before = path.read_bytes()
    result = run(path, *arguments, password=password)
    assert result.exit_code != 0
    assert says in result.output
    assert path.read_bytes() == before


def test_a_broken_file_is_not_overwritten(path):
    """A file with faults is reported, not replaced."""
    path.write_text("no json\n")
    result = run(path, "add", "dev1")
    assert isinstance(result.exception, IdentityFileError)
    assert path.read_text() == "no json\n"


def test_brackets_of_a_pattern_are_shown(path):
    """A pattern is text, not markup of the table."""
    run(path, "add", "child", "--on-behalf", "[a-f]*")
    assert "[a-f]*" in run(path, "list").output


def test_a_link_stays_a_link(path, tmp_path):
    """The file behind it is changed."""
    link = tmp_path / "link"
    link.symlink_to(path)
    assert run(link, "add", "dev1").exit_code == 0
    assert link.is_symlink()
    assert "dev1" in read_identities(path)


def test_local_rights(path):
    """Rights in the local topic space are written, kept by a new password, and listed."""
    run(path, "add", "a", "--publish", "te/{id}/#", "--publish", "c8y/s", "--no-subscribe")
    run(path, "add", "b", "--subscribe", "te/+")
    run(path, "passwd", "a", password="new")
    entries = read_identities(path)
    assert (entries["a"].publish, entries["a"].subscribe) == (("te/{id}/#", "c8y/s"), ())
    assert (entries["b"].publish, entries["b"].subscribe) == (None, ("te/+",))
    listed = json.loads(run(path, "list", "--json").stdout)
    assert [(entry["publish"], entry["subscribe"]) for entry in listed] == [
        (["te/{id}/#", "c8y/s"], []),
        (None, ["te/+"]),
    ]
    table = run(path, "list").stdout
    assert "none" in table
    assert "all" in table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--publish", "te/#/x"), "whole last level"),
        (("--subscribe", "te/{device}"), "stands for nothing"),
        (("--publish", "te/#", "--no-publish"), "one or the other"),
    ],
)
def test_rights_that_are_none(path, arguments, said):
    """A wrong filter, an unknown placeholder, and all together with none are refused."""
    result = run(path, "add", "a", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not path.exists()
