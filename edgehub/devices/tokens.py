"""The tokens in force, which give access to the HTTP API, to read or to write.

Owns the list in force. Invariants: a list is put in force whole; the check of a wrong token takes
as long for a name that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from edgehub.devices.entry_file import EntryList
from edgehub.devices.token_file import FORMAT, Role, Token

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_CHARACTERS_MAX: Final = 256

_DUMMY: Final = Token.new("none", Role.READ)[0]

log = structlog.get_logger(__name__)


TokenList = EntryList[Token]
"""What a tokens file holds, by name."""


def read_token_list(path: Path | None) -> TokenList:
    """Read a tokens file; blocks on the disk.

    Raises:
        TokenFileError: With every fault of the file.
    """
    return FORMAT.read_list(path)


class Tokens:
    """The tokens that are accepted; none until a list was applied."""

    def __init__(self) -> None:
        self._list = TokenList()

    @property
    def are_required(self) -> bool:
        """Return whether every request needs a token: there is a file, be it empty."""
        return self._list.path is not None

    def __len__(self) -> int:
        return len(self._list.entries)

    def apply(self, tokens: TokenList) -> None:
        """Put a list in force, in place of the one before."""
        self._list = tokens
        path, mode = tokens.path, tokens.mode_exposed
        if mode is not None:
            hint = f"chmod 600 {path}"
            log.warning("tokens.file_exposed", path=str(path), mode=f"{mode:04o}", hint=hint)
        if path is not None:
            log.info("tokens.loaded", path=str(path), tokens=len(tokens.entries))

    def find(self, text: str) -> Token | None:
        """Return the entry of a token, None = there is none."""
        if len(text) > TOKEN_CHARACTERS_MAX:
            return None
        name, _, secret = text.partition(".")
        token = self._list.entries.get(name)
        right = (_DUMMY if token is None else token).matches(secret)
        return token if right else None
