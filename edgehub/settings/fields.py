"""The settings as documented: keys, units, defaults, examples, what a reload takes over.

Owns the reading of the model that JSON Schema, example file and documentation share. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec import Struct
from pydantic_core import PydanticUndefined

from edgehub.settings.change import is_live
from edgehub.settings.sections import alternatives, section_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_UNITS: Final = (
    (re.compile(r"_bytes_s(_max|_min)?$"), "bytes per second"),
    (re.compile(r"(^|_)ms(_max|_min)?$"), "milliseconds"),
    (re.compile(r"_s(_max|_min)?$"), "seconds"),
    (re.compile(r"(^|_)bytes(_max|_min)?$"), "bytes"),
)
_WORDS: Final = {"mqtt": "MQTT", "http": "HTTP", "tls": "TLS", "ca": "CA", "qos0": "QoS 0"}


class SettingField(Struct, frozen=True, kw_only=True):
    """One key of one section.

    Attributes:
        name: As written in the file.
        key: Dotted, from the top.
        title: In words, with the unit.
        description: What it is for.
        unit: `seconds`, `milliseconds`, `bytes`, or empty.
        default: Its default; None = it has none, and may be absent unless `required`.
        required: It must be given where its section is.
        example: A value to show; equal to the default where there is no better one.
        live: A reload takes a change over.
        needs: Key of the section without which this one may not be given, empty = none.
        instead_of: Key of the section that this one excludes, empty = none.
    """

    name: str
    key: str
    title: str
    description: str
    unit: str
    default: Any
    required: bool
    example: Any
    live: bool
    needs: str
    instead_of: str


def plain_fields(section: type[BaseModel], prefix: str = "") -> Iterator[SettingField]:
    """Return the keys of a section that are no sections themselves."""
    for name, info in section.model_fields.items():
        if not section_types(info):
            yield setting_field(name, info, prefix)


def setting_field(name: str, info: FieldInfo, prefix: str = "") -> SettingField:
    """Describe one field of the model."""
    default = info.get_default(call_default_factory=True)
    required = default is PydanticUndefined
    default = None if required else default
    key = f"{prefix}{name}"
    unit = unit_of(name)
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return SettingField(
        name=name,
        key=key,
        title=title_of(name),
        description=info.description or "",
        unit=unit,
        default=default,
        required=required,
        example=_example(info, default),
        live=is_live(key),
        needs=str(extra.get("x-needs", "")),
        instead_of=str(extra.get("x-instead-of", "")),
    )


def unit_of(name: str) -> str:
    """Return the unit that a key's name carries, empty = none."""
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def title_of(name: str) -> str:
    """Write a key in words: `ack_timeout_s` is "Ack timeout (seconds)"."""
    unit = unit_of(name)
    bare = re.sub(r"_(ms|s)(?=_|$)", "", name) if unit else name
    text = " ".join(_WORDS.get(word, word) for word in bare.split("_"))
    text = text[:1].upper() + text[1:]
    return f"{text} ({unit})" if unit and unit != "bytes" else text


def _example(info: FieldInfo, default: Any) -> Any:
    if info.examples:
        return info.examples[0]
    if default is not None:
        return default
    # A closed set of texts needs no example of its own.
    literals = [value for kind in alternatives(info.annotation) for value in get_args(kind)]
    return literals[0] if literals and isinstance(literals[0], str) else None
