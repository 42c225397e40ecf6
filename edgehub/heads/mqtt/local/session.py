"""What one client subscribed to in the local topic space, and what waits for it.

Owns the client's subscriptions there and its queue: messages of QoS 1 that were not sent yet, or
not confirmed. A stored session outlives the connection, and its queue is on disk too. Invariants: a
message leaves the queue with the client's PUBACK, with its expiry, or with the session; what is
sent again has the packet id of before; nothing waits without a bound.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.heads.mqtt.local.options import LEVEL_BYTES, MESSAGE_BYTES
from edgehub.heads.mqtt.local.retained import RetainedSearch
from edgehub.heads.mqtt.local.statistics import LocalDrop
from edgehub.mqtt.packets5 import QOS, RETAIN_AS_PUBLISHED
from edgehub.mqtt.topic_filter import bytes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.clock import TimerHandle
    from edgehub.devices.bounds import Bound, Usage
    from edgehub.heads.mqtt.local.context import LocalContext
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.local.ticket import Ticket
    from edgehub.local_message import LocalMessage
    from edgehub.store.local_space import QueuedMessage

SEARCH_STEPS: Final = 300
"""Retained topics that are looked at in one go."""

SEARCH_PAUSE_S: Final = 0.004
"""Time for others between two such goes."""


_NEVER_MS: Final = 2**63
"""Later than any hub time."""


class Link(Protocol):
    """The connection of a client, as its session sees it."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent; if not, `pump` is called once it does."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another message of QoS 1; if not, `pump` is called once it does."""

    def write(self, message: LocalMessage, *, retain: bool) -> bool:
        """Send a message with QoS 0; False = larger than the client takes."""

    def send(
        self,
        message: LocalMessage,
        confirmed: Callable[[], None],
        *,
        retain: bool,
        packet_id: int,
        again: bool,
    ) -> int:
        """Send a message with QoS 1.

        Args:
            message: What to send.
            confirmed: Called with its PUBACK.
            retain: The retain flag.
            packet_id: Of an earlier attempt, 0 = there was none, or it is not known.
            again: Whether it may have been sent before.

        Returns:
            Its packet id, 0 = larger than the client takes.
        """


class Entry:
    """A message of QoS 1 in a queue."""

    __slots__ = ("again", "message", "packet_id", "retain", "stored")

    def __init__(self, message: LocalMessage, *, retain: bool) -> None:
        self.message = message
        self.retain = retain
        self.stored = False
        self.packet_id = 0
        self.again = False


class LocalSession:
    """The local side of one client's session.

    Args:
        client_id: Whose it is.
        context: What the sessions of the space share.

    Attributes:
        durable: Whether it outlives the connection.
        anonymous: Whether its client has no identity; parts of the hub count as if they had one.
        filters: Options by topic filter.
        bytes: What waits.
    """

    __slots__ = (
        "_context",
        "_entries",
        "_first_expiry_ms",
        "_link",
        "_search",
        "_timer",
        "_unsent",
        "_wanted",
        "anonymous",
        "bytes",
        "client_id",
        "durable",
        "filters",
    )

    def __init__(self, client_id: str, context: LocalContext, *, anonymous: bool) -> None:
        self.client_id = client_id
        self.anonymous = anonymous
        self.durable = False
        self.filters: dict[str, int] = {}
        self.bytes = 0
        self._context = context
        self._link: Link | None = None
        # In order of arrival; those not sent over the present connection once more in a row.
        self._entries: dict[Entry, None] = {}
        self._unsent: deque[Entry] = deque()
        # None of those not sent expires before this.
        self._first_expiry_ms = _NEVER_MS
        # Filters whose retained messages are still to be sent; the first of them is under way.
        self._wanted: dict[str, int] = {}
        self._search: RetainedSearch | None = None
        self._timer: TimerHandle | None = None

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
        # What adds nothing to the worst topic is taken, whoever has brought it about.
        return tree.branches_with(topic_filter) <= max(limit, tree.branches)

    def subscription_refused(self) -> None:
        """Count a subscription for which there is no room."""
        self._context.counters.subscriptions_refused_total += 1

    def count_as(self, *, anonymous: bool) -> None:
        """Count what the session uses as that of an anonymous client, or of an identity."""
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
        """Take a subscription in, or change its options."""
        context = self._context
        known = self.filters.get(topic_filter)
        if known == options:
            return
        if known is None:
            self._usage(context.subscription_bytes).used += filter_cost(topic_filter)
        self.filters[topic_filter] = options
        context.tree.add(topic_filter, self, options)

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription; one that is not there is passed over."""
        if self.filters.pop(topic_filter, None) is None:
            return
        context = self._context
        self._usage(context.subscription_bytes).used -= filter_cost(topic_filter)
        context.tree.remove(topic_filter, self)
        self._forget_replay(topic_filter)

    def replay(self, topic_filter: str, options: int) -> None:
        """Send the retained messages that a filter takes, all of them, also if it is under way."""
        self._forget_replay(topic_filter)
        self._wanted[topic_filter] = options
        self.pump()

    # Messages.

    def offer(self, message: LocalMessage, options: int, ticket: Ticket) -> None:
        """Send a message, or let it wait.

        Args:
            message: What was published.
            options: Of the subscriptions that take it.
            ticket: Held until a stored session has the message on disk.
        """
        retain = message.retain and bool(options & RETAIN_AS_PUBLISHED)
        if not (message.qos and options & QOS):
            self._write(message, retain=retain)
            return
        if self._is_full(message):
            return
        entry = Entry(message, retain=retain)
        self._add(entry)
        self.pump()
        if self.durable and entry in self._entries:
            entry.stored = True
            sent = entry.packet_id != 0
            store = self._context.store
            store.enqueue(self.client_id, message, ticket.hold(), retain=retain, sent=sent)

    def restore(self, queued: Iterable[QueuedMessage]) -> None:
        """Take up what the disk holds, at the start of the hub."""
        for each in queued:
            entry = Entry(each.message, retain=each.retain)
            entry.stored = True
            entry.again = each.sent
            self._add(entry)

    def pump(self) -> None:
        """Send what waits, as much as the connection takes."""
        link = self._link
        if link is None:
            return
        while self._unsent and link.has_room:
            self._send(link, self._unsent.popleft())
        if self._wanted and not self._unsent and self._timer is None:
            self._replay(link)

    # Life cycle.

    def attach(self, link: Link, rights: LocalRights) -> None:
        """The client is connected: what it has not confirmed is sent again, then the rest."""
        self._link = link
        for entry in list(self._entries):
            if not rights.may_read(entry.message.topic):
                self._drop(entry, LocalDrop.NO_RIGHT)
        self._unsent = deque(self._entries)
        self.pump()

    def packet_ids(self) -> list[int]:
        """List the packet ids that an earlier connection used and that are not confirmed."""
        return [entry.packet_id for entry in self._entries if entry.packet_id]

    def detach(self, link: Link) -> None:
        """The connection is gone; harmless when another one has taken its place."""
        if self._link is not link:
            return
        self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for entry in self._entries:
            entry.again = entry.again or entry.packet_id != 0

    def keep_in_memory(self) -> None:
        """Take the queue off the disk: the session ends with the connection."""
        self.durable = False
        for entry in self._entries:
            self._take_off_disk(entry)

    def end(self) -> None:
        """The session is over: its subscriptions and its queue go."""
        for topic_filter in list(self.filters):
            self.unsubscribe(topic_filter)
        self._wanted.clear()
        self._unsent.clear()
        for entry in list(self._entries):
            self._drop(entry, LocalDrop.SESSION_ENDED)
        # A session that begins now must not find it after a crash.
        self._context.store.hasten()

    def drop_expired(self, now_ms: int) -> None:
        """Let go of what nobody wants any more."""
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

    def _write(self, message: LocalMessage, *, retain: bool) -> None:
        link = self._link
        if link is None:
            # QoS 0 is for those who are there.
            return
        counters = self._context.counters
        if not link.is_writable:
            self._note(LocalDrop.SLOW_READER)
        elif link.write(message, retain=retain):
            counters.delivered_total += 1
        else:
            self._note(LocalDrop.PACKET_TOO_LARGE)

    def _is_full(self, message: LocalMessage) -> bool:
        reason = self._bound_reached(message)
        if reason is not None and self._first_expiry_ms != _NEVER_MS:
            # What is over makes room first.
            self.drop_expired(self._context.store.now_ms())
            reason = self._bound_reached(message)
        if reason is not None:
            self._note(reason)
        return reason is not None

    def _bound_reached(self, message: LocalMessage) -> LocalDrop | None:
        context = self._context
        options = context.options
        size = message.size + MESSAGE_BYTES
        if len(self._entries) >= options.queue_max or self.bytes + size > options.queue_bytes_max:
            return LocalDrop.QUEUE_FULL
        if not self._usage(context.queued_bytes).has_room(size):
            return LocalDrop.QUEUES_FULL
        return None

    def _add(self, entry: Entry) -> None:
        size = entry.message.size + MESSAGE_BYTES
        self._entries[entry] = None
        self._unsent.append(entry)
        self._first_expiry_ms = min(self._first_expiry_ms, _expiry_ms(entry))
        self.bytes += size
        self._context.queued += 1
        self._usage(self._context.queued_bytes).used += size

    def _remove(self, entry: Entry) -> None:
        size = entry.message.size + MESSAGE_BYTES
        del self._entries[entry]
        self.bytes -= size
        self._context.queued -= 1
        self._usage(self._context.queued_bytes).used -= size
        self._take_off_disk(entry)

    def _take_off_disk(self, entry: Entry) -> None:
        if entry.stored:
            entry.stored = False
            self._context.store.dequeue(self.client_id, entry.message)

    def _send(self, link: Link, entry: Entry) -> None:
        expires_ms = entry.message.expires_ms
        if (
            expires_ms is not None
            and not entry.packet_id
            and expires_ms <= self._context.store.now_ms()
        ):
            self._drop(entry, LocalDrop.EXPIRED)
            return
        is_first = not (entry.packet_id or entry.again)
        packet_id = link.send(
            entry.message,
            lambda: self._confirmed(entry),
            retain=entry.retain,
            packet_id=entry.packet_id,
            again=entry.again,
        )
        if packet_id:
            entry.packet_id = packet_id
            if is_first and entry.stored:
                self._context.store.mark_sent(self.client_id, entry.message)
        else:
            self._drop(entry, LocalDrop.PACKET_TOO_LARGE)

    def _confirmed(self, entry: Entry) -> None:
        if entry in self._entries:
            self._context.counters.delivered_total += 1
            self._remove(entry)

    def _drop(self, entry: Entry, reason: LocalDrop) -> None:
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

    def _forget_replay(self, topic_filter: str) -> None:
        if next(iter(self._wanted), None) == topic_filter:
            self._search = None
        self._wanted.pop(topic_filter, None)

    def _replay(self, link: Link) -> None:
        budget = SEARCH_STEPS
        while self._wanted:
            topic_filter, options = next(iter(self._wanted.items()))
            if self._search is None:
                self._search = RetainedSearch(topic_filter, self._context.retained)
            while not self._search.is_done:
                if not link.has_room:
                    return
                if budget <= 0:
                    self._timer = self._context.clock.call_later(SEARCH_PAUSE_S, self._go_on)
                    return
                topic, steps = self._search.next(budget)
                budget -= steps
                if topic is not None:
                    self._send_retained(link, topic, options)
            self._search = None
            del self._wanted[topic_filter]

    def _go_on(self) -> None:
        self._timer = None
        self.pump()

    def _send_retained(self, link: Link, topic: str, options: int) -> None:
        message = self._context.retained.get(topic)
        if message is None or (
            message.expires_ms is not None and message.expires_ms <= self._context.store.now_ms()
        ):
            return
        if not (message.qos and options & QOS):
            self._write(message, retain=True)
            return
        entry = Entry(message, retain=True)
        self._add(entry)
        self._unsent.pop()
        self._send(link, entry)


def _expiry_ms(entry: Entry) -> int:
    """Give when an entry may be dropped; what was sent is kept for its PUBACK."""
    expires_ms = entry.message.expires_ms
    return _NEVER_MS if expires_ms is None or entry.packet_id else expires_ms


def filter_cost(topic_filter: str) -> int:
    """Give what a subscription takes in memory."""
    return bytes_in(topic_filter) + LEVEL_BYTES * (1 + topic_filter.count("/"))
