"""Commands on queues, rows and dead letters, as the control socket carries them.

Owns nothing; asks and changes the store. A long operation is a row of calls: each works for about
half a second and says where the next one goes on, so that neither a stop of the hub nor a client
that goes away waits for it or cuts it in the middle. Invariant: what is destroyed is named by the
caller, never "all that there is by now": rows up to an offset, letters by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins

from edgehub.clock import utc_text
from edgehub.journal.lines import EVENTS, shown_priority
from edgehub.journal.search import LINES_MAX, LineQuery
from edgehub.message import (
    BEST_PRIORITY,
    DEFAULT_PRIORITY,
    WORST_EXPLICIT_PRIORITY,
    EndpointId,
    Priority,
    queue_id,
)
from edgehub.operations.arguments import flag, text, whole, wholes
from edgehub.operations.documents import letter_document, row_document, state_of
from edgehub.operations.operation import ArgumentError, NotFoundError, Operation
from edgehub.operations.why import Why
from edgehub.store.requeue import LETTERS_MAX
from edgehub.store.row_reading import READ_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.message import Row
    from edgehub.operations.forecast.forecast import QueueForecast
    from edgehub.operations.journal import JournalOperations
    from edgehub.operations.served import ServedEndpoints
    from edgehub.router import Router
    from edgehub.store import Queue
    from edgehub.store.statistics import QueueStatistics
    from edgehub.store.store import Store

ROWS_MAX: Final = 1000
"""Rows or dead letters of one answer."""

SINCE_S: Final = 86_400
SINCE_S_MAX: Final = 400 * 86_400

_QUEUE: Final = text("queue", "Name of the queue.", required=True)
_PAYLOAD: Final = flag("payload", "Show body and values of properties.", protected=True)
_RANGE: Final = (
    whole("through", "Offset of the last message; absent = the newest there is."),
    whole("from_offset", "Where to go on: `next_offset` of the answer before.", default=0),
    flag("dry_run", "Only say what would be done."),
)
_LETTERS: Final = wholes("dead_letters", "Their numbers.", required=True, maximum=LETTERS_MAX)

log = structlog.get_logger(__name__)


class QueueOperations:
    """Operations on queues, rows and dead letters.

    Args:
        store: Has them.
        endpoints: The pumps.
        forecast: What is to be expected of queues.
        journal: Knows what became of rows.
        router: Has the route table in force.
        rows_changed: Called when rows of an endpoint were removed (True), moved, or came back.
    """

    def __init__(
        self,
        *,
        store: Store,
        endpoints: ServedEndpoints,
        forecast: QueueForecast,
        journal: JournalOperations,
        router: Router,
        rows_changed: Callable[[EndpointId, bool], None],
    ) -> None:
        self._store = store
        self._rows_changed = rows_changed
        self._journal = journal
        self._endpoints = endpoints
        self._forecast = forecast
        self._why = Why(
            store=store, endpoints=endpoints, forecast=forecast, journal=journal, router=router
        )

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="queue peek",
                about="Show the oldest messages of a queue, or of all queues of an endpoint.",
                handler=self._peek,
                result="edgehub.operations.results.messages:PeekDocument",
                arguments=(
                    _QUEUE,
                    whole("priority", "Of an endpoint with several queues."),
                    whole("after", "Offset of the last message before.", default=0),
                    whole("limit", "Most messages.", default=10, maximum=ROWS_MAX),
                    _PAYLOAD,
                ),
            ),
            Operation(
                name="queue purge",
                about="Remove what waits in a queue, for half a second at a time.",
                handler=self._purge,
                result="edgehub.operations.results.messages:TakenOutDocument",
                arguments=(_QUEUE, *_RANGE),
                changes=True,
            ),
            Operation(
                name="queue move",
                about="Move what waits in a queue to another one, for half a second at a time.",
                handler=self._move,
                result="edgehub.operations.results.messages:TakenOutDocument",
                arguments=(_QUEUE, text("to", "The other queue.", required=True), *_RANGE),
                changes=True,
            ),
            Operation(
                name="dead list",
                about="List dead letters, a page at a time.",
                handler=self._dead_list,
                result="edgehub.operations.results.messages:DeadLettersDocument",
                arguments=(
                    text("queue", "Of this queue alone."),
                    whole("after", "The last one before.", default=0),
                    whole("limit", "Most dead letters.", default=100, maximum=ROWS_MAX),
                ),
            ),
            Operation(
                name="dead show",
                about="Show one dead letter.",
                handler=self._dead_show,
                result="edgehub.operations.results.messages:DeadLetterDocument",
                arguments=(whole("dead_letter", "Its number.", required=True), _PAYLOAD),
            ),
            Operation(
                name="dead requeue",
                about="Put dead letters back into their queues.",
                handler=self._dead_requeue,
                result="edgehub.operations.results.messages:RowsDocument",
                arguments=(_LETTERS,),
                changes=True,
            ),
            Operation(
                name="dead purge",
                about="Remove dead letters.",
                handler=self._dead_purge,
                result="edgehub.operations.results.messages:RowsDocument",
                arguments=(_LETTERS,),
                changes=True,
            ),
            Operation(
                name="journal show",
                about="Show the newest lines of the journal.",
                handler=self._journal_show,
                result="edgehub.journal.search:FoundLines",
                arguments=(
                    text("event", "Only this event.", choices=EVENTS),
                    text("queue", "Only of this queue."),
                    whole("since_s", "Of so many seconds.", default=SINCE_S, maximum=SINCE_S_MAX),
                    whole("limit", "Most lines.", default=100, maximum=LINES_MAX),
                ),
            ),
            Operation(
                name="why",
                about="Say where a message is, and why.",
                handler=self._explain,
                result="edgehub.operations.results.messages:WhyDocument",
                arguments=(text("id", "Of the hub, or of the sender.", required=True),),
            ),
        ]

    async def _explain(self, **arguments: Any) -> dict[str, Any]:
        return await self._why.explain(arguments["id"])

    async def _journal_show(
        self, *, since_s: int, limit: int, event: str | None = None, queue: str | None = None
    ) -> dict[str, Any]:
        since_ms = self._store.utc_ms(self._store.hub_time.now_ms()) - since_s * 1000
        known = None if queue is None else self._known(queue)
        answer = await self._journal.search(
            LineQuery(
                event=event,
                queue=None if known is None else (known[0], shown_priority(known[1])),
                since=utc_text(max(0, since_ms)),
                lines_max=limit,
            )
        )
        if queue is not None and known is not None and not answer.found:
            self._check_endpoint(queue, known[0])
        for line in answer.lines:
            if "endpoint" in line:
                number = Priority(line.get("priority", DEFAULT_PRIORITY))
                line["queue"] = queue_id(EndpointId(line["endpoint"]), number)
        document: dict[str, Any] = to_builtins(answer)
        return document

    async def _peek(
        self, *, queue: str, after: int, limit: int, payload: bool, priority: int | None = None
    ) -> dict[str, Any]:
        filled = [each for each in self._queues(queue, priority) if each.zones.depth]
        if after and len(filled) > 1:
            names = ", ".join(each.id for each in filled)
            raise ArgumentError(
                f"an offset is a place in one queue, and {queue} has {names}: name a `priority`"
            )
        rows_max = max(1, limit)
        shown: list[dict[str, Any]] = []
        size = 0
        for each in filled:
            rows = await self._store.inspection.peek(
                each, after=after, rows_max=rows_max - len(shown)
            )
            shown += self._row_documents(each, rows, payload=payload)
            size += sum(row.size for row in rows)
            if len(shown) == rows_max or size >= READ_BYTES_MAX:
                break
        return {"queue": queue, "depth": sum(each.zones.depth for each in filled), "rows": shown}

    def _row_documents(
        self, queue: Queue, rows: Iterable[Row], *, payload: bool
    ) -> list[dict[str, Any]]:
        now_ms = self._store.hub_time.now_ms()
        pump = self._endpoints.pump(queue.endpoint_id)
        return [
            {
                "queue": queue.id,
                **row_document(
                    row,
                    *state_of(row, queue, pump),
                    now_ms=now_ms,
                    utc_ms=self._store.utc_ms,
                    payload=payload,
                ),
            }
            for row in rows
        ]

    async def _purge(self, *, queue: str, **rows: Any) -> dict[str, Any]:
        return await self._take_out(self._queue(queue), None, **rows)

    async def _move(self, *, queue: str, to: str, **rows: Any) -> dict[str, Any]:
        source, target = self._queue(queue), self._target(to)
        if (source.endpoint_id, source.priority) == target:
            raise ArgumentError(f"{source.id}: want another queue to move to")
        return await self._take_out(source, target, **rows)

    async def _take_out(
        self,
        queue: Queue,
        target: tuple[EndpointId, Priority] | None,
        *,
        from_offset: int,
        dry_run: bool,
        through: int | None = None,
    ) -> dict[str, Any]:
        through = self._store.last_offset if through is None else through
        to = None if target is None else queue_id(*target)
        answer = {"queue": queue.id, "to": to, "through": through, "next_offset": None}
        if dry_run:
            figures = queue.statistics()
            in_flight = queue.checkpointer.stored_in_flight
            # What is in flight may be back when the command is given in earnest.
            return {
                **answer,
                "rows": queue.stored_rows - in_flight,
                "bytes": queue.stored_bytes,
                "in_flight": in_flight,
                "exceeds": self._exceeds(target, figures),
                "other_queues": self._other_queues(queue),
            }
        done = await self._store.purger.take_out(
            queue,
            None if target is None else self._store.queues.get(*target),
            from_offset=from_offset,
            through=through,
        )
        if done.rows and to is None:
            log.info("operating.rows_purged", queue_id=queue.id, rows=done.rows, bytes=done.bytes)
        elif done.rows:
            log.info("operating.rows_moved", queue_id=queue.id, to_queue_id=to, rows=done.rows)
        if done.rows:
            self._rows_changed(queue.endpoint_id, to is None)
        self._endpoints.ensure()
        return {**answer, **to_builtins(done), "exceeds": self._exceeds(target)}

    def _other_queues(self, queue: Queue) -> dict[str, int]:
        """Return rows by queue of what else an endpoint holds, where its name is this queue's."""
        if queue.priority != DEFAULT_PRIORITY:
            return {}
        others = [each for each in self._store.queues.of(queue.endpoint_id) if each is not queue]
        return {each.id: each.zones.depth for each in others if each.zones.depth}

    def _exceeds(
        self, target: tuple[EndpointId, Priority] | None, joining: QueueStatistics | None = None
    ) -> list[str]:
        """List the limits of a queue that rows moved there go beyond; they join all the same."""
        if target is None:
            return []
        known = [each for each in self._store.queues.of(target[0]) if each.priority == target[1]]
        parts = [each.statistics() for each in known] + ([] if joining is None else [joining])
        rows, size = sum([each.depth for each in parts]), sum([each.bytes for each in parts])
        return [cap.value for cap in self._store.limits.caps.exceeded_by(rows, size)]

    async def _dead_list(
        self, *, after: int, limit: int, queue: str | None = None
    ) -> dict[str, Any]:
        limit = max(1, limit)
        known = None if queue is None else self._known(queue)
        letters = await self._store.inspection.dead_letters(after, limit + 1, queue=known)
        shown = letters[:limit]
        return {
            "total": self._store.statistics().dead_letter_rows,
            "next": shown[-1].id if len(letters) > limit else None,
            "dead_letters": [
                letter_document(letter, utc_ms=self._store.utc_ms, payload=False)
                for letter in shown
            ],
        }

    async def _dead_show(self, *, dead_letter: int, payload: bool) -> dict[str, Any]:
        letter = await self._store.inspection.dead_letter(dead_letter)
        if letter is None:
            raise NotFoundError(
                f"there is no dead letter {dead_letter}"
                " (edgehub queue dead list shows those there are)"
            )
        return letter_document(letter, utc_ms=self._store.utc_ms, payload=payload)

    async def _dead_requeue(self, *, dead_letters: list[int]) -> dict[str, Any]:
        released = await self._store.requeuer.requeue(dead_letters)
        if released.rows:
            log.info("operating.dead_letters_requeued", rows=released.rows)
            for endpoint_id in {each.endpoint_id for each in self._store.queues.all()}:
                self._rows_changed(endpoint_id, False)
        self._endpoints.ensure()
        return {"rows": released.rows, "bytes": released.bytes}

    async def _dead_purge(self, *, dead_letters: list[int]) -> dict[str, Any]:
        released = await self._store.requeuer.purge(dead_letters)
        if released.rows:
            log.info("operating.dead_letters_purged", rows=released.rows, bytes=released.bytes)
        return {"rows": released.rows, "bytes": released.bytes}

    def _queues(self, name: str, priority: int | None) -> list[Queue]:
        """Return the queues of an endpoint, best priority first, or the one queue of that name."""
        queues = self._store.queues.of(EndpointId(name)) or [self._queue(name)]
        if priority is None:
            return queues
        chosen = [queue for queue in queues if queue.priority == priority]
        if not chosen:
            names = ", ".join(queue.id for queue in queues)
            raise NotFoundError(f"{name} has no queue of that priority (there are: {names})")
        return chosen

    def _queue(self, name: str) -> Queue:
        queue = self._find(name)
        if queue is None:
            raise self._unknown(name)
        return queue

    def _find(self, name: str) -> Queue | None:
        return next((queue for queue in self._store.queues.all() if queue.id == name), None)

    def _known(self, name: str) -> tuple[EndpointId, Priority]:
        """Return endpoint and priority of a queue of which only dead letters may be left."""
        queue = self._find(name)
        return parse_queue_id(name) if queue is None else (queue.endpoint_id, queue.priority)

    def _check_endpoint(self, name: str, endpoint_id: EndpointId) -> None:
        """Refuse a queue whose endpoint neither has a pump nor queues."""
        if endpoint_id not in self._endpoints.served() and not self._store.queues.of(endpoint_id):
            raise self._unknown(name)

    def _target(self, name: str) -> tuple[EndpointId, Priority]:
        endpoint_id, priority = self._known(name)
        served = self._endpoints.served()
        if endpoint_id not in served:
            raise NotFoundError(
                f"no pump serves endpoint {endpoint_id!r}, so rows would be stuck there"
                f" (served are: {', '.join(sorted(served))})"
            )
        return endpoint_id, priority

    def _unknown(self, name: str) -> NotFoundError:
        known = [queue.id for queue in self._store.queues.all()]
        names = ", ".join(known[:20]) or "none"
        more = f" and {len(known) - 20} more" if len(known) > 20 else ""  # noqa: PLR2004 - enough for a line
        return NotFoundError(f"there is no queue {name!r} (there are: {names}{more})")


def parse_queue_id(name: str) -> tuple[EndpointId, Priority]:
    """Return endpoint and priority of a queue's name, the default priority where it has none."""
    for priority in range(BEST_PRIORITY, WORST_EXPLICIT_PRIORITY + 1):
        endpoint_id = EndpointId(name.removesuffix(f"_Pri{priority}"))
        if endpoint_id != name and queue_id(endpoint_id, Priority(priority)) == name:
            return endpoint_id, Priority(priority)
    return EndpointId(name), DEFAULT_PRIORITY
