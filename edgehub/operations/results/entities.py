"""Entities, as operations return them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

EntityDocument = TypedDict(
    "EntityDocument",
    {
        "@topic-id": str,
        "@type": str,
        "@id": str,
        "@parent": str | None,
        "@health": str | None,
        "name": str,
        "type": str | None,
        "auto_registered": bool,
        "announced": bool,
    },
)
EntityDocument.__doc__ = """One entity.

Attributes:
    @topic-id: Four segments.
    @type: `device`, `child-device` or `service`.
    @id: Its id at the cloud.
    @parent: Null for the gateway.
    type: Type at the cloud; null for the gateway.
    announced: False: the cloud has refused to create it.
"""


class EntitiesDocument(TypedDict):
    """Registered entities, the gateway first."""

    entities: list[EntityDocument]


class ShownEntity(EntityDocument):
    """One entity with its twin values.

    Attributes:
        children: Topic ids of those right below it.
    """

    twin: dict[str, Any]
    children: list[str]


class RegistrationDocument(TypedDict):
    """The outcome of a registration.

    Attributes:
        entity: Absent while it is pending.
        waits_for: Topic id of the parent that is missing, while it is pending.
        warning: Why automatic registration should be off; else absent.
    """

    outcome: Literal["registered", "updated", "unchanged", "pending"]
    entity: NotRequired[ShownEntity]
    waits_for: NotRequired[str | None]
    warning: NotRequired[str]


class RemovedEntities(TypedDict):
    """Topic ids of the removed entities."""

    removed: list[str]


class PendingRegistrations(TypedDict):
    """Messages of entities that are not registered.

    Attributes:
        messages: Held in all.
        entities: Those with most bytes first.
    """

    messages: int
    bytes: int
    evicted_total: int
    expired_total: int
    entities_total: int
    entities: list[dict[str, Any]]
