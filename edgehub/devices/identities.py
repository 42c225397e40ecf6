"""The identities in force, and the check of passwords off the event loop.

Owns the list in force and the threads that hash. Invariants: a list is put in force whole; a wrong
password costs the same time whether the id exists or not; a flood of sign-ins keeps the threads of
one small pool busy and the loop not at all.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.devices.entry_file import EntryList
from edgehub.devices.identity_file import FORMAT, Identity
from edgehub.devices.passwords import PASSWORD_BYTES_MAX, PasswordHash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_THREADS_MAX: Final = 2

log = structlog.get_logger(__name__)


IdentityList = EntryList[Identity]
"""What an identities file holds, by id; without a file nobody signs in with a password."""


def read_identity_list(path: Path | None) -> IdentityList:
    """Read an identities file; blocks on the disk.

    Raises:
        IdentityFileError: With every fault of the file.
    """
    return FORMAT.read_list(path)


class Identities:
    """Who may sign in; nobody until a list was applied."""

    def __init__(self) -> None:
        self._by_id: Mapping[str, Identity] = {}
        self.version = 0
        """Changes with every list."""
        # Half of the cores at most: hashing must not starve the thread of the event loop.
        threads = min(_THREADS_MAX, max(1, (os.cpu_count() or 1) // 2))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="password")
        self._decoy = PasswordHash.decoy()
        # Passwords that were right before, under a key of this process: thousands of devices that
        # come back after an outage need no hashing each. Forgotten with the entry's hash.
        self._digest_key = secrets.token_bytes(32)
        self._known: dict[str, tuple[PasswordHash, bytes]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, identity_id: str) -> Identity | None:
        """Give the entry of an id, disabled ones too."""
        return self._by_id.get(identity_id)

    def entries(self) -> Iterable[Identity]:
        """Give all entries."""
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
        if path is None:
            return
        if mode is not None:
            log.warning(
                "identities.file_exposed",
                path=str(path),
                mode=f"{mode:04o}",
                hint=f"chmod 600 {path}",
            )
        log.info("identities.loaded", path=str(path), identities=len(self._by_id))

    async def verify(self, identity_id: str, password: bytes) -> Identity | None:
        """Give the identity if it exists, is enabled and the password is right, else None."""
        password = password[: PASSWORD_BYTES_MAX + 1]
        identity = self._by_id.get(identity_id)
        digest = hmac.digest(self._digest_key, password, "sha256")
        if identity is not None and not identity.disabled:
            known = self._known.get(identity_id)
            if known is not None and hmac.compare_digest(known[1], digest):
                return identity
        expected = self._decoy if identity is None else identity.password
        right = await asyncio.get_running_loop().run_in_executor(
            self._pool, expected.matches, password
        )
        # The file may have changed meanwhile; what is in force now decides.
        identity = self._by_id.get(identity_id)
        if not right or identity is None or identity.disabled or identity.password != expected:
            return None
        self._known[identity_id] = (expected, digest)
        return identity

    def close(self) -> None:
        """Let the threads go; checks that did not begin are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
