"""Sessions by client id: who is connected, and what outlives a connection.

Owns the connected clients and the subscriptions of stored sessions; the table on disk follows them.
Invariant: one connection per client id; the later one closes the earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from edgehub.heads.mqtt.packets import ConnectCode
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping


class SessionStore(Protocol):
    """Stored sessions on disk."""

    async def load(self) -> dict[str, dict[str, int]]:
        """Give client id to topic filter to granted quality of service."""

    def save(self, client_id: str, subscriptions: Mapping[str, int]) -> Awaitable[None]:
        """Store the session of a client; done once it is durable."""

    def delete(self, client_id: str) -> Awaitable[None]:
        """Forget the session of a client; done once that is durable."""


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
        write: Runs an operation of the store in the background, in order.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        clients_max: int,
        stored_max: int,
        write: Callable[[Awaitable[None]], None],
    ) -> None:
        self._store = store
        self._clients_max = clients_max
        self._stored_max = stored_max
        self._write = write
        self._connected: dict[str, C] = {}
        self._stored: dict[str, dict[str, int]] = {}

    async def load(self) -> None:
        """Read the stored sessions, before the first client."""
        self._stored = await self._store.load()

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
                self._write(self._store.delete(client_id))
            return False, {}
        if not known:
            self._stored[client_id] = {}
            self._write(self._store.save(client_id, {}))
        return known, self._stored[client_id]

    def leave(self, client_id: str, connection: C) -> None:
        """Forget a connection; harmless when another one has the client id by now."""
        if self._connected.get(client_id) is connection:
            del self._connected[client_id]

    def save(self, client_id: str, subscriptions: Mapping[str, int]) -> Awaitable[None]:
        """Store what a client subscribed to."""
        return self._store.save(client_id, dict(subscriptions))
