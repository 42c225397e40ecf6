"""The keep-alive of a client.

Owns one timer per connection. Invariant: a client is closed at one and a half times its keep-alive
after its last packet [MQTT-3.1.2-24], also while it is paused and its PINGREQs are not read. A
client without a keep-alive gets a default that counts only while it is paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer
from edgehub.heads.mqtt.limits import STALL_TIMEOUT_S
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.heads.mqtt.transport import DRAINING

if TYPE_CHECKING:
    from edgehub.heads.mqtt.client_connection import ClientConnection

FACTOR: Final = 1.5


class KeepAlive:
    """Closes the connection of a client that is silent for too long.

    Args:
        connection: The connection.
        clock: For the timer.
        keep_alive_s: Of the CONNECT, 0 = none.
    """

    __slots__ = ("_clock", "_connection", "_silence_max_s", "_timer", "seconds")

    def __init__(
        self,
        connection: ClientConnection,
        clock: Clock,
        *,
        keep_alive_s: int,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._silence_max_s = keep_alive_s * FACTOR if keep_alive_s else STALL_TIMEOUT_S
        self._timer = Timer(clock, self._check)
        self._timer.start(self._silence_max_s)
        self.seconds = keep_alive_s

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check(self) -> None:
        # The timer is not armed again whenever bytes arrive.
        left_s = self._connection.heard_s + self._silence_max_s - self._clock.monotonic()
        if left_s <= 0:
            pauses = self._connection.pauses
            if pauses & ~DRAINING:
                self._connection.close(CloseReason.STALLED)
                return
            if self.seconds and not pauses:
                self._connection.close(CloseReason.KEEP_ALIVE)
                return
            left_s = self._silence_max_s
        self._timer.restart(left_s)
