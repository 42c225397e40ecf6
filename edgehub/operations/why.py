"""Why a message is where it is: its copies, what they waited for, what stands before them.

Owns nothing; puts together what store, pumps, routes and journal know. Finding a message by the
hub's id is one look per queue; by an id that its sender gave, a search with a limit. Invariant:
what is not known is said to be unknown, never guessed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from edgehub.errors import StoreError
from edgehub.journal.trace import Passed
from edgehub.message import DEFAULT_PRIORITY, NEVER_MS, queue_id
from edgehub.operations.documents import letter_document, row_document, state_of
from edgehub.store.statistics import RowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.journal.trace import Trace
    from edgehub.operations.forecast.forecast import QueueForecast
    from edgehub.operations.journal import JournalOperations
    from edgehub.operations.served import ServedEndpoints
    from edgehub.router import Router
    from edgehub.store.inspection import Copy
    from edgehub.store.store import Store

COPIES_SHOWN: Final = 50
FLUSH_S: Final = 2.0
"""Longest wait for the commit of what came before the question."""
REQUEUED: Final = ", longer by its time as a dead letter"
_OF_ORIGIN: Final = frozenset({"v", "hub", "store", "seq"})
LAST_EVENTS: Final = {
    "sent": "delivered",
    "expired": "expired",
    "dropped": "dropped",
    "purged": "purged",
    "lost": "lost",
    "moved": "moved",
    "dead_lettered": "dead letter, removed since",
}


class Why:
    """Explains one message at a time."""

    def __init__(
        self,
        *,
        store: Store,
        endpoints: ServedEndpoints,
        forecast: QueueForecast,
        journal: JournalOperations,
        router: Router,
    ) -> None:
        self._store = store
        self._endpoints = endpoints
        self._forecast = forecast
        self._journal = journal
        self._router = router

    async def explain(self, name: str) -> dict[str, Any]:
        """Explain a message.

        Args:
            name: Id that the hub gave, or its sender.

        Raises:
            EdgeHubError: The store or the journal cannot be read.
        """
        inspection = self._store.inspection
        with contextlib.suppress(StoreError):
            # What came, or left, before its commit is in the file or the journal then.
            await self._store.writer.flush_within(FLUSH_S)
        offset = inspection.offset_of(name)
        looked_at, complete = 0, True
        if offset is not None:
            copies = await inspection.find(offset)
        else:
            found = await inspection.search(name)
            copies, looked_at, complete = found.copies, found.looked_at, found.complete
        letters = await inspection.dead_letters_of(name)
        shown = copies[:COPIES_SHOWN]
        message_id = _message_id(name, offset, shown, letters)
        trace = None
        if message_id is not None:
            passed = [Passed(endpoint_id=c.queue.endpoint_id, offset=c.row.offset) for c in shown]
            trace = await self._journal.trace(message_id, passed)
        events = [] if trace is None else self._events(trace)
        documents = [await self._copy(copy, trace, at) for at, copy in enumerate(shown)]
        for document in documents:
            document["ttl_from"] = _journaled_origin(events, document) or document["ttl_from"]
        utc_ms = self._store.utc_ms
        return {
            "asked": name,
            "message": message_id,
            "by": "hub" if offset is not None else "sender",
            "looked_at_rows": looked_at,
            "complete": complete,
            "state": self._state(offset, documents, letters, trace),
            "copies_total": len(copies),
            "copies": documents,
            "dead_letters": [
                letter_document(letter, utc_ms=utc_ms, payload=False) for letter in letters
            ],
            "journal": None
            if trace is None
            else {
                "complete": trace.complete,
                "events": events,
            },
        }

    def _state(
        self,
        offset: int | None,
        copies: Sequence[dict[str, Any]],
        letters: Sequence[Any],
        trace: Trace | None,
    ) -> str:
        if copies:
            return str(copies[0]["state"])
        if letters:
            return "dead letter"
        if offset is None:
            return "unknown"
        if offset >= self._store.statistics().next_offset:
            return "unknown"
        if trace is not None:
            last = [line["event"] for line in trace.lines if line["event"] in LAST_EVENTS]
            if last:
                return LAST_EVENTS[last[-1]]
        return "left"

    async def _copy(self, copy: Copy, trace: Trace | None, at: int) -> dict[str, Any]:
        queue, row = copy.queue, copy.row
        now_ms = self._store.hub_time.now_ms()
        pump = self._endpoints.pump(queue.endpoint_id)
        state, suspicion = state_of(row, queue, pump)
        own_rows, own_bytes = await self._store.inspection.before(queue, row.offset)
        better = [
            each
            for each in self._store.queues.of(queue.endpoint_id)
            if each.priority < queue.priority
        ]
        waits = state in {RowState.WAITING, RowState.HELD}
        window_s = self._endpoints.next_window_s(queue.endpoint_id) if waits else None
        figures = None if pump is None else pump.statistics()
        orphaned = queue.endpoint_id in self._endpoints.orphans()
        return {
            **row_document(
                row, state, suspicion, now_ms=now_ms, utc_ms=self._store.utc_ms, payload=False
            ),
            "queue": queue.id,
            "endpoint": queue.endpoint_id,
            "priority": queue.priority,
            "endpoint_state": None if figures is None else figures.state,
            "endpoint_reason": "" if figures is None else figures.reason,
            "orphaned": orphaned,
            "suspected": None if suspicion is None else to_builtins(suspicion),
            "narrow_rows": 0 if pump is None else pump.narrow_rows,
            "ttl_from": self._ttl_from(
                row.routes,
                None if row.expires_ms >= NEVER_MS else row.expires_ms - row.enqueued_ms,
            ),
            "waited": self._waited(copy, now_ms),
            "overtaken_by": None if trace is None else _overtakers(trace, at, copy),
            "before": {
                "rows": own_rows,
                "bytes": own_bytes,
                "better": [
                    {"queue": each.id, "rows": each.zones.depth, "bytes": each.zones.bytes}
                    for each in better
                    if each.zones.depth
                ],
            },
            "leaves": to_builtins(self._forecast.leaves(queue, own_bytes + row.size))
            if waits
            else None,
            "next_window_in_s": window_s,
            "expires_before_window": window_s is not None
            and row.expires_ms < now_ms + window_s * 1000,
        }

    def _waited(self, copy: Copy, now_ms: int) -> dict[str, float] | None:
        queue, row = copy.queue, copy.row
        split = self._journal.split(
            (queue.endpoint_id, queue.priority),
            row.message.sender,
            row.offset,
            from_ms=row.enqueued_ms,
            until_ms=now_ms,
        )
        if split is None:
            return None
        names = ("offline_s", "behind_s", "retry_s", "rate_s")
        return {name: part / 1000 for name, part in zip(names, split, strict=True)}

    def _events(self, trace: Trace) -> list[dict[str, Any]]:
        """Leave out of lines what says where they came from; say whose times to live were."""
        events = []
        origins: dict[str, str] = {}
        for line in trace.lines:
            event = {key: value for key, value in line.items() if key not in _OF_ORIGIN}
            if "ttl_ms" in event:
                endpoint = line["endpoint"]
                origin = self._ttl_from(event.get("routes", ()), event["ttl_ms"])
                if line["event"] == "requeued" and REQUEUED not in origins.get(endpoint, ""):
                    origins[endpoint] = origins.get(endpoint, "not known") + REQUEUED
                event["ttl_from"] = origins.setdefault(endpoint, origin)
            events.append(event)
        return events

    def _ttl_from(self, routes: Sequence[str], ttl_ms: int | None) -> str:
        """Return where a time to live came from, by the manifest in force now.

        Args:
            routes: Names of the row's routes, the one that decides first.
            ttl_ms: What the row was given, None = it never expires.
        """
        manifest = self._router.table.manifest
        spec = next((each for each in manifest.routes if each.name in routes[:1]), None)
        if spec is None:
            return "a route that was removed"
        of_route = manifest.ttl_ms(spec)
        if ttl_ms == of_route:
            return "global" if spec.ttl_ms is None else "route"
        if ttl_ms is not None and (of_route is None or ttl_ms < of_route):
            # Only the sender can shorten it; a manifest from before may have had another one.
            return "sender's expiry, or an earlier manifest"
        return "an earlier manifest"


def _message_id(
    name: str, offset: int | None, copies: Sequence[Copy], letters: Sequence[Any]
) -> str | None:
    if offset is not None:
        return name
    if copies:
        return copies[0].row.message.message_id
    return letters[0].message.message_id if letters else None


def _journaled_origin(events: Sequence[dict[str, Any]], copy: dict[str, Any]) -> str | None:
    """Return where a copy's time to live came from if that takes what the journal knows."""
    origins = [
        each["ttl_from"]
        for each in events
        if each.get("endpoint") == copy["endpoint"] and "ttl_from" in each
    ]
    return origins[-1] if origins and REQUEUED in origins[-1] else None


def _overtakers(trace: Trace, at: int, copy: Copy) -> dict[str, Any]:
    by_priority = {
        DEFAULT_PRIORITY if priority is None else priority: rows
        for priority, rows in trace.overtakers[at].items()
    }
    endpoint_id = copy.queue.endpoint_id
    return {
        "rows": sum(by_priority.values()),
        "complete": trace.complete,
        "queues": {
            queue_id(endpoint_id, type(copy.queue.priority)(priority)): rows
            for priority, rows in sorted(by_priority.items())
        },
    }
