"""The directory of entities: what the command line and the HTTP API read and change.

Owns nothing. Invariants: a change goes through the mapper like a message, and is answered
once it is durable; a registration that came this way is retained like any other.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.entities.account import entity_document, pending_document, twin_document
from edgehub.entities.documents import write_json
from edgehub.entities.entity import EntityType
from edgehub.entities.faults import (
    NO_ENTITIES,
    EntityArgumentError,
    MappingError,
    NoEntitiesError,
    NoRoomError,
    UnknownEntityError,
)
from edgehub.entities.topics import read_topic_id
from edgehub.heads.mqtt.local.ticket import Ticket
from edgehub.operations.arguments import document as json_value
from edgehub.operations.arguments import text
from edgehub.operations.operation import Operation, Resource
from edgehub.store.failure import settling
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.entities.effect_executor import EffectExecutor
    from edgehub.entities.effects import Effect, Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.mapper import Mapper
    from edgehub.operations.operation import Handler
    from edgehub.store.store import Store

SHOWN_MAX: Final = 1000
HELD_WARNING_S: Final = 3600
"""A message that is held for so long causes a warning."""


class EntityDirectory:
    """Lists, registers, changes and removes entities.

    Args:
        mapper: Who exists.
        executor: Carries out the effects of changes.
        store: Says whether there is room, and what time it is.
        now: Gives the moment.
        changed: Called after a change.
        hub_id: Client id under which changes are made.
    """

    def __init__(
        self,
        mapper: Mapper,
        executor: EffectExecutor,
        store: Store,
        *,
        now: Callable[[], Instant],
        changed: Callable[[], None],
        hub_id: str,
    ) -> None:
        self._mapper = mapper
        self._executor = executor
        self._store = store
        self._now = now
        self._changed = changed
        self._hub_id = hub_id

    def entities(
        self, *, root: str | None = None, parent: str | None = None, type_: str | None = None
    ) -> list[dict[str, Any]]:
        """List entities, the gateway first.

        Args:
            root: Only this one and all below it.
            parent: Only what is right below this one.
            type_: Only `device`, `child-device` or `service`.

        Raises:
            UnknownEntityError: `root` or `parent` is not registered.
        """
        registry = self._mapper.registry
        entities = registry.all()
        if root is not None:
            entities = registry.with_descendants(self._entity(root))
        if parent is not None:
            parent = self._entity(parent).topic_id
        return [
            entity_document(entity)
            for entity in entities
            if parent in {None, entity.parent} and type_ in {None, entity.type}
        ]

    def show(self, topic_id: str) -> dict[str, Any]:
        """Describe an entity with its twin values and children.

        Raises:
            UnknownEntityError: It is not registered.
        """
        entity = self._entity(topic_id)
        below = self._mapper.registry.children(entity)
        return {**entity_document(entity), "twin": twin_document(entity), "children": below}

    async def register(self, topic_id: str, document: Any) -> dict[str, Any]:
        """Register an entity or change its registration, as a message on its topic would.

        Returns:
            `outcome`: `registered`, `updated`, `unchanged`, or `pending` where the parent is
            missing; the entity where there is one, and `warning` where automatic registration
            contradicts the request.

        Raises:
            MappingError: It is refused; the text says why.
            NoRoomError: The store is full.
        """
        payload = write_json(_object(document))
        written, topic_id = topic_id, self._usable(topic_id)
        if "/" not in written:
            # It would be an entity of another scheme, and the cloud would keep it.
            raise EntityArgumentError(
                f"`{written}` has one segment; a device is device/{written}//, and if {topic_id} is"
                " meant, write it like that"
            )
        registry = self._mapper.registry
        known = registry.get(topic_id)
        before = None if known is None else self.show(topic_id)
        self._check_room()
        effects, error = self._mapper.register(topic_id, payload, self._now(), client=self._hub_id)
        await self._settled(effects, None if error else (topic_id, payload))
        if error is not None:
            raise error
        if registry.get(topic_id) is None:
            waits_for = self._mapper.pending.waits_for(topic_id)
            return {"outcome": "pending", "@topic-id": topic_id, "waits_for": waits_for}
        after = self.show(topic_id)
        outcome = "registered" if before is None else "updated"
        answer = {"outcome": "unchanged" if before == after else outcome, "entity": after}
        warning = self._mapper.statistics().warnings.get(topic_id)
        return answer if warning is None else {**answer, "warning": warning}

    async def change(self, topic_id: str, document: Any) -> dict[str, Any]:
        """Change `@parent` or `@health` of an entity; see `register`.

        Raises:
            UnknownEntityError: It is not registered.
            EntityArgumentError: Another member is named.
        """
        entity = self._entity(topic_id)
        changes = _object(document)
        others = sorted(set(changes) - {"@parent", "@health"})
        if others or not changes:
            raise EntityArgumentError(
                f"only @parent and @health can be changed, not {', '.join(others) or 'nothing'}"
            )
        same = {"@type": str(entity.type), "@id": entity.external_id}
        inline = {key: orjson.loads(value) for key, value in entity.inline.items()}
        return await self.register(entity.topic_id, {**same, **inline, **changes})

    async def remove(self, topic_id: str) -> dict[str, Any]:
        """Forget an entity and all below it, and what is retained of them.

        Raises:
            UnknownEntityError: It is not registered, and nothing of it waits.
            MappingError: It is the gateway.
        """
        topic_id = _topic_id(topic_id)
        entity = self._mapper.registry.get(topic_id)
        if entity is None and self._mapper.pending.waits_for(topic_id) is None:
            raise _unknown(topic_id)
        known = [] if entity is None else self._mapper.registry.with_descendants(entity)
        self._check_room()
        effects, error = self._mapper.register(topic_id, b"", self._now(), client=self._hub_id)
        await self._settled(effects, None if error else (topic_id, b""))
        if error is not None:
            raise error
        return {"removed": [each.topic_id for each in known] or [topic_id]}

    def pending(self, limit: int = SHOWN_MAX) -> dict[str, Any]:
        """Describe pending registrations: entities that send unregistered, most bytes first."""
        statistics = self._mapper.statistics()
        now_ms = self._now().hub_ms
        return {
            "messages": statistics.held,
            "bytes": statistics.held_bytes,
            "evicted_total": statistics.evicted_total,
            "expired_total": statistics.expired_total,
            "entities_total": self._mapper.pending.entities_total,
            "entities": [
                pending_document(pending, now_ms=now_ms, utc_ms=self._store.utc_ms)
                for pending in self._mapper.pending.entities(limit)
            ],
        }

    def warnings(self) -> list[str]:
        """List what an operator should look at."""
        oldest = self._mapper.pending.oldest_ms()
        age_s = 0 if oldest is None else (self._now().hub_ms - oldest) // 1000
        if age_s < HELD_WARNING_S:
            return []
        messages = self._mapper.statistics().held
        entities = self._mapper.pending.entities_total
        warning = (
            f"{counted(messages, 'message')} of"
            f" {counted(entities, 'unregistered entity', 'unregistered entities')}"
            f" {'waits' if messages == 1 else 'wait'}, for up to {age_s // 3600} h"
            " (edgehub entity pending)"
        )
        return [warning]

    def _entity(self, topic_id: str) -> Entity:
        topic_id = _topic_id(topic_id)
        entity = self._mapper.registry.get(topic_id)
        if entity is None:
            raise _unknown(topic_id)
        return entity

    def _usable(self, topic_id: str) -> str:
        topic_id = _topic_id(topic_id)
        if not self._executor.can_publish(self._mapper.topic(topic_id)):
            raise EntityArgumentError(f"{topic_id[:100]!a} cannot stand in a topic")
        return topic_id

    def _check_room(self) -> None:
        if not self._store.appender.has_room():
            raise NoRoomError("the store is full or cannot be written; nothing has changed")

    async def _settled(self, effects: Sequence[Effect], retained: tuple[str, bytes] | None) -> None:
        settle, done = settling()
        ticket = Ticket(settle, 0)
        self._executor.carry_out(effects, ticket.hold(), 0)
        if retained is not None:
            topic_id, payload = retained
            self._executor.publish(self._mapper.topic(topic_id), payload, ticket, retain=True)
        ticket.done(0, None)
        self._changed()
        refusal = await done
        if refusal is not None:
            raise NoRoomError(f"it could not be stored: {refusal.value}")


def _topic_id(text: str) -> str:
    try:
        return read_topic_id(text)
    except MappingError as error:
        raise EntityArgumentError(str(error)) from error


def _unknown(topic_id: str) -> UnknownEntityError:
    return UnknownEntityError(f"{topic_id} is not registered (edgehub entity list shows what is)")


def entity_operations(directory: EntityDirectory | None) -> list[Operation]:
    """Declare the operations; without a directory each raises `NoEntitiesError`."""

    def asked(method: Callable[..., Any]) -> Handler:
        async def handle(**arguments: Any) -> Any:
            if directory is None:
                raise NoEntitiesError(NO_ENTITIES)
            answer = method(directory, **arguments)
            return await answer if isawaitable(answer) else answer

        return handle

    def listed(directory: EntityDirectory, **given: Any) -> dict[str, Any]:
        return {"entities": directory.entities(type_=given.pop("type", None), **given)}

    topic_id = text("topic_id", "Its topic id; slashes at the end may be left out.", required=True)
    path = "/api/v1/entities/{topic_id}"
    return [
        Operation(
            name="entity list",
            about="List registered entities, the gateway first.",
            handler=asked(listed),
            result="edgehub.operations.results.entities:EntitiesDocument",
            arguments=(
                text("root", "Only this one and all below it."),
                text("parent", "Only those right below this one."),
                text("type", "Only those of this type.", choices=tuple(EntityType)),
            ),
            resource=Resource(method="GET", path="/api/v1/entities"),
        ),
        Operation(
            name="entity show",
            about="Show one entity.",
            handler=asked(EntityDirectory.show),
            result="edgehub.operations.results.entities:ShownEntity",
            arguments=(topic_id,),
            resource=Resource(method="GET", path=path),
        ),
        Operation(
            name="entity register",
            about="Register an entity, or change its registration.",
            handler=asked(EntityDirectory.register),
            result="edgehub.operations.results.entities:RegistrationDocument",
            arguments=(topic_id, json_value("document", "the registration", required=True)),
            changes=True,
            resource=Resource(method="PUT", path=path, body="document"),
        ),
        Operation(
            name="entity change",
            about="Change `@parent` or `@health` of an entity.",
            handler=asked(EntityDirectory.change),
            result="edgehub.operations.results.entities:RegistrationDocument",
            arguments=(topic_id, json_value("document", "the new values", required=True)),
            changes=True,
            resource=Resource(method="PATCH", path=path, body="document"),
        ),
        Operation(
            name="entity remove",
            about="Remove an entity and all below it; the cloud is not notified.",
            handler=asked(EntityDirectory.remove),
            result="edgehub.operations.results.entities:RemovedEntities",
            arguments=(topic_id,),
            changes=True,
            resource=Resource(method="DELETE", path=path),
        ),
        Operation(
            name="entity pending",
            about="Show the entities that send without being registered.",
            handler=asked(EntityDirectory.pending),
            result="edgehub.operations.results.entities:PendingRegistrations",
        ),
    ]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EntityArgumentError("`document`: want a registration as a JSON object")
    return value
