"""Documents of entities for the command line, the HTTP API and the status.

Pure. Invariant: times are UTC in RFC 3339, ids those of the entity's messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from edgehub.clock import utc_text
from edgehub.entities.entity import EntityType

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.entities.entity import Entity
    from edgehub.entities.pending import PendingEntity


def entity_document(entity: Entity) -> dict[str, Any]:
    """Describe an entity, without its twin values."""
    return {
        "@topic-id": entity.topic_id,
        "@type": str(entity.type),
        "@id": entity.external_id,
        "@parent": entity.parent,
        "@health": entity.health,
        "name": entity.name,
        "type": None if entity.type is EntityType.MAIN else entity.text("type"),
        "auto_registered": entity.auto,
        "announced": entity.announced,
    }


def twin_document(entity: Entity) -> dict[str, Any]:
    """Return the known twin values by key."""
    return {key: orjson.loads(value) for key, value in sorted(entity.twin.items())}


def pending_document(
    pending: PendingEntity, *, now_ms: int, utc_ms: Callable[[int], int]
) -> dict[str, Any]:
    """Describe the messages that wait for the registration of one entity.

    Args:
        pending: What is held for it.
        now_ms: Hub time.
        utc_ms: Returns the UTC of a hub time.
    """
    return {
        "@topic-id": pending.topic_id,
        "waits_for": pending.waits_for,
        "clients": list(pending.clients),
        "messages": pending.messages,
        "bytes": pending.bytes,
        "oldest": utc_text(utc_ms(pending.oldest_ms)),
        "oldest_age_s": max(0, now_ms - pending.oldest_ms) // 1000,
        "evicted": pending.evicted,
    }
