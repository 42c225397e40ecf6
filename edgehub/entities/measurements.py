"""Measurements: from `{"temp": 21.5}` to the cloud's form, and their units.

Owns the units that devices announce per entity and measurement type. Invariant: a message is
converted whole or refused whole. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from edgehub.entities.documents import read_object, write_json
from edgehub.entities.faults import MappingError
from edgehub.entities.timestamps import write_time

if TYPE_CHECKING:
    from edgehub.entities.entity import Entity

DEFAULT_TYPE: Final = "ThinEdgeMeasurement"
VALUES_MAX: Final = 2_000
"""Values of one message; the cloud takes no packet with more than half as many."""

_RESERVED: Final = frozenset({"type", "externalSource"})
_SMALLEST: Final = sys.float_info.min

Units = dict[str, str]
"""Unit by name, `<group>.<name>` inside a group."""


def convert_measurement(
    entity: Entity, type_name: str, payload: bytes, units: Units | None, now_ms: int
) -> bytes:
    """Convert one measurement message.

    Args:
        entity: The source.
        type_name: Type as the topic gives it, may be empty.
        payload: The message.
        units: Units of that type, None = none.
        now_ms: UTC of its arrival, for a message without time.

    Raises:
        MappingError: Anything in it is not a number where one belongs, or it holds nothing.
    """
    document = read_object(payload)
    units = units or {}
    own_type = document.pop("type", None)
    if own_type is not None and not isinstance(own_type, str):
        raise MappingError("`type` must be a text; it cannot be a measurement")
    time = _pop_time(document)
    properties = document.pop("properties", None)
    measured: dict[str, Any] = {
        "type": own_type or type_name or DEFAULT_TYPE,
        "time": write_time(time, now_ms),
    }
    if not document and own_type is None:
        raise MappingError("there is no measurement in it")
    _check_count(document)
    for key, value in document.items():
        if key in _RESERVED:
            raise MappingError(f"`{key}` is a reserved name")
        if isinstance(value, dict):
            measured[key] = _group(key, value, units)
        elif not isinstance(value, str):
            measured[key] = {key: _value(key, value, units.get(key))}
    if isinstance(properties, dict):
        for key, value in properties.items():
            measured.setdefault(key, value)
    if entity.source is not None:
        measured["externalSource"] = entity.source
    return write_json(measured)


def _check_count(document: dict[str, Any]) -> None:
    count = sum(len(value) if isinstance(value, dict) else 1 for value in document.values())
    if count > VALUES_MAX:
        raise MappingError(f"{count} values in one message; at most {VALUES_MAX}")


def _pop_time(document: dict[str, Any]) -> Any:
    # Only an absent time is filled in; a given one must be valid.
    if "time" not in document:
        return None
    time = document.pop("time")
    if time is None:
        raise MappingError("time `null` is neither RFC 3339 nor unix seconds")
    return time


def _group(name: str, members: dict[str, Any], units: Units) -> dict[str, Any]:
    if not members:
        raise MappingError(f"the group `{name}` is empty")
    group = {}
    for key, value in members.items():
        if key in _RESERVED:
            raise MappingError(f"`{key}` is a reserved name, also in the group `{name}`")
        group[key] = _value(f"{name}.{key}", value, units.get(f"{name}.{key}"))
    return group


def _value(name: str, value: Any, unit: str | None) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MappingError(f"`{name}` is not a number")
    if isinstance(value, float) and value and abs(value) < _SMALLEST:
        raise MappingError(f"`{name}` is too small for a 64-bit number")
    return {"value": value} if unit is None else {"value": value, "unit": unit}


def read_units(payload: bytes) -> Units:
    """Read the metadata of a measurement type; empty = it has no units.

    Raises:
        MappingError: It is no JSON object.
    """
    return units_of(read_object(payload)) if payload else {}


def units_of(document: dict[str, Any]) -> Units:
    """Return the units in the metadata of a measurement type."""
    units = {}
    for name, about in document.items():
        unit = about.get("unit") if isinstance(about, dict) else None
        if isinstance(unit, str):
            units[name] = unit
    return units
