"""Writes of stored sessions.

Owns the changes that are not durable yet. Invariants: at most one write of a client is in progress,
and it has the newest state, so that a client that keeps changing its subscriptions costs one write
per commit; writes of one client never overtake each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Done = Callable[[StoreError | None], None]


class SessionWrites:
    """Writes changed sessions.

    Args:
        write: Writes the present state of a client's session.
        spawn: Runs a coroutine in the background.
    """

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._write_now = write
        self._spawn = spawn
        # A client id is in here exactly while a task writes its session.
        self._waiting: dict[str, list[Done]] = {}

    def is_pending(self, client_id: str) -> bool:
        """Return whether the present state of a client's session may not be durable yet."""
        return client_id in self._waiting

    def changed(self, client_id: str, done: Done) -> None:
        """Write a session; `done` is called once its present state, or a newer one, is durable.

        Args:
            client_id: Of the session that was changed, begun or ended.
            done: Called with None, or the error of the write.
        """
        waiting = self._waiting.get(client_id)
        if waiting is None:
            self._waiting[client_id] = [done]
            self._spawn(self._write(client_id))
        else:
            waiting.append(done)

    async def _write(self, client_id: str) -> None:
        try:
            while waiting := self._waiting[client_id]:
                self._waiting[client_id] = []
                error = await self._written(client_id)
                for done in waiting:
                    done(error)
        finally:
            del self._waiting[client_id]

    async def _written(self, client_id: str) -> StoreError | None:
        try:
            await self._write_now(client_id)
        except StoreError as error:
            return error
        return None
