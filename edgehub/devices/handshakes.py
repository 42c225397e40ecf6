"""TLS of a listener with a bound on concurrent handshakes.

A connection costs memory from its first byte, and a client that connects and sends nothing is only
noticed when the handshake times out. Invariant: no more than `HANDSHAKES_MAX` handshakes
of a listener run at once; beyond that a connection is closed before one begins.
"""

from __future__ import annotations

import ssl
import weakref
from collections import deque
from typing import Any, Final

HANDSHAKES_MAX: Final = 1_000
_PRUNED: Final = 4
"""Handshakes checked for each new one; more than one, so that ended ones never pile up."""


class TooManyHandshakesError(OSError):
    """The connection is closed; asyncio does not log an `OSError` of a socket."""


class ServerContext(ssl.SSLContext):
    """Settings of TLS for a listener, with the bound on handshakes.

    Attributes:
        refused_total: Connections that were closed because of the bound.
        has_authorities: Whether clients may show certificates of an authority.
        own_certificates: Thumbprints of single certificates that clients may show.
    """

    def __init__(self, *_protocol: int) -> None:
        self.refused_total = 0
        self.has_authorities = False
        self.own_certificates: frozenset[str] = frozenset()
        # Handshakes that have begun, oldest first, as far as they are not known to have ended.
        self._begun: deque[weakref.ref[ssl.SSLObject]] = deque()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin the handshake of a connection.

        Raises:
            TooManyHandshakesError: If too many run.
        """
        self._prune(_PRUNED)
        if len(self._begun) >= HANDSHAKES_MAX:
            self._prune(HANDSHAKES_MAX // 16)
        if len(self._begun) >= HANDSHAKES_MAX:
            self.refused_total += 1
            raise TooManyHandshakesError("too many TLS handshakes at once")
        begun = super().wrap_bio(*arguments, **options)
        self._begun.append(weakref.ref(begun))
        return begun

    def _prune(self, count: int) -> None:
        # Those that still run move to the end, so that all are checked in turn.
        for _ in range(min(count, len(self._begun))):
            reference = self._begun.popleft()
            begun = reference()
            if begun is not None and begun.version() is None:
                self._begun.append(reference)
