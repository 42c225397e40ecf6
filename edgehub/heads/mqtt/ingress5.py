"""From PUBLISH to Message to PUBACK in MQTT 5: properties come in, and a refusal has its code.

Owns what `Ingress` owns, and the answers that are not success. Invariant: each PUBLISH with QoS 1
is answered with what became of it; a refused one does not come again, so nothing is closed for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.ingress import Ingress, shown
from edgehub.heads.mqtt.local.intake import is_utf8
from edgehub.heads.mqtt.packets import RETAIN, Publish5, puback
from edgehub.heads.mqtt.packets5 import puback as refusing_puback
from edgehub.heads.mqtt.reasons import ReasonCode
from edgehub.heads.mqtt.statistics import CloseReason, DropReason
from edgehub.heads.mqtt.topics import DIALECT, with_property
from edgehub.message import Message, Refusal, message_source
from edgehub.property_bag import RETAIN_PROPERTY

if TYPE_CHECKING:
    from edgehub.heads.mqtt.batch import Batch
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.ingress import Peer
    from edgehub.heads.mqtt.local.intake import LocalIntake
    from edgehub.heads.mqtt.packets import Publish
    from edgehub.heads.mqtt.sign_in import Client
    from edgehub.local_message import LocalMessage

RECEIVE_MAXIMUM: Final = 1024
"""PUBLISHes of QoS 1 that a client may send without PUBACK; about what one commit takes."""

_CODES: Final = {
    DropReason.TOPIC_NOT_ALLOWED: (ReasonCode.TOPIC_NAME_INVALID, "not a topic to publish to"),
    DropReason.BRIDGE_STATE: (ReasonCode.SUCCESS, ""),
    DropReason.NOT_AUTHORIZED: (ReasonCode.NOT_AUTHORIZED, "the identity may not publish there"),
    DropReason.RETAINED_FULL: (ReasonCode.QUOTA_EXCEEDED, "no room for another retained message"),
    DropReason.TOPIC_NOT_UTF8: (ReasonCode.TOPIC_NAME_INVALID, "topic is not UTF-8"),
    DropReason.BAG_MALFORMED: (ReasonCode.PAYLOAD_FORMAT_INVALID, "property bag"),
    DropReason.BATCH_MALFORMED: (ReasonCode.PAYLOAD_FORMAT_INVALID, "not a batch of messages"),
    DropReason.BODY_NOT_UTF8: (ReasonCode.PAYLOAD_FORMAT_INVALID, "body is not UTF-8"),
    DropReason.PROPERTY_UNFIT: (
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        "a property with control characters, or a response topic that is none",
    ),
    DropReason.TOO_LARGE: (
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        "body and properties are larger than a message may be",
    ),
    DropReason.INVALID: (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "cannot be stored"),
    DropReason.RESERVED: (
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        "has the content type of batches, which only hubs send",
    ),
    DropReason.UNAVAILABLE: (
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        "which hub takes it cannot be told now",
    ),
    DropReason.LIMIT: (ReasonCode.QUOTA_EXCEEDED, "a limit of rows, bytes or disk"),
}


class Ingress5(Ingress):
    """Messages of one client of MQTT 5.

    Args:
        context: What the connections share.
        client: The signed-in client.
        peer: Its connection.
        local: Takes what is no topic of the dialect.
        reasons: Whether the client wants to read reasons.
    """

    __slots__ = ("_answers", "_dropped_for", "_reasons")

    def __init__(
        self,
        context: ListenerContext,
        client: Client,
        peer: Peer,
        local: LocalIntake,
        *,
        reasons: bool,
    ) -> None:
        super().__init__(context, client, peer, local)
        self._reasons = reasons
        # Reason code and text by token, where it is not success.
        self._answers: dict[int, tuple[ReasonCode, str]] = {}
        self._dropped_for = _CODES[DropReason.INVALID]

    def publish(self, packet: Publish) -> None:
        """Take a PUBLISH of QoS 0 or 1."""
        if packet.qos and len(self._unacked) >= RECEIVE_MAXIMUM:
            self._peer.close(CloseReason.RECEIVE_MAXIMUM)
            return
        super().publish(packet)

    def leave(self) -> None:
        """See `Ingress`."""
        super().leave()
        self._answers.clear()

    def _settled_otherwise(self, token: int, refusal: Refusal | None) -> None:
        if self.has_left or refusal is None or refusal is Refusal.CLOSED:
            super()._settled_otherwise(token, refusal)
            return
        reason = self._context.count_refused(refusal)
        self._note(reason, _CODES[reason][1])
        self._refuse(token, _CODES[reason])

    def _drop(
        self, reason: DropReason, packet: Publish, detail: str = "", *, size: int | None = None
    ) -> None:
        super()._drop(reason, packet, detail, size=size)
        code = _CODES.get(reason)
        if code is not None:
            text = f"{code[1]}: {detail}" if reason is DropReason.BAG_MALFORMED else code[1]
            self._dropped_for = code[0], text

    def _dropped(self, token: int) -> None:
        self._refuse(token, self._dropped_for)

    def _refuse(self, token: int, answer: tuple[ReasonCode, str]) -> None:
        self._answers[token] = answer
        self._early[token] = True
        self._acknowledge_early()

    def _answer(self, token: int, packet_id: int) -> bytes:
        answer = self._answers.pop(token, None)
        if answer is None:
            return puback(packet_id)
        code, text = answer
        return refusing_puback(packet_id, code, text if self._reasons else "")

    def _careful(self, packet: Publish) -> Message | LocalMessage | Batch | None:
        if not isinstance(packet, Publish5) or not packet.topic.startswith(DIALECT):
            return super()._careful(packet)
        topic = self._topic(packet)
        if topic is None:
            return None
        if not self._may_speak_for(topic.sender):
            self._foreign(packet, f"sent on the topic of {topic.sender!a}")
            return None
        body = packet.body
        given = packet.properties
        size = topic.properties_bytes + given.properties_bytes
        if body is None or len(body) + size > self._max:
            self._too_large(packet, topic)
            return None
        if given.is_text and not is_utf8(body):
            self._drop(DropReason.BODY_NOT_UTF8, packet, shown(packet.topic))
            return None
        properties, system, source = topic.properties, topic.system, topic.source
        # What is said in the bag holds: it is what clients of both protocol versions can say.
        if given.properties:
            properties = {**given.properties, **properties}
        properties = self._own(properties)
        if given.system:
            system = {**given.system, **system}
            source = message_source(topic.module_id, system.get("outputName"))
        if packet.flags & RETAIN:
            properties = with_property(properties, RETAIN_PROPERTY, "true")
        if self._model_id:
            system = with_property(system, "modelId", self._model_id)
        message = Message(
            topic.device_id, topic.module_id, source, properties, system, body, given.expiry_ms
        )
        return self._unpacked(packet, body) if self._is_batch(topic, system) else message
