"""An endpoint that is connected in its windows only, or while an urgent row waits.

Owns when the link of another endpoint is open; that one owns the link. Invariants: outside of its
windows nothing is connected; a window lasts as long as is set, on elapsed time, whatever happens to
the wall clock; rows in flight at its end have a few seconds to settle.

While the wall clock is not trusted the link stays open: a schedule means nothing then, and a
gateway without a battery for its clock would collect rows until they expire. This is shown in the
log and by `keeps_windows`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from edgehub.clock import Clock, Timer
from edgehub.endpoints.schedule import last_start_ms, next_start_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.endpoints.endpoint import Endpoint, EndpointListener, Settle
    from edgehub.endpoints.schedule import ScheduleOptions
    from edgehub.message import EndpointId, Priority, Row, SendResult

POLL_S: Final = 60.0
"""The wall clock may step, and become trusted, at any time; it is polled."""

URGENT_OPEN_S: Final = 10.0
"""After the last urgent row the link stays open for so long: alarms come in groups."""

CLOSE_GRACE_S: Final = 5.0
"""Rows in flight at the end of a window may settle for so long."""

CLOSED: Final = "closed"
_REASON: Final = "outside of its windows"
_NO_DATE: Final = "the clock is not trusted"

log = structlog.get_logger(__name__)


class Prioritised(Protocol):
    """A queue with a priority."""

    @property
    def priority(self) -> Priority:
        """Return the priority; 0 is the best."""


class ScheduledEndpoint:
    """An endpoint with windows around another one; implements `Endpoint`.

    Args:
        inner: The endpoint that is opened and closed.
        options: See `ScheduleOptions`.
        clock: Timers, and the wall clock for the schedule alone.
        trusted: Returns whether the wall clock is right.
        urgent_waits: Returns whether a row of a priority or a better one waits.
    """

    def __init__(
        self,
        inner: Endpoint,
        options: ScheduleOptions,
        *,
        clock: Clock,
        trusted: Callable[[], bool],
        urgent_waits: Callable[[int], bool],
    ) -> None:
        self.id: EndpointId = inner.id
        self._inner = inner
        self._options = options
        self._clock = clock
        self._trusted = trusted
        self._urgent_waits = urgent_waits
        self._listener: EndpointListener | None = None
        self._is_open = False
        self._passes = False
        self._was_trusted = True
        self._open_until = -math.inf
        self._served_ms: int | None = None
        self._in_flight = 0
        self._settle_to: Settle | None = None
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._timer = Timer(clock, self._wake.set)

    @property
    def state(self) -> str:
        """Return the state of the endpoint, `closed` outside of the windows."""
        return self._inner.state if self._is_open else CLOSED

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until the next try, or while closed until the next window."""
        if self._is_open:
            return self._inner.retry_in_s
        return self._next_window_s()

    @property
    def keeps_windows(self) -> bool:
        """Return whether the link is closed outside of windows; not while the date is unknown."""
        return not self._is_open or self._trusted()

    @property
    def mqtt_version(self) -> str | None:
        """Return the version of MQTT in use, `3.1.1` or `5`; None = not connected."""
        return getattr(self._inner, "mqtt_version", None)

    @property
    def left_out_filters(self) -> tuple[str, ...]:
        """Return suspended subscriptions, which the peer has answered by closing."""
        return getattr(self._inner, "left_out_filters", ())

    @property
    def row_bytes_max(self) -> int | None:
        """Return the largest packet that the peer takes, None = not known."""
        return self._inner.row_bytes_max

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, for windows and limits."""
        return self._inner.wire_bytes(rows)

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""
        return self._inner.unsent_bytes()

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        self._settle_to = settle
        self._in_flight += len(rows)
        self._inner.send_batch(rows, self._settle)

    def retry_now(self) -> None:
        """Stop a running connect back-off; a window that is closed stays so."""
        self._inner.retry_now()

    def retry_within(self, seconds: float) -> None:
        """Shorten a running connect back-off to `seconds`; harmless while up or parked."""
        self._inner.retry_within(seconds)

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
        await self._inner.close()

    def rows_ready(self, queue: Prioritised) -> None:
        """Record that a queue of this endpoint has new rows; urgent ones open the link."""
        urgent = self._options.urgent_priority
        if urgent is not None and queue.priority <= urgent:
            self._wake.set()

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        self._listener = listener
        try:
            while True:
                await self._until(is_open=True)
                if self._was_trusted:
                    log.info("endpoint.window_opened", endpoint_id=self.id)
                async with asyncio.TaskGroup() as group:
                    self._is_open = self._passes = True
                    inner = group.create_task(self._inner.run(self), name=f"window[{self.id}]")
                    await self._until(is_open=False)
                    await self._end_window()
                    inner.cancel()
                self._is_open = False
                log.info("endpoint.window_closed", endpoint_id=self.id)
        finally:
            self._is_open = self._passes = False
            self._timer.cancel()

    # Calls of the inner endpoint; they have no effect once the window is over.

    def link_up(self, *, rows_max: int | None) -> None:
        """Record that rows can be sent; `rows_max` = unconfirmed rows that the peer allows."""
        if self._passes and self._listener is not None:
            self._listener.link_up(rows_max=rows_max)

    def link_down(self, reason: str, *, parked: bool) -> None:
        """Record that the link is down; rows in flight were settled. Parked = needs an operator."""
        if self._passes and self._listener is not None:
            self._listener.link_down(reason, parked=parked)

    async def _end_window(self) -> None:
        # The pump sends nothing more from here on; rows in flight may still be confirmed.
        self.link_down(_REASON, parked=False)
        self._passes = False
        deadline = self._clock.monotonic() + CLOSE_GRACE_S
        timer = self._clock.call_later(CLOSE_GRACE_S, self._settled.set)
        try:
            while self._in_flight and self._clock.monotonic() < deadline:
                self._settled.clear()
                await self._settled.wait()
        finally:
            timer.cancel()

    async def _until(self, *, is_open: bool) -> None:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            self._poll(now)
            if (now < self._open_until) is is_open:
                self._timer.cancel()
                return
            self._wait_from(now)
            await self._wake.wait()

    def _poll(self, now: float) -> None:
        options, wall_ms = self._options, self._clock.wall_ms()
        start_ms = last_start_ms(options.open_at, wall_ms)
        if start_ms is not None and start_ms != self._served_ms:
            rest_s = (start_ms - wall_ms) / 1000 + options.open_for_s
            if rest_s > 0:
                # A clock that steps back into a window that was served does not open it again.
                self._served_ms = start_ms
                self._open_until = max(self._open_until, now + rest_s)
        if options.urgent_priority is not None and self._urgent_waits(options.urgent_priority):
            self._open_until = max(self._open_until, now + URGENT_OPEN_S)
        trusted = self._trusted()
        if not trusted:
            self._open_until = max(self._open_until, now + POLL_S)
        if trusted is not self._was_trusted:
            self._was_trusted = trusted
            if trusted:
                log.info("endpoint.windows_kept", endpoint_id=self.id)
            else:
                log.warning("endpoint.windows_not_kept", endpoint_id=self.id, reason=_NO_DATE)

    def _wait_from(self, now: float) -> None:
        self._timer.cancel()
        wait_s = POLL_S
        if now < self._open_until:
            wait_s = min(wait_s, self._open_until - now)
        else:
            wait_s = min(wait_s, self._next_window_s() or POLL_S)
        self._timer.start(wait_s)

    def _next_window_s(self) -> float | None:
        wall_ms = self._clock.wall_ms()
        start_ms = next_start_ms(self._options.open_at, wall_ms)
        return None if start_ms is None else (start_ms - wall_ms) / 1000

    def _settle(self, row: Row, result: SendResult) -> None:
        self._in_flight -= 1
        self._settled.set()
        assert self._settle_to is not None
        self._settle_to(row, result)
