"""Health of services: the status of a message, and the line that reports it.

Calls the registry, which keeps the last reported status, and the effect collector. Invariant: a
status that is redelivered at a start is sent only if another one was reported last. Rules:
docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from edgehub.entities import smartrest
from edgehub.entities.effects import OutputName
from edgehub.entities.topics import default_name

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.registry import EntityRegistry

CREATE_SERVICE: Final = "102"
"""Creates a service, and reports its health."""

UNKNOWN: Final = "unknown"
UP: Final = "up"
_BRIDGE: Final = {b"1": UP, b"0": "down"}


class ServiceHealth:
    """Reports the health of services to the cloud."""

    def __init__(
        self, options: MapperOptions, effects: EffectCollector, registry: EntityRegistry
    ) -> None:
        self._options = options
        self._effects = effects
        self._registry = registry
        self.redelivered = False
        """Whether messages are redelivered after a restart now."""

    def handle(self, entity: Entity, payload: bytes) -> bool:
        """Handle the health of a registered service.

        Returns:
            Whether it is that Mosquitto's bridge to the cloud came up.
        """
        status = read_status(entity.topic_id, payload)
        if self.redelivered and status == entity.status:
            return False
        line = self.line(entity, status)
        if self._effects.row_below(OutputName.HEALTH, line, entity, self._registry.parent(entity)):
            self._registry.set_status(entity, status)
        return status == UP and is_own_bridge(entity.topic_id, self._options.mapper.topic_prefix)

    def line(self, entity: Entity, status: str) -> bytes:
        """Write the line that reports the health of a service."""
        type_ = entity.cloud_type(self._options.mapper.service_type)
        return smartrest.line(CREATE_SERVICE, entity.external_id, type_, entity.name, status)


def read_status(topic_id: str, payload: bytes) -> str:
    """Return the status; `unknown` for a message without one or that cannot be read."""
    name = default_name(topic_id)
    if (
        name is not None
        and name.service.startswith("mosquitto-")
        and name.service.endswith("-bridge")
    ):
        return _BRIDGE.get(payload, UNKNOWN)
    try:
        document = orjson.loads(payload)
    except ValueError:
        return UNKNOWN
    status = document.get("status") if isinstance(document, dict) else None
    return status if isinstance(status, str) and status else UNKNOWN


def is_own_bridge(topic_id: str, cloud_prefix: str) -> bool:
    """Return whether a service is Mosquitto's bridge to the cloud."""
    name = default_name(topic_id)
    return name is not None and name.service == f"mosquitto-{cloud_prefix}-bridge"
