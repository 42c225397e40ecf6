"""Bytes that clients handed in and that are not settled yet: what the hub holds for them.

Owns the count over all connections and the lists of those that wait for it to shrink. Invariant: it
counts all messages submitted or held and not yet settled, those of closed connections included,
because the store still has them in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edgehub.devices.bounds import Bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.bounds import KnownIds, Usage

MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a message costs in memory beside its topic, properties and body; keeps floods of tiny ones
inside the bound."""


class Backlog(Bound):
    """The shared count.

    Args:
        bytes_max: Bound over all connections.
        connection_bytes_max: Bound of one connection.
        known: The identities in force.
    """

    __slots__ = ("_empty", "_waiting", "connection_bytes_max")

    def __init__(self, *, bytes_max: int, connection_bytes_max: int, known: KnownIds) -> None:
        super().__init__("unacknowledged bytes", bytes_max, known)
        self.connection_bytes_max = connection_bytes_max
        self._waiting: dict[Usage, dict[Callable[[], None], None]] = {}
        self._empty: asyncio.Event | None = None

    def wait(self, usage: Usage, resume: Callable[[], None]) -> None:
        """Register `resume`, to be called once half of what such clients may use is free again."""
        self._waiting.setdefault(usage, {})[resume] = None

    def check(self) -> None:
        """Wake the connections that wait; called after bytes were settled, once per burst."""
        if self._waiting:
            for usage in list(self._waiting):
                if usage.used * 2 <= usage.limit:
                    for resume in self._waiting.pop(usage):
                        resume()
        if self._empty is not None and not self.used:
            self._empty.set()

    async def until_empty(self) -> None:
        """Wait until everything that was handed in is settled."""
        self._empty = asyncio.Event()
        if self.used:
            await self._empty.wait()
