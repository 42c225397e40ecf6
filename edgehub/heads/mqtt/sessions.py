"""Sessions by client id: connected clients, and sessions that outlive their connection.

Owns the connected clients, the packet ids that they sent with QoS 2, and the subscriptions of
stored sessions and when they end; the table on disk follows them. Invariants: there is one
connection per client id, and a later one closes the earlier; without room for another stored
session, that of the anonymous client that has been absent longest is evicted.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.received import RECEIVED_MAX, ReceivedIds, write_refusal
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.mqtt.packets import ConnectCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from edgehub.clock import Clock, TimerHandle
    from edgehub.devices.bounds import KnownIds
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.session_table import SessionTable
    from edgehub.heads.mqtt.will import PendingWills
    from edgehub.store.row_changes import Settle


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
        written: Done once its present state is durable, None = it is.
    """

    number: int
    subscriptions: dict[str, int]
    expiry_s: int | None
    absent_s: float | None = None
    since_s: float | None = None
    timer: TimerHandle | None = None
    written: asyncio.Future[None] | None = None


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
        evicted: Called with the client whose session was evicted, and seconds of its absence.

    Attributes:
        clients: Bound of connected clients.
        stored: Bound of stored sessions.
        unreleased: Bound of packet ids that clients sent with QoS 2.
    """

    def __init__(
        self,
        store: SessionTable,
        *,
        clock: Clock,
        wills: PendingWills,
        local: LocalSpace,
        clients_max: int,
        stored_max: int,
        known: KnownIds,
        evicted: Callable[[str, float], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._wills = wills
        self._local = local
        self._evicted = evicted
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
        self._new_ids = partial(ReceivedIds, bound=self.unreleased, store=store, local=local)

    async def load(self) -> None:
        """Read the stored sessions, before the first client."""
        for client_id, stored in (await self._store.load()).items():
            self._stored[client_id] = _Session(
                stored.number, dict(stored.subscriptions), stored.expiry_s, stored.absent_s
            )
            self._last_number = max(self._last_number, stored.number)
            self._received[client_id] = self._new_ids(
                client_id, session=stored.number, packet_ids=stored.received
            )
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

    def document(self, client_id: str) -> dict[str, Any]:
        """Describe the session of a client that is connected or has a stored one.

        `absent_s` is null while the client is connected, `expiry_s` for a session without an end.
        """
        connection, stored = self._connected.get(client_id), self._stored.get(client_id)
        since_s = None if stored is None else stored.since_s
        filters = {} if stored is None else stored.subscriptions
        messages, size = self._local.waiting(client_id)
        return {
            "client_id": client_id,
            "anonymous": self.clients.is_anonymous(client_id),
            "connected": connection is not None,
            "stored": stored is not None,
            "expiry_s": 0 if stored is None else stored.expiry_s,
            "absent_s": None if since_s is None else self._clock.monotonic() - since_s,
            "subscriptions": len(filters if connection is None else connection.subscriptions),
            "waiting": messages,
            "waiting_bytes": size,
        }

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
        await self._changed(client_id)
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

    def save(self, client_id: str, settle: Settle, *, changed: bool) -> None:
        """Store the subscriptions of a client; `settle` is called when they are durable.

        Without a change it is called at once, unless an earlier one is still being written.
        """
        if changed:
            self._changed(client_id)
        session = self._stored.get(client_id)
        if session is None or session.written is None:
            settle(0, None)
        else:
            session.written.add_done_callback(lambda written: settle(0, write_refusal(written)))

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
            received = self._new_ids(client_id, session=number, is_durable=expiry_s != 0)
        if expiry_s == 0:
            received.keep_in_memory()
        self._received[client_id] = received
        admitted = Admitted(is_present=is_present, subscriptions=subscriptions, received=received)
        if expiry_s == 0:
            if stored is not None:
                self._changed(client_id)
            return admitted
        session = self._stored[client_id] = _Session(number, subscriptions, expiry_s)
        self.stored.of(client_id).used += 1
        if is_present and stored is not None:
            session.written = stored.written
        # An unchanged session without an end needs no write, so that thousands of clients that
        # come back after an outage do not wait for it.
        if not is_present or expiry_s is not None or (stored and stored.expiry_s is not None):
            self._changed(client_id)
        return admitted

    def _changed(self, client_id: str) -> asyncio.Future[None]:
        session = self._stored.get(client_id)
        if session is None:
            return self._store.delete(client_id)
        session.written = self._store.save(
            client_id,
            session.subscriptions,
            number=session.number,
            expiry_s=session.expiry_s,
            is_away=session.since_s is not None,
        )
        return session.written

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
