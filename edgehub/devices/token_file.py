"""The tokens file: one JSON object per line, read whole or not at all, replaced atomically.

Owns the format of file and tokens. A token is `<name>.<secret>`; the secret is 256 random bits, so
one round of SHA-256 with a salt is enough, while passwords need a slow hash; and the check of a
wrong secret costs the hub microseconds. Blocks on the disk. Invariant: no secret is
ever written.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from edgehub.devices.entry_file import EntryFormat
from edgehub.devices.passwords import from_base64, to_base64
from edgehub.errors import ConfigurationError
from edgehub.routes.tenant import Tenant

NAME_RULE: Final = "1 to 63 of a-z, 0-9 and -, not beginning with -"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_HASH: Final = re.compile(r"\$sha256\$([A-Za-z0-9+/]{22})\$([A-Za-z0-9+/]{43})")


class Role(StrEnum):
    """What a token allows."""

    READ = "read"
    WRITE = "write"


class TokenFileError(ConfigurationError):
    """The tokens file is unusable."""


class Token(Struct, frozen=True, kw_only=True):
    """One entry: what its holder is called and may do.

    Attributes:
        name: Who uses it, for the log and for `token remove`.
        role: `write` includes reading.
        salt: Of the hash.
        key: SHA-256 over salt and secret.
        tenant: `org/application` to whose routes it is confined, None = it sees the whole hub.
    """

    name: str
    role: Role
    salt: bytes
    key: bytes
    tenant: str | None = None

    __repr__ = object.__repr__  # A secret that gets into a log shows nothing.

    @classmethod
    def new(cls, name: str, role: Role, tenant: str | None = None) -> tuple[Token, str]:
        """Make an entry, and the text that its holder presents; it cannot be shown again."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        salt = secrets.token_bytes(_SALT_BYTES)
        key = _key(salt, secret)
        return cls(name=name, role=role, salt=salt, key=key, tenant=tenant), f"{name}.{secret}"

    def matches(self, secret: str) -> bool:
        """Return whether `secret` is the one; compares in constant time."""
        return hmac.compare_digest(self.key, _key(self.salt, secret))

    @property
    def hash(self) -> str:
        """Return the hash as the file has it."""
        return f"$sha256${to_base64(self.salt)}${to_base64(self.key)}"


def check_name(name: object) -> str:
    """Accept a token's name.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a token, which has {NAME_RULE}")
    return name


def check_tenant(tenant: object) -> str | None:
    """Accept a tenant, or none.

    Raises:
        ValueError: If it is something else.
    """
    if tenant is None:
        return None
    # Without a slash it is no tenant, nor is the empty name, by which the default one is meant.
    return str(Tenant.parse(tenant if isinstance(tenant, str) and tenant else "/"))


def _line(token: Token) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": token.name, "role": token.role, "hash": token.hash}
    if token.tenant is not None:
        entry["tenant"] = token.tenant
    return entry


def _role(role: Any) -> Role:
    if role not in tuple(Role):
        raise ValueError(f"{role!r} is neither read nor write")
    return Role(role)


def _salt_and_key(text: object) -> tuple[bytes, bytes]:
    found = _HASH.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("not of the form $sha256$salt$key")
    return from_base64(found[1]), from_base64(found[2])


def _token(*, hash: tuple[bytes, bytes], **members: Any) -> Token:  # noqa: A002 - as the file has it
    return Token(salt=hash[0], key=hash[1], **members)


def _key(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()


FORMAT: Final = EntryFormat(
    error=TokenFileError,
    command="edgehub token add NAME",
    name=lambda token: token.name,
    members={"name": check_name, "role": _role, "hash": _salt_and_key, "tenant": check_tenant},
    needed=frozenset({"name", "role", "hash"}),
    make=_token,
    hints=dict.fromkeys(("name", "role", "hash"), "make it again with `edgehub token add`"),
    line=_line,
)
"""Of the tokens file."""

read_tokens: Final = FORMAT.read
changing_tokens: Final = FORMAT.changing
