"""The end of a connection whose shared access signature is to be renewed.

Owns one timer. The peer closes a connection when its signature ends, whatever is under way then.
Invariant: before that nothing new is sent, what is in flight may be confirmed, and the connection
is closed by this hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.mqtt_link import SharedAccess

REASON: Final = "the shared access signature is renewed"
CHECK_S: Final = 0.25
_RENEWED_AT: Final = 0.8
_ENDED_AT: Final = 0.9
"""Parts of the life of a signature: the first is for what is in flight."""


class Renewal:
    """Ends each connection in time.

    Args:
        access: How the connection signs in, None = with no signature; then nothing ever ends.
        clock: For the timer.
        is_idle: Returns whether nothing is in flight.
        end: Closes the connection.

    Attributes:
        is_due: Whether nothing new is to be sent on the present connection.
    """

    __slots__ = ("_access", "_clock", "_end", "_is_idle", "_timer", "_waits_s", "is_due")

    def __init__(
        self,
        access: SharedAccess | None,
        *,
        clock: Clock,
        is_idle: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._access = access
        self._clock = clock
        self._is_idle = is_idle
        self._end = end
        self._timer = Timer(clock, self._check)
        self._waits_s = 0.0
        self.is_due = False

    def begin(self) -> None:
        """Begin with a new connection."""
        self.stop()
        if self._access is not None:
            self._waits_s = (_ENDED_AT - _RENEWED_AT) * self._access.lasts_s
            self._timer.start(_RENEWED_AT * self._access.lasts_s)

    def stop(self) -> None:
        """Forget the connection; it has ended."""
        self.is_due = False
        self._timer.cancel()

    def _check(self) -> None:
        self.is_due = True
        if self._is_idle() or self._waits_s <= 0:
            self._end(REASON)
            return
        self._waits_s -= CHECK_S
        self._timer.start(CHECK_S)
