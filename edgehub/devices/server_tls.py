"""The certificate of a listener, and the name in a client's certificate.

Blocks on the disk, so the daemon calls it from a thread. Invariant: whatever is wrong with a file
shows as a `ConfigError` that names its setting.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgehub.devices.handshakes import ServerContext
from edgehub.storage.credentials import load_authorities, load_certificate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerTls:
    """The certificate of a listener and the authorities that it trusts.

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
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    texts = [load_certificate(context, section, certificate_file, key_file)]
    if client_ca_file is not None:
        texts.append(load_authorities(context, f"{section}.client_ca_file", client_ca_file))
        context.verify_mode = ssl.CERT_OPTIONAL
    joined = "\0".join(texts)
    return ServerTls(context=context, fingerprint=hashlib.sha256(joined.encode()).hexdigest())


def renew_server_tls(
    context: ssl.SSLContext, section: str, certificate_file: Path, key_file: Path
) -> None:
    """Load the certificate again into a context in use, for connections from now on.

    A context loads a chain in several steps, so only one that has been tried is loaded into it.

    Raises:
        ConfigError: As `read_server_tls`; then the context is as it was.
    """
    read_server_tls(section, certificate_file, key_file, None)
    load_certificate(context, section, certificate_file, key_file)


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the one common name of a verified certificate, None = there is not exactly one."""
    if not certificate:
        return None
    names = [
        value
        for relative_name in certificate.get("subject", ())
        for kind, value in relative_name
        if kind == "commonName"
    ]
    return names[0] if len(names) == 1 else None
