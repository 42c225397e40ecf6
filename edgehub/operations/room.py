"""How much may wait: what the settings allow, and what the volume has left for it.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edgehub.store.caps import Cap
from edgehub.store.limits import SMALL_FLOOR_SHARE

if TYPE_CHECKING:
    from edgehub.store.caps import Caps


class Room(Struct, frozen=True, kw_only=True):
    """The bounds of what waits.

    Attributes:
        free_bytes: Free space where the database lies.
        floor_bytes: The part of it that rows leave free.
        hub_bytes: Cap of all queues together, None = none.
        hub_rows: The same in rows.
        queue_bytes: Cap of each queue, None = none.
        queue_rows: The same in rows.
    """

    free_bytes: int
    floor_bytes: int = 0
    hub_bytes: int | None = None
    hub_rows: int | None = None
    queue_bytes: int | None = None
    queue_rows: int | None = None

    @classmethod
    def of(cls, caps: Caps, *, total_bytes: int, free_bytes: int) -> Room:
        """Return the bounds on a volume of `total_bytes`; shares become bytes."""
        floor = min(caps.free_bytes_min, total_bytes // SMALL_FLOOR_SHARE)
        hub_bytes = caps.bytes or None
        if caps.bytes_percent:
            hub_bytes = total_bytes * caps.bytes_percent // 100
        return cls(
            free_bytes=free_bytes,
            floor_bytes=max(floor, total_bytes * caps.free_percent // 100),
            hub_bytes=hub_bytes,
            hub_rows=caps.rows or None,
            queue_bytes=caps.queue_bytes or None,
            queue_rows=caps.queue_rows or None,
        )


class Demand(Struct, frozen=True, kw_only=True):
    """What would wait if nothing could leave.

    Attributes:
        queue: Whose, None = the hub's.
        bytes: None = not measured.
        rows: None = not measured.
    """

    queue: str | None
    bytes: float | None
    rows: float | None


def exceeded(room: Room, demand: Demand, *, stored_bytes: int) -> list[dict[str, Any]]:
    """List the bounds that a demand goes beyond.

    Args:
        room: The bounds.
        demand: Of one queue, or of the hub.
        stored_bytes: What the file holds already, in addition to the free space.

    Returns:
        `cap`, `queue`, `need` and `limit` of each.
    """
    bounds: tuple[tuple[Cap, float | None, int | None], ...]
    if demand.queue is None:
        volume = stored_bytes + max(0, room.free_bytes - room.floor_bytes)
        bounds = (
            (Cap.HUB_BYTES, demand.bytes, room.hub_bytes),
            (Cap.HUB_ROWS, demand.rows, room.hub_rows),
            (Cap.DISK, demand.bytes, volume),
        )
    else:
        bounds = (
            (Cap.QUEUE_BYTES, demand.bytes, room.queue_bytes),
            (Cap.QUEUE_ROWS, demand.rows, room.queue_rows),
        )
    return [
        {"cap": cap, "queue": demand.queue, "need": round(need), "limit": limit}
        for cap, need, limit in bounds
        if need is not None and limit is not None and need > limit
    ]
