"""The tokens file: one JSON object per line, read whole or not at all, replaced atomically.

Owns the format of file and tokens. A token is `<name>.<secret>`; the secret is 256 random bits, so
one round of SHA-256 with a salt is enough, while passwords need a slow hash; and the check of a
wrong secret costs the hub microseconds. Blocks on the disk. Invariant: no secret is
ever written.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.devices.entry_file import EntryFormat, json_object
from edgehub.devices.passwords import from_base64, to_base64
from edgehub.errors import ConfigError, ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

NAME_RULE: Final = "1 to 63 of a-z, 0-9 and -, not beginning with -"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_TENANT: Final = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?"
)
_KEYS: Final = ("name", "role", "tenant", "hash")
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
    if tenant is None or (isinstance(tenant, str) and _TENANT.fullmatch(tenant) is not None):
        return tenant
    raise ValueError(f"{tenant!r} is no tenant, which is <org>/<application>")


def read_tokens(path: Path) -> dict[str, Token]:
    """Read the file; the order of the lines is kept.

    Raises:
        TokenFileError: With every fault, if anything in it is wrong.
    """
    return FORMAT.read(path)


def changing_tokens(path: Path) -> AbstractContextManager[dict[str, Token]]:
    """Return the entries to change in place; see `EntryFormat.changing`.

    Raises:
        TokenFileError: If the present file is unusable.
    """
    return FORMAT.changing(path)


def _line(token: Token) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": token.name, "role": token.role, "hash": token.hash}
    if token.tenant is not None:
        entry["tenant"] = token.tenant
    return entry


def _parse(key: str, line: str, faults: list[ConfigError]) -> Token | None:
    try:
        return _token(json_object(line))
    except ValueError as error:
        faults.append(ConfigError(key, str(error), "make it again with `edgehub token add`"))
        return None


def _token(entry: dict[str, Any]) -> Token:
    for name in sorted(entry.keys() - set(_KEYS)):
        near = difflib.get_close_matches(name, _KEYS, n=1)
        raise ValueError(f"unknown key {name!r}" + (f", did you mean {near[0]}?" if near else ""))
    name = check_name(entry.get("name"))
    role = entry.get("role")
    if role not in tuple(Role):
        raise ValueError(f"role {role!r} is neither read nor write")
    found = _HASH.fullmatch(text) if isinstance(text := entry.get("hash"), str) else None
    if found is None:
        raise ValueError("hash is not of the form $sha256$salt$key")
    return Token(
        name=name,
        role=Role(role),
        salt=from_base64(found[1]),
        key=from_base64(found[2]),
        tenant=check_tenant(entry.get("tenant")),
    )


def _key(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()


FORMAT: Final = EntryFormat(
    error=TokenFileError,
    command="edgehub token add NAME",
    name=lambda token: token.name,
    parse=_parse,
    line=_line,
)
"""Of the tokens file."""
