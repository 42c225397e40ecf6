"""The identities in force, and the check of passwords and shared access signatures.

Passwords are checked off the event loop; a signature takes microseconds.

Owns the list in force. Invariants: a list is put in force whole; a wrong password costs the same
computation whether the id exists or not; a flood of sign-ins keeps the threads of one small pool
busy and the loop not at all.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from edgehub.devices.entry_file import EntryList
from edgehub.devices.identity_file import FORMAT, Identity, IdentityFileError
from edgehub.devices.password_checks import PasswordChecks
from edgehub.devices.passwords import PASSWORD_BYTES_MAX, PasswordHash
from edgehub.devices.server_tls import thumbprints
from edgehub.errors import ConfigError
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.storage.credentials import read_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from edgehub.mqtt.shared_access import SharedAccessSignature

CLOCK_TOLERANCE_S: Final = 300
"""How much the clock of a client may be behind this one."""

log = structlog.get_logger(__name__)


IdentityList = EntryList[Identity]
"""What an identities file holds, by id; without a file no client signs in with a password."""


def read_identity_list(path: Path | None) -> IdentityList:
    """Read an identities file and the certificates that it names; blocks on the disk.

    Raises:
        IdentityFileError: With every fault of the file.
    """
    found = FORMAT.read_list(path)
    faults: list[ConfigError] = []
    entries: dict[str, Identity] = {}
    for name, entry in found.entries.items():
        read: set[str] = set()
        for file in certificate_files(found, entry):
            try:
                read |= thumbprints(read_certificate(f"{path}: {name}", file))
            except ConfigError as error:
                faults.append(error)
        entries[name] = replace(entry, certificate_thumbprints=frozenset(read))
    if faults:
        raise IdentityFileError(faults)
    return replace(found, entries=entries)


def certificate_files(identities: IdentityList, entry: Identity) -> list[Path]:
    """Return the certificates that an entry names."""
    assert identities.path is not None or not entry.certificates
    return [identities.path.parent / name for name in entry.certificates] if identities.path else []


class Identities:
    """The identities that may sign in; none until a list was applied.

    Args:
        utc_s: Returns seconds since 1970 in UTC, None = the clock is not trusted now.
    """

    def __init__(self, utc_s: Callable[[], float | None]) -> None:
        self._utc_s = utc_s
        self._by_id: Mapping[str, Identity] = {}
        self.version = 0
        """Changes with every list."""
        self._checks = PasswordChecks()
        self._dummy = PasswordHash.dummy()
        self._dummy_key = SharedAccessKey(secrets.token_bytes(32))
        # Digests of passwords that were right before, under a key of this process: thousands of
        # devices that reconnect after an outage need no hashing. Removed with the entry's hash.
        self._digest_key = secrets.token_bytes(32)
        self._known: dict[str, tuple[PasswordHash, bytes]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, identity_id: str) -> Identity | None:
        """Return the entry of an id, disabled ones too."""
        return self._by_id.get(identity_id)

    def entries(self) -> Iterable[Identity]:
        """Return all entries."""
        return self._by_id.values()

    def apply(self, identities: IdentityList) -> None:
        """Put a list in force, in place of the one before."""
        self._by_id = identities.entries
        self.version += 1
        self._known = {
            identity_id: known
            for identity_id, known in self._known.items()
            if (entry := self._by_id.get(identity_id)) and entry.password == known[0]
        }
        path, mode = identities.path, identities.mode_exposed
        if mode is not None:
            hint = f"chmod 600 {path}"
            log.warning("identities.file_exposed", path=str(path), mode=f"{mode:04o}", hint=hint)
        if path is not None:
            log.info("identities.loaded", path=str(path), identities=len(self._by_id))

    async def verify(
        self,
        identity_id: str,
        password: bytes,
        *,
        address: str,
        waits: Callable[[], None] = lambda: None,
    ) -> Identity | None:
        """Return the identity if it exists, is enabled and the password is right, else None.

        Args:
            identity_id: Id that signs in.
            password: What it has sent.
            address: Of the client; addresses take turns.
            waits: Called if the check has to wait. A cancelled caller leaves the queue.

        Raises:
            TooManyChecksError: Too many sign-ins of the address wait.
        """
        digest = self._digest(password)
        identity = self._verified(identity_id, digest)
        if identity is not None:
            return identity
        known_id = identity_id if identity_id in self._by_id else ""
        await self._checks.turn(address, known_id, waits)
        # Another connection of the same client may have been before it.
        identity = self._verified(identity_id, digest)
        if identity is not None:
            self._checks.release()
            return identity
        identity = self._by_id.get(identity_id)
        expected = self._dummy if identity is None else identity.password or self._dummy
        right = await self._checks.run(expected.matches, password[: PASSWORD_BYTES_MAX + 1])
        # The file may have changed since; what is in force now decides.
        identity = self._by_id.get(identity_id)
        if not right or identity is None or identity.disabled or identity.password != expected:
            return None
        self._known[identity_id] = (expected, digest)
        return identity

    def verify_signature(self, signature: SharedAccessSignature) -> Identity | None:
        """Return the identity of a signature if it is enabled and the signature holds, else None.

        While the clock is not trusted an expiry is not judged; see `seconds_left`.
        """
        identity = self._by_id.get(signature.identity_id)
        keys = (self._dummy_key,) if identity is None else identity.keys
        is_right = any(signature.is_made_with(key) for key in keys)
        if not is_right or identity is None or identity.disabled:
            return None
        return None if self.has_expired(signature.expires_s) else identity

    def has_expired(self, expires_s: int) -> bool:
        """Return whether a signature has ended; False while the clock is not trusted."""
        left_s = self.seconds_left(expires_s)
        return left_s is not None and left_s <= 0

    def seconds_left(self, expires_s: int) -> float | None:
        """Return for how long a signature holds; None = unknown, the clock is not trusted now."""
        now_s = self._utc_s()
        return None if now_s is None else expires_s + CLOCK_TOLERANCE_S - now_s

    def may_be_right(self, identity_id: str, password: bytes) -> bool:
        """Return whether a password may be right; costs no hash.

        False is certain only once the identity has signed in: its password is known then.
        """
        identity = self._by_id.get(identity_id)
        if identity is None or identity.disabled:
            return False
        known = self._known.get(identity_id)
        return known is None or hmac.compare_digest(known[1], self._digest(password))

    def close(self) -> None:
        """Stop the threads; checks that did not begin are cancelled."""
        self._checks.close()

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._digest_key, password[: PASSWORD_BYTES_MAX + 1], "sha256")

    def _verified(self, identity_id: str, digest: bytes) -> Identity | None:
        """Return an identity whose password was right before, and is the same again."""
        identity = self._by_id.get(identity_id)
        known = self._known.get(identity_id)
        if identity is None or identity.disabled or known is None:
            return None
        return identity if hmac.compare_digest(known[1], digest) else None
