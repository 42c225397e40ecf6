"""Runs the journal's file operations on a thread.

Invariant: one job at a time, also where the caller of one was cancelled: a thread cannot be
cancelled, and the next job waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """One job at a time; its callers hold a lock."""

    def __init__(self) -> None:
        self._job: asyncio.Future[Any] | None = None

    async def do(self, function: Callable[..., T], *arguments: object) -> T:
        """Run `function` on the thread and return its result."""
        if self._job is not None and not self._job.done():
            await asyncio.wait([self._job])
            # Its caller was cancelled; its result is read from disk again.
            self._job.exception()
        job = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        self._job = job
        return await asyncio.shield(job)
