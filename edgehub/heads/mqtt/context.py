"""What the connections of one listener share.

Owns the sessions, the connections, the caches of parsed topics and property blocks, and the list of
connections that have something to write. Invariant: all that one turn of the loop settles for a
connection is written at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.backlog import Backlog
from edgehub.heads.mqtt.fairness import FairShare
from edgehub.heads.mqtt.limits import LIMITS, ListenerLimits
from edgehub.heads.mqtt.local.rights import rights_of
from edgehub.heads.mqtt.requests import ClientRequests, RequestRefusal
from edgehub.heads.mqtt.sessions import Sessions
from edgehub.heads.mqtt.statistics import DropReason, ListenerCounters
from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
from edgehub.heads.mqtt.topics import EventsTopic, parse_events_topic
from edgehub.heads.mqtt.will import PendingWills, sender_of, will_bytes
from edgehub.local_message import LocalMessage
from edgehub.message import Refusal
from edgehub.mqtt.packets import topic_name
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from edgehub.clock import Clock
    from edgehub.devices.bounds import Usage
    from edgehub.devices.identities import Identities
    from edgehub.heads.head import Refused, Submit
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.session_table import SessionTable
    from edgehub.message import Message
    from edgehub.mqtt.hub_path import HubPath
    from edgehub.mqtt.message_properties import MessageProperties
    from edgehub.settings import MqttSettings

_TOPICS_MAX: Final = 4096
_TOPIC_BYTES_MAX: Final = 1024
_LIMIT_CLOSES_MAX: Final = 10_000


class ListenerContext:
    """Shared by the connections of one listener.

    Args:
        settings: Of the section `[mqtt]`.
        limits: Further limits and times.
        clock: For all timers.
        submit: The router.
        link_up: Whether the uplink is up; called only with `store_qos0` off.
        space: The local topic space.
        refused: Records messages that are dropped for their content.
        identities: Clients that may sign in.
        hub_path: Finds messages that have passed this hub before.
        session_store: Keeps stored sessions.

    Attributes:
        settings: As of the last reload.
        tasks: The listener's task group, None = it does not run.
        anonymous: Whether clients without a password may sign in.
        blocks: Property blocks of MQTT 5, filled and bounded by the decoders.
        connections: All connections, signed in or not.
        silent: Those that have not sent a CONNECT yet, the oldest first.
        draining: Whether the hub shuts down and takes no more messages.
    """

    def __init__(  # noqa: PLR0913 - the listener's dependencies, each by name
        self,
        settings: MqttSettings,
        limits: ListenerLimits = LIMITS,
        *,
        clock: Clock,
        submit: Submit,
        link_up: Callable[[], bool],
        space: LocalSpace,
        refused: Refused,
        identities: Identities,
        hub_path: HubPath,
        session_store: SessionTable,
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.clock = clock
        self.submit = submit
        self.refused = refused
        self.space = space
        self.identities = identities
        self.hub_path = hub_path
        self.tasks: asyncio.TaskGroup | None = None
        self.counters = ListenerCounters()
        self.log = LogLimit(clock)
        self.backlog = Backlog("unacknowledged bytes", limits.unacknowledged_bytes_max, identities)
        self.topics: dict[bytes, EventsTopic] = {}
        self.blocks: dict[bytes, MessageProperties] = {}
        self.anonymous = self.draining = False
        self.connections: set[ClientConnection] = set()
        self.silent: dict[ClientConnection, None] = {}
        self.wills = PendingWills(clock, self.submit_will, identities)
        self.sessions = Sessions(
            session_store,
            clock=clock,
            wills=self.wills,
            local=space,
            clients_max=settings.clients_max,
            stored_max=limits.stored_sessions_max,
            known=identities,
            evicted=self._session_evicted,
        )
        self.share = FairShare(clock, self.backlog, self.sessions)
        self.index = SubscriptionIndex(space.hub_id)
        self.requests = ClientRequests()
        self._link_up = link_up
        self._dirty: list[ClientConnection] = []
        self._limit_closes: OrderedDict[str, float] = OrderedDict()

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in the listener's task group."""
        assert self.tasks is not None, "connections exist only while the listener runs"
        return self.tasks.create_task(coroutine, name=name)

    def request_flush(self, connection: ClientConnection) -> None:
        """Call `connection.flush` at the end of this turn of the loop."""
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._flush)
        self._dirty.append(connection)

    def events_topic(self, topic: bytes) -> EventsTopic | None:
        """Parse a topic that is not in the cache; None = not a telemetry topic.

        Raises:
            ProtocolError: If it is not a topic name at all.
            BagError: If its property bag is malformed.
        """
        parsed = parse_events_topic(topic_name(topic))
        if parsed is not None and parsed.is_plain and len(topic) <= _TOPIC_BYTES_MAX:
            if len(self.topics) >= _TOPICS_MAX:
                # Cheaper than an order of use: steady topics are back after one message each.
                self.topics.clear()
            self.topics[topic] = parsed
        return parsed

    def limit_wait_s(self, client_id: str) -> float:
        """Return how long a client must wait before it is closed because of a limit again."""
        last_s = self._limit_closes.get(client_id)
        if last_s is None:
            return 0.0
        return last_s + self.limits.limit_pause_s - self.clock.monotonic()

    def note_limit_close(self, client_id: str) -> None:
        """Record that a client was closed because of a limit."""
        self._limit_closes.pop(client_id, None)
        self._limit_closes[client_id] = self.clock.monotonic()
        if len(self._limit_closes) > _LIMIT_CLOSES_MAX:
            self._limit_closes.popitem(last=False)

    def takes_qos0(self) -> bool:
        """Return whether messages of QoS 0 are stored at present."""
        return self.settings.store_qos0 or self._link_up()

    def submit_will(self, message: Message | LocalMessage) -> None:
        """Submit a will by the rights that its client has now; no PUBACK waits for it."""
        if isinstance(message, LocalMessage) and not self._may_publish(message):
            self.counters.dropped[DropReason.NOT_AUTHORIZED] += 1
            return
        if self.draining:
            self.counters.dropped[DropReason.CLOSING] += 1
            return
        self.counters.wills_total += 1
        size = will_bytes(message)
        usage = self.backlog.of(sender_of(message))
        usage.used += size
        settle = partial(self._will_settled, usage)
        if isinstance(message, LocalMessage):
            self.space.publish(message, settle, size)
        else:
            self.submit(message, settle, size)

    def count_refused(self, refusal: Refusal | RequestRefusal) -> DropReason:
        """Count a message that was refused and will not be sent again."""
        closed = refusal is Refusal.CLOSED
        reason = DropReason.CLOSING if closed else DropReason(refusal.value)
        self.counters.dropped[reason] += 1
        return reason

    def _may_publish(self, message: LocalMessage) -> bool:
        entry = self.identities.get(message.publisher)
        if entry is None:
            return self.anonymous
        return not entry.disabled and rights_of(entry.id, entry).may_publish(message.topic)

    def _will_settled(self, usage: Usage, size: int, refusal: Refusal | None) -> None:
        usage.used -= size
        self.backlog.check()
        if refusal is not None and refusal is not Refusal.UNROUTED:
            self.count_refused(refusal)

    def _session_evicted(self, client_id: str, absent_s: float) -> None:
        self.counters.sessions_evicted_total += 1
        self.log.warning("mqtt.session_evicted", client_id=client_id, absent_s=round(absent_s))

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.backlog.check()
