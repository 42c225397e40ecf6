"""TLS of a listener with a bound on handshakes that are under way.

A connection costs memory from its first byte, and whoever connects and then says nothing is only
noticed when the time for the handshake is over. Invariant: no more than `HANDSHAKES_MAX` handshakes
of a listener are under way; beyond that a connection is closed before one begins.
"""

from __future__ import annotations

import ssl
import weakref
from collections import deque
from typing import Any, Final

HANDSHAKES_MAX: Final = 1_000
_LOOKED_AT: Final = 4
"""Handshakes looked at for each new one; more than one, so that what is over never piles up."""


class TooManyHandshakesError(OSError):
    """The connection is closed; as an error of the socket it is not worth a line of the log."""


class ServerContext(ssl.SSLContext):
    """Settings of TLS for a listener; see the module.

    Attributes:
        refused_total: Connections that were closed because of the bound.
    """

    def __init__(self, *_protocol: int) -> None:
        self.refused_total = 0
        # Begun handshakes, oldest first, as far as it is not known that they are over.
        self._begun: deque[weakref.ref[ssl.SSLObject]] = deque()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection.

        Raises:
            TooManyHandshakesError: If too many have begun and are not over.
        """
        self._look_at(_LOOKED_AT)
        if len(self._begun) >= HANDSHAKES_MAX:
            self._look_at(HANDSHAKES_MAX // 16)
        if len(self._begun) >= HANDSHAKES_MAX:
            self.refused_total += 1
            raise TooManyHandshakesError("too many TLS handshakes are under way")
        begun = super().wrap_bio(*arguments, **options)
        self._begun.append(weakref.ref(begun))
        return begun

    def _look_at(self, count: int) -> None:
        # Those that go on move to the end, so that all are looked at in turn.
        for _ in range(min(count, len(self._begun))):
            reference = self._begun.popleft()
            begun = reference()
            if begun is not None and begun.version() is None:
                self._begun.append(reference)
