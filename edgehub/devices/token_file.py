"""The tokens file: one JSON object per line, read whole or not at all, replaced atomically.

Owns the format of file and tokens. A token is `<name>.<secret>`; the secret is 256 random bits that
nobody chose, so one round of SHA-256 with a salt keeps it, where passwords need a slow hash; and a
stranger who tries secrets costs the hub microseconds. Blocks on the disk. Invariant: no secret is
ever written.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import hmac
import json
import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from edgehub.devices.private_file import locked, replace_lines
from edgehub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
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


class TokenFileError(ConfigError):
    """The tokens file is unusable.

    Attributes:
        faults: Every fault found, each with file and line, reason and hint.
    """

    def __init__(self, faults: list[ConfigError]) -> None:
        super().__init__(faults[0].key, faults[0].reason, faults[0].hint)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Token:
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

    @classmethod
    def new(cls, name: str, role: Role, tenant: str | None = None) -> tuple[Token, str]:
        """Make an entry, and the text that its holder presents; nobody can tell it again."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        salt = secrets.token_bytes(_SALT_BYTES)
        key = _key(salt, secret)
        return cls(name=name, role=role, salt=salt, key=key, tenant=tenant), f"{name}.{secret}"

    def matches(self, secret: str) -> bool:
        """Say whether `secret` is the one; compares in constant time."""
        return hmac.compare_digest(self.key, _key(self.salt, secret))

    @property
    def hash(self) -> str:
        """Give the hash as the file has it."""
        return f"$sha256${_encode(self.salt)}${_encode(self.key)}"


def check_name(name: object) -> str:
    """Accept a token's name.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        msg = f"{name!r} is no name of a token, which has {NAME_RULE}"
        raise ValueError(msg)
    return name


def check_tenant(tenant: object) -> str | None:
    """Accept a tenant, or none.

    Raises:
        ValueError: If it is something else.
    """
    if tenant is None or (isinstance(tenant, str) and _TENANT.fullmatch(tenant) is not None):
        return tenant
    msg = f"{tenant!r} is no tenant, which is <org>/<application>"
    raise ValueError(msg)


def read_tokens(path: Path) -> dict[str, Token]:
    """Read the file; the order of the lines is kept.

    Raises:
        TokenFileError: With every fault, if anything in it is wrong.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TokenFileError([ConfigError(str(path), f"not UTF-8: {error}")]) from error
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        hint = f"create it with `edgehub token add NAME --file {path}`" if absent else ""
        fault = ConfigError(str(path), error.strerror or str(error), hint)
        raise TokenFileError([fault]) from error
    tokens: dict[str, Token] = {}
    faults: list[ConfigError] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key = f"{path}:{number}"
        try:
            token = _parse(line)
        except ValueError as error:
            faults.append(ConfigError(key, str(error), "make it anew with `edgehub token add`"))
            continue
        if token.name in tokens:
            faults.append(ConfigError(key, f"second entry of {token.name!r}", "keep one"))
        tokens[token.name] = token
    if faults:
        raise TokenFileError(faults)
    return tokens


@contextmanager
def changing_tokens(path: Path) -> Iterator[dict[str, Token]]:
    """Give the entries to change in place; written back when the block ends without an error.

    Raises:
        TokenFileError: If the present file is unusable.
    """
    with locked(path) as file:
        tokens = read_tokens(file) if file.exists() else {}
        yield tokens
        replace_lines(file, (_line(token) for token in tokens.values()))


def _line(token: Token) -> str:
    entry: dict[str, Any] = {"name": token.name, "role": token.role, "hash": token.hash}
    if token.tenant is not None:
        entry["tenant"] = token.tenant
    return json.dumps(entry) + "\n"


def _parse(line: str) -> Token:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"not JSON: {error}"
        raise ValueError(msg) from error
    if not isinstance(entry, dict):
        msg = "not a JSON object"
        raise ValueError(msg)  # noqa: TRY004 - what the reader collects
    for name in sorted(entry.keys() - set(_KEYS)):
        near = difflib.get_close_matches(name, _KEYS, n=1)
        msg = f"unknown key {name!r}" + (f", did you mean {near[0]}?" if near else "")
        raise ValueError(msg)
    name = check_name(entry.get("name"))
    role = entry.get("role")
    if role not in tuple(Role):
        msg = f"role {role!r} is neither read nor write"
        raise ValueError(msg)
    found = _HASH.fullmatch(text) if isinstance(text := entry.get("hash"), str) else None
    if found is None:
        msg = "hash is not of the form $sha256$salt$key"
        raise ValueError(msg)
    return Token(
        name=name,
        role=Role(role),
        salt=_decode(found[1]),
        key=_decode(found[2]),
        tenant=check_tenant(entry.get("tenant")),
    )


def _key(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii").rstrip("=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        msg = f"salt or key is not base64: {error}"
        raise ValueError(msg) from error
