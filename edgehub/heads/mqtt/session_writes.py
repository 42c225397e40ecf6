"""Stored sessions on their way to the disk.

Owns what has changed and is not durable yet. Invariants: of one client at most one write is under
way, and it carries the newest state, so that a client which changes its subscriptions without end
costs one write per commit; writes of one client never overtake each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from edgehub.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    Done = Callable[[StoreError | None], None]


class SessionStore(Protocol):
    """Stored sessions on disk."""

    async def load(self) -> dict[str, dict[str, int]]:
        """Give client id to topic filter to granted quality of service."""

    def save(self, client_id: str, subscriptions: Mapping[str, int]) -> Awaitable[None]:
        """Store the session of a client; done once it is durable."""

    def delete(self, client_id: str) -> Awaitable[None]:
        """Forget the session of a client; done once that is durable."""


class SessionWrites:
    """Writes changed sessions.

    Args:
        store: Their place on disk.
        stored: The sessions as they should be there; its owner changes it and then tells.
        spawn: Runs a coroutine in the background.
    """

    __slots__ = ("_spawn", "_store", "_stored", "_waiting")

    def __init__(
        self,
        store: SessionStore,
        stored: Mapping[str, Mapping[str, int]],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._store = store
        self._stored = stored
        self._spawn = spawn
        # A client id is in here exactly while a task writes its session.
        self._waiting: dict[str, list[Done]] = {}

    def changed(self, client_id: str, done: Done) -> None:
        """Have a session written; `done` is called once its present state, or a newer, is durable.

        Args:
            client_id: Whose session was changed, made or ended.
            done: Gets None, or why it could not be written.
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
        subscriptions = self._stored.get(client_id)
        try:
            if subscriptions is None:
                await self._store.delete(client_id)
            else:
                await self._store.save(client_id, dict(subscriptions))
        except StoreError as error:
            return error
        return None
