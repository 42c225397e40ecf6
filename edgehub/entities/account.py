"""What people are told of entities: documents for the command line, the HTTP API and the status.

Pure. Invariant: times are UTC in RFC 3339, ids those of the entity's messages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from edgehub.entities.entity import EntityType

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.entities.entity import Entity
    from edgehub.entities.pending import Debt


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


def debt_document(debt: Debt, *, now_ms: int, utc_ms: Callable[[int], int]) -> dict[str, Any]:
    """Describe what waits for the registration of one entity.

    Args:
        debt: What it owes.
        now_ms: Hub time.
        utc_ms: Gives the UTC of a hub time.
    """
    return {
        "@topic-id": debt.topic_id,
        "waits_for": debt.waits_for,
        "clients": list(debt.clients),
        "messages": debt.messages,
        "bytes": debt.bytes,
        "oldest": _rfc3339(utc_ms(debt.oldest_ms)),
        "oldest_age_s": max(0, now_ms - debt.oldest_ms) // 1000,
        "evicted": debt.evicted,
    }


def _rfc3339(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
