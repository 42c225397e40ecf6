"""Registration: entities that are created, changed and removed, and their lines to the cloud.

Owns the rules of registration messages, explicit and automatic, and the warnings that they cause.
Calls the registry, the held messages and the effect collector. Invariants: the create line of an
entity is sent before any other row about it, and after that of its parent; a refused registration
changes nothing. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.entities import smartrest
from edgehub.entities.entity import (
    Entity,
    EntityType,
    Registration,
    read_registration,
    twin_values,
)
from edgehub.entities.faults import MappingError
from edgehub.entities.health import CREATE_SERVICE, UP
from edgehub.entities.topics import default_name
from edgehub.entities.twins import set_twin

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.effects import Instant
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.pending import Pending
    from edgehub.entities.registry import EntityRegistry
    from edgehub.entities.topics import EntityTopic, TopicScheme

CREATE_CHILD: Final = "101"
WARNINGS_MAX: Final = 100
WAITING_LEVELS_MAX: Final = 1000
"""Parents above a registration, each waiting for the next; all are read for each message."""

_CONTRADICTION: Final = (
    "automatic registration and this one contradict each other; set auto_register = false where"
    " entities are nested or have ids of their own"
)


class Registrar:
    """Handles registrations.

    Args:
        options: What can be set.
        registry: The entities.
        pending: What waits for registrations.
        effects: See `EffectCollector`.
        scheme: The local topics.
        registered: Called with each new entity between its create line and what was held for it.
        release: Called with each new entity, to convert what was held for it.
    """

    def __init__(
        self,
        options: MapperOptions,
        registry: EntityRegistry,
        pending: Pending,
        effects: EffectCollector,
        scheme: TopicScheme,
        *,
        registered: Callable[[Entity, Instant], None],
        release: Callable[[Entity], None],
    ) -> None:
        self._mapper = options.mapper
        self._auto_register = options.entities.auto_register
        self._registry = registry
        self._pending = pending
        self._effects = effects
        self._scheme = scheme
        self._registered = registered
        self._release = release
        self.warnings: dict[str, str] = {}
        self.redelivered = False
        """Whether messages are redelivered after a restart now: they correct nothing."""

    def resume(self, now: Instant) -> None:
        """Handle the registrations that were held before the restart."""
        for held in self._pending.loaded_registrations():
            topic_id = held.topic.topic_id
            try:
                registration = read_registration(topic_id, held.payload)
                parent = self._parent_of(registration)
                self._pending.name_parent(topic_id, parent)
                if self._registry.get(parent) is not None:
                    self._create_all(registration, now)
            except MappingError as error:
                self._effects.error(held.topic.text, str(error))
                if self._pending.waits_for(topic_id) is None:
                    self._pending.name_parent(topic_id, self._mapper.device_topic_id)
                self._pending.drop_registration(topic_id)

    def register(self, topic: EntityTopic, payload: bytes, client: str, now: Instant) -> None:
        """Handle a registration message that is not empty.

        Raises:
            MappingError: It is refused; nothing has changed.
        """
        registration = read_registration(topic.topic_id, payload)
        self._check_type(registration)
        known = self._registry.get(topic.topic_id)
        if known is not None:
            self._update(known, registration)
            if not (known.announced or self.redelivered):
                self._announce_again(known)
            return
        parent = self._parent_of(registration)
        if self._registry.get(parent) is None:
            self._check_cycle(topic.topic_id, parent)
            if self.redelivered and self._pending.has(topic, payload):
                return
            self._pending.wait(topic, payload, client, now, parent=parent)
            return
        self._create_all(registration, now)

    def register_automatically(self, topic_id: str, now: Instant) -> None:
        """Register an entity of the default scheme by its first message, its device before it.

        Nothing happens for an entity of another scheme, or where an explicit registration waits.

        Raises:
            MappingError: There is no room for it, or its id is taken.
        """
        name = default_name(topic_id)
        if name is None or self._pending.waits_for(topic_id) is not None:
            return
        device = name.device_topic_id
        if self._registry.get(device) is None:
            if self._pending.waits_for(device) is not None:
                return
            parent = self._mapper.device_topic_id
            self._create_automatically(device, name.device, EntityType.CHILD, parent, now)
        if self._registry.get(topic_id) is None:
            self._create_automatically(topic_id, name.service, EntityType.SERVICE, device, now)

    def deregister(self, topic: EntityTopic) -> list[Entity]:
        """Handle an empty registration message: forget the entity and all below it.

        Returns:
            What was forgotten, children before their parents.

        Raises:
            MappingError: It is the main device.
        """
        if topic.topic_id == self._mapper.device_topic_id:
            raise MappingError("the main device cannot be deregistered")
        self._pending.drop_registration(topic.topic_id)
        entity = self._registry.get(topic.topic_id)
        if entity is None:
            return []
        removed = self._registry.with_descendants(entity)[::-1]
        for one in removed:
            self._registry.remove(one)
            self.warnings.pop(one.topic_id, None)
        return removed

    def creation_refused(self, topic_id: str) -> None:
        """Record that the cloud refused the create line of an entity: it is not announced.

        Its next registration message announces it again, also if it is unchanged.
        """
        entity = self._registry.get(topic_id)
        if entity is not None and entity.announced and entity.type is not EntityType.MAIN:
            entity.announced = False
            self._registry.store(entity)

    def creation_confirmed(self, topic_id: str) -> None:
        """Record that the cloud has an entity after all: its creation was sent again."""
        entity = self._registry.get(topic_id)
        if entity is not None and not entity.announced:
            entity.announced = True
            self._registry.store(entity)

    def _parent_of(self, registration: Registration) -> str:
        if registration.parent is not None:
            return registration.parent
        name = default_name(registration.topic_id)
        if registration.type is EntityType.SERVICE and name is not None and name.service:
            return name.device_topic_id
        return self._mapper.device_topic_id

    def _check_type(self, registration: Registration) -> None:
        is_main = registration.topic_id == self._mapper.device_topic_id
        if is_main and registration.type is not EntityType.MAIN:
            raise MappingError(f"the main device cannot be a {registration.type}")
        if not is_main and registration.type is EntityType.MAIN:
            raise MappingError(
                f"only {self._mapper.device_topic_id} is the main device; others are child-device"
            )
        if is_main and registration.parent is not None:
            raise MappingError("the main device has no parent")

    def _check_cycle(self, topic_id: str, parent: str) -> None:
        above: str | None = parent
        for _ in range(WAITING_LEVELS_MAX):
            if above is None:
                return
            if above == topic_id:
                raise MappingError(f"`@parent` {parent} waits for {topic_id} itself")
            above = self._pending.waits_for(above)
        raise MappingError(f"more than {WAITING_LEVELS_MAX} levels of parents are not registered")

    def _create_all(self, registration: Registration, now: Instant) -> None:
        """Create an entity, and depth first all that wait for it; one that fails stops no other."""
        self._create(registration, now)
        stack = self._pending.take_children(registration.topic_id)[::-1]
        while stack:
            held = stack.pop()
            try:
                self._create(read_registration(held.topic.topic_id, held.payload), held.at)
            except MappingError as error:
                self._effects.error(held.topic.text, str(error))
                continue
            stack.extend(self._pending.take_children(held.topic.topic_id)[::-1])

    def _create(self, registration: Registration, now: Instant) -> None:
        """Create one entity: its create line, its fragments, then what was held for it."""
        topic_id = registration.topic_id
        parent = self._registry.get(self._parent_of(registration))
        assert parent is not None, topic_id
        entity = self._new(registration, parent.topic_id)
        self._registry.check_free(entity)
        line = self._create_line(entity, registration.twin)
        if not self._effects.fits(parent.topic, line):
            raise MappingError("its create line is larger than the cloud takes")
        self._pending.drop_registration(topic_id)
        self._registry.add(entity)
        self._effects.creation(parent.topic, line, entity, parent)
        for key, value in entity.inline.items():
            is_in_line = key in {"name", "type"}
            self._set_twin(entity, key, value, None if is_in_line else registration.twin)
        if not registration.auto and self._contradicts(registration):
            self._warn(
                entity, f"{entity.topic_id} is nested below {entity.parent}: {_CONTRADICTION}"
            )
        self._registered(entity, now)
        self._release(entity)

    def _new(self, registration: Registration, parent: str) -> Entity:
        topic_id = registration.topic_id
        external_id = registration.external_id or self._registry.external_id_of(topic_id)
        entity = Entity(
            topic_id,
            registration.type,
            external_id,
            parent,
            topic=self._effects.cloud.lines_of(external_id),
            health=registration.health,
            auto=registration.auto,
        )
        entity.inline = twin_values(registration.twin)
        return entity

    def _contradicts(self, registration: Registration) -> bool:
        nested = registration.type is EntityType.CHILD and registration.parent is not None
        return (
            self._auto_register and nested and registration.parent != self._mapper.device_topic_id
        )

    def _create_line(self, entity: Entity, twin: dict[str, Any]) -> bytes:
        name = twin.get("name") or entity.name
        type_ = twin.get("type") or entity.cloud_type(self._mapper.service_type)
        if entity.type is EntityType.CHILD:
            marker = "true" if self._mapper.child_device_marker else "false"
            return smartrest.line(CREATE_CHILD, entity.external_id, name, type_, marker)
        status = entity.status or UP
        return smartrest.line(CREATE_SERVICE, entity.external_id, type_, name, status)

    def _announce_again(self, entity: Entity) -> None:
        parent = self._registry.parent(entity)
        if self._effects.creation(parent.topic, self._create_line(entity, {}), entity, parent):
            entity.announced = True
            self._registry.store(entity)

    def _update(self, entity: Entity, registration: Registration) -> None:
        if registration.type is not entity.type:
            raise MappingError(
                f"{entity.topic_id} is a {entity.type} and stays one; deregister it first"
            )
        if registration.external_id not in (None, entity.external_id):
            self._refuse_other_id(entity, registration)
        values = twin_values(registration.twin)
        changed = {key: value for key, value in values.items() if entity.inline.get(key) != value}
        self._registry.check_inline(entity, changed)
        parent = registration.parent
        if parent not in (None, entity.parent):
            assert parent is not None
            self._move(entity, parent)
        # A value of a twin topic beats one that was not in a registration before: after a start
        # without memory either may come first.
        newer = [key for key in changed if key in entity.inline or key not in entity.twin]
        self._registry.set_inline(entity, changed)
        for key in newer:
            self._set_twin(entity, key, changed[key], registration.twin)
        health = registration.health or entity.health
        if changed or health != entity.health:
            entity.health = health
            self._registry.store(entity)

    def _refuse_other_id(self, entity: Entity, registration: Registration) -> None:
        text = (
            f"{entity.topic_id} has the external id `{entity.external_id}` and keeps it;"
            f" `{registration.external_id}` is ignored"
        )
        if entity.auto:
            text = f"{text}: {_CONTRADICTION}"
            self._keep_warning(entity, text)
        raise MappingError(text)

    def _move(self, entity: Entity, parent: str) -> None:
        if entity.auto:
            self._warn(
                entity,
                f"{entity.topic_id} stays below {entity.parent}, not {parent}: {_CONTRADICTION}",
            )
            return
        above = self._registry.get(parent)
        if above is None:
            raise MappingError(f"the new `@parent` {parent} is not registered")
        if self._registry.is_below(above, entity):
            raise MappingError(f"the new `@parent` {parent} is below {entity.topic_id}")
        self._registry.move(entity, parent)
        self._registry.store(entity)

    def _set_twin(
        self, entity: Entity, key: str, value: bytes, twin: dict[str, Any] | None
    ) -> None:
        """Record a value of a registration, and send it to the cloud unless `twin` is None."""
        try:
            if twin is None:
                self._registry.set_twin(entity, key, value)
            else:
                set_twin(self._effects, self._registry, entity, key, twin[key])
        except MappingError as error:
            self._effects.error(self._scheme.topic(entity.topic_id, "twin", key), str(error))

    def _warn(self, entity: Entity, text: str) -> None:
        self._keep_warning(entity, text)
        self._effects.error(self._scheme.topic(entity.topic_id), text)

    def _keep_warning(self, entity: Entity, text: str) -> None:
        if len(self.warnings) < WARNINGS_MAX or entity.topic_id in self.warnings:
            self.warnings[entity.topic_id] = text

    def _create_automatically(
        self, topic_id: str, name: str, type_: EntityType, parent: str, now: Instant
    ) -> None:
        document = {"@type": type_, "@parent": parent, "name": name}
        registration = Registration(
            topic_id=topic_id, type=type_, parent=parent, twin={"name": name}, auto=True
        )
        self._registry.check_free(self._new(registration, parent))
        self._effects.publish(self._scheme.topic(topic_id), orjson.dumps(document), retain=True)
        self._create_all(registration, now)
