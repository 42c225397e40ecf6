"""Software in both directions: update requests from the cloud, lists towards it.

Pure. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from edgehub.entities import smartrest
from edgehub.entities.documents import optional_text
from edgehub.entities.faults import MappingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODULES_PER_LINE: Final = 100
MODULES_MAX: Final = 5_000
"""Modules of a software list."""

_SET: Final = "140"
_APPEND: Final = "141"
_ACTIONS: Final = {"install": "install", "delete": "remove"}


def read_update(modules: Any, rewrite: Callable[[str], str]) -> list[dict[str, Any]]:
    """Read the modules of an update request, grouped by type in order of appearance.

    Args:
        modules: The fragment of the cloud.
        rewrite: Returns the URL by which a device reaches one of the cloud.

    Raises:
        MappingError: It is no list of modules, or an action is not known.
    """
    if not isinstance(modules, list):
        raise MappingError("Parameter c8y_SoftwareUpdate must be a list of modules.")
    by_type: dict[str, list[dict[str, str]]] = {}
    for module in modules:
        if not isinstance(module, dict) or not optional_text(module, "name"):
            raise MappingError("Every module of c8y_SoftwareUpdate needs a name.")
        action = module.get("action")
        if not isinstance(action, str) or action not in _ACTIONS:
            raise MappingError(
                f"Parameter {action} is not recognized. It must be install or delete."
            )
        version, type_ = _version_and_type(module)
        entry = {"name": module["name"]}
        if version:
            entry["version"] = version
        url = (optional_text(module, "url") or "").strip()
        if url and action == "install":
            entry["url"] = rewrite(url)
        entry["action"] = _ACTIONS[action]
        by_type.setdefault(type_ or "default", []).append(entry)
    return [{"type": type_, "modules": entries} for type_, entries in by_type.items()]


def software_list_lines(command: dict[str, Any], bytes_max: int) -> Iterator[bytes]:
    """Write a software list, 100 modules a line, fewer where a line would be too long.

    Args:
        command: The command with the list.
        bytes_max: Longest line; a module that needs more is in a line of its own.

    Raises:
        MappingError: The list cannot be read, or has too many modules.
    """
    modules = list(islice(_modules(command), MODULES_MAX + 1))
    if len(modules) > MODULES_MAX:
        raise MappingError(f"a software list has at most {MODULES_MAX} modules")
    line = [_SET.encode()]
    size = len(line[0])
    for module in modules or [("", "", "", "")]:
        fields = smartrest.line(*module)
        too_long = size + 1 + len(fields) > bytes_max
        if len(line) > 1 and (too_long or len(line) > MODULES_PER_LINE):
            yield b",".join(line)
            line = [_APPEND.encode()]
            size = len(line[0])
        line.append(fields)
        size += 1 + len(fields)
    yield b",".join(line)


def _version_and_type(module: dict[str, Any]) -> tuple[str, str]:
    version = (optional_text(module, "version") or "").strip()
    type_ = optional_text(module, "softwareType") or ""
    if type_.strip():
        return version, type_
    before, separator, after = version.rpartition("::")
    return (before, after) if separator else (version, "")


def _modules(command: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    groups = command.get("currentSoftwareList")
    if groups is None:
        return
    if not isinstance(groups, list):
        raise MappingError("`currentSoftwareList` must be a list")
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("modules", []), list):
            raise MappingError("each entry of `currentSoftwareList` holds `type` and `modules`")
        type_ = optional_text(group, "type") or ""
        for module in group.get("modules", []):
            if not isinstance(module, dict):
                raise MappingError("a module of `currentSoftwareList` must be an object")
            name, version, url = (
                optional_text(module, key) or "" for key in ("name", "version", "url")
            )
            yield name, version, type_, url
