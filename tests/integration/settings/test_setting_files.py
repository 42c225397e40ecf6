"""Files that settings name are judged alike, whichever section names them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.endpoints.device_session import SessionError
from edgehub.endpoints.http_link import HttpLinkError
from edgehub.endpoints.mqtt_link import LinkError
from edgehub.errors import ConfigurationError
from edgehub.redis_link.faults import RedisUnavailableError
from edgehub.settings import Settings, SettingsError
from edgehub.settings.configuration import fault_documents, read_configuration
from edgehub.settings.loading import find_hub
from edgehub.settings.origin import LoadedSettings, SettingsSource
from edgehub.storage.credentials import SECRET_BYTES_MAX, TlsOptions, read_secret
from tests.support.certificates import Authority, openssl
from tests.support.connections import device, http, mqtt, redis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.integration

MQTT = {"type": "mqtt", "host": "h", "tls": True}
HTTP = {"type": "http", "url": "https://h/"}
CUMULOCITY = {"type": "cumulocity", "host": "h"}
TLS_USERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "upstream": lambda files: {"upstream": {**MQTT, **files}},
    "endpoints.web": lambda files: {"endpoints": {"web": {**HTTP, **files}}},
    "endpoints.c8y": lambda files: {"endpoints": {"c8y": {**CUMULOCITY, **files}}},
    "broker": lambda files: {"broker": {"host": "h", "tls": True, **files}},
    "redis": lambda files: {"redis": {"url": "rediss://h:6379/0", **files}},
    "mqtt": lambda files: {"mqtt": {"port": 0, **files}},
    "http": lambda files: {"http": {"port": 0, **files}},
    "web": lambda files: {"web": {"port": 0, **files}},
}
SECRET_USERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "upstream.password_file": lambda file: {
        "upstream": {**MQTT, "username": "u", "password_file": file}
    },
    "endpoints.web.token_file": lambda file: {"endpoints": {"web": {**HTTP, "token_file": file}}},
    "endpoints.web.password_file": lambda file: {
        "endpoints": {"web": {**HTTP, "username": "u", "password_file": file}}
    },
    "endpoints.c8y.password_file": lambda file: {
        "endpoints": {"c8y": {**CUMULOCITY, "username": "u", "password_file": file}}
    },
    "broker.password_file": lambda file: {
        "broker": {"host": "h", "username": "u", "password_file": file}
    },
    "redis.password_file": lambda file: {"redis": {"url": "redis://h", "password_file": file}},
}
BOM = b"\xef\xbb\xbf"


def faults(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return setting and reason of each fault."""
    loaded = LoadedSettings(settings=Settings(**settings), origins={})
    try:
        read_configuration(loaded, hub_id="gw")
    except ConfigurationError as error:
        return [(fault["key"], fault["reason"]) for fault in fault_documents(error)]
    return []


def warnings(settings: dict[str, Any]) -> list[str]:
    """Return what a configuration without faults warns of."""
    loaded = LoadedSettings(settings=Settings(**settings), origins={})
    return list(read_configuration(loaded, hub_id="gw").warnings)


@dataclass
class Files:
    """Good files and bad ones."""

    authority: Path
    certificate: Path
    key: Path
    other_key: Path
    encrypted_key: Path
    empty: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Make them once."""
    folder = tmp_path_factory.mktemp("files")
    authority = Authority(folder)
    certificate, key = authority.client("gateway-7")
    encrypted, empty = folder / "encrypted.key", folder / "empty"
    openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(encrypted))
    empty.touch()
    other = authority.client("other")[1]
    return Files(authority.certificate, certificate, key, other, encrypted, empty)


FILE_USERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **SECRET_USERS,
    "manifest": lambda file: {"manifest": file},
    "mqtt.identities_file": lambda file: {"mqtt": {"identities_file": file}},
    "web.token_file": lambda file: {"web": {"port": 0, "token_file": file}},
    "upstream.ca_file": lambda file: {"upstream": {**MQTT, "ca_file": file}},
}


@pytest.mark.parametrize("setting", FILE_USERS)
def test_a_pipe_or_device_is_refused(setting: str, tmp_path: Path) -> None:
    """The one is never read, as nothing writes into it, the other without end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for file in (pipe, Path("/dev/zero")):
        ((_, reason),) = faults(FILE_USERS[setting](file))
        assert "is no regular file" in reason


def test_a_pipe_is_no_settings_file(tmp_path: Path) -> None:
    """A reload would wait for it for ever."""
    pipe = tmp_path / "edgehub.toml"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match="is no regular file"):
        SettingsSource(pipe).read()
    assert find_hub(pipe) is None


@pytest.mark.parametrize("section", TLS_USERS)
def test_a_pair_is_checked_for_each_section(section: str, files: Files, tmp_path: Path) -> None:
    """Keys that are encrypted, of another certificate, empty or absent, by setting."""

    def found(key: Path, certificate: Path = files.certificate) -> tuple[str, str]:
        named = {"certificate_file": certificate, "key_file": key}
        ((setting, reason),) = faults(TLS_USERS[section](named))
        return setting, reason

    good = {"certificate_file": files.certificate, "key_file": files.key}
    assert faults(TLS_USERS[section](good)) == []
    for key, word in [
        (files.encrypted_key, "is encrypted"),
        (files.other_key, "is the key of another certificate"),
        (files.empty, "holds no private key in PEM"),
        (tmp_path / "absent", "No such file"),
        (tmp_path, "is no regular file"),
    ]:
        setting, reason = found(key)
        assert setting == f"{section}.key_file"
        assert word in reason
    setting, reason = found(files.key, files.empty)
    assert (setting, "holds no certificate" in reason) == (f"{section}.certificate_file", True)


@pytest.mark.parametrize("section", [each for each in TLS_USERS if each != "web"])
def test_authorities_are_checked_for_each_section(section: str, files: Files) -> None:
    """A file without certificates trusts none."""
    name, own = "ca_file", {}
    if section in ("mqtt", "http"):
        name = "client_ca_file"
        own = {"certificate_file": files.certificate, "key_file": files.key}
    assert faults(TLS_USERS[section]({**own, name: files.authority})) == []
    ((setting, reason),) = faults(TLS_USERS[section]({**own, name: files.key}))
    assert (setting, "holds no certificate" in reason) == (f"{section}.{name}", True)


@pytest.mark.parametrize("setting", SECRET_USERS)
@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"\nsecret\n", "is empty"),
        (BOM + b"\r\n", "is empty"),
        ("secret".encode("utf-16"), "is not UTF-8"),
        (b"s\0ecret", "control characters"),
        (b"x" * (SECRET_BYTES_MAX + 1), "more than 65535 bytes"),
        (None, "No such file"),
    ],
)
def test_secrets_are_checked_for_each_section(
    setting: str, content: bytes | None, word: str, tmp_path: Path
) -> None:
    """What no peer could take for a password or token is refused before the first connect."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    ((found, reason),) = faults(SECRET_USERS[setting](file))
    assert found == setting
    assert word in reason
    file.write_bytes(b"secret\n")
    assert faults(SECRET_USERS[setting](file)) == []


@pytest.mark.parametrize("setting", SECRET_USERS)
def test_exposed_secrets_are_warned_of(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the service manager handed them over."""
    file = tmp_path / "secret"
    file.write_text("secret")
    file.chmod(0o604)
    settings = SECRET_USERS[setting](file)
    (warning,) = warnings(settings)
    assert warning.startswith(f"{setting}: every user of this machine may read {file}")
    assert warning.endswith(f"chmod 600 {file}")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert warnings(settings) == []
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    file.chmod(0o640)
    assert warnings(settings) == []


@pytest.mark.parametrize("section", TLS_USERS)
def test_exposed_keys_are_warned_of(section: str, files: Files, tmp_path: Path) -> None:
    """Likewise; a certificate is for everybody."""
    key = tmp_path / "key"
    key.write_bytes(files.key.read_bytes())
    key.chmod(0o644)
    named = {"certificate_file": files.certificate, "key_file": key}
    (warning,) = warnings(TLS_USERS[section](named))
    assert warning.startswith(f"{section}.key_file: every user")


@pytest.mark.parametrize(
    "content", [b"s p", b"s p\n", b"s p\r\n", BOM + b"s p", BOM + b"s p\r\nrest\r\n"]
)
def test_a_secret_is_the_first_line(content: bytes, tmp_path: Path) -> None:
    """Line ends of any system and the byte order mark of Windows are no part of it."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    assert read_secret("k", file) == "s p"


@pytest.mark.parametrize(
    ("user", "error"),
    [
        (mqtt, LinkError),
        (device, SessionError),
        (http, HttpLinkError),
        (redis, RedisUnavailableError),
    ],
)
async def test_no_connection_asks_for_a_passphrase(
    user: Callable[..., Awaitable[None]], error: type[Exception], files: Files
) -> None:
    """A key that became encrypted after the start is an error of that connection."""
    tls = TlsOptions(certificate_file=files.certificate, key_file=files.encrypted_key)
    with pytest.raises(error, match="is encrypted"):
        await user("127.0.0.1", 1, tls)
