"""What is left of a settings document when all that is wrong with it is taken out.

Faults of all files are reported at once. Pure. Invariant: what is taken out leaves
a stand-in where other files may speak of it, so that no fault follows from the taking out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from edgehub.settings.faults import SettingsError
from edgehub.settings.loading import check_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgehub.errors import ConfigError
    from edgehub.settings.model import Settings

_ROUNDS_MAX: Final = 8
"""What is wrong deep inside shows once the rest is out; more rounds than the model is deep."""

_STAND_INS: Final[dict[str, dict[str, Any]]] = {
    "endpoints": {"type": "file", "path": "stand-in"},
    "tenants": {},
}


def settings_without_faults(
    document: Mapping[str, Any],
    error: SettingsError,
    *,
    file: Path | None,
    flags: Mapping[str, Any],
) -> tuple[Settings | None, list[ConfigError]]:
    """Return the settings that the right part of a document makes.

    Args:
        document: What `read_document` gave.
        error: What is wrong with it.
        file: Its name.
        flags: Nested values from the command line.

    Returns:
        Those, None where nothing can be taken out, since the environment or a flag is at fault; and
        further faults, which showed only without `error`.
    """
    left = dict(document)
    known = {(fault.key, fault.reason) for fault in error.faults}
    hidden: list[ConfigError] = []
    removed: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        reduced = left
        for path in error.paths:
            removed.update(path[-1:])
            reduced = _without(reduced, path)
        if reduced == left:
            return None, hidden
        left = reduced
        try:
            return check_settings(left, file=file, flags=flags), hidden
        except SettingsError as again:
            error = again
        for fault in error.faults:
            # Of a key that was taken out a rule may say that it is missing.
            follows = not removed.isdisjoint(re.findall(r"\w+", fault.reason))
            if not follows and (fault.key, fault.reason) not in known:
                known.add((fault.key, fault.reason))
                hidden.append(fault)
    return None, hidden


def _without(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Take out what a path names, or the innermost section on the way to what is missing."""
    if not path:
        return document
    stand_in, named = _STAND_INS.get(path[0]), document.get(path[0])
    if stand_in is not None and isinstance(named, dict) and path[1:] and path[1] in named:
        left = _reduced(named[path[1]], path[2:])
        if left is None and named[path[1]] != stand_in:
            left = stand_in
        if left is not None:
            return {**document, path[0]: {**named, path[1]: left}}
    left = _reduced(document, path)
    return document if left is None else left


def _reduced(section: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    """Return a section without the key that a path names; None = it has to go itself."""
    if not isinstance(section, dict) or not path or path[0] not in section:
        return None
    inner = _reduced(section[path[0]], path[1:])
    if inner is not None:
        return {**section, path[0]: inner}
    return {key: value for key, value in section.items() if key != path[0]}
