"""Options of entities and mapper: their settings, and what follows from others.

Calls nothing. Invariant: they never change while a mapper runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
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
