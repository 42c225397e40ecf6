"""Files that settings name: secrets, certificates, keys and authorities, read alike for each user.

Owns how such files are read and checked, for listeners and for connections of the hub; it blocks on
the disk, so the daemon calls it from a thread. Invariants: whatever is wrong with a file shows as a
`ConfigError` that names its setting; no terminal is asked for a passphrase.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self

from msgspec import Struct

from edgehub.errors import ConfigError
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.storage.regular_file import open_regular

if TYPE_CHECKING:
    from pathlib import Path

CREDENTIAL: Final = "credential:"
"""Begins the name of a file that the service manager hands over."""

SECRET_BYTES_MAX: Final = 65_535
"""As long as a password of MQTT may be."""
_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"
_PEM_BYTES_MAX: Final = 16 * 2**20


class TlsKeys(Protocol):
    """Settings of a part that connects with TLS."""

    @property
    def ca_file(self) -> Path | None:
        """Certificates that are trusted."""

    @property
    def certificate_file(self) -> Path | None:
        """Its own certificate."""

    @property
    def key_file(self) -> Path | None:
        """Its key."""


class TlsOptions(Struct, frozen=True, kw_only=True):
    """How the peer proves itself, and how this hub does.

    Attributes:
        ca_file: Certificates that are trusted, None = the system's.
        certificate_file: Client certificate, None = none.
        key_file: Its key.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @classmethod
    def of(cls, keys: TlsKeys) -> Self:
        """Take them from a section of the settings."""
        return cls(
            ca_file=keys.ca_file,
            certificate_file=keys.certificate_file,
            key_file=keys.key_file,
        )


def read_secret(key: str, file: Path) -> str:
    """Return the first line of a file that holds a password or token.

    A byte order mark in front of it and the line end are no part of it.

    Args:
        key: Setting that names the file, for errors.
        file: The file.

    Raises:
        ConfigError: If it cannot be read, or its first line is no secret.
    """
    try:
        text = _read(key, file, SECRET_BYTES_MAX + 8).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(key, f"{file} is not UTF-8", "save it as UTF-8") from error
    secret = text.split("\n", 1)[0].removesuffix("\r")
    if not secret:
        raise ConfigError(key, f"the first line of {file} is empty", "write the secret there")
    if any(character < " " or character == "\x7f" for character in secret):
        raise ConfigError(
            key,
            f"the first line of {file} holds control characters",
            "check the path; it is a text of one line",
        )
    if len(secret.encode()) > SECRET_BYTES_MAX:
        raise ConfigError(
            key,
            f"the first line of {file} has more than {SECRET_BYTES_MAX} bytes",
            "check the path",
        )
    return secret


def read_access_key(key: str, file: Path) -> SharedAccessKey:
    """Return the symmetric key in the first line of a file.

    Raises:
        ConfigError: If it cannot be read, or its first line is no key.
    """
    try:
        return SharedAccessKey.parse(read_secret(key, file))
    except ValueError as error:
        raise ConfigError(key, f"{file}: {error}", "`openssl rand -base64 32` makes one") from error


def load_certificate(
    context: ssl.SSLContext, section: str, certificate_file: Path, key_file: Path
) -> str:
    """Load a certificate into a context; returns what the files hold.

    Args:
        context: Shows it from the next connection on.
        section: Section of the settings, for errors.
        certificate_file: Certificate in PEM, with those between it and its authority.
        key_file: Its private key.

    Raises:
        ConfigError: If a file cannot be read, or they do not belong together.
    """
    certificate_key, key_key = _key(section, "certificate_file"), _key(section, "key_file")
    texts = _read_certificates(certificate_key, certificate_file), _read_key(key_key, key_file)

    def refuse() -> NoReturn:
        raise ConfigError(
            key_key,
            f"{key_file} is encrypted, and the hub asks for no password",
            f"openssl pkey -in {key_file} -out plain.pem; chmod 600 plain.pem",
        )

    try:
        context.load_cert_chain(certificate_file, key_file, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                key_key,
                f"{key_file} is the key of another certificate",
                f"name the key that {certificate_file} was made with",
            ) from error
        raise ConfigError(
            certificate_key,
            f"{certificate_file} or {key_file} is damaged: {error.reason or error}",
            _look_at(certificate_file),
        ) from error
    return "\0".join(texts)


def load_authorities(context: ssl.SSLContext, key: str, file: Path) -> str:
    """Load authorities into a context, which trusts them; returns what the file holds.

    Raises:
        ConfigError: If it cannot be read, or holds none.
    """
    text = _read_certificates(key, file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise ConfigError(
            key, f"{file} is damaged: {error.reason or error}", _look_at(file)
        ) from error
    return text


def read_certificate(key: str, file: Path) -> bytes:
    """Return the first certificate of a file, in DER.

    Raises:
        ConfigError: If it cannot be read, or holds none.
    """
    text = _read_certificates(key, file)
    begin, end = text.find(_PEM_BEGIN), text.find(_PEM_END)
    try:
        binary = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_PEM_END)])
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=binary)
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(key, f"{file} is damaged: {error}", _look_at(file)) from error
    return binary


def client_context(options: TlsOptions, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """Return the settings of TLS for a connection of the hub, which checks the peer's name.

    Args:
        options: The files.
        context: What to load them into, None = a new one.

    Raises:
        ConfigError: If there is something wrong with the files.
    """
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ca_file is None:
        context.load_default_certs()
    else:
        load_authorities(context, "ca_file", options.ca_file)
    if options.certificate_file is not None and options.key_file is not None:
        load_certificate(context, "", options.certificate_file, options.key_file)
    return context


def tls_faults(
    section: str,
    *,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    authorities: tuple[str, Path | None] = ("ca_file", None),
) -> list[ConfigError]:
    """Return what is wrong with each file of TLS of a section, and then with them together.

    Args:
        section: Section of the settings.
        certificate_file: Certificate that it shows, None = none.
        key_file: Its private key.
        authorities: Setting and file of those whose certificates are trusted.
    """
    ca_name, ca_file = authorities
    certificate_key, key_key = _key(section, "certificate_file"), _key(section, "key_file")
    faults: list[ConfigError] = []
    for key, file, read in (
        (certificate_key, certificate_file, _read_certificates),
        (_key(section, ca_name), ca_file, _read_certificates),
        (key_key, key_file, _read_key),
    ):
        try:
            if file is not None:
                read(key, file)
        except ConfigError as error:
            faults.append(error)
    if faults:
        return faults
    # What only shows of files that are all there.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if certificate_file is not None and key_file is not None:
            load_certificate(context, section, certificate_file, key_file)
        if ca_file is not None:
            load_authorities(context, _key(section, ca_name), ca_file)
    except ConfigError as error:
        faults.append(error)
    return faults


def _key(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _read_certificates(key: str, file: Path) -> str:
    return _read_pem(key, file, "BEGIN CERTIFICATE", "certificate")


def _read_key(key: str, file: Path) -> str:
    return _read_pem(key, file, "PRIVATE KEY", "private key")


def _read_pem(key: str, file: Path, mark: str, what: str) -> str:
    text = _read(key, file, _PEM_BYTES_MAX).decode("latin-1")
    if mark not in text:
        raise ConfigError(
            key,
            f"{file} holds no {what} in PEM",
            f"PEM begins with -----BEGIN .. {what.upper()}-----; openssl converts other forms",
        )
    return text


def _read(key: str, file: Path, bytes_max: int) -> bytes:
    try:
        with open_regular(file) as reader:
            return reader.read(bytes_max)
    except OSError as error:
        hint = "check the path, and that the hub's user may read it"
        if str(file).startswith(CREDENTIAL):
            hint = "CREDENTIALS_DIRECTORY is not set: credentials exist inside of the service only"
        raise ConfigError(key, f"{file}: {error.strerror or error}", hint) from error


def _look_at(certificate_file: Path) -> str:
    return f"look at it with: openssl x509 -in {certificate_file} -noout -text"
