"""Sessions by client id: connected clients, and sessions that outlive their connection.

Owns the connected clients, the packet ids that they sent with QoS 2, and the subscriptions of
stored sessions and when they end; the table on disk follows them. Invariants: there is one
connection per client id, and a later one closes the earlier; without room for another stored
session, that of the anonymous client that has been absent longest is evicted.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.received import RECEIVED_MAX, ReceivedIds
from edgehub.heads.mqtt.session_writes import SessionWrites
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.mqtt.packets import ConnectCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping

    from edgehub.clock import Clock, TimerHandle
    from edgehub.devices.bounds import KnownIds
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.session_table import SessionTable
    from edgehub.heads.mqtt.session_writes import Done
    from edgehub.heads.mqtt.will import PendingWills


class _Session(Struct, eq=False):
    """A session that outlives its connection.

    Attributes:
        number: Of this session; the next one of its client has another.
        subscriptions: Options by topic filter.
        expiry_s: Seconds that it outlives the connection, None = for ever.
        absent_s: How long its client had been absent at the hub's start, None = it was connected
            when the hub stopped.
        since_s: Monotonic time at which its client left, None = it is connected.
        timer: Ends it, None = its client is connected, or it does not end.
    """

    number: int
    subscriptions: dict[str, int]
    expiry_s: int | None
    absent_s: float | None = None
    since_s: float | None = None
    timer: TimerHandle | None = None


class Admitted(Struct, frozen=True, kw_only=True):
    """The session that a client finds when it connects.

    Attributes:
        is_present: Whether it is an earlier session.
        subscriptions: Options by topic filter, to be changed in place.
        received: Packet ids received with QoS 2.
    """

    is_present: bool
    subscriptions: dict[str, int]
    received: ReceivedIds


class SessionInfo(Struct, frozen=True, kw_only=True):
    """One session, connected or stored.

    Attributes:
        connected: Whether its client is connected.
        stored: Whether it outlives the connection.
        expiry_s: Seconds that it lasts while its client is absent, None = for ever.
        absent_s: Seconds since its client left, None = it is connected.
        subscriptions: Number of topic filters of a stored session.
    """

    client_id: str
    anonymous: bool
    connected: bool
    stored: bool
    expiry_s: int | None
    absent_s: float | None
    subscriptions: int


class Sessions:
    """Sessions of one listener.

    Args:
        store: Table of the stored sessions.
        clock: For their ends.
        wills: Notified when a client is back and when its session ends.
        local: Notified when a client leaves and when its session ends.
        clients_max: Most clients connected at once.
        stored_max: Most sessions that outlive their connection.
        known: The identities in force.
        spawn: Runs a write in the background.
        on_written: Called when the start or end of a session is durable, or with the error.
        evicted: Called with the client whose session was evicted, and seconds of its absence.

    Attributes:
        clients: Bound of connected clients.
        stored: Bound of stored sessions.
        unreleased: Bound of packet ids that clients sent with QoS 2.
    """

    def __init__(  # noqa: PLR0913 - its neighbours and bounds, each by name
        self,
        store: SessionTable,
        *,
        clock: Clock,
        wills: PendingWills,
        local: LocalSpace,
        clients_max: int,
        stored_max: int,
        known: KnownIds,
        spawn: Callable[[Coroutine[None, None, None]], object],
        on_written: Done,
        evicted: Callable[[str, float], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._wills = wills
        self._local = local
        self._on_written = on_written
        self._evicted = evicted
        self._writes = SessionWrites(self._write_now, spawn)
        self._connected: dict[str, ClientConnection] = {}
        self._stored: dict[str, _Session] = {}
        self._last_number = 0
        # Of all clients that are connected or have a stored session.
        self._received: dict[str, ReceivedIds] = {}
        # Stored sessions of anonymous clients that are absent, the longest absent first.
        self._yielding: dict[str, None] = {}
        self.clients = Bound("clients", clients_max, known, setting="mqtt.clients_max")
        self.stored = Bound("stored sessions", stored_max, known)
        self.unreleased = Bound("packet ids received with QoS 2", RECEIVED_MAX, known)

    async def load(self) -> None:
        """Read the stored sessions, before the first client."""
        for client_id, stored in (await self._store.load()).items():
            self._stored[client_id] = _Session(
                stored.number, dict(stored.subscriptions), stored.expiry_s, stored.absent_s
            )
            self._last_number = max(self._last_number, stored.number)
            self._received[client_id] = self._stored_ids(client_id, stored.number, stored.received)
        self.recount()

    def subscriptions(self) -> dict[str, Mapping[str, int]]:
        """Return the subscriptions of all stored sessions by client id."""
        return {client_id: each.subscriptions for client_id, each in self._stored.items()}

    def start(self) -> None:
        """Start the expiry of the sessions; from here on sessions can be written."""
        now_s = self._clock.monotonic()
        for client_id, session in list(self._stored.items()):
            absent_s = session.absent_s or 0.0
            session.since_s = now_s - absent_s
            if session.expiry_s is None:
                continue
            if session.absent_s is None:
                # Its client was connected when the hub stopped.
                self._changed(client_id)
            if absent_s >= session.expiry_s:
                self._end(client_id)
            else:
                self._end_after(client_id, session, session.expiry_s - absent_s)
        self.recount()

    def recount(self) -> None:
        """Count sessions and clients by kind, after identities have changed."""
        for bound, client_ids in ((self.clients, self._connected), (self.stored, self._stored)):
            anonymous = sum(1 for client_id in client_ids if bound.is_anonymous(client_id))
            bound.anonymous.used = anonymous
            bound.identified.used = len(client_ids) - anonymous
        for usage in (self.unreleased.anonymous, self.unreleased.identified):
            usage.used = 0
        for client_id, received in self._received.items():
            self.unreleased.of(client_id).used += len(received)
        absent = [
            (session.since_s, client_id)
            for client_id, session in self._stored.items()
            if session.since_s is not None and self.stored.is_anonymous(client_id)
        ]
        self._yielding = {client_id: None for _, client_id in sorted(absent)}

    def close(self) -> None:
        """Stop the timers; the table on disk has the times at which sessions end."""
        for session in self._stored.values():
            if session.timer is not None:
                session.timer.cancel()

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(list(self._connected.values()))

    def __len__(self) -> int:
        return len(self._connected)

    def get(self, client_id: str) -> ClientConnection | None:
        """Return the connection of a client id."""
        return self._connected.get(client_id)

    def excess(self) -> list[ClientConnection]:
        """List the anonymous connections beyond what anonymous clients may have, newest first."""
        more = self.clients.anonymous.used - self.clients.anonymous_limit
        anonymous = [
            connection
            for client_id, connection in reversed(self._connected.items())
            if self.clients.is_anonymous(client_id)
        ]
        return anonymous[: max(0, more)]

    def page(self, after: str, limit: int) -> list[str]:
        """List up to `limit` client ids after `after` in order, connected or stored."""
        client_ids = self._connected.keys() | self._stored.keys()
        return heapq.nsmallest(limit, (each for each in client_ids if each > after))

    def info(self, client_id: str) -> SessionInfo:
        """Describe the session of a client that is connected or has a stored one."""
        stored = self._stored.get(client_id)
        since_s = None if stored is None else stored.since_s
        return SessionInfo(
            client_id=client_id,
            anonymous=self.clients.is_anonymous(client_id),
            connected=client_id in self._connected,
            stored=stored is not None,
            expiry_s=0 if stored is None else stored.expiry_s,
            absent_s=None if since_s is None else self._clock.monotonic() - since_s,
            subscriptions=0 if stored is None else len(stored.subscriptions),
        )

    async def end(self, client_id: str) -> bool:
        """Close the connection of a client and end its session; done once that is durable.

        Returns:
            Whether there was either.

        Raises:
            StoreError: If it could not be written.
        """
        connection = self._connected.get(client_id)
        if connection is not None:
            connection.close(CloseReason.ENDED)
        if client_id not in self._stored:
            return connection is not None
        self._end(client_id)
        await self._write_now(client_id)
        return True

    def admit(
        self, client_id: str, connection: ClientConnection, *, clean: bool, expiry_s: int | None
    ) -> Admitted:
        """Make `connection` the one of its client id; an earlier one is closed first.

        Args:
            client_id: The signed-in client.
            connection: Its connection.
            clean: Whether to begin without what an earlier session left.
            expiry_s: Seconds that the session outlives the connection, None = for ever.

        Raises:
            SignInError: If there are too many clients or stored sessions.
        """
        earlier = self._connected.get(client_id)
        if earlier is None and not self.clients.of(client_id).has_room():
            raise SignInError(ConnectCode.UNAVAILABLE, self._crowded(client_id))
        if expiry_s != 0 and client_id not in self._stored:
            self._make_room(client_id)
        if earlier is not None:
            earlier.close(CloseReason.TAKEN_OVER)
        self._connected[client_id] = connection
        self.clients.of(client_id).used += 1
        if clean:
            self._wills.session_ended(client_id)
        else:
            self._wills.session_resumed(client_id)
        return self._begin(client_id, clean=clean, expiry_s=expiry_s)

    def leave(self, client_id: str, connection: ClientConnection, *, expiry_s: int | None) -> None:
        """Remove a connection, unless another one has the client id by now.

        Args:
            client_id: Its client.
            connection: The connection that ended.
            expiry_s: Seconds that the session outlives it, None = for ever.
        """
        if self._connected.get(client_id) is not connection:
            return
        self._disconnected(client_id)
        self._local.left(client_id)
        session = self._stored.get(client_id)
        if session is None:
            self._received.pop(client_id).close()
            self._local.ended(client_id)
            return
        if expiry_s == 0:
            self._received.pop(client_id).close()
            self._forget(client_id)
            self._changed(client_id)
            self._local.ended(client_id)
            return
        session.expiry_s = expiry_s
        session.since_s = self._clock.monotonic()
        if self.stored.is_anonymous(client_id):
            self._yielding[client_id] = None
        # Also for a session without an end: it keeps the order of absence over a restart.
        self._changed(client_id)
        if expiry_s is not None:
            self._end_after(client_id, session, expiry_s)

    def hub_leaves(self, client_id: str, connection: ClientConnection) -> None:
        """Remove a connection that the hub ends; its session expires from the next start on."""
        if self._connected.get(client_id) is connection:
            self._disconnected(client_id)

    def save(self, client_id: str, done: Done, *, changed: bool) -> None:
        """Store the subscriptions of a client; `done` is called when they are durable.

        Without a change it is called at once, unless an earlier one is still being written.
        """
        if changed or self._writes.is_pending(client_id):
            self._writes.changed(client_id, done)
        else:
            done(None)

    def _begin(self, client_id: str, *, clean: bool, expiry_s: int | None) -> Admitted:
        stored = self._forget(client_id)
        received = self._received.pop(client_id, None)
        is_present = stored is not None and not clean
        if stored is not None and received is not None and not clean:
            subscriptions, number = stored.subscriptions, stored.number
        else:
            if received is not None:
                received.close()
            subscriptions = {}
            number = self._last_number = self._last_number + 1
            received = self._stored_ids(client_id, number)
        if expiry_s == 0:
            received.keep_in_memory()
        self._received[client_id] = received
        admitted = Admitted(is_present=is_present, subscriptions=subscriptions, received=received)
        if expiry_s == 0:
            if stored is not None:
                self._changed(client_id)
            return admitted
        self._stored[client_id] = _Session(number, subscriptions, expiry_s)
        self.stored.of(client_id).used += 1
        # An unchanged session without an end needs no write, so that thousands of clients that
        # come back after an outage do not wait for it.
        if not is_present or expiry_s is not None or (stored and stored.expiry_s is not None):
            self._changed(client_id)
        return admitted

    def _stored_ids(
        self, client_id: str, number: int, packet_ids: Iterable[int] = ()
    ) -> ReceivedIds:
        return ReceivedIds(
            client_id,
            self.unreleased,
            store=self._store,
            local=self._local,
            session=number,
            packet_ids=packet_ids,
        )

    def _changed(self, client_id: str) -> None:
        self._writes.changed(client_id, self._on_written)

    def _write_now(self, client_id: str) -> Awaitable[None]:
        session = self._stored.get(client_id)
        if session is None:
            return self._store.delete(client_id)
        return self._store.save(
            client_id,
            dict(session.subscriptions),
            number=session.number,
            expiry_s=session.expiry_s,
            is_away=session.since_s is not None,
        )

    def _end_after(self, client_id: str, session: _Session, seconds: float) -> None:
        session.timer = self._clock.call_later(seconds, lambda: self._end(client_id))

    def _disconnected(self, client_id: str) -> None:
        del self._connected[client_id]
        self.clients.of(client_id).used -= 1

    def _forget(self, client_id: str) -> _Session | None:
        session = self._stored.pop(client_id, None)
        if session is not None:
            self.stored.of(client_id).used -= 1
            self._yielding.pop(client_id, None)
            if session.timer is not None:
                session.timer.cancel()
        return session

    def _make_room(self, client_id: str) -> None:
        if self.stored.of(client_id).has_room():
            return
        oldest = next(iter(self._yielding), None)
        if oldest is None:
            raise SignInError(ConnectCode.UNAVAILABLE, "too many stored sessions")
        since_s = self._stored[oldest].since_s
        assert since_s is not None, oldest
        self._end(oldest)
        self._evicted(oldest, self._clock.monotonic() - since_s)

    def _crowded(self, client_id: str) -> str:
        kind = ""
        if self.clients.is_anonymous(client_id) and self.clients.used < self.clients.limit:
            kind = "anonymous "
        return f"too many {kind}clients; see mqtt.clients_max"

    def _end(self, client_id: str) -> None:
        self._received.pop(client_id).close()
        self._forget(client_id)
        self._changed(client_id)
        self._local.ended(client_id)
        self._wills.session_ended(client_id)
