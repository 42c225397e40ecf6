"""Identities: ids, hashes, the file, and the check of passwords."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edgehub.devices.identities import CLOCK_TOLERANCE_S, Identities, read_identity_list
from edgehub.devices.identity_file import (
    Identity,
    IdentityFileError,
    changing,
    read_identities,
)
from edgehub.devices.ids import is_device_id, split_sender
from edgehub.devices.password_checks import THREADS_MAX
from edgehub.devices.passwords import PASSWORD_BYTES_MAX, PasswordHash
from edgehub.devices.private_file import exposed_mode
from edgehub.mqtt.shared_access import SharedAccessKey, SharedAccessSignature

HASH = PasswordHash.of(b"secret")
KEY = SharedAccessKey(bytes(range(32)))


def an_identity(identity_id="dev1", **fields) -> Identity:
    """Build an entry with the password `secret`."""
    return Identity(**{"id": identity_id, "password": HASH, **fields})


@pytest.fixture
def path(tmp_path):
    """Path of an identities file that is not there yet."""
    return tmp_path / "identities.jsonl"


def write(path, *entries: Identity) -> None:
    """Add entries to the file."""
    with changing(path) as identities:
        identities.update({entry.id: entry for entry in entries})


def test_a_file_that_was_edited_on_windows(path):
    """A byte order mark and CRLF change nothing."""
    write(path, an_identity("a"), an_identity("b"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert list(read_identities(path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dev1", ("dev1", None)),
        ("dev1/mod", ("dev1", "mod")),
        ("a-b.c%d_e*f?g!h(i)j,k:l=m@n$o'", ("a-b.c%d_e*f?g!h(i)j,k:l=m@n$o'", None)),
        ("", None),
        ("/", None),
        ("dev1/", None),
        ("/mod", None),
        ("a/b/c", None),
        ("a b", None),
        ("a+", None),
        ("a#", None),
        ("a\n", None),
        ("ä", None),
        ("x" * 129, None),
    ],
)
def test_split_sender(text, expected):
    """Ids are one or two levels of allowed characters."""
    assert split_sender(text) == expected


@given(st.text(max_size=10))
def test_ids_are_safe_topic_levels(text):
    """An accepted id never holds what MQTT treats specially."""
    assert not is_device_id(text) or not set(text) & set("/+#\0 \n")


@given(st.binary(min_size=1, max_size=8))
def test_hash_text_round_trip(password):
    """The text of a hash is read back as the same hash."""
    hashed = PasswordHash(log2_n=4, r=8, p=1, salt=password, key=bytes(32))
    assert PasswordHash.parse(str(hashed)) == hashed


def test_hash_matches_its_password_only():
    """A hash accepts its password; the same password hashes differently each time."""
    assert HASH.matches(b"secret")
    assert not HASH.matches(b"Secret")
    assert not HASH.matches(b"secret\0")
    assert str(PasswordHash.of(b"secret")) != str(HASH)
    assert not PasswordHash.dummy().matches(b"secret")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$scrypt$ln=14,r=8,p=1$AAAA",
        "$scrypt$ln=0,r=8,p=1$AAAA$" + "A" * 43,
        "$scrypt$ln=30,r=8,p=1$AAAA$" + "A" * 43,
        "$scrypt$ln=17,r=8,p=99$AAAA$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=1$AAAA$AAAA",
        "$scrypt$ln=14,r=8,p=1$A$" + "A" * 43,
    ],
)
def test_bad_hashes(text):
    """Broken hashes and parameters that would eat the machine are refused."""
    with pytest.raises(ValueError, match=r"hash|scrypt|key|base64"):
        PasswordHash.parse(text)


def test_file_round_trip(path):
    """What is written is read back in order, readable by its owner alone."""
    entries = [
        an_identity("zz", on_behalf=("dev-*", "x?/y")),
        an_identity("dev1/mod", disabled=True),
    ]
    write(path, *entries)
    assert list(read_identities(path).values()) == entries
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_change_that_fails_leaves_the_file(path):
    """An error inside the change writes nothing."""
    write(path, an_identity())
    before = path.read_bytes()

    def fail() -> None:
        with changing(path) as identities:
            identities.clear()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == before


def test_all_faults_at_once(path):
    """Every fault is reported with its line, and nothing is taken."""
    good = {"id": "dev1", "password": str(HASH)}
    lines = [
        json.dumps(good),
        "",
        "no json",
        "[]",
        json.dumps({**good, "id": "a b"}),
        json.dumps({**good, "password": "plain"}),
        json.dumps({"id": "dev2", "keys": ["short"]}),
        json.dumps({**good, "id": "dev3", "onbehalf": []}),
        json.dumps({**good, "id": "dev4", "on_behalf": "*"}),
        json.dumps({**good, "id": "dev5", "on_behalf": [""]}),
        json.dumps({**good, "id": "dev6", "disabled": 1}),
        json.dumps(good),
    ]
    path.write_text("\n".join(lines))
    with pytest.raises(IdentityFileError) as error:
        read_identities(path)
    faults = error.value.faults
    assert [fault.key for fault in faults] == [f"{path}:{n}" for n in range(3, 13)]
    assert "did you mean on_behalf?" in str(error.value)
    assert "second entry of 'dev1'" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"password": 1}, "password: not a hash"),
        ({"keys": "x"}, "keys: not a list"),
        ({"keys": [KEY.to_text()] * 3}, "up to 2"),
        ({"keys": [1]}, "keys: the key has 0 bytes"),
        ({"thumbprints": ["ab"]}, "SHA-256"),
        ({"thumbprints": [1]}, "SHA-256"),
        ({"thumbprints": {}}, "thumbprints: not a list"),
        ({"certificates": [""]}, "certificates: .* is no file"),
        ({"certificates": ["a", "b", "c"]}, "up to 2"),
        ({"certificates": ["a"], "thumbprints": ["0" * 64]}, "needs no thumbprint"),
    ],
)
def test_wrong_credentials(path, fields, reason):
    """Each has an error of its own, with the line."""
    path.write_text(json.dumps({"id": "dev1", **fields}))
    with pytest.raises(IdentityFileError, match=reason):
        read_identities(path)


def test_all_credentials_are_kept(path):
    """What a command does not change is written as it was; an entry needs none of them."""
    entries = [
        an_identity("a", keys=(KEY, KEY)),
        an_identity("b", password=None, thumbprints=("ab" * 32, "cd" * 20)),
        an_identity("c", password=None, certificates=("c.pem",)),
        Identity(id="d"),
    ]
    write(path, *entries)
    assert list(read_identities(path).values()) == entries


def test_certificates_that_cannot_be_read(path):
    """Each is named with its identity."""
    write(path, Identity(id="a", certificates=("a.pem",)), Identity(id="b", certificates=("b",)))
    (path.parent / "b").write_text("no PEM")
    with pytest.raises(IdentityFileError) as error:
        read_identity_list(path)
    assert [fault.key for fault in error.value.faults] == [f"{path}: a", f"{path}: b"]


def a_signature(identity_id: str, key: SharedAccessKey, expires_s: int) -> SharedAccessSignature:
    """Sign for an identity."""
    resource = "h/devices/" + identity_id.replace("/", "/modules/")
    return SharedAccessSignature.parse(key.token(resource, expires_s))


def test_signatures(path):
    """One of its keys, before the expiry, and while the identity is enabled."""
    other = SharedAccessKey(bytes(32))
    write(
        path,
        Identity(id="dev1/cam", keys=(other, KEY)),
        an_identity("dev2", keys=(KEY,), disabled=True),
        an_identity("dev3"),
    )
    now: list[float | None] = [1000.0]
    identities = Identities(lambda: now[0])
    identities.apply(read_identity_list(path))
    try:
        cam = identities.get("dev1/cam")
        for key in (KEY, other):
            assert identities.verify_signature(a_signature("dev1/cam", key, 1000)) is cam
        wrong = SharedAccessKey(b"x" * 32)
        for signature in (
            a_signature("dev1/cam", wrong, 2000),
            a_signature("dev1/cam", KEY, 1000 - CLOCK_TOLERANCE_S),
            a_signature("dev2", KEY, 2000),
            a_signature("dev3", KEY, 2000),
            a_signature("dev4", KEY, 2000),
        ):
            assert identities.verify_signature(signature) is None
        now[0] = None
        assert identities.verify_signature(a_signature("dev1/cam", KEY, 0)) is cam
        assert identities.verify_signature(a_signature("dev1/cam", wrong, 0)) is None
    finally:
        identities.close()


async def test_no_password(path):
    """An identity without one is refused like one with another."""
    write(path, Identity(id="dev1", keys=(KEY,)))
    identities = Identities(lambda: None)
    identities.apply(read_identity_list(path))
    try:
        for password in (b"", b"secret", KEY.value, KEY.to_text().encode()):
            assert await identities.verify("dev1", password, address="") is None
    finally:
        identities.close()


def test_a_missing_file_says_how_to_make_one(path):
    """The error of a missing file names the command."""
    with pytest.raises(IdentityFileError, match="edgehub identity add"):
        read_identities(path)


def test_scope():
    """Patterns stand for devices and their modules; none means nobody else."""
    scope = an_identity(on_behalf=("dev-*", "x?/y")).scope()
    assert scope is not None
    for sender, expected in [
        ("dev-1", True),
        ("dev-1/mod", True),
        ("x1/y", True),
        ("x1", False),
        ("a/dev-1", False),
        ("Dev-1", False),
    ]:
        assert (scope.match(sender) is not None) is expected
    assert an_identity().scope() is None


@pytest.fixture
async def identities(path):
    """Loaded identities: dev1 and the disabled dev2."""
    write(path, an_identity(), an_identity("dev2", disabled=True))
    loaded = Identities(lambda: None)
    loaded.apply(read_identity_list(path))
    yield loaded
    loaded.close()


async def test_verify(identities):
    """Only the right password of an enabled identity is accepted, also the second time."""
    assert await identities.verify("dev1", b"secret", address="") is identities.get("dev1")
    assert await identities.verify("dev1", b"secret", address="") is identities.get("dev1")
    assert await identities.verify("dev1", b"wrong", address="") is None
    assert await identities.verify("dev2", b"secret", address="") is None
    assert await identities.verify("dev3", b"secret", address="") is None
    assert (
        await identities.verify("dev1", b"secret" + bytes(PASSWORD_BYTES_MAX), address="") is None
    )


async def test_clients_of_one_identity_at_once_need_one_check(identities):
    """Whoever finds the password right meanwhile returns its thread to the next."""
    async with asyncio.timeout(10):
        same = [identities.verify("dev1", b"secret", address="") for _ in range(2 * THREADS_MAX)]
        assert set(await asyncio.gather(*same)) == {identities.get("dev1")}
        assert await identities.verify("dev1", b"wrong", address="") is None


async def test_reload(identities, path):
    """A reload takes changes over; a password that was right before its change is not any more."""
    assert await identities.verify("dev1", b"secret", address="")
    write(path, an_identity(password=PasswordHash.of(b"other")), an_identity("dev9"))
    identities.apply(read_identity_list(path))
    assert await identities.verify("dev1", b"secret", address="") is None
    assert await identities.verify("dev1", b"other", address="")
    assert await identities.verify("dev9", b"secret", address="")


async def test_a_reload_that_fails_changes_nothing(identities, path):
    """With a fault in the file what was in force stays in force."""
    path.write_text("no json\n")
    with pytest.raises(IdentityFileError):
        identities.apply(read_identity_list(path))
    assert await identities.verify("dev1", b"secret", address="")


async def test_loose_rights_are_warned_of(identities, path):
    """A file that others may read is used, with a warning that says how to mend it."""
    path.chmod(0o640)
    with capture_logs() as lines:
        identities.apply(read_identity_list(path))
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "identities.file_exposed"
    assert warning["hint"] == f"chmod 600 {path}"


async def test_no_file(identities):
    """Without a file there is nobody, not even who has just signed in."""
    assert await identities.verify("dev1", b"secret", address="")
    version = identities.version
    with capture_logs() as lines:
        identities.apply(read_identity_list(None))
    assert (len(identities), list(identities.entries()), lines) == (0, [], [])
    assert identities.version != version
    assert identities.get("dev1") is None
    assert await identities.verify("dev1", b"secret", address="") is None


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_a_line_nested_without_end_is_a_fault(tmp_path, depth):
    """A broken file is refused with its line, however it is broken: a reload must not end a hub."""
    path = tmp_path / "identities.jsonl"
    path.write_text("[" * depth + "\n", "utf-8")
    with pytest.raises(IdentityFileError, match=r"identities.jsonl:1: not JSON"):
        read_identities(path)


def test_a_file_that_has_gone_exposes_nothing(tmp_path):
    """A file that is removed while it is taken over is no reason to stop."""
    assert exposed_mode(tmp_path / "gone") is None


def test_faults_of_local_rights(path):
    """Rights that are no lists of filters are named, each with its line."""
    line = {"id": "a", "password": str(PasswordHash.of(b"x")), "publish": "te/#"}
    other = {**line, "id": "b", "publish": ["te/+x", 7], "subscribe": ["{x}"]}
    path.write_text(json.dumps(line) + "\n" + json.dumps(other) + "\n")
    with pytest.raises(IdentityFileError) as caught:
        read_identities(path)
    assert [fault.key.rsplit(":", 1)[1] for fault in caught.value.faults] == ["1", "2", "2"]
    assert all(each in str(caught.value) for each in ("'te/+x'", "7 is not", "{x}"))
    assert "publish: not a list" in str(caught.value)
    assert "stands for nothing" in str(caught.value)
