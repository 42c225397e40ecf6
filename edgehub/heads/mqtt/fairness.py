"""Fairness among clients: the shares of the event loop and of a commit.

Owns the received bytes of a client that are not decoded yet. A large read is decoded in slices.
While other clients are active, a client pauses between its slices in proportion to the time they
took, and one with more than its share of unsettled bytes waits until some of them are settled. A
client alone never waits. Invariants: bytes keep their order; a wait lasts `WAIT_MAX_S` at most, so
PINGREQs are answered while nothing can be committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer
from edgehub.errors import ProtocolError
from edgehub.mqtt.packets import Subscribe, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.heads.mqtt.backlog import Backlog
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.mqtt.packets import Packet
    from edgehub.mqtt.server_decoder import Decoder

READ_BYTES_MIN: Final = 16 * 1024
"""Reads up to this size are decoded at once."""

SHARE_BYTES_MIN: Final = 24 * 1024
"""Unsettled bytes that every client may have: about fifty small messages in each commit."""

WAIT_MAX_S: Final = 0.05

SLICE_S: Final = 0.005
"""Longest time for the local messages of a client at once."""

_SLICE_PACKETS: Final = 64
_PIECE_BYTES: Final = 1024
_PAUSES_MAX: Final = 8
_SHARE: Final = 1.25
_ACTIVE_S: Final = 0.1
_REFRESH_S: Final = 0.005
_PEAK_DECAY: Final = 0.8


class FairShare:
    """The share of one client; the same for all clients of a listener.

    Args:
        clock: For the age of the last packet of a client.
        backlog: Unsettled bytes of all clients.
        connections: The signed-in connections.
    """

    def __init__(
        self, clock: Clock, backlog: Backlog, connections: Iterable[ClientConnection]
    ) -> None:
        self._clock = clock
        self._backlog = backlog
        self._connections = connections
        self._active = 0
        self._mean_peak = 0.0
        self._refreshed_s = 0.0

    def others(self) -> int:
        """Return how many clients other than the caller have been active recently."""
        now_s = self._clock.monotonic()
        if now_s - self._refreshed_s >= _REFRESH_S:
            # Only busy clients call this, and not for each message.
            self._refreshed_s = now_s
            since_s = now_s - _ACTIVE_S
            self._active = sum(1 for each in self._connections if each.heard_s >= since_s)
            # The peak, as between two commits next to nothing is unsettled.
            mean = self._backlog.used / max(1, self._active)
            self._mean_peak = max(mean, self._mean_peak * _PEAK_DECAY)
        return max(0, self._active - 1)

    @property
    def bytes_max(self) -> float:
        """Unsettled bytes that a client may have while others are active."""
        return max(SHARE_BYTES_MIN, _SHARE * self._mean_peak)


class Turn:
    """The turns of one client.

    Args:
        clock: For the waits.
        share: Of each client.
        connection: Its connection.

    Attributes:
        is_over: Whether other clients have a turn first, whatever this one has unsettled.
        is_waiting: Whether the client waits for its next turn and must not be read; true between
            slices as long as bytes or packets of it are left.
    """

    __slots__ = (
        "_at",
        "_began_s",
        "_clock",
        "_connection",
        "_not_before_s",
        "_rest",
        "_share",
        "_timer",
        "is_over",
        "is_waiting",
    )

    def __init__(self, clock: Clock, share: FairShare, connection: ClientConnection) -> None:
        self._clock = clock
        self._share = share
        self._connection = connection
        self._timer = Timer(clock, self._next)
        self._rest = b""
        self._at = 0
        self._began_s = 0.0
        self._not_before_s = 0.0
        self.is_over = False
        self.is_waiting = False

    def is_long(self, began_s: float) -> bool:
        """Return whether the work since `began_s` has taken as long as a slice may."""
        return self._clock.monotonic() - began_s >= SLICE_S

    def charge(self, began_s: float) -> None:
        """Record that the work since `began_s` costs much more than messages do."""
        self.is_over = True
        self._began_s = began_s

    def add(self, data: bytes) -> None:
        """Append received bytes to those that wait."""
        self._rest = self._rest[self._at :] + data
        self._at = 0
        self.is_over = True

    def decode(self, decoder: Decoder, packets: list[Packet]) -> None:
        """Decode the next slice of what waits.

        Raises:
            ProtocolError: If the stream is malformed; nothing waits any more.
        """
        self._began_s = self._clock.monotonic()
        try:
            while len(packets) < _SLICE_PACKETS and self.has_rest:
                at = self._at
                self._at = at + _PIECE_BYTES
                decoder.feed(self._rest[at : self._at], packets)
                if packets and isinstance(packets[-1], Subscribe | Unsubscribe):
                    # One piece holds filters enough.
                    break
        except ProtocolError:
            self._rest = b""
            raise
        finally:
            self.is_over = self.has_rest

    def end(self, unsettled_bytes: int) -> int:
        """End a slice and decide when the next one begins.

        Returns:
            Unsettled bytes at which `wake` is to be called, -1 = it need not be.
        """
        others = self._share.others()
        pause_s = 0.0
        is_over, self.is_over = self.is_over, self.has_rest
        if is_over:
            now_s = self._clock.monotonic()
            pause_s = min(WAIT_MAX_S, (now_s - self._began_s) * min(others, _PAUSES_MAX))
            self._not_before_s = now_s + pause_s
        if others and unsettled_bytes > self._share.bytes_max:
            self._wait(WAIT_MAX_S)
            return int(self._share.bytes_max) // 2
        if is_over:
            self._wait(pause_s)
        return -1

    def wake(self) -> None:
        """Begin the next turn early: enough is settled."""
        if self.is_waiting:
            self._timer.cancel()
            self._wait(max(0.0, self._not_before_s - self._clock.monotonic()))

    def close(self) -> None:
        """Drop what waits; the connection is closed."""
        self._timer.cancel()
        self._rest = b""
        self.is_waiting = False

    @property
    def has_rest(self) -> bool:
        """Return whether bytes wait."""
        return self._at < len(self._rest)

    def _wait(self, seconds: float) -> None:
        self.is_waiting = True
        if seconds:
            self._timer.restart(seconds)
        else:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._timer.cancel()
        if self.is_waiting:
            self.is_waiting = False
            self._connection.next_turn()
