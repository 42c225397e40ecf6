"""Options of entities and mapper: their settings, and what follows from others.

Calls nothing. Invariant: they never change while a mapper runs.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from edgehub.settings.mapper import EntitySettings, MapperSettings


class MapperOptions(Struct, frozen=True, kw_only=True):
    """Options of one mapper.

    Attributes:
        device_id: External id of the main device.
        mapper: Of the section `[mapper]`.
        entities: Of the section `[entities]`.
        asks_for_operations: Ask the cloud for pending operations at the start and when its bridge
            comes up; a `cumulocity` endpoint asks at each connection by itself.
    """

    device_id: str
    mapper: MapperSettings
    entities: EntitySettings
    asks_for_operations: bool = True


def options_of(device_id: str, **settings: Any) -> MapperOptions:
    """Return options with some settings, which are not checked, and the defaults of the others.

    Args:
        device_id: External id of the main device.
        settings: By their names, of both sections.
    """
    names = settings.keys() & EntitySettings.model_fields
    entities = {name: settings.pop(name) for name in names}
    assert settings.keys() <= MapperSettings.model_fields.keys(), settings
    return MapperOptions(
        device_id=device_id,
        entities=EntitySettings.model_construct(**entities),
        mapper=MapperSettings.model_construct(**settings),
    )
