"""Certificates made on the spot with openssl: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """One authority and the folder with all that it signed."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl(
            *("req", "-x509", *NEW_KEY, "-keyout", str(self._key), "-days", "2"),
            *("-out", str(self.certificate), "-subj", f"/CN={name}"),
        )

    def server(self, name: str = "server") -> tuple[Path, Path]:
        """Make certificate and key of a server on loopback."""
        return self._sign(name, "localhost", "subjectAltName=IP:127.0.0.1,DNS:localhost")

    def named_server(self, name: str) -> tuple[Path, Path]:
        """Make certificate and key of a server that is known by its name only."""
        return self._sign(f"named-{name}", name, f"subjectAltName=DNS:{name}")

    def client(self, common_name: str) -> tuple[Path, Path]:
        """Make certificate and key of a client."""
        file = common_name.replace("/", "_")
        subject = common_name.replace("/", "\\/")
        return self._sign(file, subject, "extendedKeyUsage=clientAuth")

    def _sign(self, file: str, subject: str, extension: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        request, extensions = self._folder / f"{file}.csr", self._folder / f"{file}.ext"
        openssl(
            *("req", *NEW_KEY, "-keyout", str(key), "-out", str(request)),
            *("-subj", f"/CN={subject}"),
        )
        extensions.write_text(extension + "\n")
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate)),
            *("-CAkey", str(self._key), "-CAcreateserial", "-days", "2"),
            *("-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, key


def self_signed(folder: Path, file: str, common_name: str) -> tuple[Path, Path]:
    """Make a certificate of no authority, which can sign no other one, and its key."""
    certificate, key = folder / f"{file}.pem", folder / f"{file}.key"
    openssl(
        *("req", "-x509", *NEW_KEY, "-keyout", str(key), "-out", str(certificate), "-days", "2"),
        *("-subj", f"/CN={common_name}", "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return certificate, key


def openssl(*arguments: str) -> None:
    """Run openssl to its end."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
