"""The HTTP endpoint: rows as JSON arrays in POST requests, a few requests at once.

Owns the connections, their back-off and the rows that are not settled. Invariants: a row is settled
exactly once; rows of one sender leave in the order in which they were sent, and those of a request
after the answer to the one before, so that no peer sees two rows of a sender out of order; what a
peer refuses is narrowed down to the row before a row is blamed for it, with no other request in
flight.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

from edgehub.endpoints.http_answer import interpret
from edgehub.endpoints.http_link import HttpLinkError
from edgehub.endpoints.http_outbox import Outbox, OutboxRow
from edgehub.endpoints.http_slot import HttpSlot
from edgehub.endpoints.link_state import LinkedEndpoint, LinkState
from edgehub.endpoints.record import encode_record
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.hub_path import PATH_HEADER

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.http_answer import RequestResult
    from edgehub.endpoints.http_link import HttpLinkOptions
    from edgehub.message import EndpointId, Message, Row

_THREAD_BYTES: Final = 65_536
_GZIP_WBITS: Final = 31
"""Largest window, with header and checksum of gzip; its time is 0."""


class HttpEndpointOptions(Struct, frozen=True, kw_only=True):
    """One HTTP endpoint.

    Attributes:
        link: The peer, and how to sign in.
        batch_rows_max: Rows of one request.
        batch_bytes_max: Bytes of the records of one request; a larger row goes alone.
        requests_max: Requests at once, each over a connection of its own.
        timeout_s: After so long without an answer or progress a connection is closed.
        gzip: Compress requests.
        path_of: Returns the hubs that a message has passed, None = the peer is no hub.
    """

    link: HttpLinkOptions
    batch_rows_max: int = 100
    batch_bytes_max: int = 2**20
    requests_max: int = 8
    timeout_s: float = 30.0
    gzip: bool = False
    path_of: Callable[[Message], str] | None = None


class HttpEndpoint(LinkedEndpoint):
    """An endpoint that sends HTTP requests; implements `Endpoint`.

    Args:
        endpoint_id: Its name.
        options: See `HttpEndpointOptions`.
        clock: Timers, and the wall clock for Retry-After.
        rng: Randomness for jitter.
        utc_ms: Returns the UTC, in milliseconds since 1970, of a hub time.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        options: HttpEndpointOptions,
        *,
        clock: Clock,
        rng: random.Random,
        utc_ms: Callable[[int], int],
    ) -> None:
        self.id = endpoint_id
        self._options = options
        self._clock = clock
        self._utc_ms = utc_ms
        self._link = LinkState(endpoint_id, clock=clock, rng=rng)
        self._slots = [
            HttpSlot(options.link, clock=clock, timeout_s=options.timeout_s)
            for _ in range(options.requests_max)
        ]
        self._idle = list(reversed(self._slots))
        self._records: dict[int, bytes] = {}
        """Of the rows that were measured last, by offset."""
        self._outbox = Outbox()
        self._parts_bytes = 0
        # Requests that were refused as a whole, in parts; the last one is sent next.
        self._parts: list[list[OutboxRow]] = []
        self._suspects_peer = False
        self._shrink = 1.0
        self._arrived = asyncio.Event()

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes of each record and its comma, before compression."""
        # The rows are sent next, and writing the records is the most expensive part of it.
        self._records = {row.offset: self._record(row) for row in rows}
        return [len(record) + 1 for record in self._records.values()]

    def unsent_bytes(self) -> int:
        """Return the unsent bytes, see `Endpoint`; compressed ones with their size before.

        Rows that wait for the answer to their sender's last ones do not count: they do
        not wait for the link, and delay no other row.
        """
        unsent = sum([slot.unsent_bytes() for slot in self._slots])
        return self._outbox.ready_bytes + self._parts_bytes + int(unsent * self._shrink)

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        path_of = self._options.path_of
        records, self._records = self._records, {}
        for row in rows:
            record = records.get(row.offset) or self._record(row)
            path = None if path_of is None else path_of(row.message)
            self._outbox.put(OutboxRow(row, record, settle, path))
        self._arrived.set()

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        try:
            while True:
                try:
                    await self._deliver(listener)
                except* HttpLinkError as errors:
                    # Several connections may end at the same moment; one reason will do.
                    wait_s = self._link_down(_first(errors), listener)
                await self._link.wait(wait_s)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
        self._give_up("closed by this hub")
        self._link.closed()

    async def _deliver(self, listener: EndpointListener) -> NoReturn:
        self._link.trying()
        await self._slots[0].open()
        self._idle = list(reversed(self._slots))
        self._link.up()
        listener.link_up(rows_max=None)
        async with asyncio.TaskGroup() as group:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while entries := self._next_request():
                    slot = self._idle.pop()
                    slot.rows = entries
                    group.create_task(self._send(slot), name=f"http[{self.id}]")

    def _next_request(self) -> list[OutboxRow]:
        if not self._idle:
            return []
        alone = len(self._idle) == len(self._slots)
        if self._parts or self._suspects_peer:
            # Which row is at fault shows only when no other request is in flight.
            if not alone:
                return []
            if self._parts:
                part = self._parts.pop()
                self._parts_bytes -= _size(part)
                return part
        options = self._options
        entries = self._outbox.take(options.batch_rows_max, options.batch_bytes_max)
        if not entries and alone:
            self._suspects_peer = False
        return entries

    async def _send(self, slot: HttpSlot) -> None:
        entries = slot.rows
        body = b"[" + b",".join([entry.record for entry in entries]) + b"]"
        headers = "Content-Encoding: gzip\r\n" if self._options.gzip else ""
        if (path := entries[0].path) is not None:
            headers += f"{PATH_HEADER}: {path}\r\n"
        answer = await slot.request(await self._packed(body), headers)
        verdict = interpret(answer, self._clock.wall_ms())
        if verdict.broken:
            raise HttpLinkError(verdict.broken)
        if verdict.doubtful and self._suspects_peer:
            # Twice in a row, with other rows: it is not the rows.
            raise HttpLinkError(verdict.result.reason)
        slot.rows = []
        self._idle.append(slot)
        self._arrived.set()
        if verdict.splits and _is_divisible(entries, verdict):
            self._split(entries, probe=verdict.doubtful)
        else:
            self._outbox.done(entries)
            self._apply(entries, verdict)

    async def _packed(self, body: bytes) -> bytes:
        if not self._options.gzip:
            return body
        if len(body) < _THREAD_BYTES:
            packed = _gzip(body)
        else:
            packed = await asyncio.to_thread(_gzip, body)
        self._shrink = len(body) / len(packed)
        return packed

    def _split(self, entries: list[OutboxRow], *, probe: bool) -> None:
        # The first row alone shows soon whether the peer fails or a row makes it fail.
        first, rest = (entries[:1], entries[1:]) if probe else ([], entries)
        middle = (len(rest) + 1) // 2
        self._parts_bytes += _size(entries)
        self._parts += [part for part in (rest[middle:], rest[:middle], first) if part]

    def _apply(self, entries: list[OutboxRow], verdict: RequestResult) -> None:
        by_id = verdict.by_id
        for entry in entries:
            result = verdict.result
            if by_id:
                result = by_id.get(entry.row.message.message_id, result)
            entry.settle(entry.row, result)
        self._suspects_peer = verdict.doubtful
        if not verdict.doubtful:
            self._link.worked()
        if verdict.pauses:
            self._settle_rest(verdict.result)

    def _settle_rest(self, result: SendResult) -> None:
        rest: list[OutboxRow] = []
        for part in reversed(self._parts):
            rest += part
        self._outbox.done(rest)
        rest += self._outbox.clear()
        self._parts.clear()
        self._parts_bytes = 0
        for entry in rest:
            entry.settle(entry.row, result)

    def _link_down(self, error: HttpLinkError, listener: EndpointListener) -> float:
        self._give_up(error.reason)
        return self._link.down(error.reason, listener, parked=error.parked)

    def _give_up(self, reason: str) -> None:
        result = SendResult(FailureKind.DISCONNECTED, reason)
        for slot in self._slots:
            slot.abort(reason)
            rows, slot.rows = slot.rows, []
            for entry in rows:
                entry.settle(entry.row, result)
        self._suspects_peer = False
        self._arrived.clear()
        self._settle_rest(result)
        self._outbox.all_done()

    def _record(self, row: Row) -> bytes:
        return encode_record(row, self._utc_ms)


def _size(entries: list[OutboxRow]) -> int:
    return sum([entry.size for entry in entries])


def _is_divisible(entries: list[OutboxRow], verdict: RequestResult) -> bool:
    if verdict.result.kind is FailureKind.NOT_AUTHORIZED:
        # It is about who sent them.
        return len({entry.row.message.sender for entry in entries}) > 1
    return len(entries) > 1


def _first(errors: ExceptionGroup[HttpLinkError]) -> HttpLinkError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HttpLinkError)
    return error


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, level=9, wbits=_GZIP_WBITS)
