"""Appends messages: from a routed message to rows of the open group.

Runs once per message on the loop, so it only builds what is needed later: the row that the pump
reads, and the waiter; a row that leaves before its commit never has the columns of the file.
Invariant: a message joins a group with all of its rows or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from msgspec import Struct

from edgehub.message import NEVER_MS, Refusal, Row
from edgehub.store.caps import Overflow
from edgehub.store.encoding import ROW_OVERHEAD_BYTES, encode_header
from edgehub.store.group import GROUP_BYTES_MAX
from edgehub.store.limits import LimitDecision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import Message, Recency, RouteResult
    from edgehub.store.group import Settle
    from edgehub.store.limits import Limits
    from edgehub.store.maintenance.retention import Retention
    from edgehub.store.queue import Queue
    from edgehub.store.queue_rows import QueueRows
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Writer

_DESTINATIONS_MAX: Final = 1024


class _Destination(Struct, frozen=True, eq=False):
    """Where the copies of one route result go.

    Attributes:
        result: The result; kept, so that no other one has its identity.
        queue: Their queue.
        label: Label of their routes.
        ttl_ms: Time to live, `NEVER_MS` = none.
        is_plain: They have the usual columns only.
    """

    result: RouteResult
    queue: Queue
    label: int | str
    ttl_ms: int
    is_plain: bool


class Appender:
    """Appends messages."""

    def __init__(
        self,
        shared: SharedState,
        queues: Queues,
        writer: Writer,
        limits: Limits,
        retention: Retention,
        *,
        pending_bytes_max: int,
    ) -> None:
        self._queues = queues
        self._writer = writer
        self._retention = retention
        self._staleness = shared.staleness
        self._labels = shared.labels
        self._limits = limits
        self._offsets = shared.offsets
        self._hub_time = shared.hub_time
        self._prefix = f"{shared.store_id}-"
        self._pending_bytes_max = pending_bytes_max
        self._destinations: dict[int, _Destination] = {}
        """By the identity of the result: those of a route table are the same for many messages."""
        self.closed = False

    def has_room(self) -> bool:
        """Return whether messages that cannot be refused may be appended; see `append`."""
        is_open = not self.closed and self._writer.pending_bytes <= self._pending_bytes_max
        return is_open and not self._limits.is_overdrawn()

    def append(
        self,
        message: Message,
        results: Sequence[RouteResult],
        settle: Settle,
        token: int,
        *,
        overdraw: bool = False,
    ) -> int:
        """Append a message without waiting, and set its id.

        `settle(token, None)` is called after its commit, in the order of appends; at once when
        there is nothing to store. `settle(token, refusal)` is called when it is refused.

        Args:
            message: Not changed afterwards.
            results: The best route of each endpoint, no endpoint twice.
            settle: Called on the loop's thread.
            token: Passed to `settle`.
            overdraw: Append it although a limit is reached: the caller cannot take back what caused
                it, and calls `has_room` beforehand.

        Returns:
            Offset of the first row; the others follow in the order of `results`, without those that
            found no room. 0 = there is none, or the message is refused.
        """
        writer = self._writer
        first_offset = 0
        full = writer.pending_bytes > self._pending_bytes_max and not overdraw
        if self.closed or full or not results:
            self._reject(message, results, settle, token)
            return first_offset
        try:
            header = message.header
            if not header:
                header = message.header = encode_header(message, self._labels)
            size = len(header) + len(message.body) + ROW_OVERHEAD_BYTES
            limits = self._limits
            limits.rows_left -= len(results)
            limits.bytes_left -= size * len(results)
            if limits.rows_left < 0 or limits.bytes_left < 0:
                results = self._admitted(message, results, size, settle, token, overdraw=overdraw)
            # Rows that found no room have used up offsets.
            first_offset = self._offsets.next if results else 0
            if len(results) == 1:
                self._append_one(message, results[0], header, size, settle, token)
            elif results:
                self._append_shared(message, results, header, size, settle, token)
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            writer.refused_total += 1
            self._record(message, Refusal.INVALID.value)
            settle(token, Refusal.INVALID)
            return 0
        group = writer.group
        if group.rows >= writer.wake_at or group.bytes >= GROUP_BYTES_MAX:
            writer.rows_waiting()
        return first_offset

    def _admitted(
        self,
        message: Message,
        results: Sequence[RouteResult],
        size: int,
        settle: Settle,
        token: int,
        *,
        overdraw: bool,
    ) -> Sequence[RouteResult]:
        """Return the results that the limits admit; settle a message of which none is."""
        limits = self._limits
        queues = [self._queues.get(each.endpoint_id, each.priority) for each in results]
        creation = any(each.creation for each in results)
        decisions = limits.decide(queues, size, creation=creation, overdraw=overdraw)
        if LimitDecision.REFUSED in decisions:
            self._writer.refused_total += 1
            self._record(message, f"{Refusal.LIMIT.value}: {limits.last_cap.value}")
            settle(token, Refusal.LIMIT)
            return ()
        if LimitDecision.DROPPED not in decisions:
            return results
        joining = []
        reason = f"{Overflow.DROP_NEWEST.value}: {limits.last_cap.value}"
        for result, decision in zip(results, decisions, strict=True):
            if decision is LimitDecision.JOINS:
                joining.append(result)
            else:
                self._drop(message, result, size, reason)
        if not joining:
            settle(token, None)
        return joining

    def _drop(self, message: Message, result: RouteResult, size: int, reason: str) -> None:
        destination = self._destinations.get(id(result)) or self._destination_of(result)
        offset = self._offsets.next
        self._offsets.next = offset + 1
        message.message_id = f"{self._prefix}{offset:x}"
        now_ms = self._hub_time.now_ms()
        expires_ms = self._expiry(message, destination, now_ms)
        destination.queue.drop(
            Row(offset, message, now_ms, expires_ms, result.routes, size), reason
        )

    def drop(self, message: Message, result: RouteResult, reason: str) -> None:
        """Count a copy that is not stored, though others of its message may be."""
        if self.closed:
            return
        try:
            size = len(encode_header(message, self._labels)) + len(message.body)
            self._drop(message, result, size + ROW_OVERHEAD_BYTES, reason)
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            return  # the message is refused for it

    def refuse(self, message: Message, reason: str) -> None:
        """Count a message that is refused to its sender."""
        self._writer.refused_total += 1
        self._record(message, reason)

    def _reject(
        self, message: Message, results: Sequence[RouteResult], settle: Settle, token: int
    ) -> None:
        if not results:
            settle(token, None)
            return
        self._writer.refused_total += 1
        if self.closed:
            settle(token, Refusal.CLOSED)
            return
        self._record(message, Refusal.LIMIT.value)
        settle(token, Refusal.LIMIT)

    def _record(self, message: Message, why: str) -> None:
        if self._writer.events is not None:
            device = message.sender.encode("utf-8", "replace").decode()
            self._writer.events.refused(device, len(message.body), why)

    def _append_one(
        self,
        message: Message,
        result: RouteResult,
        header: bytes,
        size: int,
        settle: Settle,
        token: int,
    ) -> None:
        destination = self._destinations.get(id(result)) or self._destination_of(result)
        now_ms = self._hub_time.now_ms()
        expires_ms = now_ms + destination.ttl_ms
        if expires_ms >= NEVER_MS or message.expiry_ms is not None:
            expires_ms = self._expiry(message, destination, now_ms)
        queue = destination.queue
        writer = self._writer
        group = writer.group
        joined = queue.reader.open_rows or group.open_rows(queue)
        offsets = self._offsets
        offset = offsets.next
        offsets.next = offset + 1
        message.message_id = f"{self._prefix}{offset:x}"
        row = Row(offset, message, now_ms, expires_ms, result.routes, size)
        joined.rows.append(row)
        joined.bytes += size
        if not destination.is_plain:
            self._fill(destination, joined, row, (None, header, message.body))
        group.waiters[offset] = (settle, token)
        group.rows += 1
        group.bytes += size
        writer.pending_bytes += size
        if len(joined.rows) == joined.handed_out + 1:
            queue.wake()  # the row may be read before its commit

    def _append_shared(
        self,
        message: Message,
        results: Sequence[RouteResult],
        header: bytes,
        size: int,
        settle: Settle,
        token: int,
    ) -> None:
        destinations = [
            self._destinations.get(id(each)) or self._destination_of(each) for each in results
        ]
        now_ms = self._hub_time.now_ms()
        group = self._writer.group
        body_id = self._offsets.next
        message.message_id = f"{self._prefix}{body_id:x}"
        for offset, destination in enumerate(destinations, body_id):
            expires_ms = self._expiry(message, destination, now_ms)
            joined = destination.queue.reader.open_rows or group.open_rows(destination.queue)
            joined.early_max = min(joined.early_max, len(joined.rows))
            routes = destination.result.routes
            row = Row(offset, message, now_ms, expires_ms, routes, size, message_key=body_id)
            joined.rows.append(row)
            joined.bytes += size
            self._fill(destination, joined, row, (body_id, None, None))
        count = len(results)
        self._offsets.next = body_id + count
        group.bodies.append((body_id, count, header, message.body))
        group.waiters[body_id] = (settle, token)
        group.rows += count
        group.bytes += count * size
        self._writer.pending_bytes += count * size

    def _fill(
        self,
        destination: _Destination,
        joined: QueueRows,
        row: Row,
        contents: tuple[int | None, bytes | None, bytes | None],
    ) -> None:
        """Build the columns of a row that has more than the usual ones.

        Args:
            destination: Where it goes.
            joined: The rows that it has joined.
            row: The row.
            contents: Id of a shared body, header and body of its own.
        """
        result = destination.result
        body_id, header, body = contents
        fresh_until_ms = fallback = None
        row.predecessor = result.predecessor
        if result.creation or result.predecessor is not None:
            # Before its commit neither it nor its predecessor can be read by its offset.
            joined.early_max = min(joined.early_max, len(joined.rows) - 1)
        if result.creation:
            row.creation = True
            destination.queue.creations.add(row.offset, row.size)
        elif result.recency is not None:
            row.fresh_until_ms = fresh_until_ms = self._freshness(result.recency, row.enqueued_ms)
            fallback = result.recency.fallback_priority
            joined.recency = True
        joined.full.append(
            (
                row.offset,
                row.enqueued_ms,
                None if row.expires_ms >= NEVER_MS else row.expires_ms,
                row.size,
                destination.label,
                fresh_until_ms,
                fallback,
                body_id,
                result.predecessor,
                1 if result.creation else None,
                header,
                body,
            )
        )

    def _freshness(self, recency: Recency, now_ms: int) -> int:
        if recency.seconds < self._staleness.shortest_s:
            self._staleness.seen(recency.seconds)
        return now_ms + 1000 * recency.seconds

    def _expiry(self, message: Message, destination: _Destination, now_ms: int) -> int:
        ttl_ms = destination.ttl_ms
        wish_ms = message.expiry_ms
        if wish_ms is not None and wish_ms < ttl_ms and not destination.result.creation:
            ttl_ms = wish_ms
            if ttl_ms < self._retention.shortest_ttl_ms:
                self._retention.ttl_seen(ttl_ms)
        return min(now_ms + ttl_ms, NEVER_MS)

    def _destination_of(self, result: RouteResult) -> _Destination:
        """Return where the copies of a result go, and keep it unless it is of one message.

        Raises:
            UnicodeEncodeError: The name of a route cannot be written as UTF-8.
        """
        ttl_ms = NEVER_MS if result.ttl_ms is None or result.creation else result.ttl_ms
        if ttl_ms < self._retention.shortest_ttl_ms:
            self._retention.ttl_seen(ttl_ms)
        is_of_one_message = result.predecessor is not None or result.creation
        label = self._labels.intern_routes(result.routes)
        destination = _Destination(
            result=result,
            queue=self._queues.get(result.endpoint_id, result.priority),
            label=label,
            ttl_ms=ttl_ms,
            is_plain=result.recency is None and not is_of_one_message,
        )
        if not is_of_one_message:
            if len(self._destinations) >= _DESTINATIONS_MAX:
                # Cheaper than an order of use: those in use are back after one message each.
                self._destinations.clear()
            self._destinations[id(result)] = destination
        return destination
