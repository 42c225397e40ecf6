"""Files of TLS that several sections name, and what must be so of them together.

Owns these parts of the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from edgehub.settings.values import OptionalFile

if TYPE_CHECKING:
    from edgehub.storage.credentials import TlsKeys

# The same keys at each peer that the hub encrypts to, and each in its own place among others.
CaFile = Annotated[
    OptionalFile,
    Field(
        description="Certificates that are trusted; absent = the system's.",
        examples=["/etc/edgehub/ca.pem"],
    ),
]
CertificateFile = Annotated[
    OptionalFile,
    Field(
        description="Client certificate, to sign in with it; needs key_file.",
        examples=["/etc/edgehub/client.pem"],
    ),
]
KeyFile = Annotated[
    OptionalFile,
    Field(description="Key of certificate_file.", examples=["credential:client.key"]),
]

# Of the listeners of devices.
ClientAuthorities = Annotated[
    OptionalFile,
    Field(
        description="Authorities whose client certificates sign in; absent = none does.",
        examples=["/etc/edgehub/devices-ca.pem"],
        json_schema_extra={"x-needs": "certificate_file"},
    ),
]

# Those of the listeners that speak HTTP.
ServerCertificateFile = Annotated[
    OptionalFile,
    Field(
        description="Certificate chain, for HTTPS; needs key_file.",
        examples=["/var/lib/edgehub/hub.pem"],
    ),
]
ServerKeyFile = Annotated[
    OptionalFile,
    Field(description="Key of certificate_file.", examples=["/var/lib/edgehub/hub.key"]),
]
_TLS_FILES: Final = ("ca_file", "certificate_file", "key_file")


def check_tls(keys: TlsKeys, without: str, *, encrypted: bool) -> None:
    """Raise ValueError if the TLS files of a section do not fit it."""
    named = [name for name in _TLS_FILES if getattr(keys, name)]
    if named and not encrypted:
        raise ValueError(f"{', '.join(named)} {without}")
