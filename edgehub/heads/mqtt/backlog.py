"""Bytes that clients handed in and that are not settled yet: what the hub holds for them.

Owns the count over all connections and the list of those that wait for it to shrink. Invariant: it
counts all messages submitted or held and not yet settled, those of closed connections included,
because the store still has them in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a message costs in memory beside its topic, properties and body; keeps floods of tiny ones
inside the bound."""


class Backlog:
    """The shared count.

    Args:
        bytes_max: Bound over all connections.
        connection_bytes_max: Bound of one connection.

    Attributes:
        bytes: Unsettled bytes at present; message paths count it up and down in place.
    """

    __slots__ = ("_empty", "_waiting", "bytes", "bytes_max", "connection_bytes_max")

    def __init__(self, *, bytes_max: int, connection_bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.connection_bytes_max = connection_bytes_max
        self._waiting: dict[Callable[[], None], None] = {}
        self._empty: asyncio.Event | None = None

    @property
    def is_full(self) -> bool:
        """Whether connections with unacknowledged messages have to pause."""
        return self.bytes >= self.bytes_max

    def wait(self, resume: Callable[[], None]) -> None:
        """Have `resume` called once half of the bound is free again."""
        self._waiting[resume] = None

    def check(self) -> None:
        """Wake who waits; called after bytes were settled, once per burst."""
        if self._waiting and self.bytes * 2 <= self.bytes_max:
            waiting = list(self._waiting)
            self._waiting.clear()
            for resume in waiting:
                resume()
        if self._empty is not None and not self.bytes:
            self._empty.set()

    async def until_empty(self) -> None:
        """Wait until everything that was handed in is settled."""
        self._empty = asyncio.Event()
        if self.bytes:
            await self._empty.wait()
