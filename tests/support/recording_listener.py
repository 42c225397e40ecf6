"""A pump's side of an endpoint: records link changes and results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Row, SendResult


class RecordingListener:
    """An `EndpointListener` and a settle function in one."""

    def __init__(self) -> None:
        self.links: list[str] = []
        self.rows_max: int | None = None
        self.results: dict[int, SendResult] = {}
        self._changed = asyncio.Event()

    def link_up(self, *, rows_max: int | None) -> None:
        """See `EndpointListener`."""
        self.rows_max = rows_max
        self.links.append("up")
        self._changed.set()

    def link_down(self, reason: str, *, parked: bool) -> None:
        """See `EndpointListener`."""
        self.links.append(f"parked: {reason}" if parked else f"down: {reason}")
        self._changed.set()

    def settle(self, row: Row, result: SendResult) -> None:
        """Record the one result of a row."""
        assert row.offset not in self.results, "settled twice"
        self.results[row.offset] = result
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on this record holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
