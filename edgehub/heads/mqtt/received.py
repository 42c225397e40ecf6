"""Packet ids of messages received with QoS 2 that the client has not released.

Owns the packet ids of one session, from PUBLISH to PUBREL. Invariants: while it has an id, a
PUBLISH with that id repeats its message; the id of a stored session is written in the transaction
of its message, or in a later one, so after a crash no message counts as stored that was not; a
PUBREL is answered once the id is deleted on disk. Source: MQTT 3.1.1 and 5, section 4.3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.local_message import LocalMessage
from edgehub.message import Message, Refusal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from edgehub.devices.bounds import Bound
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.session_table import SessionTable
    from edgehub.local_message import Settle

    Done = Callable[[], None]

RECEIVED_MAX: Final = 20_000
"""Unreleased packet ids of all sessions of a hub."""


class _Arrival(Struct, eq=False):
    """A message that is not durable yet, with the callbacks that wait for it.

    Attributes:
        open: Writes that it waits for.
        is_placed: Whether its packet id is being written.
    """

    waiters: list[tuple[Settle, int]]
    open: int = 1
    refusal: Refusal | None = None
    is_placed: bool = False


class ReceivedIds:
    """The packet ids of one session.

    Args:
        client_id: Whose session.
        bound: Of the ids of all sessions.
        store: Table of the ids.
        local: Writes the ids of local messages.
        session: Number of the session.
        packet_ids: Ids on disk.
        is_durable: Whether the session outlives its connection, so that its ids are on disk.
    """

    __slots__ = (
        "_arrivals",
        "_bound",
        "_client_id",
        "_is_durable",
        "_local",
        "_releasing",
        "_session",
        "_store",
    )

    def __init__(
        self,
        client_id: str,
        *,
        bound: Bound,
        store: SessionTable,
        local: LocalSpace,
        session: int,
        packet_ids: Iterable[int] = (),
        is_durable: bool = True,
    ) -> None:
        self._client_id = client_id
        self._bound = bound
        self._store = store
        self._local = local
        self._session = session
        self._is_durable = is_durable
        # None = it is durable.
        self._arrivals: dict[int, _Arrival | None] = dict.fromkeys(packet_ids)
        self._releasing: dict[int, list[Done]] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._arrivals

    @property
    def has_room(self) -> bool:
        """Whether another id fits into the bound."""
        return self._bound.of(self._client_id).has_room()

    def take(
        self,
        packet_id: int,
        message: object,
        submit: Callable[..., None],
        settle: Settle,
        token: int,
    ) -> None:
        """Submit a message with a new packet id.

        Args:
            packet_id: Of its PUBLISH.
            message: The message.
            submit: Submits it.
            settle: Called once message and id are durable, or with the refusal of the message.
            token: Passed to `settle`.
        """
        arrival = self._arrivals[packet_id] = _Arrival([(settle, token)])
        self._bound.of(self._client_id).used += 1

        def settled(_token: int, refusal: Refusal | None) -> None:
            if refusal is Refusal.UNROUTED:
                refusal = None
            if refusal is None and not arrival.is_placed:
                self._place(packet_id, arrival, None)
            self._close(packet_id, arrival, refusal)

        if not self._is_durable:
            submit(message, settled, 0)
            return
        with self._store.together():
            submit(message, settled, 0)
            if arrival.open and self._is_written(message):
                self._place(packet_id, arrival, message)

    def repeat(self, packet_id: int, settle: Settle, token: int) -> None:
        """Settle a repeated PUBLISH with the message of the same packet id."""
        arrival = self._arrivals[packet_id]
        if arrival is None:
            settle(token, None)
        else:
            arrival.waiters.append((settle, token))

    def release(self, packet_id: int, done: Done) -> bool:
        """Remove the packet id of a message that will not be sent again.

        Args:
            packet_id: Of the PUBREL.
            done: Called once that is durable.

        Returns:
            Whether there is such an id; `done` is not called otherwise.
        """
        waiting = self._releasing.get(packet_id)
        if waiting is not None:
            waiting.append(done)
            return True
        if self._arrivals.get(packet_id, self) is not None:
            # Unknown, or without its PUBREC yet, so that it cannot be released.
            return False
        self._forget(packet_id)
        if not self._is_durable:
            done()
            return True
        self._releasing[packet_id] = [done]
        future = self._store.release(self._session, packet_id)
        future.add_done_callback(lambda future: self._released(packet_id, future))
        return True

    def keep_in_memory(self) -> None:
        """Remove the packet ids from disk: the session ends with its connection now."""
        if self._is_durable and self._arrivals:
            self._store.forget(self._session)
        self._is_durable = False

    def close(self) -> None:
        """Remove all packet ids: the session is over."""
        self.keep_in_memory()
        self._bound.of(self._client_id).used -= len(self._arrivals)
        self._arrivals.clear()

    def _is_written(self, message: object) -> bool:
        """Return whether all changes of a message are in the current transactions."""
        if isinstance(message, LocalMessage):
            return not self._local.is_inner(message.topic)
        # The store gives an id to an appended message.
        return isinstance(message, Message) and bool(message.message_id)

    def _place(self, packet_id: int, arrival: _Arrival, message: object) -> None:
        if not self._is_durable:
            return
        arrival.is_placed = True
        arrival.open += 1
        if isinstance(message, LocalMessage):
            self._local.receive(
                self._session,
                packet_id,
                lambda _token, refusal: self._close(packet_id, arrival, refusal),
            )
        else:
            future = self._store.receive(self._session, packet_id)
            future.add_done_callback(
                lambda future: self._close(packet_id, arrival, write_refusal(future))
            )

    def _close(self, packet_id: int, arrival: _Arrival, refusal: Refusal | None) -> None:
        arrival.open -= 1
        arrival.refusal = arrival.refusal or refusal
        if arrival.open:
            return
        # The session may have ended in between.
        is_known = self._arrivals.get(packet_id) is arrival
        if is_known and arrival.refusal is None:
            self._arrivals[packet_id] = None
        elif is_known:
            self._forget(packet_id)
        if arrival.is_placed and not (self._is_durable and arrival.refusal is None):
            self._store.release(self._session, packet_id).add_done_callback(write_refusal)
        for settle, token in arrival.waiters:
            settle(token, arrival.refusal)

    def _forget(self, packet_id: int) -> None:
        del self._arrivals[packet_id]
        self._bound.of(self._client_id).used -= 1

    def _released(self, packet_id: int, future: asyncio.Future[None]) -> None:
        waiting = self._releasing.pop(packet_id)
        if write_refusal(future) is None:
            for done in waiting:
                done()


def write_refusal(future: asyncio.Future[None]) -> Refusal | None:
    """Return the refusal for a failed write, which is that the store is closed."""
    failed = future.cancelled() or future.exception() is not None
    return Refusal.CLOSED if failed else None
