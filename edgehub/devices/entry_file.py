"""A file of entries, one JSON object per line: read whole or not at all, replaced atomically.

Owns what the files of identities and tokens have in common, but not the meaning of a line.
Blocks on the disk. Invariant: a reader sees the file before or after a change, never in between.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field

from edgehub.devices.private_file import exposed_mode, locked, replace_lines
from edgehub.errors import ConfigError, ConfigurationError
from edgehub.routes.hints import near_miss
from edgehub.storage.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

E = TypeVar("E")


# No slots: with them `EntryList[Token]()` fails, as Python sets the type of an instance on it.
class EntryList(Struct, Generic[E], frozen=True, kw_only=True):
    """What a file of entries holds.

    Attributes:
        path: The file, None = there is none.
        entries: By name.
        mode_exposed: Its permission bits where others may read or change it, else None.
    """

    path: Path | None = None
    entries: Mapping[str, E] = field(default_factory=dict)
    mode_exposed: int | None = None


class EntryFormat(Struct, Generic[E], frozen=True, kw_only=True):
    """The format of a kind of file.

    Attributes:
        error: Raised where a file is unusable.
        command: Adds an entry, without the option that names the file.
        name: Returns the name of an entry, which is unique in a file.
        members: Reads the value of each member; raises `ValueError` if that cannot be one.
        needed: Members that no entry may leave out.
        make: Makes an entry of its members; raises `ValueError` if they do not fit together.
        hints: How to correct a member, where what is wrong with it does not say so.
        line: Writes an entry as a JSON object.
    """

    error: type[ConfigurationError]
    command: str
    name: Callable[[E], str]
    members: Mapping[str, Callable[[Any], Any]]
    needed: frozenset[str]
    make: Callable[..., E]
    hints: Mapping[str, str]
    line: Callable[[E], Mapping[str, Any]]

    def read(self, path: Path) -> dict[str, E]:
        """Read a file; the order of the lines is kept.

        Raises:
            ConfigurationError: The format's own, with every fault, if anything in it is wrong.
        """
        try:
            # Editors on Windows put a byte order mark in front.
            lines = read_regular(path).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise self.error([ConfigError(str(path), f"not UTF-8: {error}")]) from error
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            hint = f"create it with `{self.command} --file {path}`" if absent else ""
            fault = ConfigError(str(path), error.strerror or str(error), hint)
            raise self.error([fault]) from error
        entries: dict[str, E] = {}
        faults: list[ConfigError] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            key = f"{path}:{number}"
            entry = self._parse(key, line, faults)
            if entry is None:
                continue
            name = self.name(entry)
            if name in entries:
                faults.append(ConfigError(key, f"second entry of {name!r}", "keep one"))
            entries[name] = entry
        if faults:
            raise self.error(faults)
        return entries

    def read_list(self, path: Path | None) -> EntryList[E]:
        """Read a file and its permissions; see `read`."""
        if path is None:
            return EntryList()
        return EntryList(path=path, entries=self.read(path), mode_exposed=exposed_mode(path))

    @contextmanager
    def changing(self, path: Path) -> Iterator[dict[str, E]]:
        """Yield the entries to change in place; written back if the block ends without an error.

        Two commands do not undo each other's change. Of a symbolic link the file behind it is
        changed.

        Raises:
            ConfigurationError: The format's own, if the present file is unusable.
        """
        with locked(path) as file:
            entries = self.read(file) if file.exists() else {}
            yield entries
            replace_lines(file, (json.dumps(self.line(each)) + "\n" for each in entries.values()))

    def _parse(self, key: str, line: str, faults: list[ConfigError]) -> E | None:
        """Read a line; adds what is wrong with it to the faults, and returns None then."""
        before = len(faults)
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(ConfigError(key, f"not JSON: {error}"))
            return None
        if not isinstance(document, dict):
            faults.append(ConfigError(key, "not a JSON object"))
            return None
        found: dict[str, Any] = {}
        for name, value in document.items():
            if name not in self.members:
                near = near_miss(name, self.members)
                hint = f"did you mean {near}?" if near else ""
                faults.append(ConfigError(key, f"unknown key {name!r}", hint))
                continue
            try:
                found[name] = self.members[name](value)
            except ValueError as error:
                faults.append(ConfigError(key, f"{name}: {error}", self.hints.get(name, "")))
        faults += [
            ConfigError(key, f"{name} is missing") for name in sorted(self.needed - document.keys())
        ]
        if len(faults) > before:
            return None
        try:
            return self.make(**found)
        except ValueError as error:
            faults.append(ConfigError(key, str(error)))
            return None
