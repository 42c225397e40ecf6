"""Lua scripts that run in Redis, each one atomic."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Self


class Script:
    """A script and the name under which a server keeps it.

    Attributes:
        text: The Lua code.
        sha1: What EVALSHA calls it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # The name that the protocol prescribes; it guards nothing.
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def of(cls, package: str, *files: str) -> Self:
        """Read a script of a package; several files are joined in their order."""
        folder = resources.files(package)
        return cls("\n".join((folder / file).read_text("utf-8") for file in files))
