"""Password hashes: scrypt with a salt per entry, in a text that describes itself.

Pure functions of CPU and memory; they take tens of milliseconds, so callers keep them off the event
loop. Invariant: parameters come from the text, so hashes made with other defaults stay valid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final

from msgspec import Struct

PASSWORD_BYTES_MAX: Final = 1024

_LOG2_N: Final = 14
_R: Final = 8
_P: Final = 1
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
# 128 * r * n bytes and a little more; bounds what a typing error in the file can demand.
_MEMORY_BYTES_MAX: Final = 128 * 2**20
_WORK_MAX: Final = 2**20
_TEXT: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)


class PasswordHash(Struct, frozen=True, kw_only=True):
    """A parsed hash."""

    log2_n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    __repr__ = object.__repr__  # A secret that gets into a log shows nothing.

    def matches(self, password: bytes) -> bool:
        """Return whether `password` is the one; slow on purpose, compares in constant time.

        One that ends with NUL is none: HMAC, and so scrypt, fills keys up with NUL, which makes it
        the same as the password without.
        """
        is_equal = hmac.compare_digest(self.key, self._derive(password))
        return is_equal and not password.endswith(b"\0")

    @classmethod
    def of(cls, password: bytes) -> PasswordHash:
        """Hash a new password with a fresh salt; slow on purpose."""
        salt = secrets.token_bytes(_SALT_BYTES)
        blank = cls(log2_n=_LOG2_N, r=_R, p=_P, salt=salt, key=bytes(_KEY_BYTES))
        return cls(log2_n=_LOG2_N, r=_R, p=_P, salt=salt, key=blank._derive(password))

    @classmethod
    def dummy(cls) -> PasswordHash:
        """Return a hash that no password matches, as slow to check as a new one."""
        salt, key = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_KEY_BYTES)
        return cls(log2_n=_LOG2_N, r=_R, p=_P, salt=salt, key=key)

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Read `$scrypt$ln=14,r=8,p=1$<salt>$<key>`.

        Raises:
            ValueError: If it is something else or needs too much memory or time.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("not a hash of the form $scrypt$ln=..,r=..,p=..$salt$key")
        log2_n, r, p = (int(number) for number in found.group(1, 2, 3))
        if not (log2_n and r and p) or 128 * r << log2_n > _MEMORY_BYTES_MAX:
            raise ValueError(
                f"scrypt parameters ln={log2_n}, r={r}, p={p} are zero or need too much memory"
            )
        if r * p << log2_n > _WORK_MAX:
            raise ValueError(f"scrypt parameters ln={log2_n}, r={r}, p={p} take too long")
        salt, key = from_base64(found.group(4)), from_base64(found.group(5))
        if len(key) != _KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes instead of {_KEY_BYTES}")
        return cls(log2_n=log2_n, r=r, p=p, salt=salt, key=key)

    def __str__(self) -> str:
        parameters = f"ln={self.log2_n},r={self.r},p={self.p}"
        return f"$scrypt${parameters}${to_base64(self.salt)}${to_base64(self.key)}"

    def _derive(self, password: bytes) -> bytes:
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=1 << self.log2_n,
            r=self.r,
            p=self.p,
            maxmem=2 * _MEMORY_BYTES_MAX,
            dklen=_KEY_BYTES,
        )


def to_base64(data: bytes) -> str:
    """Return the base64 text of data, without padding."""
    return base64.b64encode(data).decode("ascii").rstrip("=")


def from_base64(text: str) -> bytes:
    """Return the data of a base64 text without padding.

    Raises:
        ValueError: It is none.
    """
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise ValueError(f"salt or key is not base64: {error}") from error
