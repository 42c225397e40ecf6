"""Twin values: their fragments of the cloud's inventory, and the rows of changes.

Calls the registry, which stores them, and the effect collector. Invariant: a value that the cloud
cannot take is not stored either, so that it is sent when it is repeated. Rules:
docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.entities.documents import canonical, write_json
from edgehub.entities.effects import OutputName
from edgehub.entities.entity import EntityType

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.entity import Entity
    from edgehub.entities.registry import EntityRegistry

_RENAMED: Final = {"firmware": "c8y_Firmware", "agent": "c8y_Agent"}


def set_twin(
    effects: EffectCollector, registry: EntityRegistry, entity: Entity, key: str, value: Any
) -> None:
    """Store a twin value, and send it to the cloud if it has changed.

    Args:
        effects: See `EffectCollector`.
        registry: Stores it.
        entity: Its owner.
        key: Its local key.
        value: A JSON value, None = it is cleared.

    Raises:
        MappingError: It is larger than the cloud takes, or there is no room for it.
    """
    stored = None if value is None else canonical(value)
    if entity.twin.get(key) == stored:
        return
    topic = f"{effects.cloud.inventory}/{entity.external_id}"
    row = write_json({cloud_key(entity, key): value})
    effects.check_size(topic, row, entity)
    registry.set_twin(entity, key, stored)
    effects.row(OutputName.TWIN, topic, row, entity)


def cloud_key(entity: Entity, key: str) -> str:
    """Return the name of a fragment at the cloud."""
    if key == "type" and entity.type is EntityType.SERVICE:
        return "serviceType"
    return _RENAMED.get(key, key)
