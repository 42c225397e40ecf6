"""The end of a client's shared access signature.

Owns one timer for each connection that signed in with one. Invariant: the connection is closed once
the time is trusted and past the expiry, however the clock of the machine was set in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.statistics import CloseReason

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.heads.mqtt.client_connection import ClientConnection

CHECK_S: Final = 60.0
"""Longest time between two looks at the clock, which may be set at any moment."""


class SignatureExpiry:
    """Closes the connection of a client whose signature has expired.

    Args:
        connection: The connection.
        clock: For the timer.
        identities: They know how long a signature holds.
        expires_s: When it ends, in seconds since 1970 in UTC.
    """

    __slots__ = ("_clock", "_connection", "_expires_s", "_identities", "_timer")

    def __init__(
        self,
        connection: ClientConnection,
        clock: Clock,
        identities: Identities,
        expires_s: int,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._identities = identities
        self._expires_s = expires_s
        self._timer = clock.call_later(self._wait_s(), self._check)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _wait_s(self) -> float:
        left_s = self._identities.seconds_left(self._expires_s)
        return CHECK_S if left_s is None else max(0.0, min(left_s, CHECK_S))

    def _check(self) -> None:
        wait_s = self._wait_s()
        if wait_s:
            self._timer = self._clock.call_later(wait_s, self._check)
        else:
            self._connection.close(CloseReason.EXPIRED)
