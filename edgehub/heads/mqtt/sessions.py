"""Sessions by client id: who is connected, and what outlives a connection.

Owns the connected clients, and the subscriptions of stored sessions and when they end; the table on
disk follows them. Invariant: one connection per client id; the later one closes the earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from edgehub.heads.mqtt.packets import ConnectCode
from edgehub.heads.mqtt.session_writes import SessionWrites
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from edgehub.clock import Clock, TimerHandle
    from edgehub.heads.mqtt.session_writes import Done
    from edgehub.heads.mqtt.will import PendingWills
    from edgehub.store.sessions import StoredSession


class SessionStore(Protocol):
    """Stored sessions on disk."""

    async def load(self) -> Mapping[str, StoredSession]:
        """Give the sessions by client id."""

    def save(
        self,
        client_id: str,
        subscriptions: Mapping[str, int],
        *,
        expiry_s: int | None,
        is_away: bool,
    ) -> Awaitable[None]:
        """Store the session of a client; done once it is durable."""

    def delete(self, client_id: str) -> Awaitable[None]:
        """Forget the session of a client; done once that is durable."""


class Local(Protocol):
    """The local topic space, which follows connections and sessions."""

    def left(self, client_id: str) -> None:
        """A client is not connected any more."""

    def ended(self, client_id: str) -> None:
        """The session of a client is over."""


class Closable(Protocol):
    """A connection that can be taken over."""

    def close(self, reason: CloseReason) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


class _Session:
    """A session that outlives its connection.

    Attributes:
        subscriptions: Options by topic filter.
        expiry_s: Seconds that it lasts while its client is away, None = for ever.
        timer: Ends it, None = its client is there, or it does not end.
        is_away: Its client is not connected, and its time runs.
        left_s: What is left of its time at the hub's start, None = it has not begun.
    """

    __slots__ = ("expiry_s", "is_away", "left_s", "subscriptions", "timer")

    def __init__(
        self, subscriptions: dict[str, int], expiry_s: int | None, left_s: float | None
    ) -> None:
        self.subscriptions = subscriptions
        self.expiry_s = expiry_s
        self.left_s = left_s
        self.is_away = False
        self.timer: TimerHandle | None = None


class Sessions(Generic[C]):
    """Sessions of connections of type `C`.

    Args:
        store: Their place on disk.
        clock: For their ends.
        wills: Told when a client is back and when its session ends.
        local: Told when a client leaves and when its session ends.
        clients_max: Most clients connected at once.
        stored_max: Most sessions that outlive their connection.
        spawn: Runs a write to the store in the background.
        begun: Told when a session that began or ended is durable, or why it is not.

    Attributes:
        clients_max: See above; may be changed.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        clock: Clock,
        wills: PendingWills,
        local: Local,
        clients_max: int,
        stored_max: int,
        spawn: Callable[[Coroutine[None, None, None]], object],
        begun: Done,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wills = wills
        self._local = local
        self.clients_max = clients_max
        self._stored_max = stored_max
        self._begun = begun
        self._writes = SessionWrites(self._write_now, spawn)
        self._connected: dict[str, C] = {}
        self._stored: dict[str, _Session] = {}

    async def load(self) -> None:
        """Read the stored sessions, before the first client."""
        self._stored = {
            client_id: _Session(dict(stored.subscriptions), stored.expiry_s, stored.left_s)
            for client_id, stored in (await self._store.load()).items()
        }

    def subscriptions(self) -> dict[str, Mapping[str, int]]:
        """Give the subscriptions of all stored sessions by client id."""
        return {client_id: each.subscriptions for client_id, each in self._stored.items()}

    def start(self) -> None:
        """Let the time of the sessions run; from here on sessions can be written."""
        for client_id, session in list(self._stored.items()):
            if session.expiry_s is None:
                continue
            if session.left_s is None:
                # Its client was connected when the hub stopped.
                session.is_away = True
                self._changed(client_id)
                self._end_after(client_id, session, session.expiry_s)
            elif session.left_s <= 0:
                self._end(client_id)
            else:
                self._end_after(client_id, session, session.left_s)

    def close(self) -> None:
        """Stop their time; what is on disk says when they end."""
        for session in self._stored.values():
            if session.timer is not None:
                session.timer.cancel()

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

    def admit(
        self, client_id: str, connection: C, *, clean: bool, expiry_s: int | None
    ) -> tuple[bool, dict[str, int]]:
        """Make `connection` the one of its client id; an earlier one is closed first.

        Args:
            client_id: The signed-in client.
            connection: Its connection.
            clean: Whether to begin without what an earlier session left.
            expiry_s: Seconds that the session outlives the connection, None = for ever.

        Returns:
            Whether a stored session was there, and the subscriptions to keep changing.

        Raises:
            SignInError: If there are too many clients or stored sessions.
        """
        earlier = self._connected.get(client_id)
        if earlier is None and len(self._connected) >= self.clients_max:
            raise SignInError(ConnectCode.UNAVAILABLE, "too many clients; see mqtt.clients_max")
        is_new = expiry_s != 0 and client_id not in self._stored
        if is_new and len(self._stored) >= self._stored_max:
            raise SignInError(ConnectCode.UNAVAILABLE, "too many stored sessions")
        if earlier is not None:
            earlier.close(CloseReason.TAKEN_OVER)
        self._connected[client_id] = connection
        if clean:
            self._wills.session_ended(client_id)
        else:
            self._wills.session_resumed(client_id)
        return self._begin(client_id, clean=clean, expiry_s=expiry_s)

    def leave(self, client_id: str, connection: C, *, expiry_s: int | None) -> None:
        """Forget a connection; harmless when another one has the client id by now.

        Args:
            client_id: Its client.
            connection: The connection that ended.
            expiry_s: Seconds that the session outlives it, None = for ever.
        """
        if self._connected.get(client_id) is not connection:
            return
        del self._connected[client_id]
        self._local.left(client_id)
        session = self._stored.get(client_id)
        if session is None:
            self._local.ended(client_id)
            return
        if expiry_s == 0:
            del self._stored[client_id]
            self._changed(client_id)
            self._local.ended(client_id)
        elif expiry_s is not None or session.expiry_s is not None:
            session.expiry_s = expiry_s
            session.is_away = True
            self._changed(client_id)
            if expiry_s is not None:
                self._end_after(client_id, session, expiry_s)

    def hub_leaves(self, client_id: str, connection: C) -> None:
        """Forget a connection that the hub itself ends; the next start counts the time anew."""
        if self._connected.get(client_id) is connection:
            del self._connected[client_id]

    def save(self, client_id: str, done: Done, *, changed: bool) -> None:
        """Store what a client subscribes to now; `done` is told when that is durable.

        Without a change it is told at once, unless an earlier one is still on its way.
        """
        if changed or self._writes.is_pending(client_id):
            self._writes.changed(client_id, done)
        else:
            done(None)

    def _begin(
        self, client_id: str, *, clean: bool, expiry_s: int | None
    ) -> tuple[bool, dict[str, int]]:
        stored = self._stored.pop(client_id, None)
        if stored is not None and stored.timer is not None:
            stored.timer.cancel()
        is_present = stored is not None and not clean
        subscriptions = stored.subscriptions if stored is not None and not clean else {}
        if expiry_s == 0:
            if stored is not None:
                self._changed(client_id)
            return is_present, subscriptions
        self._stored[client_id] = _Session(subscriptions, expiry_s, None)
        # A session without an end that goes on as it was needs no word on disk, so that thousands
        # of clients that come back after an outage do not wait for it.
        if not is_present or expiry_s is not None or (stored and stored.expiry_s is not None):
            self._changed(client_id)
        return is_present, subscriptions

    def _changed(self, client_id: str) -> None:
        self._writes.changed(client_id, self._begun)

    def _write_now(self, client_id: str) -> Awaitable[None]:
        session = self._stored.get(client_id)
        if session is None:
            return self._store.delete(client_id)
        return self._store.save(
            client_id,
            dict(session.subscriptions),
            expiry_s=session.expiry_s,
            is_away=session.is_away,
        )

    def _end_after(self, client_id: str, session: _Session, seconds: float) -> None:
        session.timer = self._clock.call_later(seconds, lambda: self._end(client_id))

    def _end(self, client_id: str) -> None:
        del self._stored[client_id]
        self._changed(client_id)
        self._local.ended(client_id)
        self._wills.session_ended(client_id)
