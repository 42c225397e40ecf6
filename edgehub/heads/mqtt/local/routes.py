"""Local messages for routes: those that match the topic filters of routes go to the router.

Owns the inner subscription of the routes. Invariant: the publisher is acknowledged only after the
rows of the message are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.devices.ids import split_sender
from edgehub.heads.mqtt.statistics import DropReason
from edgehub.heads.mqtt.topics import with_property
from edgehub.message import Message
from edgehub.mqtt.message_properties import read_message_properties
from edgehub.mqtt.property_bag import RETAIN_PROPERTY, without_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.statistics import ListenerCounters
    from edgehub.local_message import LocalMessage, Settle
    from edgehub.mqtt.property_bag import Properties

SOURCE: Final = "/mqtt/"


class RouteFeed:
    """Submits local messages to the router.

    Args:
        space: The local topic space.
        submit: The router, for messages that need not match a route.
        takes_qos0: Whether messages of QoS 0 are stored at present.
        counters: Of the listener.
    """

    def __init__(
        self,
        space: LocalSpace,
        submit: Submit,
        takes_qos0: Callable[[], bool],
        counters: ListenerCounters,
    ) -> None:
        self._space = space
        self._submit = submit
        self._takes_qos0 = takes_qos0
        self._counters = counters
        self._subscription = space.subscribe_inner((), self._deliver)

    def follow(self, filters: Iterable[str]) -> None:
        """Subscribe to the filters of the present routes."""
        self._subscription.follow(filters)

    def _deliver(self, message: LocalMessage, settle: Settle, token: int) -> None:
        if not message.qos and not self._takes_qos0():
            self._counters.dropped[DropReason.QOS0_OFFLINE] += 1
            settle(token, None)
            return
        expiry_ms = None
        if message.expires_ms is not None:
            expiry_ms = max(0, message.expires_ms - self._space.now_ms())
        self._submit(routed(message, expiry_ms), settle, token)


def routed(message: LocalMessage, expiry_ms: int | None) -> Message:
    """Return the form of a message on a topic that the router takes.

    Args:
        message: Its publisher becomes the sender.
        expiry_ms: What is left of its message expiry interval, None = it does not expire.
    """
    device_id, module_id = split_sender(message.publisher) or (message.publisher, None)
    properties: Properties = {}
    system: Properties = {}
    if message.properties:
        given = read_message_properties(message.properties)
        properties, system = without_marks(given.properties), given.system
    if message.retain:
        properties = with_property(properties, RETAIN_PROPERTY, "true")
    source = SOURCE + message.topic
    return Message(device_id, module_id, source, properties, system, message.body, expiry_ms)
