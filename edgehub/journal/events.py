"""The events of one commit, unpacked: what `edgehub.journal.row_events.pack` packed.

Pure functions on values. Invariant: `unpack` returns what was packed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from edgehub.journal.row_events import FORM

_FORM_BEFORE = 1
"""Without the duration of sends; a file of the program before may hold it."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgehub.journal.row_events import Counts, Note

Column = Any
"""A list with an item for each event, or the one value that all of them have."""


class Run(Struct, frozen=True):
    """Consecutive events of one kind.

    Attributes:
        kind: The event.
        offsets: Of the rows.
        times: Hub time of the events.
        enqueued: Hub time at which the rows were enqueued.
        ttls: Times to live, None = none.
        sizes: Bytes of the rows.
        attempts: Attempts to send so far.
        senders: Indexes into the senders of the section.
        routes: Indexes into the routes of the section.
        keys: See `Row.message_key`.
        reasons: Why the rows left, None = the event has no reason.
        took: See `Row.took_ms`.
    """

    kind: int
    offsets: list[int]
    times: list[int]
    enqueued: list[int]
    ttls: Column
    sizes: Column
    attempts: Column
    senders: Column
    routes: Column
    keys: Column
    reasons: Column
    took: Column

    def __len__(self) -> int:
        return len(self.offsets)


class Section(Struct, frozen=True, kw_only=True):
    """Events of one queue in one commit.

    Attributes:
        kinds: Column of the events.
        columns: The other columns, as `Run` has them.
        to_endpoint: See `EventColumns`.
    """

    endpoint_id: str
    priority: int
    senders: list[str]
    routes: list[list[str]]
    kinds: Column
    columns: tuple[Column, ...]
    to_endpoint: str | None

    def runs(self, length_max: int) -> Iterator[Run]:
        """Return the events in order, in runs of at most `length_max`."""
        count = len(self.columns[0])
        kinds = self.kinds if isinstance(self.kinds, list) else None
        lengths = [count] if kinds is None else [len(list(same)) for _, same in groupby(kinds)]
        for start, end in pairwise(accumulate(lengths, initial=0)):
            kind = self.kinds if kinds is None else kinds[start]
            for low in range(start, end, length_max):
                high = min(low + length_max, end)
                yield Run(
                    kind,
                    *[
                        column[low:high] if isinstance(column, list) else column
                        for column in self.columns
                    ],
                )


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
    to_endpoint: str | None, endpoint_id: str, priority: int, _count: int, *columns: Any
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
    at_ms = list(accumulate(times))
    return Section(
        endpoint_id=endpoint_id,
        priority=priority,
        senders=senders[0],
        routes=routes[0],
        kinds=kinds,
        columns=(
            list(accumulate(offsets)),
            at_ms,
            list(accumulate(enqueued)) if enqueued else at_ms,
            ttls,
            sizes,
            attempts,
            senders[1],
            routes[1],
            keys,
            reasons,
            took[0] if took else 0,
        ),
        to_endpoint=to_endpoint,
    )
