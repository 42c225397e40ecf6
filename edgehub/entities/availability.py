"""Availability: the interval after which the cloud misses a device, and the heartbeats.

Owns the time of each device's next heartbeat and the last health of services. A heartbeat is sent
every half interval while the service that stands for the device is up.
Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from edgehub.entities import smartrest
from edgehub.entities.effects import OutputName
from edgehub.entities.entity import EntityType
from edgehub.entities.topics import default_name

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.effects import Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.registry import EntityRegistry

REQUIRED_INTERVAL: Final = "117"
AGENT: Final = "tedge-agent"
STATE_KEY: Final = "up/"
SERVICES_MAX: Final = 10_000
_S_PER_MINUTE: Final = 60


class Heartbeats:
    """Heartbeats of the main device and its children."""

    def __init__(
        self,
        options: MapperOptions,
        effects: EffectCollector,
        registry: EntityRegistry,
        stored: dict[str, bytes],
    ) -> None:
        self._mapper = options.mapper
        self._effects = effects
        self._registry = registry
        self._half_ms = options.mapper.availability_interval_s * 1000 // 2
        self._beats: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []
        self._up = {key[len(STATE_KEY) :] for key in stored if key.startswith(STATE_KEY)}

    def watch(self, entity: Entity, now: Instant, *, announce: bool) -> None:
        """Start the heartbeats of a device; `announce` sends the interval to the cloud."""
        if not self._mapper.availability or _endpoint(entity) is None:
            return
        if announce:
            minutes = str(self._mapper.availability_interval_s // _S_PER_MINUTE)
            line = smartrest.line(REQUIRED_INTERVAL, minutes)
            self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)
        if self._half_ms:
            self._schedule(entity.topic_id, now.hub_ms + self._half_ms)

    def forget(self, entity: Entity) -> None:
        """Stop the heartbeats of an entity that is removed."""
        self._beats.pop(entity.topic_id, None)
        self.record_health(entity.topic_id, is_up=False)

    def record_health(self, topic_id: str, *, is_up: bool) -> None:
        """Record the health of a service, registered or not."""
        if not self._mapper.availability or is_up == (topic_id in self._up):
            return
        if is_up and len(self._up) < SERVICES_MAX:
            self._up.add(topic_id)
            self._effects.keep(STATE_KEY + topic_id, b"")
        elif not is_up:
            self._up.discard(topic_id)
            self._effects.keep(STATE_KEY + topic_id, None)

    def next_due_ms(self) -> int | None:
        """Return the hub time of the next heartbeat, None = there is none."""
        while self._due and self._beats.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def beat(self, now: Instant) -> None:
        """Send the heartbeats that are due."""
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now.hub_ms:
            topic_id = heapq.heappop(self._due)[1]
            entity = self._registry.get(topic_id)
            assert entity is not None, topic_id
            if _endpoint(entity) in self._up:
                topic = f"{self._effects.cloud.inventory}/{entity.external_id}"
                self._effects.row(OutputName.INVENTORY, topic, b"{}", entity)
            # After a long sleep one heartbeat is enough.
            next_ms = due_ms + self._half_ms
            self._schedule(
                topic_id, next_ms if next_ms > now.hub_ms else now.hub_ms + self._half_ms
            )

    def _schedule(self, topic_id: str, due_ms: int) -> None:
        self._beats[topic_id] = due_ms
        heapq.heappush(self._due, (due_ms, topic_id))


def _endpoint(entity: Entity) -> str | None:
    """Return the service that stands for a device, None = it is not watched."""
    if entity.type is EntityType.SERVICE:
        return None
    if entity.health is not None:
        return entity.health
    name = default_name(entity.topic_id)
    return None if name is None or name.service else f"device/{name.device}/service/{AGENT}"
