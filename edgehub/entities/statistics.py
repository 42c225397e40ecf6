"""Counts of a mapper, as a snapshot.

Owns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.entities.effects import OutputName


class MapperStatistics(Struct, frozen=True, kw_only=True):
    """What the mapper did since its start, and what it keeps.

    Attributes:
        handled_total: Messages taken.
        ignored_total: Messages on topics that are not its own, or without effect.
        errors_total: Errors published for clients.
        newest_error: The last of them, empty = there was none.
        outputs_total: Rows by output.
        large_events_total: Events too large for a row, left to local clients.
        entities: Registered entities, the main device among them.
        held: Messages held for unregistered entities.
        held_bytes: Their bytes.
        evicted_total: Held messages that were evicted.
        expired_total: Held messages that waited too long.
        dropped_total: Stored rows that were orphaned or unreadable.
        warnings: What an operator should change, by topic id.
    """

    handled_total: int
    ignored_total: int
    errors_total: int
    newest_error: str
    outputs_total: dict[OutputName, int]
    large_events_total: int
    entities: int
    held: int
    held_bytes: int
    evicted_total: int
    expired_total: int
    dropped_total: int
    warnings: dict[str, str]
