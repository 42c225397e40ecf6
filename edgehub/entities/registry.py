"""The registry: entities, their parents, and their ids at the cloud.

Owns entities, the index by external id, the children of each, and the twin values; every change
becomes a change of the tables. Invariants: the main device exists always; the parent of every
entity exists; no two entities have one external id. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.entities.documents import canonical, read_stored
from edgehub.entities.entity import Entity, EntityType
from edgehub.entities.faults import MappingError
from edgehub.entities.tables import EntityTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.tables import EntityContents

ENTITY_BYTES: Final = 512
"""What an entity counts against the bound of memory in addition to its texts."""

STATUS_CHARACTERS_MAX: Final = 100
"""Longest health that is kept."""


class EntityRegistry:
    """All registered entities."""

    def __init__(
        self, options: MapperOptions, effects: EffectCollector, stored: EntityContents
    ) -> None:
        self._settings = options.entities
        self._effects = effects
        self._entities: dict[str, Entity] = {}
        self._by_external_id: dict[str, Entity] = {}
        self._children: dict[str, dict[str, None]] = {}
        self.kept_bytes = 0
        """What entities and twins count."""
        self.main = Entity(
            options.mapper.device_topic_id,
            EntityType.MAIN,
            options.device_id,
            None,
            topic=effects.cloud.own_lines,
        )
        self._insert(self.main)
        if options.entities.clean_start:
            self._forget(stored)
        else:
            self._load(stored)

    def __len__(self) -> int:
        return len(self._entities)

    def get(self, topic_id: str) -> Entity | None:
        """Find an entity, None = it is not registered."""
        return self._entities.get(topic_id)

    def by_external_id(self, external_id: str) -> Entity | None:
        """Find an entity by its id at the cloud."""
        return self._by_external_id.get(external_id)

    def all(self) -> Iterable[Entity]:
        """Return all entities, the main device first."""
        return self._entities.values()

    def parent(self, entity: Entity) -> Entity:
        """Return the parent of an entity that is not the main device."""
        assert entity.parent is not None, entity.topic_id
        return self._entities[entity.parent]

    def children(self, entity: Entity) -> list[str]:
        """Return the topic ids of the children of an entity."""
        return list(self._children[entity.topic_id])

    def is_below(self, entity: Entity, above: Entity) -> bool:
        """Return whether an entity is another one, or somewhere below it."""
        at: Entity | None = entity
        while at is not None and at is not above:
            at = None if at.parent is None else self._entities[at.parent]
        return at is above

    def with_descendants(self, entity: Entity) -> list[Entity]:
        """List an entity and all below it, each before its own children."""
        found = [entity]
        for above in found:
            found.extend(self._entities[topic_id] for topic_id in self._children[above.topic_id])
        return found

    def external_id_of(self, topic_id: str) -> str:
        """Derive the external id of an entity that names none."""
        return f"{self.main.external_id}:{topic_id.rstrip('/').replace('/', ':')}"

    def check_free(self, entity: Entity) -> None:
        """Check that one more entity may be added, under its id.

        Raises:
            MappingError: The id belongs to another entity, or there is no room.
        """
        other = self._by_external_id.get(entity.external_id)
        if other is not None:
            raise MappingError(
                f"the external id `{entity.external_id}` belongs to {other.topic_id};"
                " give another `@id`"
            )
        if len(self._entities) > self._settings.entities_max:
            raise MappingError(
                f"{self._settings.entities_max} entities are registered already; deregister some,"
                " or raise entities_max"
            )
        self._check_bytes(_entity_bytes(entity))

    def add(self, entity: Entity) -> None:
        """Register an entity whose parent exists and whose id is free."""
        self._insert(entity)
        self.store(entity)

    def move(self, entity: Entity, parent: str) -> None:
        """Move an entity below another parent, which exists and is not below it."""
        assert entity.parent is not None
        del self._children[entity.parent][entity.topic_id]
        self._children[parent][entity.topic_id] = None
        entity.parent = parent

    def remove(self, entity: Entity) -> None:
        """Remove an entity without children."""
        assert not self._children[entity.topic_id], entity.topic_id
        assert entity.parent is not None
        del self._children[entity.topic_id]
        del self._children[entity.parent][entity.topic_id]
        del self._entities[entity.topic_id]
        if self._by_external_id.get(entity.external_id) is entity:
            del self._by_external_id[entity.external_id]
        self.kept_bytes -= _entity_bytes(entity) + sum(map(_twin_bytes, entity.twin.items()))
        self._effects.change(EntityTable.ENTITY, (entity.topic_id,), None)
        for key in entity.twin:
            self._effects.change(EntityTable.TWIN, (entity.topic_id, key), None)

    def check_inline(self, entity: Entity, values: dict[str, bytes]) -> None:
        """Check that further values of its registration may be stored.

        Raises:
            MappingError: There is no room for them.
        """
        before = {key: entity.inline[key] for key in values if key in entity.inline}
        grown = sum(map(_twin_bytes, values.items())) - sum(map(_twin_bytes, before.items()))
        if grown > 0:
            self._check_bytes(grown)

    def set_inline(self, entity: Entity, values: dict[str, bytes]) -> None:
        """Record values of its registration in canonical JSON; the caller stores the entity."""
        self.kept_bytes -= _entity_bytes(entity)
        entity.inline |= values
        self.kept_bytes += _entity_bytes(entity)

    def set_twin(self, entity: Entity, key: str, value: bytes | None) -> None:
        """Record a twin value in canonical JSON, None = it is cleared.

        Raises:
            MappingError: There is no room for it.
        """
        known = entity.twin.get(key)
        if known == value:
            return
        grown = (0 if value is None else _twin_bytes((key, value))) - (
            0 if known is None else _twin_bytes((key, known))
        )
        if grown > 0:
            self._check_bytes(grown)
        self.kept_bytes += grown
        if value is None:
            del entity.twin[key]
        else:
            entity.twin[key] = value
        self._effects.change(
            EntityTable.TWIN, (entity.topic_id, key), None if value is None else (value,)
        )

    def set_status(self, entity: Entity, status: str) -> None:
        """Record the reported health of a service."""
        kept = status if len(status) <= STATUS_CHARACTERS_MAX else None
        if kept != entity.status:
            entity.status = kept
            self.store(entity)

    def store(self, entity: Entity) -> None:
        """Write an entity's row."""
        document: dict[str, Any] = {
            "type": entity.type,
            "id": entity.external_id,
            "parent": entity.parent,
            "health": entity.health,
            "auto": entity.auto,
            "announced": entity.announced,
            "status": entity.status,
            "inline": {key: value.decode() for key, value in entity.inline.items()},
        }
        self._effects.change(EntityTable.ENTITY, (entity.topic_id,), (orjson.dumps(document),))

    def _check_bytes(self, more: int) -> None:
        if self.kept_bytes + more > self._settings.state_bytes_max:
            raise MappingError(
                f"entities and their twins hold {self.kept_bytes} of at most"
                f" {self._settings.state_bytes_max} bytes; deregister entities or clear twin values"
            )

    def _insert(self, entity: Entity) -> None:
        self._entities[entity.topic_id] = entity
        # The main device may have been given the id of another one since; it comes first.
        self._by_external_id.setdefault(entity.external_id, entity)
        self._children.setdefault(entity.topic_id, {})
        if entity.parent is not None:
            self._children.setdefault(entity.parent, {})[entity.topic_id] = None
        self.kept_bytes += _entity_bytes(entity)

    def _load(self, stored: EntityContents) -> None:
        for topic_id, text in stored.entities:
            if read_stored(text, partial(self._load_entity, topic_id)) is None:
                self._effects.drop_stored(EntityTable.ENTITY, (topic_id,))
        for topic_id, key, value in stored.twins:
            owner = self._entities.get(topic_id)
            if owner is None or read_stored(value, canonical) != value:
                self._effects.drop_stored(EntityTable.TWIN, (topic_id, key))
            else:
                owner.twin[key] = value
                self.kept_bytes += _twin_bytes((key, value))
        self._adopt_orphans()

    def _load_entity(self, topic_id: str, document: dict[str, Any]) -> Entity:
        inline = {key: text.encode() for key, text in document["inline"].items()}
        health, announced, auto = document["health"], document["announced"], document["auto"]
        entity = self.main
        if topic_id != self.main.topic_id:
            entity = Entity(
                topic_id,
                EntityType(document["type"]),
                str(document["id"]),
                str(document["parent"]),
                topic=self._effects.cloud.lines_of(document["id"]),
                auto=auto,
            )
            self._insert(entity)
        entity.health = health
        entity.announced = announced
        entity.status = document.get("status")
        entity.inline = inline
        self.kept_bytes += sum(map(_twin_bytes, inline.items()))
        return entity

    def _adopt_orphans(self) -> None:
        # Another topic id was named for the main device since, or the file was damaged.
        for parent in [topic_id for topic_id in self._children if topic_id not in self._entities]:
            for topic_id in self._children.pop(parent):
                entity = self._entities[topic_id]
                entity.parent = self.main.topic_id
                self._children[self.main.topic_id][topic_id] = None
                self.store(entity)

    def _forget(self, stored: EntityContents) -> None:
        for topic_id, _ in stored.entities:
            self._effects.change(EntityTable.ENTITY, (topic_id,), None)
        for topic_id, key, _ in stored.twins:
            self._effects.change(EntityTable.TWIN, (topic_id, key), None)


def _entity_bytes(entity: Entity) -> int:
    texts = len(entity.topic_id) + len(entity.external_id)
    return ENTITY_BYTES + 2 * texts + sum(map(_twin_bytes, entity.inline.items()))


def _twin_bytes(item: tuple[str, bytes]) -> int:
    return len(item[0]) + len(item[1])
