"""One entity, and its registration.

An `Entity` is changed by the registry alone. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

import orjson
from msgspec import Struct, field

from edgehub.entities.documents import canonical, read_object
from edgehub.entities.faults import MappingError
from edgehub.entities.topics import default_name, read_topic_id

CHILD_TYPE: Final = "thin-edge.io-child"
MEMBERS_MAX: Final = 200
"""Members of a registration; each initial twin value is a message of its own."""

_NOT_IN_IDS: Final = re.compile(r"[/+#\x00-\x1f\x7f-\x9f]")
_TYPES: Final = "device, child-device or service"


class EntityType(StrEnum):
    """What an entity is."""

    MAIN = "device"
    CHILD = "child-device"
    SERVICE = "service"


class Registration(Struct, frozen=True, kw_only=True):
    """A registration message.

    Attributes:
        topic_id: The entity.
        type: What it is.
        external_id: Its id at the cloud, None = to be derived.
        parent: Topic id of its parent, None = the default one.
        health: Topic id of the service whose health stands for it, None = the default one.
        twin: Initial twin values, name and type among them.
        auto: Created by the hub itself from a first message.
    """

    topic_id: str
    type: EntityType
    external_id: str | None = None
    parent: str | None = None
    health: str | None = None
    twin: dict[str, Any]
    auto: bool = False


class Entity(Struct, eq=False):
    """A registered entity.

    Attributes:
        topic_id: Its topic id.
        type: What it is.
        external_id: Its id at the cloud; never changes.
        parent: Topic id of its parent, None for the main device.
        health: Topic id of the service whose health stands for it, None = the default one.
        auto: Registered by its first message.
        announced: Its create line is queued or was sent.
        status: Health of a service that was reported last, None = that of its creation, or
            one too long to be kept.
        twin: Known twin values by key, in canonical JSON; also name and type.
        inline: Values of its last registration message, so that the same message again changes
            nothing although a twin message changed the value since.
        topic: Cloud topic of its SmartREST lines.
        source: Its `externalSource` in JSON documents, None for the main device.
    """

    topic_id: str
    type: EntityType
    external_id: str
    parent: str | None
    topic: str
    health: str | None = None
    auto: bool = False
    announced: bool = True
    status: str | None = None
    twin: dict[str, bytes] = field(default_factory=dict)
    inline: dict[str, bytes] = field(default_factory=dict)
    source: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.type is not EntityType.MAIN:
            self.source = {"externalId": self.external_id, "type": "c8y_Serial"}

    @property
    def name(self) -> str:
        """Return the display name."""
        known = self.text("name")
        if known:
            return known
        default = default_name(self.topic_id) if self.type is EntityType.SERVICE else None
        return self.external_id if default is None else default.service or self.external_id

    def cloud_type(self, service_type: str) -> str:
        """Return its type at the cloud; `service_type` is that of services that name none."""
        if self.type is EntityType.SERVICE:
            return self.text("type") or service_type or "service"
        return self.text("type") or CHILD_TYPE

    def text(self, key: str) -> str | None:
        """Return a twin value that is a text, None = there is none, or it is something else."""
        known = self.twin.get(key)
        if known is None:
            return None
        value = orjson.loads(known)
        return value if isinstance(value, str) else None


def read_registration(topic_id: str, payload: bytes) -> Registration:
    """Read a registration message.

    Raises:
        MappingError: Something in it is wrong, whatever else is registered.
    """
    read_topic_id(topic_id)
    document = read_object(payload)
    type_ = document.get("@type")
    if not isinstance(type_, str) or type_ not in set(EntityType):
        given = "missing" if type_ is None else f"`{type_}`"
        raise MappingError(f"`@type` is {given}; it must be {_TYPES}")
    for key in ("name", "type"):
        value = document.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise MappingError(f"`{key}` must be a text that is not empty")
    if len(document) > MEMBERS_MAX:
        raise MappingError(f"a registration has at most {MEMBERS_MAX} members; use twin topics")
    parent, health = (_topic_id(document, key) for key in ("@parent", "@health"))
    if parent == topic_id:
        raise MappingError("`@parent` names the entity itself")
    return Registration(
        topic_id=topic_id,
        type=EntityType(type_),
        external_id=_external_id(document),
        parent=parent,
        health=health,
        twin={
            key: value
            for key, value in document.items()
            if not key.startswith("@") and value is not None
        },
    )


def twin_values(twin: dict[str, Any]) -> dict[str, bytes]:
    """Return the values in the form in which they are compared and kept."""
    return {key: canonical(value) for key, value in twin.items()}


def _external_id(document: dict[str, Any]) -> str | None:
    external_id = document.get("@id")
    if external_id is None:
        return None
    if not isinstance(external_id, str) or not external_id:
        raise MappingError("`@id` must be a text that is not empty")
    found = _NOT_IN_IDS.search(external_id)
    if found is not None:
        raise MappingError(f"`@id` must not hold {found[0]!r}, it becomes part of a topic")
    return external_id


def _topic_id(document: dict[str, Any], key: str) -> str | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise MappingError(f"`{key}` must be a topic id, a text")
    return read_topic_id(value)
