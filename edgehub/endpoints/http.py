"""The HTTP endpoint: rows as JSON arrays in POST requests, one request at a time.

Owns the connection, its back-off and what was handed over. Invariants: a row is settled exactly
once; rows leave in the order in which they were handed over, and a request leaves after the answer
to the one before, so that no peer sees two rows of a sender the wrong way round; what a peer
refuses is narrowed down to the row before a row is blamed for it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from edgehub.endpoints.backoff import Backoff, RetryWait
from edgehub.endpoints.http_answer import judge
from edgehub.endpoints.http_link import HttpLinkError, open_link
from edgehub.endpoints.record import encode_record
from edgehub.message import FailureKind, SendResult

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock, TimerHandle
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.http_answer import Verdict
    from edgehub.endpoints.http_link import Answer, HttpLink, HttpLinkOptions
    from edgehub.message import EndpointId, Row

PARKED_RETRY_S: Final = 60.0

_CHECKS_PER_TIMEOUT: Final = 4
_MEMO_MAX: Final = 8192
_THREAD_BYTES: Final = 65_536

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpointOptions:
    """One HTTP endpoint.

    Attributes:
        link: Whom to connect to.
        batch_rows_max: Rows of one request.
        batch_bytes_max: Bytes of the records of one request; a larger row goes alone.
        timeout_s: A peer that neither answers nor takes bytes for so long is given up.
        gzip: Compress requests.
    """

    link: HttpLinkOptions
    batch_rows_max: int = 100
    batch_bytes_max: int = 2**20
    timeout_s: float = 30.0
    gzip: bool = False


class _Entry:
    __slots__ = ("record", "row", "settle")

    def __init__(self, row: Row, record: bytes, settle: Settle) -> None:
        self.row = row
        self.record = record
        self.settle = settle


class HttpEndpoint:
    """See the module; implements `Endpoint`.

    Args:
        endpoint_id: Its name.
        options: See `HttpEndpointOptions`.
        clock: Timers, and the wall clock for Retry-After.
        rng: Randomness for jitter.
        utc_ms: Gives the UTC, in milliseconds since 1970, of a hub time.
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
        self._backoff = Backoff(rng)
        self._retry = RetryWait(clock)
        self._state = "connecting"
        self._was_up = False
        self._told = ""
        self._link: HttpLink | None = None
        self._memo: dict[int, bytes] = {}
        self._pending: deque[_Entry] = deque()
        # Requests that were refused as a whole, in parts; the last one is sent next.
        self._parts: list[list[_Entry]] = []
        self._current: list[_Entry] = []
        self._in_doubt = False
        self._unwritten_bytes = 0
        self._shrink = 1.0
        self._arrived = asyncio.Event()
        self._watch: TimerHandle | None = None
        self._progress_at = 0.0
        self._progress_seen = (0, 0)

    @property
    def state(self) -> str:
        """See `Endpoint`; `up` while the peer can be connected to, also between connections."""
        return self._state

    @property
    def retry_in_s(self) -> float | None:
        """See `Endpoint`."""
        return self._retry.remaining_s

    @property
    def row_bytes_max(self) -> int | None:
        """See `Endpoint`; a peer says what is too large when it gets it."""
        return None

    def wire_bytes(self, row: Row) -> int:
        """See `Endpoint`; the record and its comma, before compression."""
        record = self._record(row)
        if len(self._memo) >= _MEMO_MAX:
            self._memo.clear()
        # Sending follows at once, and writing the record is the dearest part of it.
        self._memo[row.offset] = record
        return len(record) + 1

    def unsent_bytes(self) -> int:
        """See `Endpoint`; compressed bytes count as what they stand for."""
        unsent = 0 if self._link is None else self._link.unsent_bytes()
        return self._unwritten_bytes + int(unsent * self._shrink)

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `Endpoint`."""
        for row in rows:
            record = self._memo.pop(row.offset, None) or self._record(row)
            self._pending.append(_Entry(row, record, settle))
            self._unwritten_bytes += len(record) + 1
        self._arrived.set()

    async def run(self, listener: EndpointListener) -> None:
        """See `Endpoint`."""
        try:
            while True:
                try:
                    await self._deliver(listener)
                except HttpLinkError as error:
                    wait_s = self._link_down(error, listener)
                await self._retry.wait(wait_s)
        finally:
            await self.close()

    def retry_now(self) -> None:
        """See `Endpoint`."""
        self._retry.end()

    def retry_within(self, seconds: float) -> None:
        """See `Endpoint`."""
        if self._state != "parked":
            self._retry.cut(seconds)

    async def close(self) -> None:
        """See `Endpoint`."""
        self._give_up("closed by this hub")
        self._state = "down"

    async def _deliver(self, listener: EndpointListener) -> NoReturn:
        if not self._was_up:
            self._state = "connecting"
        self._link = await open_link(self._options.link)
        self._state = "up"
        self._was_up = True
        self._told = ""
        log.info("endpoint.link_up", endpoint_id=self.id)
        listener.link_up(rows_max=None)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._parts or self._pending:
                await self._send_next()
            self._in_doubt = False

    async def _send_next(self) -> None:
        entries = self._current = self._parts.pop() if self._parts else self._gather()
        size = sum([len(entry.record) + 1 for entry in entries])
        body = b"[" + b",".join([entry.record for entry in entries]) + b"]"
        answer = await self._exchange(await self._packed(body), size)
        verdict = judge(answer, self._clock.wall_ms())
        if verdict.broken:
            raise HttpLinkError(verdict.broken)
        if verdict.doubtful and self._in_doubt:
            # Twice in a row, with other rows: it is not the rows.
            raise HttpLinkError(verdict.result.reason)
        self._current = []
        if verdict.splits and len(entries) > 1:
            self._unwritten_bytes += size
            self._split(entries, probe=verdict.doubtful)
        else:
            self._apply(entries, verdict)

    def _gather(self) -> list[_Entry]:
        pending, options = self._pending, self._options
        entries = [pending.popleft()]
        size = len(entries[0].record) + 1
        while pending and len(entries) < options.batch_rows_max:
            size += len(pending[0].record) + 1
            if size > options.batch_bytes_max:
                break
            entries.append(pending.popleft())
        return entries

    async def _packed(self, body: bytes) -> bytes:
        if not self._options.gzip:
            return body
        if len(body) < _THREAD_BYTES:
            packed = gzip.compress(body, mtime=0)
        else:
            packed = await asyncio.to_thread(gzip.compress, body, mtime=0)
        self._shrink = len(body) / len(packed)
        return packed

    async def _exchange(self, body: bytes, size: int) -> Answer:
        # A peer may close an idle connection whenever it likes, also as it is used again: then the
        # request goes once more, over a new one.
        self._start_watch()
        try:
            if self._link is not None and self._link.is_open:
                try:
                    return await self._request(self._link, body, size)
                except HttpLinkError as error:
                    if not error.stale:
                        raise
                    self._unwritten_bytes += size
            self._link = await open_link(self._options.link)
            return await self._request(self._link, body, size)
        finally:
            self._stop_watch()

    async def _request(self, link: HttpLink, body: bytes, size: int) -> Answer:
        self._unwritten_bytes -= size
        return await link.request(body, encoding="gzip" if self._options.gzip else None)

    def _split(self, entries: list[_Entry], *, probe: bool) -> None:
        # The first row alone soon tells a peer that is ill from a row that makes it so.
        first, rest = (entries[:1], entries[1:]) if probe else ([], entries)
        middle = (len(rest) + 1) // 2
        self._parts += [part for part in (rest[middle:], rest[:middle], first) if part]

    def _apply(self, entries: list[_Entry], verdict: Verdict) -> None:
        by_id = verdict.by_id
        for entry in entries:
            result = verdict.result
            if by_id:
                result = by_id.get(entry.row.message.message_id, result)
            entry.settle(entry.row, result)
        self._in_doubt = verdict.doubtful
        if not verdict.doubtful:
            self._backoff.reset()
        if verdict.pauses:
            self._settle_rest(verdict.result)

    def _settle_rest(self, result: SendResult) -> None:
        rest = [*self._current]
        for part in reversed(self._parts):
            rest += part
        rest += self._pending
        self._current = []
        self._parts.clear()
        self._pending.clear()
        self._unwritten_bytes = 0
        for entry in rest:
            entry.settle(entry.row, result)

    def _link_down(self, error: HttpLinkError, listener: EndpointListener) -> float:
        self._give_up(error.reason)
        wait_s = PARKED_RETRY_S if error.parked else self._backoff.next_s()
        if error.parked:
            self._state = "parked"
        else:
            self._state = "down" if self._was_up else "connecting"
        if error.reason != self._told:
            # One line for each state of affairs, not for each try.
            self._told = error.reason
            log.warning(
                "endpoint.link_down",
                endpoint_id=self.id,
                reason=error.reason,
                retry_s=round(wait_s, 1),
            )
        listener.link_down(error.reason, parked=error.parked)
        return wait_s

    def _give_up(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort(reason)
        self._in_doubt = False
        self._arrived.clear()
        self._settle_rest(SendResult(FailureKind.DISCONNECTED, reason))

    def _record(self, row: Row) -> bytes:
        return encode_record(row, self._utc_ms)

    # A peer that is silent; a slow one takes bytes, even if a large request lasts minutes.

    def _start_watch(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._progress_seen = (0, 0)
        self._watch_later()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _watch_later(self) -> None:
        self._watch = self._clock.call_later(
            self._options.timeout_s / _CHECKS_PER_TIMEOUT, self._check_progress
        )

    def _check_progress(self) -> None:
        link = self._link
        now = self._clock.monotonic()
        if link is None or not link.is_open:
            # Connecting has a time limit of its own.
            self._progress_at = now
            self._watch_later()
            return
        progress = (link.unsent_bytes(), link.received_bytes)
        if progress != self._progress_seen:
            self._progress_seen = progress
            self._progress_at = now
        silent_s = now - self._progress_at
        if silent_s < self._options.timeout_s:
            self._watch_later()
            return
        reason = f"no answer for {silent_s:.0f} s"
        if self._current:
            # The peer is silent as a whole; only the row it owes first counts as tried.
            entry = self._current.pop(0)
            entry.settle(entry.row, SendResult(FailureKind.TIMEOUT, reason))
        link.abort(reason)
