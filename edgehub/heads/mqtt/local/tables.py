"""The local topic space on disk: retained messages, and queues of stored sessions.

Owns the tables `retained`, `local_message` and `local_queue`, and the changes that are not
committed yet. Changes are collected and join a group commit as one operation; the next ones are
collected while it runs, and a change that is undone before its commit is never written. Invariants:
a change is settled once it is durable or undone; a message is stored once for all sessions, and
deleted with the last of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct, field

from edgehub.clock import Clock, Timer
from edgehub.errors import StoreError
from edgehub.heads.mqtt.session_table import RECEIVE
from edgehub.local_message import LocalMessage
from edgehub.message import Refusal

if TYPE_CHECKING:
    import sqlite3

    from edgehub.heads.mqtt.local.shared import SharedSubscription
    from edgehub.local_message import Settle
    from edgehub.store.store import Store

log = structlog.get_logger(__name__)

DEQUEUE_DELAY_S: Final = 0.05
"""Confirmed messages are deleted within this time, like rows of queues."""

Key = tuple[str, int]
"""Client id and message id: one message in one session."""

_Statements = list[tuple[str, Sequence[tuple[Any, ...]]]]


class LocalEntry(Struct, eq=False):
    """A message of QoS 1 or 2 in the queue of a client.

    Attributes:
        qos: Quality of service of the delivery.
        retain: The retain flag of the delivery.
        identifiers: Subscription identifiers as they are written.
        share: The shared subscription that it came by, None = one of the client's own.
        packet_id: 0 = it has none yet, or it is not known any more.
        is_stored: Whether it is on disk, or about to be.
        is_sent: Whether it may have been sent.
        is_received: QoS 2: whether its PUBREC came, so that PUBREL is next.
        waits: QoS 2: whether its present state has to be on disk before it is sent.
    """

    message: LocalMessage
    qos: int = 1
    retain: bool = False
    identifiers: bytes = b""
    share: SharedSubscription[Any] | None = None
    packet_id: int = 0
    is_stored: bool = False
    is_sent: bool = False
    is_received: bool = False
    waits: bool = False


class LocalContents(Struct, frozen=True, kw_only=True):
    """Contents of the tables at the start.

    Attributes:
        retained: The last message of each topic.
        queued: Entries by client id, in order of arrival.
    """

    retained: list[LocalMessage] = field(default_factory=list)
    queued: dict[str, list[LocalEntry]] = field(default_factory=dict)


class _Changes:
    """Changes of the next commit."""

    def __init__(self) -> None:
        self.retained: dict[str, LocalMessage] = {}
        self.messages: dict[int, LocalMessage] = {}
        # Columns from `retain` on, `sent` the second of them, and the callback of the row.
        self.rows: dict[Key, tuple[tuple[Any, ...], Settle]] = {}
        self.sent: dict[Key, None] = {}
        self.received: dict[Key, Settle] = {}
        # Session and packet id of messages received with QoS 2.
        self.arrivals: list[tuple[int, int]] = []
        self.deleted_rows: list[Key] = []
        self.deleted_messages: list[int] = []
        self.waiters: list[Settle] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        written = self.retained or self.messages or self.rows or self.sent or self.received
        return not (written or self.arrivals or self.deleted_rows or self.deleted_messages)

    def deletions(self) -> _Statements:
        """Return the deletions as plain values, for the thread of the connection."""
        return _with_rows(
            (_CLEAR, [(topic,) for topic, m in self.retained.items() if not m.body]),
            (_DELETE_ROW, self.deleted_rows),
            (_DELETE_MESSAGE, [(message_id,) for message_id in self.deleted_messages]),
        )

    def additions(self) -> _Statements:
        """Return the other changes likewise."""
        return _with_rows(
            (_KEEP, [(m.topic, m.qos, *_columns(m)) for m in self.retained.values() if m.body]),
            (_MESSAGE, [(m.id, m.topic, *_columns(m)) for m in self.messages.values()]),
            (_ROW, [(*key, *columns) for key, (columns, _) in self.rows.items()]),
            (_SENT, list(self.sent)),
            (_RECEIVED, list(self.received)),
            (RECEIVE, self.arrivals),
        )

    def settle(self, refusal: Refusal | None) -> None:
        """Settle all changes."""
        for settle in self.waiters:
            settle(0, refusal)
        for _, settle in self.rows.values():
            settle(0, refusal)
        for settle in self.received.values():
            settle(0, refusal)


class LocalTable:
    """Retained and queued messages.

    Args:
        store: The database.
        clock: For the delays.
        commit_delay_ms: Fixed commit delay of the store, 0 = none.
    """

    def __init__(self, store: Store, clock: Clock, *, commit_delay_ms: int = 0) -> None:
        self._store = store
        self._clock = clock
        self._commit_delay_s = commit_delay_ms / 1000
        self._changes = _Changes()
        self._refs: dict[int, int] = {}
        self._next_id = 1
        self._timer = Timer(clock, self._commit)
        self._due = False
        # What is being committed, None = nothing.
        self._running: _Changes | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def now_ms(self) -> int:
        """Return hub time."""
        return self._store.hub_time.now_ms()

    async def load(self) -> LocalContents:
        """Load all at the start, also expired messages."""
        retained, messages, rows = await self._store.database.run(_read)
        contents = LocalContents(retained=[_message(record) for record in retained])
        by_id: dict[int, LocalMessage] = {}
        for message_id, *record in messages:
            # The quality of service is in the rows.
            message = _message((record[0], 1, *record[1:]))
            message.id = message_id
            by_id[message_id] = message
            self._next_id = max(self._next_id, message_id + 1)
        for client_id, message_id, retain, sent, qos, packet_id, received, identifiers in rows:
            self._refs[message_id] = self._refs.get(message_id, 0) + 1
            contents.queued.setdefault(client_id, []).append(
                LocalEntry(
                    by_id[message_id],
                    qos,
                    bool(retain),
                    identifiers,
                    packet_id=packet_id,
                    is_stored=True,
                    is_sent=bool(sent or received),
                    is_received=bool(received),
                )
            )
        return contents

    def is_changing(self, topic: str) -> bool:
        """Return whether the last message of a topic is not durable yet."""
        running = self._running
        return topic in self._changes.retained or (
            running is not None and topic in running.retained
        )

    def keep(self, message: LocalMessage, settle: Settle) -> None:
        """Store a message as the last of its topic; an empty one clears the topic.

        `settle(0, None)` is called once that is durable.
        """
        changes = self._changes
        changes.retained[message.topic] = message
        changes.waiters.append(settle)
        self._changed()

    def enqueue(self, client_id: str, entry: LocalEntry, settle: Settle) -> None:
        """Store an entry of a session; its message is numbered when it is stored first.

        Args:
            client_id: Whose session.
            entry: Its packet id is stored only if it waits for that.
            settle: `settle(0, None)` once that is durable, or undone by `dequeue`.
        """
        message = entry.message
        if not message.id:
            message.id = self._next_id
            self._next_id += 1
        refs = self._refs.get(message.id, 0)
        self._refs[message.id] = refs + 1
        if not refs:
            self._changes.messages[message.id] = message
        packet_id = entry.packet_id if entry.waits else 0
        columns = (entry.retain, entry.is_sent, entry.qos, packet_id, entry.identifiers)
        self._changes.rows[client_id, message.id] = (columns, settle)
        self._changed()

    def mark_sent(self, client_id: str, message: LocalMessage) -> None:
        """Record that a stored message may have been sent; durable a moment later."""
        key = client_id, message.id
        changes = self._changes
        waiting = changes.rows.get(key)
        if waiting is None:
            changes.sent[key] = None
            self._remind(DEQUEUE_DELAY_S)
        else:
            columns, settle = waiting
            changes.rows[key] = (columns[0], True, *columns[2:]), settle

    def mark_received(self, client_id: str, message: LocalMessage, settle: Settle) -> None:
        """Record the PUBREC of a stored message.

        `settle(0, None)` is called once that is durable.
        """
        self._changes.received[client_id, message.id] = settle
        self._changed()

    def receive(self, session: int, packet_id: int, settle: Settle) -> None:
        """Store a packet id received with QoS 2, with the messages that were submitted before.

        Args:
            session: Number of the client's session; see `edgehub.heads.mqtt.session_table`.
            packet_id: Of a PUBLISH with QoS 2.
            settle: `settle(0, None)` once it is durable, and with it all those messages.
        """
        changes = self._changes
        changes.arrivals.append((session, packet_id))
        changes.waiters.append(settle)
        self._changed()

    def dequeue(self, client_id: str, message: LocalMessage) -> None:
        """Remove a message from a session; durable a moment later."""
        key = client_id, message.id
        changes = self._changes
        waiting = changes.rows.pop(key, None)
        if waiting is None:
            changes.deleted_rows.append(key)
            changes.sent.pop(key, None)
            received = changes.received.pop(key, None)
            if received is not None:
                received(0, None)
        refs = self._refs[message.id] - 1
        if refs:
            self._refs[message.id] = refs
        else:
            del self._refs[message.id]
            if changes.messages.pop(message.id, None) is None:
                changes.deleted_messages.append(message.id)
            # Another session may still store it, under another number.
            message.id = 0
        if waiting is not None:
            waiting[1](0, None)
        self._remind(DEQUEUE_DELAY_S)

    def flush_now(self) -> None:
        """Commit the changes without delay."""
        if not self._changes.is_empty:
            self._changed()

    async def flush(self) -> None:
        """Wait until all earlier changes are committed."""
        while self._running or not self._changes.is_empty:
            if not self._running:
                self._commit()
            await self._idle.wait()

    def _changed(self) -> None:
        if self._commit_delay_s:
            self._remind(self._commit_delay_s)
        elif not self._due:
            self._due = True
            if not self._running:
                # At the end of this turn, with all other changes of the turn.
                asyncio.get_running_loop().call_soon(self._commit)

    def _remind(self, delay_s: float) -> None:
        if not self._running and not self._due:
            self._timer.start(max(delay_s, self._commit_delay_s))

    def _commit(self) -> None:
        if self._running:
            return
        self._due = False
        self._timer.cancel()
        changes, self._changes = self._changes, _Changes()
        if changes.is_empty:
            changes.settle(None)
            return
        self._running = changes
        self._idle.clear()
        # On a full disk deletions must not wait for room for additions.
        written = [
            self._store.writer.transact(partial(_write, statements), frees=frees)
            for statements, frees in ((changes.deletions(), True), (changes.additions(), False))
            if statements
        ]
        for future in written:
            future.add_done_callback(partial(self._committed, changes, written))

    def _committed(
        self, changes: _Changes, written: list[asyncio.Future[None]], _one: asyncio.Future[None]
    ) -> None:
        if not all(future.done() for future in written) or self._running is not changes:
            return
        self._running = None
        self._idle.set()
        errors = [None if future.cancelled() else future.exception() for future in written]
        error = next((error for error in errors if error is not None), None)
        if error is None:
            changes.settle(None)
        elif isinstance(error, StoreError):
            changes.settle(Refusal.CLOSED)
        else:
            log.error("store.local_not_stored", error=str(error))
            changes.settle(Refusal.INVALID)
        if self._due:
            self._commit()
        elif not self._changes.is_empty:
            self._remind(DEQUEUE_DELAY_S)


def _with_rows(*statements: tuple[str, Sequence[tuple[Any, ...]]]) -> _Statements:
    return [(sql, rows) for sql, rows in statements if rows]


def _columns(message: LocalMessage) -> tuple[Any, ...]:
    return message.publisher, message.expires_ms, message.properties, message.body


def _message(record: Iterable[Any]) -> LocalMessage:
    topic, qos, publisher, expires_ms, properties, body = record
    message = LocalMessage(
        topic, body, qos=qos, retain=True, publisher=publisher, properties=properties
    )
    message.expires_ms = expires_ms
    return message


def _read(
    connection: sqlite3.Connection,
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    retained = connection.execute(
        "SELECT topic, qos, publisher, expires_ms, properties, body FROM retained ORDER BY topic"
    ).fetchall()
    messages = connection.execute(
        "SELECT id, topic, publisher, expires_ms, properties, body FROM local_message"
    ).fetchall()
    # A row without its message would be damage and is left out.
    rows = connection.execute(
        "SELECT client_id, id, retain, sent, qos, packet_id, received, identifiers"
        " FROM local_queue JOIN local_message USING (id) ORDER BY client_id, id"
    ).fetchall()
    return retained, messages, rows


def _write(statements: _Statements, connection: sqlite3.Connection) -> None:
    # May run again when its transaction has to be repeated.
    for sql, rows in statements:
        connection.executemany(sql, rows)


_CLEAR: Final = "DELETE FROM retained WHERE topic = ?"
_KEEP: Final = (
    "INSERT OR REPLACE INTO retained (topic, qos, publisher, expires_ms, properties, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_MESSAGE: Final = (
    "INSERT OR REPLACE INTO local_message (id, topic, publisher, expires_ms, properties, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_ROW: Final = (
    "INSERT OR REPLACE INTO local_queue"
    " (client_id, id, retain, sent, qos, packet_id, identifiers) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_RECEIVED: Final = "UPDATE local_queue SET received = 1 WHERE client_id = ? AND id = ?"
_SENT: Final = "UPDATE local_queue SET sent = 1 WHERE client_id = ? AND id = ?"
_DELETE_ROW: Final = "DELETE FROM local_queue WHERE client_id = ? AND id = ?"
_DELETE_MESSAGE: Final = "DELETE FROM local_message WHERE id = ?"
