"""Records which segments were exported where, so that each is exported once.

Owns one file in the journal's folder. Blocking code, called on a worker thread. Invariant: a
plan, once made, is handed out again until it is done; so a repeated export writes the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.storage.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TARGETS_MAX: Final = 16
"""The target that was used least lately is forgotten; what it has would be exported again."""


class ExportBook:
    """The exports by target.

    Args:
        file: Where it is kept.
    """

    __slots__ = ("_file", "_targets")

    def __init__(self, file: Path) -> None:
        self._file = file
        self._targets: dict[str, dict[str, Any]] | None = None

    def plan(self, target: str, closed: Iterable[str]) -> list[str]:
        """Return the segments that are to go to `target` next, oldest first.

        Args:
            target: Folder or URL.
            closed: Paths of the whole segments there are, oldest first.

        Raises:
            OSError: The plan cannot be kept.
        """
        targets = self._load()
        entry = targets.pop(target, {"plan": [], "exported": []})
        there = list(closed)
        planned = set(entry["plan"])
        plan = [path for path in there if path in planned]
        if not plan:
            exported = set(entry["exported"])
            plan = [path for path in there if path not in exported]
        if not plan and not entry.get("reached"):
            # Mistyped, for example: it replaces no other, and is stored once it gets a segment.
            return plan
        targets[target] = {**entry, "plan": plan}
        while len(targets) > TARGETS_MAX:
            del targets[next(iter(targets))]
        self._save(targets)
        return plan

    def done(
        self, target: str, closed: Iterable[str], segments: Iterable[str] | None = None
    ) -> None:
        """Record what of the plan of `target` has been carried out; the rest comes again.

        Args:
            target: Folder or URL.
            closed: Paths of the whole segments there are, oldest first.
            segments: Those that need not go again; None = the whole plan.

        Raises:
            OSError: It cannot be noted; the same plan comes again.
        """
        targets = self._load()
        entry = targets.get(target)
        if entry is None:
            return
        arrived = set(entry["plan"])
        if segments is not None:
            arrived &= set(segments)
        done = {*entry["exported"], *arrived}
        exported = [path for path in closed if path in done]
        reached = bool(arrived) or bool(entry.get("reached"))
        # The next plan starts again with what could not be exported.
        entry |= {"plan": [], "exported": exported, "reached": reached}
        self._save(targets)

    def exported(self) -> set[str]:
        """Return the segments that went to some target."""
        return {path for entry in self._load().values() for path in entry["exported"]}

    def targets(self) -> list[str]:
        """List the targets that got something, the one used last at the end."""
        return [target for target, entry in self._load().items() if entry.get("reached")]

    def _load(self) -> dict[str, dict[str, Any]]:
        if self._targets is None:
            try:
                self._targets = _read(orjson.loads(self._file.read_bytes()))
            except (FileNotFoundError, ValueError):
                self._targets = {}  # at worst segments go a second time, with the same bytes
        return self._targets

    def _save(self, targets: dict[str, dict[str, Any]]) -> None:
        self._targets = None  # read again, should the write fail
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._file, orjson.dumps(targets, option=orjson.OPT_INDENT_2))
        self._targets = targets


def _read(document: Any) -> dict[str, dict[str, Any]]:
    """Return what `_save` wrote; an edited file may contain anything.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(document, dict) and all(map(_is_entry, document.values())):
        return document
    raise ValueError("not a record of exports")


def _is_entry(entry: Any) -> bool:
    lists = [entry.get("plan"), entry.get("exported")] if isinstance(entry, dict) else [None]
    return all(
        isinstance(paths, list) and all(isinstance(path, str) for path in paths) for paths in lists
    )
