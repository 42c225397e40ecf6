"""The certificate of a listener, and what a client's certificate says.

Owns how certificate files are read and checked; it blocks on the disk, so the daemon calls it from
a thread. Invariant: whatever is wrong with a file shows as a `ConfigError` that names its setting.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgehub.devices.handshakes import ServerContext
from edgehub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerTls:
    """What a listener shows and whom it trusts.

    Attributes:
        context: For connections from now on.
        fingerprint: Of what the files hold; equal ones need not be put in force again.
    """

    context: ServerContext
    fingerprint: str


def read_server_tls(
    section: str, certificate_file: Path, key_file: Path, client_ca_file: Path | None
) -> ServerTls:
    """Read the files of a listener.

    Args:
        section: Section of the settings, for errors.
        certificate_file: Certificate in PEM, with those between it and its authority.
        key_file: Its private key.
        client_ca_file: Authorities whose certificates clients may show, None = they show none.

    Raises:
        ConfigError: If a file cannot be read, or they do not belong together.
    """
    certificate_key, key_key = f"{section}.certificate_file", f"{section}.key_file"
    texts = [
        _read(certificate_key, certificate_file, "BEGIN CERTIFICATE", "certificate"),
        _read(key_key, key_file, "PRIVATE KEY", "private key"),
    ]
    if "ENCRYPTED" in texts[1]:
        hint = f"openssl pkey -in {key_file} -out plain.pem; chmod 600 plain.pem"
        raise ConfigError(key_key, f"{key_file} is encrypted and nobody types a password", hint)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"{key_file} is the key of another certificate"
            hint = f"name the key that {certificate_file} was made with"
            raise ConfigError(key_key, reason, hint) from error
        reason = f"{certificate_file} or {key_file} is damaged: {error.reason or error}"
        raise ConfigError(certificate_key, reason, _look_at(certificate_file)) from error
    if client_ca_file is not None:
        key = f"{section}.client_ca_file"
        texts.append(_read(key, client_ca_file, "BEGIN CERTIFICATE", "certificate"))
        try:
            context.load_verify_locations(client_ca_file)
        except ssl.SSLError as error:
            reason = f"{client_ca_file} is damaged: {error.reason or error}"
            raise ConfigError(key, reason, _look_at(client_ca_file)) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    joined = "\0".join(texts)
    return ServerTls(context=context, fingerprint=hashlib.sha256(joined.encode()).hexdigest())


def server_tls_faults(
    section: str, certificate_file: Path, key_file: Path, client_ca_file: Path | None
) -> list[ConfigError]:
    """Give what is wrong with each file of a listener; see `read_server_tls`."""
    faults: list[ConfigError] = []
    authorities = [] if client_ca_file is None else [("client_ca_file", client_ca_file)]
    for name, file in [("certificate_file", certificate_file), *authorities]:
        try:
            _read(f"{section}.{name}", file, "BEGIN CERTIFICATE", "certificate")
        except ConfigError as error:
            faults.append(error)
    try:
        _read(f"{section}.key_file", key_file, "PRIVATE KEY", "private key")
    except ConfigError as error:
        faults.append(error)
    if not faults:
        # What only shows of files that are all there.
        try:
            read_server_tls(section, certificate_file, key_file, client_ca_file)
        except ConfigError as error:
            faults.append(error)
    return faults


def renew_server_tls(
    context: ssl.SSLContext, section: str, certificate_file: Path, key_file: Path
) -> None:
    """Let a context in use show what the files hold now, for connections from now on.

    A context takes a chain over piece by piece, so it is only given one that has been tried.

    Raises:
        ConfigError: As `read_server_tls`; then the context shows what it showed.
    """
    read_server_tls(section, certificate_file, key_file, None)
    context.load_cert_chain(certificate_file, key_file)


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Give the one common name of a verified certificate, None = there is not exactly one."""
    if not certificate:
        return None
    names = [
        value
        for relative_name in certificate.get("subject", ())
        for kind, value in relative_name
        if kind == "commonName"
    ]
    return names[0] if len(names) == 1 else None


def _read(key: str, file: Path, mark: str, what: str) -> str:
    try:
        text = file.read_text("latin-1")
    except OSError as error:
        hint = "check the path, and that the hub's user may read it"
        raise ConfigError(key, f"{file}: {error.strerror or error}", hint) from error
    if mark not in text:
        hint = f"PEM begins with -----BEGIN .. {what.upper()}-----; openssl converts other forms"
        raise ConfigError(key, f"{file} holds no {what} in PEM", hint)
    return text


def _look_at(certificate_file: Path) -> str:
    return f"look at it with: openssl x509 -in {certificate_file} -noout -text"
