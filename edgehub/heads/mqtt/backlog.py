"""Bytes of messages that clients sent and that are not settled yet.

Owns the count over all connections, and the connections that wait for it to shrink. Invariant: it
counts every message that is submitted or waits to be, those of closed connections included, because
the store still has them in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edgehub.devices.bounds import Bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.bounds import KnownIds, Usage

MESSAGE_OVERHEAD_BYTES: Final = 256
"""Memory that a message takes in addition to its topic, properties and body; keeps floods of tiny
messages inside the bound."""


class Backlog(Bound):
    """The shared count; see `Bound`."""

    __slots__ = ("_empty", "_waiting")

    def __init__(self, name: str, limit: int, known: KnownIds) -> None:
        super().__init__(name, limit, known)
        self._waiting: dict[Usage, dict[Callable[[], None], None]] = {}
        self._empty: asyncio.Event | None = None

    def wait(self, usage: Usage, resume: Callable[[], None]) -> None:
        """Call `resume` once half of what clients of this kind may use is free again."""
        self._waiting.setdefault(usage, {})[resume] = None

    def check(self) -> None:
        """Resume the connections that wait; called once per burst of settled messages."""
        if self._waiting:
            for usage in list(self._waiting):
                if usage.used * 2 <= usage.limit:
                    for resume in self._waiting.pop(usage):
                        resume()
        if self._empty is not None and not self.used:
            self._empty.set()

    async def until_empty(self) -> None:
        """Wait until every submitted message is settled."""
        self._empty = asyncio.Event()
        if self.used:
            await self._empty.wait()
