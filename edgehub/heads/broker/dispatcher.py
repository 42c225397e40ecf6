"""Dispatch of messages from a broker: to the routes, or into the local topic space.

Owns bounded caches of topics and property blocks. Calls the router and the local topic space.
Invariant: a message on a topic that broker and space share is published in the space, where routes
subscribe to it too; any other one goes to the routes, once, however many subscriptions it matches.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from edgehub.errors import ProtocolError
from edgehub.heads.broker.statistics import BrokerDrop
from edgehub.heads.mqtt.local.ingress import is_utf8
from edgehub.heads.mqtt.local.routes import routed
from edgehub.local_message import LocalMessage
from edgehub.mqtt.message_properties import MessageProperties, read_message_properties
from edgehub.mqtt.properties import without_identifiers
from edgehub.mqtt.property_bag import ORIGIN_PROPERTY
from edgehub.mqtt.topic_filter import bytes_in, matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.heads.broker.senders import Senders
    from edgehub.heads.broker.statistics import BrokerCounters
    from edgehub.heads.broker.subscriptions import Subscriptions
    from edgehub.heads.head import Refused, Settle, Submit
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.mqtt.client_decoder import IncomingPublish

SESSION: Final = "#broker"
"""Client id of the broker in the local topic space; not a valid id of a client."""

_NOT_RECORDED: Final = frozenset(
    {
        # Temporary: at another time they would have been taken.
        BrokerDrop.CLOSING,
        BrokerDrop.QOS0_OFFLINE,
        # Recorded by the part that refused them.
        BrokerDrop.INVALID,
        BrokerDrop.RESERVED,
        # A copy of a message of this hub.
        BrokerDrop.OWN,
    }
)
_TOPICS_MAX: Final = 4096
_TOPIC_CHARACTERS_MAX: Final = 1024
_BLOCKS_MAX: Final = 1024
_BLOCK_BYTES_MAX: Final = 512


class _Place(NamedTuple):
    """Sender and destination of the messages on a topic.

    Attributes:
        sender: `<device>` or `<device>/<module>`.
        is_local: Whether broker and local topic space share it.
        drop: Why messages on it are dropped, None = they are not.
    """

    sender: str
    is_local: bool
    drop: BrokerDrop | None


class _Block(NamedTuple):
    """A parsed property block.

    Attributes:
        numbers: Identifiers of the subscriptions that it was sent for.
        rest: The block without them.
        given: Its properties, None = it has none.
    """

    numbers: tuple[int, ...]
    rest: bytes
    given: MessageProperties | None


class BrokerDependencies(Struct, frozen=True, kw_only=True):
    """Parts of the hub that the broker head uses.

    Attributes:
        submit: The router.
        space: The local topic space.
        refused: Records messages that are dropped for their content.
        has_room: Whether the store takes messages that cannot be refused.
        takes_qos0: Whether messages of QoS 0 are to be stored at present.
    """

    submit: Submit
    space: LocalSpace
    refused: Refused
    has_room: Callable[[], bool]
    takes_qos0: Callable[[], bool]


class Dispatcher:
    """Dispatches the messages of a broker.

    Args:
        hub: Router and local topic space.
        local_topics: Topic filters that broker and local topic space share.
        hub_id: Its own messages are dropped.
        senders: Finds the sender of a topic.
        subscriptions: Finds further copies of a message.
        counters: Of the head.
        message_bytes_max: Largest body with properties.
    """

    def __init__(
        self,
        hub: BrokerDependencies,
        local_topics: tuple[str, ...],
        *,
        hub_id: str,
        senders: Senders,
        subscriptions: Subscriptions,
        counters: BrokerCounters,
        message_bytes_max: int,
    ) -> None:
        self._local_topics = local_topics
        self._hub_id = hub_id
        self._senders = senders
        self._subscriptions = subscriptions
        self._counters = counters
        self._submit = hub.submit
        self._space = hub.space
        self._refused = hub.refused
        self._has_room = hub.has_room
        self._takes_qos0 = hub.takes_qos0
        self._max = message_bytes_max
        self._places: dict[str, _Place] = {}
        self._blocks: dict[bytes, _Block] = {b"": _Block((), b"", None)}

    def offer(self, incoming: IncomingPublish, settle: Settle, token: int) -> BrokerDrop | None:
        """Submit or publish a message; `settle(token, ...)` may be called before this returns.

        Returns:
            Why it is dropped, None = it is not, or is a further copy; `settle` is not called for a
            dropped one.
        """
        topic, body = incoming.topic, incoming.body
        if topic is None:
            return BrokerDrop.MALFORMED
        if body is None:
            return BrokerDrop.TOO_LARGE
        block = self._block(incoming.properties)
        if block is None:
            return BrokerDrop.MALFORMED
        if block.numbers and self._subscriptions.is_further_copy(topic, block.numbers):
            self._counters.overlapping_total += 1
            settle(token, None)
            return None
        place = self._place(topic)
        reason = place.drop or self._fault(block, body, is_local=place.is_local)
        if reason is None and not incoming.qos and not (place.is_local or self._takes_qos0()):
            reason = BrokerDrop.QOS0_OFFLINE
        if reason is not None:
            return reason
        given = block.given
        message = LocalMessage(
            topic,
            body,
            publisher=place.sender,
            qos=min(1, incoming.qos),
            retain=incoming.retain,
            properties=block.rest if given is None or not place.is_local else given.passed_on,
            expiry_ms=None if given is None else given.expiry_ms,
        )
        if place.is_local:
            message.came_by = SESSION
            self._space.publish(message, settle, token)
        else:
            self._submit(routed(message, message.expiry_ms), settle, token)
        return None

    def may_fit(self, incoming: IncomingPublish) -> bool:
        """Return whether to retry a message that a limit refused.

        A message of the local space reaches its clients with each try, so it waits for room.
        """
        is_local = incoming.topic is not None and self._place(incoming.topic).is_local
        return not is_local or self._has_room()

    def refused(self, incoming: IncomingPublish, reason: BrokerDrop) -> None:
        """Record a dropped message in the journal, unless it is there or does not belong there."""
        if reason in _NOT_RECORDED:
            return
        topic = incoming.topic
        sender = "" if topic is None else self._place(topic).sender
        size = incoming.size if incoming.body is None else len(incoming.body)
        self._refused(sender, size, reason.value)

    @staticmethod
    def soon(call: Callable[[], None]) -> None:
        """Call a function at the end of this turn of the loop."""
        asyncio.get_running_loop().call_soon(call)

    def _fault(self, block: _Block, body: bytes, *, is_local: bool) -> BrokerDrop | None:
        if len(body) + len(block.rest) > self._max:
            return BrokerDrop.TOO_LARGE
        given = block.given
        if given is None:
            return None
        if given.properties.get(ORIGIN_PROPERTY) == self._hub_id:
            return BrokerDrop.OWN
        fits = given.is_passable and not (given.is_text and not is_utf8(body))
        return BrokerDrop.PROPERTY_UNFIT if is_local and not fits else None

    def _place(self, topic: str) -> _Place:
        place = self._places.get(topic)
        if place is None:
            place = self._find_place(topic)
            if len(topic) <= _TOPIC_CHARACTERS_MAX:
                if len(self._places) >= _TOPICS_MAX:
                    self._places.clear()
                self._places[topic] = place
        return place

    def _find_place(self, topic: str) -> _Place:
        device, module = self._senders.of(topic)
        sender = device if module is None else f"{device}/{module}"
        is_local = any(matches(each, topic) for each in self._local_topics)
        drop = None
        if is_local and self._space.topic(topic.encode()) is None:
            drop = BrokerDrop.TOPIC_NOT_ALLOWED
        elif bytes_in(topic) == 0 or "\0" in topic:
            drop = BrokerDrop.MALFORMED
        return _Place(sender, is_local, drop)

    def _block(self, raw: bytes) -> _Block | None:
        block = self._blocks.get(raw)
        if block is None:
            try:
                block = _read_block(raw)
            except ProtocolError:
                return None
            if len(raw) <= _BLOCK_BYTES_MAX:
                if len(self._blocks) >= _BLOCKS_MAX:
                    self._blocks.clear()
                self._blocks[raw] = block
        return block


def _read_block(raw: bytes) -> _Block:
    numbers, rest = without_identifiers(raw)
    return _Block(numbers, rest, read_message_properties(rest) if rest else None)
