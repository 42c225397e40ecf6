"""The file endpoint: rows as JSON Lines, on stable storage before they count as delivered.

Owns the file through `JsonLinesFile`, on a worker thread, and the rows not yet written. Invariants:
a row is settled as delivered after the fsync that covers it; rows that arrive during one share the
next. A disk that is full or broken takes the link down, so that rows wait without being counted as
tried, and comes back with back-off.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import orjson

from edgehub.endpoints.link_state import LinkedEndpoint, LinkState
from edgehub.endpoints.record import encode_record
from edgehub.message import DELIVERED, FailureKind, SendResult

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.json_lines import JsonLinesFile
    from edgehub.message import EndpointId, Row


class FileEndpoint(LinkedEndpoint):
    """An endpoint that writes a file; implements `Endpoint`.

    Args:
        endpoint_id: Its name.
        file: Written by this endpoint alone.
        clock: Timers, and the wall clock for rotation.
        rng: Randomness for jitter.
        utc_ms: Returns the UTC, in milliseconds since 1970, of a hub time.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        file: JsonLinesFile,
        *,
        clock: Clock,
        rng: random.Random,
        utc_ms: Callable[[int], int],
    ) -> None:
        self.id = endpoint_id
        self._clock = clock
        self._utc_ms = utc_ms
        self._file = file
        self._link = LinkState(endpoint_id, clock=clock, rng=rng)
        self._pending: list[tuple[Row, Settle]] = []
        self._writing: list[tuple[Row, Settle]] = []
        self._unsent_bytes = 0
        self._arrived = asyncio.Event()

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the sizes of the rows as the hub counts them, close enough to their lines."""
        return [row.size for row in rows]

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""
        return self._unsent_bytes

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        for row in rows:
            self._pending.append((row, settle))
            self._unsent_bytes += row.size
        self._arrived.set()

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        try:
            while True:
                try:
                    await self._write_while_possible(listener)
                except OSError as error:
                    where = error.filename or self._file.path
                    reason = f"{where}: {error.strerror or error}"
                    self._give_up(reason)
                    wait_s = self._link.down(reason, listener)
                await self._link.wait(wait_s)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
        self._link.closed()
        self._give_up("closed by this hub")
        await _in_thread(self._file.close)

    async def _write_while_possible(self, listener: EndpointListener) -> NoReturn:
        await _in_thread(self._file.open)
        self._link.up()
        listener.link_up(rows_max=None)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._writing, self._pending = self._pending, []
            rows = [row for row, _ in self._writing]
            await _in_thread(self._append, rows, self._clock.wall_ms(), done=self._settle_written)
            self._link.worked()

    def _settle_written(self) -> None:
        written, self._writing = self._writing, []
        self._unsent_bytes -= sum(row.size for row, _ in written)
        for row, settle in written:
            settle(row, DELIVERED)

    def _append(self, rows: Sequence[Row], now_ms: int) -> None:
        lines = b"".join(
            encode_record(row, self._utc_ms, option=orjson.OPT_APPEND_NEWLINE) for row in rows
        )
        self._file.append(lines, now_ms)

    def _give_up(self, reason: str) -> None:
        given_up = self._writing + self._pending
        self._writing, self._pending = [], []
        self._unsent_bytes = 0
        self._arrived.clear()
        result = SendResult(FailureKind.DISCONNECTED, reason)
        for row, settle in given_up:
            settle(row, result)


async def _in_thread(
    function: Callable[..., None], *arguments: object, done: Callable[[], None] | None = None
) -> None:
    # A thread cannot be cancelled, and nothing else may use the file until it ends: a cancellation
    # waits for it, and its result counts.
    job = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if done is not None and job.exception() is None:
            done()
        raise
    if done is not None:
        done()
