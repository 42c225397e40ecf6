"""Twin values: which fragment of the cloud's inventory a key becomes.

Pure. Rules: docs/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.entities.entity import EntityType

if TYPE_CHECKING:
    from edgehub.entities.entity import Entity

_RENAMED: Final = {"firmware": "c8y_Firmware", "agent": "c8y_Agent"}


def cloud_key(entity: Entity, key: str) -> str:
    """Give the name of a fragment at the cloud."""
    if key == "type" and entity.type is EntityType.SERVICE:
        return "serviceType"
    return _RENAMED.get(key, key)
