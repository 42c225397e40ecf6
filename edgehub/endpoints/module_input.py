"""The endpoint of one input of one module that is connected to this hub's own listener.

Owns what is in flight towards that input; the session, its topic and its packets belong to the
listener. Invariants: the link is up exactly while the module is connected and subscribed; a row is
settled once, by the module's PUBACK, by the time-out, or when the module disconnects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.clock import Clock, Timer
from edgehub.message import NEVER_MS, FailureKind, SendResult, module_input

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.message import Message, Row

ROWS_IN_FLIGHT_MAX: Final = 100
"""Messages without PUBACK towards one input; small clients keep few packets."""

_CHECKS_PER_TIMEOUT: Final = 4


class ModuleSessions(Protocol):
    """The listener's connected modules, as this endpoint sees them."""

    def is_connected(self, module_id: str, input_name: str) -> bool:
        """Return whether the module is connected and subscribed to that input."""

    def watch(self, module_id: str, input_name: str, changed: Callable[[bool], None]) -> None:
        """Call `changed` at each change of `is_connected`, on the loop's thread."""

    def deliver(
        self,
        module_id: str,
        input_name: str,
        message: Message,
        settle: Callable[[SendResult], None],
        *,
        expires_in_ms: int | None,
    ) -> None:
        """Send with QoS 1; delivered after PUBACK, at once when the module was granted QoS 0.

        `expires_in_ms` is what is left of the message's time to live, None = it has no end.
        """

    def unsent_bytes(self, module_id: str) -> int:
        """Return the bytes for this module that have not left the machine."""


class ModuleInputEndpoint:
    """The endpoint of one module input; implements `Endpoint`.

    Args:
        module_id: The module.
        input_name: Its input.
        sessions: The listener.
        clock: Timers.
        now_ms: Hub time.
        ack_timeout_s: Time in which a module must confirm a message.
    """

    def __init__(
        self,
        module_id: str,
        input_name: str,
        sessions: ModuleSessions,
        *,
        clock: Clock,
        now_ms: Callable[[], int],
        ack_timeout_s: float = 30.0,
    ) -> None:
        self.id = module_input(module_id, input_name)
        self._module_id = module_id
        self._input_name = input_name
        self._sessions = sessions
        self._clock = clock
        self._now_ms = now_ms
        self._ack_timeout_s = ack_timeout_s
        self._listener: EndpointListener | None = None
        self._is_up = False
        self._sends = 0
        self._in_flight: dict[int, tuple[Row, Settle, float]] = {}
        self._watch = Timer(clock, self._check_timeouts)

    @property
    def state(self) -> str:
        """Return the state: `connecting`, `up`, `down`, `parked` or `closed`."""
        return "up" if self._is_up else "down"

    @property
    def retry_in_s(self) -> float | None:
        """Return None: the module connects by itself."""
        return None

    @property
    def row_bytes_max(self) -> int | None:
        """Return None: the listener took the message, so it fits."""
        return None

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, for windows and limits."""
        return [row.size for row in rows]

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""
        return self._sessions.unsent_bytes(self._module_id)

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        sent_at = self._clock.monotonic()
        now_ms = self._now_ms()
        for row in rows:
            self._sends += 1
            send = self._sends
            self._in_flight[send] = (row, settle, sent_at)
            self._sessions.deliver(
                self._module_id,
                self._input_name,
                row.message,
                self._settle_of(send),
                expires_in_ms=None if row.expires_ms >= NEVER_MS else row.expires_ms - now_ms,
            )
        if self._in_flight:
            self._watch.start(self._ack_timeout_s / _CHECKS_PER_TIMEOUT)

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        self._listener = listener
        self._sessions.watch(self._module_id, self._input_name, self._changed)
        self._changed(self._sessions.is_connected(self._module_id, self._input_name))
        try:
            await asyncio.Event().wait()
        finally:
            self._listener = None
            await self.close()

    def retry_now(self) -> None:
        """Do nothing: the module connects by itself."""

    def retry_within(self, seconds: float) -> None:
        """Do nothing, likewise."""

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
        self._is_up = False
        self._give_up("closed by this hub")

    def _changed(self, connected: bool) -> None:
        listener = self._listener
        if listener is None or connected == self._is_up:
            return
        self._is_up = connected
        if connected:
            listener.link_up(rows_max=ROWS_IN_FLIGHT_MAX)
        else:
            reason = "module not connected or not subscribed"
            self._give_up(reason)
            listener.link_down(reason, parked=False)

    def _settle_of(self, send: int) -> Callable[[SendResult], None]:
        def settle(result: SendResult) -> None:
            # A late PUBACK of a send that was given up finds nothing.
            entry = self._in_flight.pop(send, None)
            if entry is not None:
                row, settle_row, _ = entry
                settle_row(row, result)

        return settle

    def _give_up(self, reason: str) -> None:
        self._watch.cancel()
        in_flight, self._in_flight = self._in_flight, {}
        result = SendResult(FailureKind.DISCONNECTED, reason)
        for row, settle, _ in in_flight.values():
            settle(row, result)

    def _check_timeouts(self) -> None:
        oldest_allowed = self._clock.monotonic() - self._ack_timeout_s
        result = SendResult(FailureKind.TIMEOUT, f"no PUBACK for {self._ack_timeout_s:g} s")
        # In order of sending, so the first one that is young enough ends the search.
        for send, (row, settle, sent_at) in list(self._in_flight.items()):
            if sent_at > oldest_allowed:
                break
            del self._in_flight[send]
            settle(row, result)
        if self._in_flight:
            self._watch.start(self._ack_timeout_s / _CHECKS_PER_TIMEOUT)
