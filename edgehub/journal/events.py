"""The events of one commit, unpacked: what `edgehub.journal.row_events.pack` packed.

Pure functions on values. Invariant: `unpack` returns what was packed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from edgehub.journal.row_events import FORM

_FORM_BEFORE = 1
"""Without the duration of sends; a file of the program before may hold it."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgehub.journal.row_events import Counts, Note


class Section(Struct, frozen=True, kw_only=True):
    """Events of one queue in one commit.

    Attributes:
        rows: Per event: event, offset, hub time, enqueue time, time to live (None = none), bytes,
            attempts, place of the sender, place of the routes, message key (see `Row`), reason,
            duration of the send (see `Row.took_ms`).
        to_endpoint: See `EventColumns`.
    """

    endpoint_id: str
    priority: int
    senders: list[str]
    routes: list[list[str]]
    rows: Iterator[tuple[Any, ...]]
    to_endpoint: str | None


class Stretches:
    """How hub time relates to UTC, by stretches of hub time.

    Args:
        relations: First hub time of each stretch, rising, and UTC minus hub time.
    """

    __slots__ = ("_aheads", "_firsts")

    def __init__(self, relations: Sequence[Sequence[int]]) -> None:
        self._firsts = [first_ms for first_ms, _ in relations]
        self._aheads = [ahead_ms for _, ahead_ms in relations]

    def utc_ms(self, hub_ms: int) -> int:
        """Return UTC of a hub time."""
        return hub_ms + self._aheads[max(0, bisect_right(self._firsts, hub_ms) - 1)]


class CommitEvents(Struct, frozen=True, kw_only=True):
    """The events of one commit.

    Attributes:
        trusted: Whether `wall_ms` is known to be right.
    """

    hub_ms: int
    wall_ms: int
    trusted: bool
    notes: list[Note]
    sections: list[Section]
    counts: list[Counts]

    def stretches(self) -> Stretches | None:
        """Return what is known of earlier times since this commit, None = nothing new."""
        relations = [note[1] for note in self.notes if note[0] == "trusted"]
        return Stretches(relations[-1]) if relations else None


def unpack(blob: bytes) -> CommitEvents:
    """Undo `pack`.

    Raises:
        ValueError: It was packed by a newer program, or is damaged.
    """
    try:
        form, *fields = orjson.loads(zlib.decompress(blob))
        if form not in {FORM, _FORM_BEFORE}:
            raise ValueError(f"packed in form {form}, this program knows up to {FORM}")
        hub_ms, wall_ms, trusted, notes, sections, counts = fields
        return CommitEvents(
            hub_ms=hub_ms,
            wall_ms=wall_ms,
            trusted=bool(trusted),
            notes=notes,
            sections=[_section(*section) for section in sections],
            counts=[tuple(entry) for entry in counts],
        )
    except (zlib.error, orjson.JSONDecodeError, TypeError, LookupError) as error:
        raise ValueError(f"damaged: {error}") from error


def _section(
    to_endpoint: str | None, endpoint_id: str, priority: int, count: int, *columns: Any
) -> Section:
    (
        kinds,
        offsets,
        times,
        enqueued,
        ttls,
        sizes,
        attempts,
        senders,
        routes,
        keys,
        reasons,
        *took,
    ) = columns
    return Section(
        endpoint_id=endpoint_id,
        priority=priority,
        senders=senders[0],
        routes=routes[0],
        rows=zip(
            _each(kinds, count),
            accumulate(offsets),
            accumulate(times),
            accumulate(enqueued or times),
            _each(ttls, count),
            _each(sizes, count),
            _each(attempts, count),
            _each(senders[1], count),
            _each(routes[1], count),
            _each(keys, count),
            _each(reasons, count),
            _each(took[0] if took else 0, count),
            strict=True,
        ),
        to_endpoint=to_endpoint,
    )


def _each(value: Any, count: int) -> Iterator[Any]:
    return iter(value) if isinstance(value, list) else repeat(value, count)
