"""The `cumulocity` endpoint: an MQTT endpoint whose topics are those of the platform.

Local topics below the prefix (`c8y/s/us`, `c8y/measurement/measurements/create`) are the platform's
topics without it, both ways. Owns nothing but the counts of what the platform reports. Invariants:
only topics that a device may publish to go out, so that what came down never goes back up; what
comes down is acknowledged after everything that it causes is durable. Facts:
docs/reference/endpoints.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.clock import Clock, Timer
from edgehub.endpoints.mqtt_topic import TopicError
from edgehub.local_message import LocalMessage
from edgehub.message import Refusal
from edgehub.mqtt.packets import publish
from edgehub.mqtt.topic_filter import is_topic
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.local_message import Settle
    from edgehub.message import EndpointId, Row
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish

    Publish = Callable[[LocalMessage, Settle, int], None]

MAPPER_MODULE: Final = "c8y-mapper"
"""Module id of the mapper, by which routes name its outputs."""

TOPIC_PROPERTY: Final = "topic"
"""Property by which the mapper names the topic of a row, with the local prefix."""

LOCAL_SOURCE: Final = "/mqtt/"
"""Source of rows that a route took from a local topic; the topic follows."""

DOWN: Final = ("s/ds", "s/e", "s/dt", "s/dat", "devicecontrol/notifications", "error")
"""What the platform sends to every device: operations, errors, template answers, its token."""

ERRORS: Final = frozenset({"s/e", "error"})
UP: Final = frozenset({"s", "t", "q", "c"})
"""First levels of SmartREST lines: persistent, transient, quiescent, processed elsewhere."""

UP_SECOND: Final = frozenset({"us", "ut", "uc", "ud", "ul", "uat", "ucr"})
UP_JSON: Final = frozenset({"inventory", "measurement", "event", "alarm", "devicecontrol"})
NEVER_UP: Final = frozenset({"devicecontrol/notifications"})

HELD_MAX: Final = 1000
"""Messages of the platform that wait for room here; the rest stays unacknowledged there."""

GET_OPERATIONS: Final = b"500"
"""Requests pending operations: the platform repeats undelivered ones on request only."""

RETRY_S: Final = 5.0
ERROR_CHARACTERS_MAX: Final = 200

log = structlog.get_logger(__name__)


class CumulocityTopics:
    """Names the platform's topic of a row; see `Topics`.

    Args:
        prefix: First level of the local topics.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/"

    def topic(self, row: Row) -> bytes:
        """Return the topic in UTF-8; raises `TopicError`."""
        message = row.message
        local: str | None = None
        if message.source.startswith(LOCAL_SOURCE):
            local = message.source.removeprefix(LOCAL_SOURCE)
        elif message.module_id == MAPPER_MODULE:
            # Of any other sender it could name the topic of another device.
            local = message.properties.get(TOPIC_PROPERTY)
        if not local:
            raise TopicError("it is neither from the mapper nor from a local topic")
        if not local.startswith(self._prefix):
            raise TopicError(f"its topic {local[:80]!a} is not below {self._prefix}")
        topic = local.removeprefix(self._prefix)
        if not is_upward(topic):
            raise TopicError(f"{topic[:80]!a} is no topic that the platform takes messages on")
        return topic.encode()


def is_upward(topic: str) -> bool:
    """Return whether a device publishes to a topic of the platform."""
    if not is_topic(topic) or topic in NEVER_UP:
        return False
    first, slash, rest = topic.partition("/")
    if first in UP:
        return rest.partition("/")[0] in UP_SECOND
    return first in UP_JSON and bool(slash and rest)


class CumulocityDownlink:
    """What the platform sends, as messages of the local topic space; see `mqtt.Downlink`.

    Args:
        endpoint_id: For log lines.
        prefix: First level of the local topics.
        publisher: Client id of the hub in the local topic space.
        templates: SmartREST templates of one's own, whose answers come on `s/dc/<template>`.
        publish: The local topic space.
        clock: For the next try after a refusal.

    Attributes:
        received_total: Messages of the platform.
        errors_total: Those that report an error.
        dropped_total: Those that cannot be stored.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        *,
        prefix: str,
        publisher: str,
        templates: Iterable[str],
        publish: Publish,
        clock: Clock,
    ) -> None:
        self._endpoint_id = endpoint_id
        self._prefix = prefix
        self._publisher = publisher
        self._filters = (*DOWN, *(f"s/dc/{name}" for name in templates))
        self._publish = publish
        self._clock = clock
        self._connection: Client | None = None
        self._held: list[IncomingPublish] = []
        self._timer = Timer(clock, self._try_again)
        self._skipped_some = False
        self._log = LogLimit(clock)
        self.received_total = 0
        self.errors_total = 0
        self.dropped_total = 0

    def document(self) -> dict[str, int]:
        """Return the counts, for the status."""
        return {
            "received": self.received_total,
            "errors": self.errors_total,
            "dropped": self.dropped_total,
            "held": len(self._held),
        }

    async def run(self, connection: Client, guard: SubscriptionGuard) -> None:
        """Keep subscriptions as wanted while a connection lasts; raises `LinkError`."""
        self._connection = connection
        connection.begin()
        answered: set[str] = set()
        due = asyncio.Event()
        try:
            while True:
                due.clear()
                wanted = [each for each in self._filters if each not in answered]
                asked, refused = await guard.subscribe(connection, wanted)
                if not answered:
                    connection.write(
                        publish(b"s/us", GET_OPERATIONS, connection.next_packet_id(()))
                    )
                answered |= asked
                if refused:
                    log.warning(
                        "cumulocity.subscriptions_refused",
                        endpoint_id=self._endpoint_id,
                        filters=refused,
                    )
                await guard.wait(due)
        finally:
            # The platform sends unacknowledged messages again on the next connection.
            self._connection = None
            self._held.clear()
            self._skipped_some = False
            self._timer.cancel()

    def take(self, incoming: IncomingPublish) -> None:
        """Handle a message of that connection."""
        self.received_total += 1
        topic, body = incoming.topic, incoming.body
        if topic is None or body is None or not is_topic(topic):
            self._drop(incoming, "malformed or too large")
            return
        if topic in ERRORS:
            self._note_error(topic, body)
        if self._held:
            self._hold(incoming)
        else:
            self._offer(incoming)

    def _offer(self, incoming: IncomingPublish) -> None:
        connection = self._connection
        message = LocalMessage(
            f"{self._prefix}/{incoming.topic}", incoming.body or b"", publisher=self._publisher
        )

        def settle(_token: int, refusal: Refusal | None) -> None:
            if connection is None or connection is not self._connection:
                return
            match refusal:
                case None | Refusal.UNROUTED:
                    connection.acknowledge(incoming)
                case Refusal.LIMIT | Refusal.UNAVAILABLE:
                    self._hold(incoming)
                case Refusal.INVALID | Refusal.RESERVED:
                    self._drop(incoming, "it can never be stored")
                case Refusal.CLOSED:
                    pass  # it is sent again after the restart

        self._publish(message, settle, 0)

    def _hold(self, incoming: IncomingPublish) -> None:
        # What is left out here stays unacknowledged, and is sent again with the next connection.
        if len(self._held) < HELD_MAX:
            self._held.append(incoming)
        else:
            self._skipped_some = True
        self._timer.start(RETRY_S)

    def _try_again(self) -> None:
        held, self._held = self._held, []
        for place, incoming in enumerate(held):
            self._offer(incoming)
            if self._held:
                self._held += held[place + 1 :]
                return
        if self._skipped_some and self._connection is not None:
            self._connection.abort("there is room again for messages that wait at the platform")

    def _note_error(self, topic: str, body: bytes) -> None:
        self.errors_total += 1
        # A bad template fails with every message.
        self._log.warning(
            "cumulocity.error_reported",
            endpoint_id=self._endpoint_id,
            topic=topic,
            text=body[:ERROR_CHARACTERS_MAX].decode("utf-8", "replace"),
            errors_total=self.errors_total,
        )

    def _drop(self, incoming: IncomingPublish, reason: str) -> None:
        self.dropped_total += 1
        log.warning(
            "cumulocity.message_dropped",
            endpoint_id=self._endpoint_id,
            reason=reason,
            dropped_total=self.dropped_total,
        )
        if self._connection is not None:
            self._connection.acknowledge(incoming)
