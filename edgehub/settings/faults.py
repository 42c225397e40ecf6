"""What is wrong with settings, in the user's words.

Owns the translation of the validator's reports: where the value stands (file, variable or flag),
what is wrong with it, how to fix it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.errors import ConfigError, ConfigurationError
from edgehub.routes.hints import near_miss
from edgehub.settings.endpoints import ENDPOINT_TYPES
from edgehub.settings.model import Settings
from edgehub.settings.redaction import shown
from edgehub.settings.sections import endpoint_kind, is_by_name, section_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

_NO_SECTION: Final = frozenset(
    {"model_type", "model_attributes_type", "dict_type", "dataclass_type"}
)


_KEY_ITSELF: Final = "[key]"
"""What pydantic puts behind the name of a key that is wrong itself."""
_PLAIN_NAME: Final = r"\w+"
_DOTTED_NAME: Final = r"\w+(?:\.[\w-]+)+|^\w+(?=:)"
_WHOLE: Final = "must be a whole number"
_NUMBER: Final = "must be a number"
_SWITCH: Final = "must be true or false"
_TEXT: Final = "must be a text in quotes"
_LIST: Final = "must be a list, in [ ]"
_OBJECT: Final = "must be an object"
_REASONS: Final = {
    "bool_parsing": _SWITCH,
    "bool_type": _SWITCH,
    "dict_type": _OBJECT,
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": _LIST,
    "literal_error": "must be {expected}",
    "model_type": _OBJECT,
    "path_type": _TEXT,
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_long": "must be at most {max_length} characters long",
    "string_too_short": "must not be empty",
    "string_type": _TEXT,
    "too_short": "must not be empty",
    "tuple_type": _LIST,
}
"""Texts for the kinds of faults of the validator; other kinds keep its own text."""


class SettingsError(ConfigurationError):
    """One or more settings are wrong.

    Attributes:
        paths: Where the validator found something, from the top; empty = not said.
    """

    def __init__(self, faults: list[ConfigError], paths: Sequence[tuple[str, ...]] = ()) -> None:
        super().__init__(faults)
        self.paths = tuple(paths)


class Origins(Struct, kw_only=True):
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
        if is_in(self.flags, path):
            return dotted
        variable = self.variable(path) if path else None
        if variable is not None:
            return variable
        if self.file is not None and (not path or path[0] in self.document):
            return f"{self.file}: {dotted}"
        return dotted


def is_in(document: object, path: Sequence[str]) -> bool:
    """Return whether a document has a member at a path."""
    current: Any = document
    for part in path:
        if not hasattr(current, "get") or part not in current:
            return False
        current = current[part]
    return bool(path)


def faults_of(origins: Origins, detail: ErrorDetails) -> Iterator[ConfigError]:
    """Yield the faults of one report of the validator; that of a rule has one in each line."""
    if detail["type"] != "value_error":
        yield _fault_of(origins, detail)
        return
    for line in str(detail["ctx"]["error"]).splitlines():
        single = detail.copy()
        single["ctx"] = {**detail["ctx"], "error": line}
        yield _fault_of(origins, single)


def faulty_paths(detail: ErrorDetails) -> Iterator[tuple[str, ...]]:
    """Return the places that a report of the validator is about, as the file has them.

    Of a rule on a section these are the keys that its text names, where there are such: the rest of
    the section is right.
    """
    path, section = tuple(written_path(detail["loc"])), detail.get("input")
    named: list[tuple[str, ...]] = []
    if detail["type"] == "value_error" and isinstance(section, dict):
        # A plain word may be a value that is called as a section is; at the top only dots decide.
        names = re.findall(_PLAIN_NAME if path else _DOTTED_NAME, str(detail["ctx"]["error"]))
        keys = (tuple(name.split(".")) for name in names)
        named = [(*path, *key) for key in keys if is_in(section, list(key))]
    yield from dict.fromkeys(named or [path])


def _fault_of(origins: Origins, detail: ErrorDetails) -> ConfigError:
    path = written_path(detail["loc"])
    kind = detail["type"]
    context = detail.get("ctx", {})
    key, hint = origins.written(path), ""
    if kind == "extra_forbidden":
        reason, hint = "unknown key", _near_key(detail["loc"])
    elif kind == "missing":
        reason = "is missing"
    elif kind == "union_tag_not_found":
        key, reason, hint = (
            origins.written([*path, "type"]),
            "is missing",
            " or ".join(map(endpoint_kind, ENDPOINT_TYPES)),
        )
    elif kind == "union_tag_invalid":
        key = origins.written([*path, "type"])
        reason = f"{context['tag']!r} is not a kind of endpoint"
        hint = f"known here: {context['expected_tags']}"
    elif kind in _NO_SECTION:
        reason, hint = "a section belongs here", _section_hint(origins, path)
    elif kind == "value_error":
        deeper, reason = _deeper(detail["loc"], str(context["error"]))
        key = origins.written([*path, *deeper]) if deeper else key
    else:
        reason, hint = in_words(detail), near_choice(detail)
    given = detail.get("input")
    if kind not in ("extra_forbidden", "union_tag_invalid") and isinstance(
        given, str | int | float | bool
    ):
        reason = f"{reason}, got {shown('.'.join(path), given)!r}"
    return ConfigError(key, reason, hint)


def _section_hint(origins: Origins, path: list[str]) -> str:
    variable = origins.variable(path)
    if variable is not None and not is_in(origins.flags, path):
        return f"write a JSON object, or set its keys one by one: {variable}__<KEY>"
    return f"write [{'.'.join(path)}] with its keys below"


def _deeper(location: tuple[int | str, ...], text: str) -> tuple[list[str], str]:
    """Take the name of a key off a text that was said of its whole section."""
    named, separator, reason = text.partition(": ")
    parts = named.split(".")
    if separator and parts[0] in _names_at(location):
        return parts, reason
    return [], text


def in_words(detail: ErrorDetails) -> str:
    """Return what a report of the validator says is wrong."""
    words = _REASONS.get(detail["type"])
    return detail["msg"] if words is None else words.format(**detail.get("ctx", {}))


def near_choice(detail: ErrorDetails) -> str:
    """Return a hint for a text that is none of those to choose from."""
    given = detail.get("input")
    if not isinstance(given, str):
        return ""
    # The validator gives them quoted and in a row; none of ours holds a quote.
    known = re.findall(r"'([^']*)'", detail.get("ctx", {}).get("expected", ""))
    close = near_miss(given, known, cutoff=0.6)
    return f"did you mean {close!r}?" if close else ""


def written_path(location: tuple[int | str, ...]) -> list[str]:
    """Return the place of a report of the validator as the file has it."""
    # pydantic adds the chosen member of a union to the path; the file does not have it.
    path = [str(part) for part in location if part != _KEY_ITSELF]
    union_at = {"upstream": 1, "endpoints": 2}.get(path[0], len(path)) if path else 0
    return path[:union_at] + path[union_at + 1 :]


def _near_key(location: tuple[int | str, ...]) -> str:
    return near(str(location[-1]), _names_at(location[:-1]))


def _names_at(location: tuple[int | str, ...]) -> set[str]:
    """Return the keys of the section at a place of a report of the validator."""
    models: list[type[BaseModel]] = [Settings]
    is_name = False
    for part in map(str, location):
        if is_name:
            is_name = False
        elif len(models) > 1:
            # A discriminated union reports the chosen kind as a part of its own.
            models = [model for model in models if endpoint_kind(model) == part]
        else:
            field = models[0].model_fields.get(part) if models else None
            models = [] if field is None else section_types(field)
            is_name = field is not None and is_by_name(field)
    return set(models[0].model_fields) if len(models) == 1 else set()


def near(name: str, known: set[str]) -> str:
    """Return a hint for a name that is not in `known`."""
    close = near_miss(name, sorted(known), cutoff=0.6)
    if close:
        return f"did you mean {close!r}?"
    return f"known here: {', '.join(sorted(known))}" if known else ""
