"""From a PUBLISH on a topic outside the dialect to a message of the local topic space.

Owns the checks of topic, right, size and room. Invariant: a message that passes may be published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.statistics import DropReason
from edgehub.heads.mqtt.topics import BRIDGE_STATE
from edgehub.local_message import LocalMessage
from edgehub.mqtt.packets import RETAIN, Publish5, topic_name

if TYPE_CHECKING:
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.mqtt.message_properties import MessageProperties
    from edgehub.mqtt.packets import Publish


class LocalIngress:
    """Checks the local messages of one client.

    Args:
        space: The local topic space.
        client_id: Of the client.
        rights: Of the client.
        message_bytes_max: Largest payload with properties.
    """

    __slots__ = ("_client_id", "_max", "_rights", "_space")

    def __init__(
        self, space: LocalSpace, client_id: str, rights: LocalRights, *, message_bytes_max: int
    ) -> None:
        self._space = space
        self._client_id = client_id
        self._rights = rights
        self._max = message_bytes_max

    def take(self, packet: Publish) -> LocalMessage | DropReason:
        """Return the message of a PUBLISH, or the reason to drop it.

        Raises:
            ProtocolError: If its topic is not a topic name at all.
        """
        topic = self._space.topic(packet.topic)
        if topic is None:
            topic_name(packet.topic)
            is_state = packet.topic.startswith(BRIDGE_STATE)
            return DropReason.BRIDGE_STATE if is_state else DropReason.TOPIC_NOT_ALLOWED
        if not self._rights.may_publish(topic):
            return DropReason.NOT_AUTHORIZED
        if packet.body is None:
            return DropReason.TOO_LARGE
        given = packet.properties if isinstance(packet, Publish5) else None
        retain = bool(packet.flags & RETAIN)
        message = local_message(
            topic, packet.body, given, self._client_id, packet.qos, retain=retain
        )
        return self._fault(message, given) or message

    def _fault(self, message: LocalMessage, given: MessageProperties | None) -> DropReason | None:
        if len(message.body) + len(message.properties) > self._max:
            return DropReason.TOO_LARGE
        if given is not None and given.is_text and not is_utf8(message.body):
            return DropReason.BODY_NOT_UTF8
        if given is not None and not given.is_passable:
            return DropReason.PROPERTY_UNFIT
        if message.retain and not self._space.may_retain(message):
            return DropReason.RETAINED_FULL
        return None


def local_message(
    topic: str,
    body: bytes,
    given: MessageProperties | None,
    publisher: str,
    qos: int,
    *,
    retain: bool,
) -> LocalMessage:
    """Build a message of the space from what a client sent."""
    if given is None:
        return LocalMessage(topic, body, publisher=publisher, qos=qos, retain=retain)
    return LocalMessage(
        topic,
        body,
        publisher=publisher,
        qos=qos,
        retain=retain,
        properties=given.passed_on,
        expiry_ms=given.expiry_ms,
    )


def is_utf8(body: bytes) -> bool:
    """Return whether a payload is text."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
