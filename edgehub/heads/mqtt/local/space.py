"""The local topic space: publishing to local clients and parts of the hub.

Owns the local sessions, the retained messages and the subscriptions of parts of the hub. Calls only
the table on disk. Invariants: a publish is settled once all its writes are durable and every inner
subscriber has settled it; the messages of one publisher reach a subscriber in order; a subscriber
gets one copy of a message, however many of its filters match, with the best quality of service
among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer
from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.local.filter_tree import FilterTree
from edgehub.heads.mqtt.local.options import (
    BRANCHES_MAX,
    FILTER_BYTES_MAX,
    LEVELS_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from edgehub.heads.mqtt.local.presence import Presence
from edgehub.heads.mqtt.local.retained import RetainedMessages, RetainedSearch
from edgehub.heads.mqtt.local.session import LocalContext, LocalSession
from edgehub.heads.mqtt.local.shared import SharedSubscriptions
from edgehub.heads.mqtt.local.statistics import LocalStatistics
from edgehub.heads.mqtt.local.ticket import Ticket
from edgehub.local_message import ALWAYS_LOCAL, HUB_TOPICS, LocalMessage, ignore_result
from edgehub.mqtt.fields import is_plain
from edgehub.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, merged_options
from edgehub.mqtt.topic_filter import (
    bytes_in,
    filter_fault,
    is_topic,
    matches,
    overlaps,
    split_share,
)
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgehub.devices.bounds import KnownIds
    from edgehub.heads.mqtt.local.tables import LocalTable
    from edgehub.local_message import Deliver, Settle
    from edgehub.settings import MqttSettings

SWEEP_S: Final = 30.0
"""Expired messages are dropped within this time."""

RETAINED_STEPS: Final = 1000
_TOPICS_MAX: Final = 4096
_TOPIC_BYTES_MAX: Final = 1024


class InnerSubscription:
    """The subscription of a part of the hub.

    Args:
        tree: Of all such subscriptions.
        deliver: Called with each message.
    """

    __slots__ = ("_filters", "_tree", "deliver")

    def __init__(self, tree: FilterTree[InnerSubscription], deliver: Deliver) -> None:
        self._tree = tree
        self._filters: tuple[str, ...] = ()
        self.deliver = deliver

    def follow(self, filters: Iterable[str]) -> None:
        """Replace the filters."""
        wanted = tuple(filters)
        for topic_filter in self._filters:
            if topic_filter not in wanted:
                self._tree.remove(topic_filter, self)
        for topic_filter in wanted:
            self._tree.add(topic_filter, self)
        self._filters = wanted


class LocalSpace:
    """One hub's local topic space.

    Args:
        settings: Topics and bounds.
        store: Its tables.
        clock: For timers.
        hub_id: Publishes the hub's own messages.
        known: The identities in force.
        topics: Filters of topics in addition to those of the settings.
    """

    def __init__(
        self,
        settings: MqttSettings,
        store: LocalTable,
        clock: Clock,
        *,
        hub_id: str,
        known: KnownIds,
        topics: tuple[str, ...] = (),
    ) -> None:
        self.hub_id = hub_id
        self.known = known
        self._filters = (*ALWAYS_LOCAL, *settings.local_topics, *topics)
        self._readable = (*self._filters, f"{HUB_TOPICS}#")
        self._topics: dict[bytes, str] = {}
        self._context = LocalContext(
            settings=settings,
            clock=clock,
            store=store,
            tree=FilterTree(),
            shared=SharedSubscriptions(),
            retained=RetainedMessages(settings, known, hub_id=hub_id),
            queued_bytes=Bound(
                "bytes that wait for local clients",
                settings.local_queues_bytes_max,
                known,
                setting="mqtt.local_queues_bytes_max",
            ),
            subscription_bytes=Bound("bytes of subscriptions", SUBSCRIPTION_BYTES_MAX, known),
            branches=Bound("branches of subscriptions", BRANCHES_MAX, known),
            log=LogLimit(clock),
        )
        self._inner: FilterTree[InnerSubscription] = FilterTree()
        self._sessions: dict[str, LocalSession] = {}
        self._carried: LocalSession | None = None
        self._presence = Presence(
            self._context.retained,
            lambda message: self.publish(message, ignore_result, 0),
            hub_id=hub_id,
            known=known,
        )
        self._timer = Timer(clock, self._sweep)

    # Life cycle.

    async def load(self, sessions: Mapping[str, Mapping[str, int]]) -> None:
        """Load retained messages, sessions and queues from disk.

        Args:
            sessions: Subscriptions of the stored sessions by client id, also those of the dialect.
        """
        context = self._context
        contents = await context.store.load()
        for message in contents.retained:
            context.retained.put(message)
        for client_id, subscriptions in sessions.items():
            session = self._sessions[client_id] = self._session(client_id)
            session.durable = True
            for topic_filter, options in subscriptions.items():
                if self.can_match(topic_filter):
                    session.subscribe(topic_filter, options)
            session.restore(contents.queued.pop(client_id, ()))
            self._presence.restore(client_id)
        # Left by sessions that began or ended when the hub was killed.
        for client_id, queued in contents.queued.items():
            if client_id in self._sessions:
                self._sessions[client_id].restore(queued)
                continue
            for each in queued:
                context.store.dequeue(client_id, each.message)

    def start(self) -> None:
        """Start the timer that drops expired messages."""
        self._timer.start(SWEEP_S)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    async def flush(self) -> None:
        """Wait until confirmed messages are deleted on disk."""
        await self._context.store.flush()

    # Topics and retained messages.

    def now_ms(self) -> int:
        """Return hub time, by which messages expire."""
        return self._context.store.now_ms()

    def topic(self, raw: bytes) -> str | None:
        """Parse a topic that clients may publish to; None = it is not one of the space."""
        topic = self._topics.get(raw)
        if topic is not None:
            return topic
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            return None
        if not is_topic(topic) or not is_plain(topic) or topic.count("/") >= LEVELS_MAX:
            return None
        if not any(matches(each, topic) for each in self._filters):
            return None
        if len(raw) <= _TOPIC_BYTES_MAX:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            self._topics[raw] = topic
        return topic

    def can_match(self, topic_filter: str) -> bool:
        """Return whether a filter, shared or not, is valid and matches some topic of the space."""
        if bytes_in(topic_filter) > FILTER_BYTES_MAX or topic_filter.count("/") >= LEVELS_MAX:
            return False
        _, topic_filter = split_share(topic_filter)
        if filter_fault(topic_filter):
            return False
        return any(overlaps(each, topic_filter) for each in self._readable)

    def retained(self, topic_filter: str) -> list[LocalMessage]:
        """List the retained messages that match a filter, in the order of their topics."""
        retained = self._context.retained
        search = RetainedSearch(topic_filter, retained)
        now_ms = self.now_ms()
        found: list[LocalMessage] = []
        while not search.is_done:
            topic, _ = search.next(RETAINED_STEPS)
            message = None if topic is None else retained.get(topic)
            if message is not None and (message.expires_ms is None or message.expires_ms > now_ms):
                found.append(message)
        return found

    def may_retain(self, message: LocalMessage) -> bool:
        """Return whether a message may be kept as the last of its topic."""
        return self._has_room_to_retain(message)

    # Messages.

    def publish(self, message: LocalMessage, settle: Settle, token: int) -> None:
        """Publish a message, of a client or of a part of the hub.

        A retained one for which there is no room (see `may_retain`) is delivered and not kept.

        Args:
            message: Its topic is one of the space, or of the hub's own.
            settle: `settle(token, None)` once all its writes are durable.
            token: Passed to `settle`.
        """
        context = self._context
        context.counters.published_total += 1
        if message.expiry_ms is not None:
            message.expires_ms = context.store.now_ms() + message.expiry_ms
        inner = self._inner.match(message.topic) if self._inner.count else ()
        receivers = self._receivers(message)
        shared = context.shared.match(message.topic) if context.shared.count else ()
        if not (message.retain or inner or receivers or shared):
            settle(token, None)
            return
        ticket = Ticket(settle, token)
        if message.retain:
            self._retain(message, ticket)
        for session, options in receivers.items():
            session.offer(message, options, ticket)
        for share in shared:
            chosen = share.next_member(message.qos)
            if chosen is not None:
                # In addition to its own filters: a copy, which is stored separately.
                chosen[0].offer(message.copy(), chosen[1], ticket, share)
        # Last: a part of the hub may respond at once, and all get the response after the message.
        for subscription in {each: None for found in inner for each in found}:
            subscription.deliver(message, ticket.hold(), 0)
        ticket.done(0, None)

    def subscribe_inner(self, filters: Iterable[str], deliver: Deliver) -> InnerSubscription:
        """Subscribe a part of the hub.

        Args:
            filters: Topic filters; may be changed by `InnerSubscription.follow`.
            deliver: Called with each message once, however many filters match.
        """
        subscription = InnerSubscription(self._inner, deliver)
        subscription.follow(filters)
        return subscription

    def carry(self, client_id: str, filters: Iterable[str]) -> LocalSession:
        """Return a stored session of a part of the hub that sends messages to a broker.

        Call it before `load`, which restores the queue of the session.

        Args:
            client_id: Not a valid id of a client.
            filters: Topics that it sends, without messages from the broker.
        """
        session = LocalSession(client_id, self._context, anonymous=False)
        self._sessions[client_id] = self._carried = session
        session.durable = True
        for topic_filter in filters:
            session.subscribe(topic_filter, 1 | NO_LOCAL | RETAIN_AS_PUBLISHED)
        return session

    # Sessions; see `edgehub.heads.mqtt.sessions`.

    def receive(self, session: int, packet_id: int, settle: Settle) -> None:
        """Store a packet id with the messages that were published last."""
        self._context.store.receive(session, packet_id, settle)

    def is_inner(self, topic: str) -> bool:
        """Return whether parts of the hub take a topic, and settle its messages on their own."""
        return any(self._inner.match(topic))

    def begin(self, client_id: str, *, clean: bool, durable: bool) -> LocalSession:
        """Return the local session of a client that connects.

        Args:
            client_id: The signed-in client.
            clean: Whether an earlier session is ended first.
            durable: Whether the session outlives the connection.
        """
        if clean:
            self._end(client_id)
        session = self._sessions.get(client_id)
        if session is None:
            session = self._sessions[client_id] = self._session(client_id)
        if not durable:
            session.keep_in_memory()
        session.durable = durable
        self._presence.connected(client_id)
        return session

    def left(self, client_id: str) -> None:
        """Publish that a client is not connected any more."""
        self._presence.left(client_id)

    def ended(self, client_id: str) -> None:
        """End the session of a client that is not connected."""
        self._end(client_id)
        self._presence.ended(client_id)

    @property
    def kept_bytes(self) -> int:
        """Bytes of retained and queued messages, about as many as on disk."""
        return self._context.retained.bytes.used + self._context.queued_bytes.used

    @property
    def bounds(self) -> list[Bound]:
        """List the bounds that all clients share."""
        context = self._context
        retained = context.retained
        return [retained.count, retained.bytes, context.queued_bytes, context.subscription_bytes]

    def recount(self) -> None:
        """Count the usage by kind of client, after identities have changed."""
        context = self._context
        context.retained.recount()
        for session in self._sessions.values():
            if session is not self._carried:
                session.count_as(anonymous=context.queued_bytes.is_anonymous(session.client_id))

    def waiting(self, client_id: str) -> tuple[int, int]:
        """Return how many messages wait for a client, and their bytes."""
        session = self._sessions.get(client_id)
        return (0, 0) if session is None else (len(session), session.bytes)

    def statistics(self) -> LocalStatistics:
        """Return the counts of this moment."""
        context = self._context
        return LocalStatistics(
            subscriptions=context.tree.count + context.shared.count,
            subscription_bytes=context.subscription_bytes.used,
            subscription_branches=context.tree.branches,
            subscriptions_refused_total=context.counters.subscriptions_refused_total,
            retained=len(context.retained),
            retained_bytes=context.retained.bytes.used,
            queued=context.queued,
            queued_bytes=context.queued_bytes.used,
            queues=sum(1 for session in self._sessions.values() if len(session)),
            published_total=context.counters.published_total,
            delivered_total=context.counters.delivered_total,
            dropped={reason.value: count for reason, count in context.counters.dropped.items()},
        )

    # Parts.

    def _session(self, client_id: str) -> LocalSession:
        anonymous = self._context.queued_bytes.is_anonymous(client_id)
        return LocalSession(client_id, self._context, anonymous=anonymous)

    def _end(self, client_id: str) -> None:
        session = self._sessions.pop(client_id, None)
        if session is not None:
            session.end()

    def _receivers(self, message: LocalMessage) -> dict[LocalSession, int]:
        receivers: dict[LocalSession, int] = {}
        for found in self._context.tree.match(message.topic):
            for session, options in found.items():
                if options & NO_LOCAL and session.client_id in (
                    message.publisher,
                    message.came_by,
                ):
                    continue
                known = receivers.get(session)
                receivers[session] = options if known is None else merged_options(known, options)
        return receivers

    def _retain(self, message: LocalMessage, ticket: Ticket) -> None:
        context = self._context
        if message.topic.startswith(HUB_TOPICS):
            return
        # Commands and registrations of the hub itself must not be lost to bounds of clients.
        is_own = message.publisher == self.hub_id and not message.came_by
        if not (is_own or self._has_room_to_retain(message)):
            return
        # A clear of a topic that is being cleared waits for that write too.
        if context.retained.put(message) or context.store.is_changing(message.topic):
            context.store.keep(message, ticket.hold())

    def _has_room_to_retain(self, message: LocalMessage) -> bool:
        retained = self._context.retained
        if retained.has_room(message):
            return True
        # Expired messages make room first.
        self._clear_expired()
        return retained.has_room(message)

    def _clear_expired(self) -> None:
        context = self._context
        for topic in context.retained.expired(context.store.now_ms()):
            cleared = LocalMessage(topic, b"", publisher=self.hub_id, retain=True)
            context.retained.put(cleared)
            context.store.keep(cleared, ignore_result)

    def _sweep(self) -> None:
        self._clear_expired()
        now_ms = self._context.store.now_ms()
        for session in self._sessions.values():
            session.drop_expired(now_ms)
        self.start()
