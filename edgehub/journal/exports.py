"""Records which segments were exported where, so that each is exported once.

Owns one file in the journal's folder. Blocking code, called on a worker thread. Invariant: a
plan, once made, is handed out again until it is done; so a repeated export writes the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from edgehub.storage.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TARGETS_MAX: Final = 16
"""The target that was used least lately is forgotten; what it has would be exported again."""


class _Exports(Struct):
    """What went to one target.

    Attributes:
        plan: Segments that are to go there next.
        exported: Those that need not go again.
        reached: It got a segment.
    """

    plan: list[str] = []
    exported: list[str] = []
    reached: bool = False


class ExportBook:
    """The exports by target.

    Args:
        file: Where it is kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._targets: dict[str, _Exports] | None = None

    def plan(self, target: str, closed: Iterable[str]) -> list[str]:
        """Return the segments that are to go to `target` next, oldest first.

        Args:
            target: Folder or URL.
            closed: Paths of the whole segments there are, oldest first.

        Raises:
            OSError: The plan cannot be kept.
        """
        targets = self._load()
        entry = targets.pop(target, None) or _Exports()
        there = list(closed)
        planned = set(entry.plan)
        plan = [path for path in there if path in planned]
        if not plan:
            exported = set(entry.exported)
            plan = [path for path in there if path not in exported]
        if not plan and not entry.reached:
            # Mistyped, for example: it replaces no other, and is stored once it gets a segment.
            return plan
        targets[target] = replace(entry, plan=plan)
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
        arrived = set(entry.plan)
        if segments is not None:
            arrived &= set(segments)
        done = {*entry.exported, *arrived}
        # The next plan starts again with what could not be exported.
        entry.plan = []
        entry.exported = [path for path in closed if path in done]
        entry.reached = entry.reached or bool(arrived)
        self._save(targets)

    def exported(self) -> set[str]:
        """Return the segments that went to some target."""
        return {path for entry in self._load().values() for path in entry.exported}

    def targets(self) -> list[str]:
        """List the targets that got something, the one used last at the end."""
        return [target for target, entry in self._load().items() if entry.reached]

    def _load(self) -> dict[str, _Exports]:
        if self._targets is None:
            try:
                self._targets = msgspec.json.decode(
                    self._file.read_bytes(), type=dict[str, _Exports]
                )
            except (FileNotFoundError, msgspec.DecodeError):
                self._targets = {}  # at worst segments go a second time, with the same bytes
        return self._targets

    def _save(self, targets: dict[str, _Exports]) -> None:
        self._targets = None  # read again, should the write fail
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._file, msgspec.json.format(msgspec.json.encode(targets)))
        self._targets = targets
