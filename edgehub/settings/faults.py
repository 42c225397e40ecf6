"""What is wrong with settings, in the user's words.

Owns the translation of the validator's reports: where the value stands (file, variable or flag),
what is wrong with it, how to mend it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

from edgehub.errors import ConfigError
from edgehub.settings.endpoints import ENDPOINT_TYPES
from edgehub.settings.model import Settings
from edgehub.settings.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

_NO_SECTION: Final = frozenset(
    {"model_type", "model_attributes_type", "dict_type", "dataclass_type"}
)


class SettingsError(ConfigError):
    """One or more settings are wrong.

    Attributes:
        faults: Every fault found, each with its key, reason and hint.
    """

    def __init__(self, faults: list[ConfigError]) -> None:
        super().__init__(faults[0].key, faults[0].reason, faults[0].hint)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


@dataclass(slots=True, kw_only=True)
class Origins:
    """Where values may have come from, best first: flags, environment, file.

    Attributes:
        variable: Names the environment variable that sets a path, None = none does.
    """

    file: Path | None
    document: Mapping[str, Any]
    flags: Mapping[str, Any]
    variable: Callable[[Sequence[str]], str | None]

    def written(self, path: list[str]) -> str:
        """Name a setting as the place that decided on it does."""
        dotted = ".".join(path) or "settings"
        if _is_in(self.flags, path):
            return dotted
        variable = self.variable(path) if path else None
        if variable is not None:
            return variable
        if self.file is not None and (not path or path[0] in self.document):
            return f"{self.file}: {dotted}"
        return dotted


def _is_in(document: Mapping[str, Any], path: list[str]) -> bool:
    current: Any = document
    for part in path:
        if not hasattr(current, "get") or part not in current:
            return False
        current = current[part]
    return bool(path)


def fault_of(origins: Origins, detail: ErrorDetails) -> ConfigError:
    """Say one report of the validator in the user's words."""
    path = _written_path(detail["loc"])
    kind = detail["type"]
    context = detail.get("ctx", {})
    key, hint = origins.written(path), ""
    if kind == "extra_forbidden":
        reason, hint = "unknown key", _near_key(detail["loc"])
    elif kind == "missing":
        reason = "is missing"
    elif kind == "union_tag_not_found":
        key, reason, hint = origins.written([*path, "type"]), "is missing", _kinds()
    elif kind == "union_tag_invalid":
        key = origins.written([*path, "type"])
        reason = f"{context['tag']!r} is not a kind of endpoint"
        hint = f"known here: {context['expected_tags']}"
    elif kind in _NO_SECTION:
        reason, hint = "a section belongs here", f"write [{'.'.join(path)}] with its keys below"
    else:
        reason = detail["msg"].removeprefix("Value error, ")
    given = detail.get("input")
    if kind not in ("extra_forbidden", "union_tag_invalid") and isinstance(
        given, str | int | float | bool
    ):
        reason = f"{reason}, got {shown('.'.join(path), given)!r}"
    return ConfigError(key, reason, hint)


def _kinds() -> str:
    names = [get_args(model.model_fields["type"].annotation)[0] for model in ENDPOINT_TYPES]
    return " or ".join(names)


def _written_path(location: tuple[int | str, ...]) -> list[str]:
    # pydantic adds the chosen member of a union to the path; the file does not have it.
    path = [str(part) for part in location]
    union_at = {"upstream": 1, "endpoints": 2}.get(path[0], len(path)) if path else 0
    return path[:union_at] + path[union_at + 1 :]


def _near_key(location: tuple[int | str, ...]) -> str:
    names = _names_at(Settings, location[:-1])
    return near(str(location[-1]), names)


def _names_at(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    current: Any = model
    for part in path:
        current = _step(current, str(part))
        if current is None:
            return set()
    return set(current.model_fields) if hasattr(current, "model_fields") else set()


def _step(current: Any, part: str) -> Any:
    if isinstance(current, dict):
        return current["value"]
    if isinstance(current, tuple):
        # A discriminated union reports the chosen type as a part of its own.
        chosen = [m for m in current if part in get_args(m.model_fields["type"].annotation)]
        return chosen[0] if chosen else None
    field = current.model_fields.get(part)
    if field is None:
        return None
    # A section stands alone, or beside None where it may be absent.
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    if part == "endpoints":
        return {"value": ENDPOINT_TYPES}
    return ENDPOINT_TYPES if part == "upstream" else None


def near(name: str, known: set[str]) -> str:
    """Give a hint for a name that is not in `known`."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(sorted(known))}" if known else ""
