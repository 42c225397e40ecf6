"""Sessions by client id: who is connected, and what outlives a connection.

Owns the connected clients and the subscriptions of stored sessions; the table on disk follows them,
by way of `session_writes`.
Invariant: one connection per client id; the later one closes the earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from edgehub.heads.mqtt.packets import ConnectCode
from edgehub.heads.mqtt.session_writes import SessionWrites
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from edgehub.heads.mqtt.session_writes import Done, SessionStore


class Closable(Protocol):
    """A connection that can be taken over."""

    def close(self, reason: CloseReason) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


class Sessions(Generic[C]):
    """Sessions of connections of type `C`.

    Args:
        store: Their place on disk.
        clients_max: Most clients connected at once.
        stored_max: Most sessions that outlive their connection.
        spawn: Runs a write to the store in the background.
        begun: Told when a session that began or ended is durable, or why it is not.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        clients_max: int,
        stored_max: int,
        spawn: Callable[[Coroutine[None, None, None]], object],
        begun: Done,
    ) -> None:
        self._store = store
        self._clients_max = clients_max
        self._stored_max = stored_max
        self._begun = begun
        self._connected: dict[str, C] = {}
        self._stored: dict[str, dict[str, int]] = {}
        self._writes = SessionWrites(store, self._stored, spawn)

    async def load(self) -> None:
        """Read the stored sessions, before the first client."""
        self._stored.update(await self._store.load())

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._connected.values()))

    def __len__(self) -> int:
        return len(self._connected)

    def get(self, client_id: str) -> C | None:
        """Give the connection of a client id."""
        return self._connected.get(client_id)

    @property
    def stored(self) -> int:
        """Number of stored sessions."""
        return len(self._stored)

    def admit(self, client_id: str, connection: C, *, clean: bool) -> tuple[bool, dict[str, int]]:
        """Make `connection` the one of its client id; an earlier one is closed first.

        Returns:
            Whether a stored session was there, and the subscriptions to keep changing.

        Raises:
            SignInError: If there are too many clients or stored sessions.
        """
        earlier = self._connected.get(client_id)
        if earlier is None and len(self._connected) >= self._clients_max:
            raise SignInError(ConnectCode.UNAVAILABLE, "too many clients; see mqtt.clients_max")
        known = client_id in self._stored
        if not clean and not known and len(self._stored) >= self._stored_max:
            raise SignInError(ConnectCode.UNAVAILABLE, "too many stored sessions")
        if earlier is not None:
            earlier.close(CloseReason.TAKEN_OVER)
        self._connected[client_id] = connection
        if clean:
            if known:
                del self._stored[client_id]
                self._writes.changed(client_id, self._begun)
            return False, {}
        if not known:
            self._stored[client_id] = {}
            self._writes.changed(client_id, self._begun)
        return known, self._stored[client_id]

    def leave(self, client_id: str, connection: C) -> None:
        """Forget a connection; harmless when another one has the client id by now."""
        if self._connected.get(client_id) is connection:
            del self._connected[client_id]

    def save(self, client_id: str, done: Done) -> None:
        """Store what a client subscribes to now; `done` is told when that is durable."""
        self._writes.changed(client_id, done)
