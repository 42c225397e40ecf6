"""The session of one client in the local topic space: its subscriptions and its queue.

Owns the subscriptions and the queue of messages of QoS 1 and 2 that were not sent or not confirmed.
A stored session outlives the connection, and its queue is on disk too. Invariants: a message leaves
the queue with the client's PUBACK or PUBCOMP, with its expiry, or with the session; a repeated
message has its earlier packet id; for QoS 2 in a stored session, packet id and PUBREC are on disk
before the next packet is sent, so a client never gets the message twice and each exchange that has
begun is completed; every queue is bounded.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from edgehub.heads.mqtt.local.options import LEVEL_BYTES, MESSAGE_BYTES, NUMBERED_MAX, WINDOW
from edgehub.heads.mqtt.local.retained import RetainedReplay
from edgehub.heads.mqtt.local.statistics import LocalCounters, LocalDrop
from edgehub.heads.mqtt.local.tables import LocalEntry
from edgehub.heads.mqtt.local.ticket import Ticket
from edgehub.local_message import ignore_result
from edgehub.mqtt.fields import PACKET_ID_MAX
from edgehub.mqtt.subscription_options import (
    OPTIONS_MAX,
    QOS,
    RETAIN_AS_PUBLISHED,
    write_identifiers,
)
from edgehub.mqtt.topic_filter import bytes_in, split_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.clock import Clock
    from edgehub.devices.bounds import Bound, Usage
    from edgehub.heads.mqtt.local.filter_tree import FilterTree
    from edgehub.heads.mqtt.local.retained import RetainedMessages
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.local.shared import SharedSubscription, SharedSubscriptions
    from edgehub.heads.mqtt.local.tables import LocalTable
    from edgehub.local_message import LocalMessage, Settle
    from edgehub.message import Refusal
    from edgehub.settings import MqttSettings
    from edgehub.telemetry.log_limit import LogLimit

_NEVER_MS: Final = 2**63
"""Later than any hub time."""


class Link(Protocol):
    """The connection of a client as its session uses it."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent; if not, `pump` is called once it does."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another message of QoS 1 or 2; if not, `pump` is called once it does."""

    def write(self, message: LocalMessage, *, retain: bool, identifiers: bytes) -> bool:
        """Send a message with QoS 0; False = larger than the client takes."""

    def new_packet_id(self) -> int:
        """Return a packet id that nothing uses."""

    def send(self, entry: LocalEntry, progress: Callable[[bool], None]) -> int:
        """Send the next packet of an entry: its PUBLISH, or its PUBREL once it is received.

        Args:
            entry: With its packet id, 0 = it has none yet.
            progress: Called with False for a PUBREC after which PUBREL is to be sent, with True at
                the end of the exchange.

        Returns:
            Its packet id, 0 = larger than the client takes.
        """


class LocalContext(Struct, kw_only=True, eq=False):
    """Shared by the sessions of one space.

    Attributes:
        queued: Messages that wait for clients or their acknowledgement.
        queued_bytes: Bound of their bytes; a message counts for each client that it waits for.
        subscription_bytes: Bound of the memory that subscriptions take.
        branches: Bound of the branches that a publish passes to find its subscriptions. All filters
            together use it, so it is not counted by kind of client.
    """

    settings: MqttSettings
    clock: Clock
    store: LocalTable
    tree: FilterTree[LocalSession]
    shared: SharedSubscriptions[LocalSession]
    retained: RetainedMessages
    queued_bytes: Bound
    subscription_bytes: Bound
    branches: Bound
    log: LogLimit
    counters: LocalCounters = field(default_factory=LocalCounters)
    queued: int = 0


class LocalSession:
    """The local side of one client's session.

    Args:
        client_id: Of the client.
        context: Shared by the sessions of the space.

    Attributes:
        durable: Whether it outlives the connection.
        anonymous: Whether its client has no identity; parts of the hub count as if they had one.
        filters: Options by topic filter.
        bytes: Of the queue.
        packet_ids: Entries by the packet ids of a stored session.
    """

    __slots__ = (
        "_context",
        "_entries",
        "_first_expiry_ms",
        "_last_id",
        "_link",
        "_received",
        "_replay",
        "_unsent",
        "anonymous",
        "bytes",
        "client_id",
        "durable",
        "filters",
        "packet_ids",
    )

    def __init__(self, client_id: str, context: LocalContext, *, anonymous: bool) -> None:
        self.client_id = client_id
        self.anonymous = anonymous
        self.durable = False
        self.filters: dict[str, int] = {}
        self.bytes = 0
        self._context = context
        self._link: Link | None = None
        # In order of arrival; those not sent on the present connection are in `_unsent` too.
        self._entries: dict[LocalEntry, None] = {}
        self._unsent: deque[LocalEntry] = deque()
        # Entries whose PUBREL is to be sent on the present connection, in the order of the PUBRECs.
        self._received: deque[LocalEntry] = deque()
        self.packet_ids: dict[int, LocalEntry] = {}
        self._last_id = 0
        # No unsent entry expires before.
        self._first_expiry_ms = _NEVER_MS
        self._replay = RetainedReplay(context.retained, context.clock, self.pump)

    def __len__(self) -> int:
        return len(self._entries)

    # Bounds.

    def can_subscribe(self, topic_filter: str) -> bool:
        """Return whether another subscription fits into the bounds of all of them."""
        context = self._context
        if not self._usage(context.subscription_bytes).has_room(filter_cost(topic_filter)):
            return False
        bound, tree = context.branches, context.tree
        limit = bound.anonymous_limit if self.anonymous else bound.limit
        # A filter that adds no branch to the worst topic is always taken.
        return tree.branches_with(topic_filter) <= max(limit, tree.branches)

    def subscription_refused(self) -> None:
        """Count a subscription for which there is no room."""
        self._context.counters.subscriptions_refused_total += 1

    def count_as(self, *, anonymous: bool) -> None:
        """Count the usage of the session as that of an anonymous client, or of an identity."""
        if anonymous == self.anonymous:
            return
        context = self._context
        used = {
            context.queued_bytes: self.bytes,
            context.subscription_bytes: sum(map(filter_cost, self.filters)),
        }
        for bound, number in used.items():
            self._usage(bound).used -= number
        self.anonymous = anonymous
        for bound, number in used.items():
            self._usage(bound).used += number

    def _usage(self, bound: Bound) -> Usage:
        return bound.of_kind(anonymous=self.anonymous)

    # Subscriptions.

    def subscribe(self, topic_filter: str, options: int) -> None:
        """Add a subscription, or change its options."""
        context = self._context
        known = self.filters.get(topic_filter)
        if known == options:
            return
        if known is None:
            self._usage(context.subscription_bytes).used += filter_cost(topic_filter)
        self.filters[topic_filter] = options
        group, rest = split_share(topic_filter)
        if group:
            context.shared.add(group, rest, self, options)
        else:
            context.tree.add(topic_filter, self, options)

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription; one that is not there is passed over."""
        if self.filters.pop(topic_filter, None) is None:
            return
        context = self._context
        self._usage(context.subscription_bytes).used -= filter_cost(topic_filter)
        group, rest = split_share(topic_filter)
        if group:
            context.shared.remove(group, rest, self)
        else:
            context.tree.remove(topic_filter, self)
        self._replay.remove(topic_filter)

    def replay(self, topic_filter: str, options: int) -> None:
        """Send all retained messages that match a filter, from the first one on."""
        self._replay.add(topic_filter, options)
        self.pump()

    # Messages.

    def offer(
        self,
        message: LocalMessage,
        options: int,
        ticket: Ticket,
        share: SharedSubscription[LocalSession] | None = None,
    ) -> None:
        """Send a message, or queue it.

        Args:
            message: The published message.
            options: Of the subscriptions that it matches.
            ticket: Held until a stored session has the message on disk.
            share: The shared subscription by which it comes, None = it comes by the client's own.
        """
        retain = message.retain and bool(options & RETAIN_AS_PUBLISHED)
        identifiers = write_identifiers(options) if options > OPTIONS_MAX else b""
        qos = min(message.qos, options & QOS)
        if not qos:
            self._write(message, retain=retain, identifiers=identifiers)
            return
        if self._is_full(message):
            return
        entry = LocalEntry(message, qos, retain, identifiers, share)
        self._add(entry)
        if qos > 1 and self.durable:
            self._number(entry)
            self._store(entry, ticket.hold())
            return
        self.pump()
        if self.durable and entry in self._entries:
            self._store(entry, ticket.hold())

    def restore(self, entries: Iterable[LocalEntry]) -> None:
        """Restore the queue from disk at the start of the hub."""
        for entry in entries:
            if entry.packet_id:
                self.packet_ids[entry.packet_id] = entry
            self._add(entry)

    @property
    def is_ready(self) -> bool:
        """Whether a message of QoS 1 or 2 would be sent at once."""
        return self._link is not None and not self._unsent and self._link.has_room

    @property
    def is_connected(self) -> bool:
        """Whether its client is connected."""
        return self._link is not None

    def pump(self) -> None:
        """Send what waits, as much as the connection takes."""
        link = self._link
        if link is None:
            return
        while self._received and not self._received[0].waits:
            entry = self._received.popleft()
            link.send(entry, self._progress_of(entry))
        while self._unsent and not self._unsent[0].waits and link.has_room:
            self._send(link, self._unsent.popleft())
        if self._replay.is_due and not self._unsent:
            for topic, options in self._replay.topics(
                lambda: link.has_room and len(self._unsent) < WINDOW
            ):
                self._send_retained(link, topic, options)

    # Life cycle.

    def attach(self, link: Link, rights: LocalRights) -> None:
        """Send what the client has not confirmed again, then the rest."""
        self._unsent.clear()
        self._received.clear()
        self._link = link
        for entry in list(self._entries):
            if not (entry.is_received or rights.may_read(entry.message.topic)):
                self._withhold(entry, LocalDrop.NO_RIGHT)
        self._unsent = deque(self._entries)
        self.pump()

    def detach(self, link: Link) -> None:
        """Stop sending, unless another connection has been attached."""
        if self._link is not link:
            return
        self._link = None
        self._replay.stop()

    def keep_in_memory(self) -> None:
        """Remove the queue from disk: the session ends with the connection."""
        self.durable = False
        for entry in self._entries:
            self._take_off_disk(entry)

    def end(self) -> None:
        """End the session: remove its subscriptions and its queue."""
        for topic_filter in list(self.filters):
            self.unsubscribe(topic_filter)
        self._unsent.clear()
        self._received.clear()
        for entry in list(self._entries):
            if not self._hand_over(entry):
                self._drop(entry, LocalDrop.SESSION_ENDED)
        # After a crash, a session that begins now must not find the queue.
        self._context.store.flush_now()

    def drop_expired(self, now_ms: int) -> None:
        """Drop unsent messages that have expired."""
        if now_ms < self._first_expiry_ms:
            return
        over = {entry for entry in self._unsent if _expiry_ms(entry) <= now_ms}
        self._unsent = deque(entry for entry in self._unsent if entry not in over)
        self._first_expiry_ms = min(
            (_expiry_ms(entry) for entry in self._unsent), default=_NEVER_MS
        )
        for entry in over:
            self._drop(entry, LocalDrop.EXPIRED)

    # Parts.

    def _store(self, entry: LocalEntry, settle: Settle) -> None:
        entry.is_stored = True
        self._context.store.enqueue(
            self.client_id,
            entry,
            partial(self._stored, entry, settle) if entry.waits else settle,
        )

    def _number(self, entry: LocalEntry) -> None:
        """Choose the packet id of a message that waits for the disk before it is sent."""
        link = self._link
        if link is not None:
            packet_id = link.new_packet_id()
        else:
            packet_id = self._last_id % PACKET_ID_MAX + 1
            while packet_id in self.packet_ids:
                packet_id = packet_id % PACKET_ID_MAX + 1
            self._last_id = packet_id
        entry.packet_id = packet_id
        entry.waits = True
        self.packet_ids[packet_id] = entry

    def _stored(
        self, entry: LocalEntry, settle: Settle, token: int, refusal: Refusal | None
    ) -> None:
        entry.waits = False
        settle(token, refusal)
        self.pump()

    def _write(self, message: LocalMessage, *, retain: bool, identifiers: bytes) -> None:
        link = self._link
        if link is None:
            # QoS 0 is for connected clients.
            return
        counters = self._context.counters
        if not link.is_writable:
            self._note(LocalDrop.SLOW_READER)
        elif link.write(message, retain=retain, identifiers=identifiers):
            counters.delivered_total += 1
        else:
            self._note(LocalDrop.PACKET_TOO_LARGE)

    def _is_full(self, message: LocalMessage) -> bool:
        reason = self._bound_reached(message)
        if reason is not None and self._first_expiry_ms != _NEVER_MS:
            # Expired messages make room first.
            self.drop_expired(self._context.store.now_ms())
            reason = self._bound_reached(message)
        if reason is not None:
            self._note(reason)
        return reason is not None

    def _bound_reached(self, message: LocalMessage) -> LocalDrop | None:
        context = self._context
        settings = context.settings
        size = message.size + MESSAGE_BYTES
        if (
            len(self._entries) >= settings.local_queue_max
            or self.bytes + size > settings.local_queue_bytes_max
            or len(self.packet_ids) >= NUMBERED_MAX
        ):
            return LocalDrop.QUEUE_FULL
        if not self._usage(context.queued_bytes).has_room(size):
            return LocalDrop.QUEUES_FULL
        return None

    def _add(self, entry: LocalEntry) -> None:
        size = entry.message.size + MESSAGE_BYTES
        self._entries[entry] = None
        self._unsent.append(entry)
        self._first_expiry_ms = min(self._first_expiry_ms, _expiry_ms(entry))
        self.bytes += size
        self._context.queued += 1
        self._usage(self._context.queued_bytes).used += size

    def _remove(self, entry: LocalEntry) -> None:
        size = entry.message.size + MESSAGE_BYTES
        del self._entries[entry]
        self.packet_ids.pop(entry.packet_id, None)
        self.bytes -= size
        self._context.queued -= 1
        self._usage(self._context.queued_bytes).used -= size
        self._take_off_disk(entry)

    def _take_off_disk(self, entry: LocalEntry) -> None:
        if entry.is_stored:
            entry.is_stored = False
            self._context.store.dequeue(self.client_id, entry.message)

    def _send(self, link: Link, entry: LocalEntry) -> None:
        if (
            entry.message.expires_ms is not None
            and _expiry_ms(entry) <= self._context.store.now_ms()
        ):
            self._drop(entry, LocalDrop.EXPIRED)
            return
        packet_id = link.send(entry, self._progress_of(entry))
        if not packet_id:
            if self._withhold(entry, LocalDrop.PACKET_TOO_LARGE):
                self._received.append(entry)
                self.pump()
            return
        if packet_id != entry.packet_id:
            # The broker head begins its packet ids again with each connection.
            self.packet_ids.pop(entry.packet_id, None)
            entry.packet_id = packet_id
            if self.durable:
                self.packet_ids[packet_id] = entry
        if not entry.is_sent:
            entry.is_sent = True
            if entry.is_stored:
                self._context.store.mark_sent(self.client_id, entry.message)

    def _progress_of(self, entry: LocalEntry) -> Callable[[bool], None]:
        return lambda is_over: self._progress(entry, is_over=is_over)

    def _progress(self, entry: LocalEntry, *, is_over: bool) -> None:
        if entry not in self._entries:
            return
        if not entry.is_received:
            self._context.counters.delivered_total += 1
        if is_over:
            self._remove(entry)
            return
        self._mark_received(entry)
        self._received.append(entry)
        self.pump()

    def _mark_received(self, entry: LocalEntry) -> None:
        """Make PUBREL what is left to send of an entry, once that is durable."""
        entry.is_received = True
        if entry.is_stored:
            entry.waits = True
            settle = partial(self._stored, entry, ignore_result)
            self._context.store.mark_received(self.client_id, entry.message, settle)

    def _withhold(self, entry: LocalEntry, reason: LocalDrop) -> bool:
        """Drop a message that may not be sent, or not again.

        If the client may know its packet id, the exchange continues with PUBREL: a later message
        with that id would be taken for this one.

        Returns:
            Whether the exchange continues.
        """
        if entry.qos > 1 and entry.is_sent:
            self._note(reason)
            self._mark_received(entry)
            return True
        self._drop(entry, reason)
        return False

    def _hand_over(self, entry: LocalEntry) -> bool:
        """Move a message of a shared subscription to another member, unless it may be received."""
        if entry.share is None or (entry.qos > 1 and entry.is_sent):
            return False
        found = entry.share.next_member(entry.qos)
        if found is None:
            return False
        member, options = found
        message = entry.message.copy()
        self._remove(entry)
        member.offer(message, options, Ticket(ignore_result, 0), entry.share)
        return True

    def _drop(self, entry: LocalEntry, reason: LocalDrop) -> None:
        self._remove(entry)
        self._note(reason)

    def _note(self, reason: LocalDrop) -> None:
        context = self._context
        context.counters.dropped[reason] += 1
        if reason not in (LocalDrop.SESSION_ENDED, LocalDrop.EXPIRED):
            context.log.warning(
                "mqtt.delivery_dropped", client_id=self.client_id, reason=reason.value
            )

    # Retained messages.

    def _send_retained(self, link: Link, topic: str, options: int) -> None:
        message = self._context.retained.get(topic)
        if message is None or (
            message.expires_ms is not None and message.expires_ms <= self._context.store.now_ms()
        ):
            return
        identifiers = write_identifiers(options)
        qos = min(message.qos, options & QOS)
        if not qos:
            self._write(message, retain=True, identifiers=identifiers)
        elif qos > 1 and self.durable:
            # A copy: the message itself may be in this queue under its own number.
            entry = LocalEntry(message.copy(), qos, retain=True, identifiers=identifiers)
            self._add(entry)
            self._number(entry)
            self._store(entry, ignore_result)
        else:
            entry = LocalEntry(message, qos, retain=True, identifiers=identifiers)
            self._add(entry)
            self._unsent.pop()
            self._send(link, entry)


def _expiry_ms(entry: LocalEntry) -> int:
    """Return when an entry may be dropped; what was sent is kept for its acknowledgement."""
    expires_ms = entry.message.expires_ms
    awaited = entry.is_sent and entry.packet_id
    return _NEVER_MS if expires_ms is None or awaited else expires_ms


def filter_cost(topic_filter: str) -> int:
    """Return the memory that a subscription takes."""
    return bytes_in(topic_filter) + LEVEL_BYTES * (1 + topic_filter.count("/"))
