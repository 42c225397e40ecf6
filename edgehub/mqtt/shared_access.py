"""Shared access signatures: passwords that name a resource and an expiry, signed with a key.

Pure functions. Invariants: what was signed is compared as the client wrote it, in constant time; a
signature of a shared access policy, which would stand for every device, is none here.

Source: Azure IoT Hub, "Control access with shared access signatures".
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

SCHEME: Final = "SharedAccessSignature"
KEY_BYTES_MIN: Final = 16
KEY_BYTES_MAX: Final = 64

_FIELDS: Final = ("sr", "sig", "se")
_RESOURCE: Final = re.compile(r"[^/]+/devices/([^/]+)(?:/modules/([^/]+))?")
_SECONDS: Final = re.compile(r"[0-9]{1,12}")


class SharedAccessKey(Struct, frozen=True):
    """A symmetric key."""

    value: bytes

    __repr__ = object.__repr__  # A secret that gets into a log shows nothing.

    @classmethod
    def parse(cls, text: str) -> SharedAccessKey:
        """Read a key in base64.

        Raises:
            ValueError: If it is none, or has not 16 to 64 bytes.
        """
        try:
            value = base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError("the key is not base64") from None
        if not KEY_BYTES_MIN <= len(value) <= KEY_BYTES_MAX:
            raise ValueError(
                f"the key has {len(value)} bytes, not {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"
            )
        return cls(value)

    def to_text(self) -> str:
        """Return the key in base64."""
        return base64.b64encode(self.value).decode("ascii")

    def sign(self, data: bytes) -> str:
        """Return the HMAC-SHA256 of data, in base64."""
        return base64.b64encode(hmac.digest(self.value, data, "sha256")).decode("ascii")

    def token(self, resource: str, expires_s: int) -> str:
        """Return a shared access signature.

        Args:
            resource: What it is for, such as `<host>/devices/<device>/modules/<module>`.
            expires_s: When it ends, in seconds since 1970 in UTC.
        """
        encoded = quote(resource, safe="")
        signature = quote(self.sign(f"{encoded}\n{expires_s}".encode()), safe="")
        return f"{SCHEME} sr={encoded}&sig={signature}&se={expires_s}"


def resource_of(identity_id: str, username: str | None, host: str) -> str:
    """Return the resource of a client that signs in.

    Args:
        identity_id: `<device>` or `<device>/<module>`.
        username: Its user name; the host in `<host>/<identity>/?api-version=..` is that of the
            resource, which a gateway in between does not have.
        host: Where it connects to, if the user name has no host.
    """
    named, slash, rest = (username or "").partition("/")
    if slash and "api-version=" in rest:
        host = named
    device_id, _, module_id = identity_id.partition("/")
    return f"{host}/devices/{device_id}" + (f"/modules/{module_id}" if module_id else "")


class SharedAccessSignature(Struct, frozen=True, kw_only=True):
    """A signature that was read, and not checked yet.

    Attributes:
        identity_id: `<device>` or `<device>/<module>` of its resource.
        expires_s: When it ends, in seconds since 1970 in UTC.
    """

    identity_id: str
    expires_s: int
    _signed: str
    _signature: str

    @classmethod
    def parse(cls, text: str) -> SharedAccessSignature:
        """Read `SharedAccessSignature sr=..&sig=..&se=..`.

        Raises:
            ValueError: If it is something else, with the reason.
        """
        scheme, _, rest = text.partition(" ")
        fields: dict[str, str] = {}
        for item in rest.strip().split("&"):
            name, _, value = item.partition("=")
            if name in fields:
                raise ValueError(f"{name} twice")
            fields[name] = value
        if scheme != SCHEME or not all(fields.get(name) for name in _FIELDS):
            raise ValueError(f"not {SCHEME} sr=..&sig=..&se=..")
        if fields.get("skn"):
            raise ValueError("of a shared access policy; use the key of the device")
        resource = _RESOURCE.fullmatch(unquote(fields["sr"]))
        if resource is None:
            raise ValueError(
                "sr is not <host>/devices/<device> or <host>/devices/<device>/modules/<module>"
            )
        if not _SECONDS.fullmatch(fields["se"]):
            raise ValueError("se is not seconds since 1970")
        return cls(
            identity_id="/".join(filter(None, resource.groups())),
            expires_s=int(fields["se"]),
            _signed=f"{fields['sr']}\n{fields['se']}",
            _signature=unquote(fields["sig"]),
        )

    def is_made_with(self, key: SharedAccessKey) -> bool:
        """Return whether it was signed with a key."""
        return hmac.compare_digest(
            key.sign(self._signed.encode()).encode(), self._signature.encode()
        )
