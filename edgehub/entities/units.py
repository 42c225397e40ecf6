"""Units that devices announce per entity and measurement type.

Owns them; they outlive a restart. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.entities.documents import read_stored
from edgehub.entities.faults import MappingError
from edgehub.entities.measurements import read_units, units_of
from edgehub.entities.tables import EntityTable

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.measurements import Units
    from edgehub.entities.options import MapperOptions

STATE_KEY: Final = "units/"
TYPES_MAX: Final = 10_000
UNITS_BYTES_MAX: Final = 16 * 1024
"""Largest announcement that is kept."""

ALL_BYTES_MAX: Final = 8 * 2**20
"""All of them, with entities and types."""


class UnitTable:
    """Units by entity and measurement type."""

    def __init__(
        self, options: MapperOptions, effects: EffectCollector, stored: dict[str, bytes]
    ) -> None:
        self._effects = effects
        self._units: dict[str, dict[str, Units]] = {}
        self._count = 0
        self._sizes: dict[str, int] = {}
        self.bytes = 0
        """Of all of them."""
        for name, payload in effects.below(STATE_KEY, stored, bytes):
            key = STATE_KEY + name
            if options.entities.clean_start:
                effects.keep(key, None)
                continue
            topic_id, _, type_name = name.partition("|")
            units = read_stored(payload, units_of)
            if not units:
                effects.drop_stored(EntityTable.STATE, (key,))
                continue
            self._units.setdefault(topic_id, {})[type_name] = units
            self._count += 1
            self._count_bytes(key, len(payload))

    def get(self, topic_id: str, type_name: str) -> Units | None:
        """Return the units of a measurement type of an entity, None = it has none."""
        types = self._units.get(topic_id)
        return None if types is None else types.get(type_name)

    def set(self, topic_id: str, type_name: str, payload: bytes) -> None:
        """Store an announcement; an empty one removes the units.

        Raises:
            MappingError: It cannot be read, or there is no room for it.
        """
        units = read_units(payload)
        types = self._units.setdefault(topic_id, {})
        known = type_name in types
        if units:
            if (
                len(payload) > UNITS_BYTES_MAX
                or (self._count >= TYPES_MAX and not known)
                or self.bytes + len(payload) > ALL_BYTES_MAX
            ):
                raise MappingError("there is no room for these units")
            types[type_name] = units
            self._count += not known
            self._store(topic_id, type_name, payload)
        elif known:
            del types[type_name]
            self._count -= 1
            self._store(topic_id, type_name, None)
        if not types:
            del self._units[topic_id]

    def forget(self, topic_id: str) -> list[str]:
        """Remove the units of an entity that is removed.

        Returns:
            The measurement types that had some.
        """
        names = list(self._units.pop(topic_id, {}))
        self._count -= len(names)
        for name in names:
            self._store(topic_id, name, None)
        return names

    def _store(self, topic_id: str, type_name: str, payload: bytes | None) -> None:
        key = f"{STATE_KEY}{topic_id}|{type_name}"
        self._count_bytes(key, None if payload is None else len(payload))
        self._effects.keep(key, payload)

    def _count_bytes(self, key: str, size: int | None) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        if size is not None:
            self._sizes[key] = len(key) + size
            self.bytes += len(key) + size
