"""The certificate of a listener, whom it trusts, and what is in a client's certificate.

Functions block on the disk, so the daemon calls them from a thread. Invariant: whatever is wrong
with a file shows as a `ConfigError` that names its setting.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edgehub.devices.handshakes import ServerContext
from edgehub.errors import ConfigError
from edgehub.storage.credentials import load_authorities, load_certificate, read_certificate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class ServerTls(Struct, frozen=True, kw_only=True, eq=False):
    """The certificate of a listener and the authorities that it trusts.

    Attributes:
        context: For connections from now on.
        fingerprint: Of what the files hold; equal ones need not be put in force again.
    """

    context: ServerContext
    fingerprint: str


def is_replaced(before: ServerTls | None, now: ServerTls | None) -> bool:
    """Return whether a listener has another certificate than before, or trusts others."""
    return before is not None and now is not None and before.fingerprint != now.fingerprint


class ClientCertificate(Struct, frozen=True, kw_only=True):
    """A certificate that a client has shown, and that the listener trusts.

    Attributes:
        common_name: Its one common name, None = there is not exactly one.
        is_of_authority: Whether an authority of the listener stands behind it. Any other is a
            single one that the listener trusts, or was signed by the holder of such a one.
        thumbprints: Its SHA-1 and SHA-256 in hexadecimal digits.
    """

    common_name: str | None
    is_of_authority: bool
    thumbprints: frozenset[str]

    @classmethod
    def of(cls, connection: ssl.SSLObject | None) -> ClientCertificate | None:
        """Return the one of a connection, None = it has none."""
        if connection is None:
            return None
        fields, binary = connection.getpeercert(), connection.getpeercert(binary_form=True)
        if not fields or not binary:
            return None
        # The context of this very handshake: the one in force now may trust others.
        context, found = connection.context, thumbprints(binary)
        assert isinstance(context, ServerContext)
        return cls(
            common_name=common_name(fields),
            is_of_authority=context.has_authorities and not found & context.own_certificates,
            thumbprints=found,
        )


def thumbprints(binary: bytes) -> frozenset[str]:
    """Return SHA-1 and SHA-256 of a certificate in DER."""
    sha1 = hashlib.sha1(binary, usedforsecurity=False)
    return frozenset((sha1.hexdigest(), hashlib.sha256(binary).hexdigest()))


def read_server_tls(
    section: str,
    certificate_file: Path,
    key_file: Path,
    client_ca_file: Path | None,
    own_certificates: Sequence[Path] = (),
) -> ServerTls:
    """Read the files of a listener.

    Args:
        section: Section of the settings, for errors.
        certificate_file: Certificate in PEM, with those between it and its authority.
        key_file: Its private key.
        client_ca_file: Authorities whose certificates clients may show, None = there is none.
        own_certificates: Single certificates that clients may show, of no authority here.

    Raises:
        ConfigError: If a file cannot be read, or they do not belong together.
    """
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    texts = [load_certificate(context, section, certificate_file, key_file)]
    if client_ca_file is not None:
        texts.append(load_authorities(context, f"{section}.client_ca_file", client_ca_file))
        context.verify_mode = ssl.CERT_OPTIONAL
        context.has_authorities = True
    for file in own_certificates:
        binary = read_certificate(str(file), file)
        texts.append(binary.hex())
        if client_ca_file is not None:
            _check_signs_nothing(section, file, binary)
        context.load_verify_locations(cadata=binary)
        context.own_certificates |= thumbprints(binary)
        context.verify_mode = ssl.CERT_OPTIONAL
        # A trusted certificate needs no issuer that is trusted too.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    joined = "\0".join(texts)
    return ServerTls(context=context, fingerprint=hashlib.sha256(joined.encode()).hexdigest())


def _check_signs_nothing(section: str, file: Path, binary: bytes) -> None:
    # Trusted next to authorities, it could sign a certificate with the name of another identity.
    store = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    store.load_verify_locations(cadata=binary)
    if store.cert_store_stats()["x509_ca"]:
        raise ConfigError(
            str(file),
            f"{file} can sign other certificates, in the name of any identity",
            "make it with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE ..`, or"
            " pin a certificate of the authority with `thumbprints`, or remove"
            f" {section}.client_ca_file",
        )


class RenewableTls:
    """TLS of a listener, if its settings have a certificate, which is renewed in place.

    Args:
        section: Section of the settings, for errors.
        certificate_file: As for `read_server_tls`; None = it speaks no TLS.
        key_file: Likewise.
        client_ca_file: As for `read_server_tls`.

    Attributes:
        context: For its connections; None = it speaks no TLS, or before `read`.
    """

    def __init__(
        self,
        section: str,
        certificate_file: Path | None,
        key_file: Path | None,
        client_ca_file: Path | None = None,
    ) -> None:
        self._section = section
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self.context: ServerContext | None = None

    @property
    def refused_total(self) -> int:
        """Return how many connections were closed because too many handshakes ran."""
        return 0 if self.context is None else self.context.refused_total

    async def read(self) -> None:
        """Read the certificate, once more after the first time, for connections from now on.

        Raises:
            ConfigError: As `read_server_tls`; then the context is as it was.
        """
        if self._certificate_file is None or self._key_file is None:
            return
        files = (self._section, self._certificate_file, self._key_file)
        tls = await asyncio.to_thread(read_server_tls, *files, self._client_ca_file)
        if self.context is None:
            self.context = tls.context
        else:
            # A context loads a chain in several steps, so only one that has been tried is loaded.
            await asyncio.to_thread(load_certificate, self.context, *files)


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
