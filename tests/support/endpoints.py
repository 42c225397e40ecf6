"""Endpoints that misbehave on purpose, by the names the field uses for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.message import DELIVERED, EndpointId, FailureKind, SendResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.message import Row

DISCONNECTED = SendResult(FailureKind.DISCONNECTED, "link lost")


class StalledEndpoint:
    """Takes rows and never answers until told to; the others build on it."""

    def __init__(self, name: str = "upstream", *, rows_max: int | None = None) -> None:
        self.id = EndpointId(name)
        self.row_bytes_max: int | None = None
        self.retry_in_s: float | None = None
        self.rows_max = rows_max
        self.link_is_up = False
        self.pending: dict[int, tuple[Row, Settle]] = {}
        self.received: list[int] = []
        self.batches: list[list[int]] = []
        self.hints: list[float] = []
        self.retries = 0
        self.in_flight_most = 0
        self.listener: EndpointListener | None = None
        self._changed = asyncio.Event()
        self.started = asyncio.Event()
        self.up_at_start = True

    @property
    def state(self) -> str:
        """See `Endpoint`."""
        return "up" if self.link_is_up else "down"

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """See `Endpoint`."""
        return [row.size for row in rows]

    def unsent_bytes(self) -> int:
        """See `Endpoint`."""
        return 0

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `Endpoint`."""
        assert self.link_is_up
        self.batches.append([row.offset for row in rows])
        for row in rows:
            assert row.offset not in self.pending
            self.pending[row.offset] = (row, settle)
            self.received.append(row.offset)
        self.in_flight_most = max(self.in_flight_most, len(self.pending))
        self._answer(rows)
        self._changed.set()

    async def run(self, listener: EndpointListener) -> None:
        """See `Endpoint`."""
        self.listener = listener
        self.started.set()
        if self.up_at_start:
            self.revive()
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    def retry_now(self) -> None:
        """See `Endpoint`."""
        self.retries += 1

    def retry_within(self, seconds: float) -> None:
        """See `Endpoint`."""
        self.hints.append(seconds)

    async def close(self) -> None:
        """See `Endpoint`."""
        if self.link_is_up:
            self.cut()

    def settle(self, offset: int, result: SendResult = DELIVERED) -> None:
        """Answer for one row."""
        row, settle = self.pending.pop(offset)
        settle(row, result)

    def settle_all(self, result: SendResult = DELIVERED) -> None:
        """Answer for every row in flight."""
        for offset in list(self.pending):
            self.settle(offset, result)

    def cut(
        self, reason: str = "link lost", *, parked: bool = False, result: SendResult = DISCONNECTED
    ) -> None:
        """Lose the link as a real endpoint does: rows first, then the word to the listener."""
        assert self.listener is not None
        self.link_is_up = False
        self.settle_all(result)
        self.listener.link_down(reason, parked=parked)

    def revive(self) -> None:
        """Have the link again."""
        assert self.listener is not None
        self.link_is_up = True
        self.listener.link_up(rows_max=self.rows_max)

    async def wait_received(self, count: int) -> None:
        """Wait until that many rows came in, repeats included."""
        while len(self.received) < count:
            self._changed.clear()
            await self._changed.wait()

    def _answer(self, rows: Sequence[Row]) -> None:
        """Do nothing: this endpoint stalls."""


class RevivableEndpoint(StalledEndpoint):
    """Delivers at once while it is up; starts down and is revived by the test."""

    def __init__(self, name: str = "upstream", *, rows_max: int | None = None) -> None:
        super().__init__(name, rows_max=rows_max)
        self.up_at_start = False

    def _answer(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.settle(row.offset)


class FlakyEndpoint(StalledEndpoint):
    """Answers by a script per offset; rows without one are delivered.

    `script[offset]` is a list of results for its first sends, in order.
    """

    def __init__(self, script: dict[int, list[SendResult]], name: str = "upstream") -> None:
        super().__init__(name)
        self.script = script
        self.delivered: list[int] = []

    def _answer(self, rows: Sequence[Row]) -> None:
        for row in rows:
            results = self.script.get(row.offset)
            result = results.pop(0) if results else DELIVERED
            if result.kind is None:
                self.delivered.append(row.offset)
            self.settle(row.offset, result)


class RejectingEndpoint(StalledEndpoint):
    """Gives the same answer to every row of a device, and delivers all others."""

    def __init__(self, device: str, result: SendResult, name: str = "upstream") -> None:
        super().__init__(name)
        self.device = device
        self.result = result

    def _answer(self, rows: Sequence[Row]) -> None:
        for row in rows:
            refused = row.message.device_id == self.device
            self.settle(row.offset, self.result if refused else DELIVERED)


class ThinLinkEndpoint(StalledEndpoint):
    """A link of a fixed rate and delay on the clock given; unsent bytes drain at the rate.

    Args:
        clock: Any clock; a manual one makes minutes pass in no time.
        rate_bytes_s: Rate of the link.
        delay_s: Round trip without transmission.
        on_arrival: Called with each row when it has been received.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rate_bytes_s: float,
        delay_s: float,
        on_arrival: Callable[[Row], None],
    ) -> None:
        super().__init__()
        self.clock = clock
        self.rate_bytes_s = rate_bytes_s
        self.delay_s = delay_s
        self.on_arrival = on_arrival
        self.busy_s = 0.0
        self.free_at = clock.monotonic()

    def unsent_bytes(self) -> int:
        """See `Endpoint`: what the link has not transmitted yet."""
        return round(max(0.0, self.free_at - self.clock.monotonic()) * self.rate_bytes_s)

    def _answer(self, rows: Sequence[Row]) -> None:
        for row in rows:
            now = self.clock.monotonic()
            transmission_s = row.size / self.rate_bytes_s
            self.free_at = max(now, self.free_at) + transmission_s
            self.busy_s += transmission_s
            self.clock.call_later(self.free_at + self.delay_s - now, self._arrive(row))

    def _arrive(self, row: Row) -> Callable[[], None]:
        def arrive() -> None:
            if row.offset in self.pending:
                self.on_arrival(row)
                self.settle(row.offset)

        return arrive
