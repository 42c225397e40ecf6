"""From PUBLISH to Message to PUBACK in MQTT 5, with properties and reason codes.

Owns what `Ingress` owns, and the reason codes other than success. Invariants: each PUBLISH with QoS
1 or 2 is acknowledged with its outcome; a refused one is not sent again, so the connection stays
open. One foreign record of a batch does not stop the others: they are taken, and the PUBACK names
the senders of those that were not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.ingress import Ingress
from edgehub.heads.mqtt.statistics import CloseReason, DropReason
from edgehub.message import Refusal
from edgehub.mqtt.packets import PUBREC_HEAD
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode
from edgehub.mqtt.server_packets import refusal as refusal_bytes

if TYPE_CHECKING:
    from edgehub.heads.head import Settle
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.ingress import Taken
    from edgehub.heads.mqtt.local.ingress import LocalIngress
    from edgehub.heads.mqtt.received import ReceivedIds
    from edgehub.heads.mqtt.requests import RequestRefusal
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.mqtt.packets import Publish

SENDERS_NAMED_MAX: Final = 64
"""Beyond so many foreign senders of one batch, its PUBACK names none of them."""

RECEIVE_MAXIMUM: Final = 1024
"""PUBLISHes of QoS 1 and 2 that a client may send unacknowledged; about what one commit takes."""

_CODES: Final = {
    DropReason.TOPIC_NOT_ALLOWED: (ReasonCode.TOPIC_NAME_INVALID, "not a topic to publish to"),
    DropReason.BRIDGE_STATE: (ReasonCode.SUCCESS, ""),
    DropReason.LOOP: (ReasonCode.SUCCESS, ""),
    DropReason.NOT_AUTHORIZED: (ReasonCode.NOT_AUTHORIZED, "the identity may not publish there"),
    DropReason.RETAINED_FULL: (ReasonCode.QUOTA_EXCEEDED, "no room for another retained message"),
    DropReason.BAG_MALFORMED: (ReasonCode.PAYLOAD_FORMAT_INVALID, "property bag"),
    DropReason.BATCH_MALFORMED: (ReasonCode.PAYLOAD_FORMAT_INVALID, "not a batch of messages"),
    DropReason.BODY_NOT_UTF8: (ReasonCode.PAYLOAD_FORMAT_INVALID, "body is not UTF-8"),
    DropReason.PROPERTY_UNFIT: (
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        "a property with control characters, or an invalid response topic",
    ),
    DropReason.FOREIGN_IDENTITY: (
        ReasonCode.NOT_AUTHORIZED,
        "the identity may not speak for another one (on_behalf)",
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
        "which hub takes it is not known now",
    ),
    DropReason.QUEUE_DEPTH: (ReasonCode.QUOTA_EXCEEDED, "as many wait for the device as may"),
    DropReason.LIMIT: (
        ReasonCode.QUOTA_EXCEEDED,
        "a limit of rows, bytes, disk or unreleased packet ids",
    ),
}
_UNROUTED: Final = ReasonCode.NO_MATCHING_SUBSCRIBERS, "no route takes it"


class Ingress5(Ingress):
    """Messages of one client of MQTT 5.

    Args:
        context: Shared by the connections of the listener.
        client: The signed-in client.
        connection: Of the client.
        local: Handles topics of the local topic space.
        received: Packet ids of its session received with QoS 2.
        reasons: Whether the client wants reason strings.
        answer_bytes_max: Largest packet that the client takes, None = any.
    """

    __slots__ = (
        "_answer_bytes_max",
        "_answers",
        "_dropped_for",
        "_foreign",
        "_reasons",
        "_received_max",
    )

    def __init__(
        self,
        context: ListenerContext,
        client: SignedInClient,
        connection: ClientConnection,
        local: LocalIngress,
        received: ReceivedIds,
        *,
        reasons: bool,
        answer_bytes_max: int | None,
    ) -> None:
        super().__init__(context, client, connection, local, received)
        # Its session may bring some from before, which do not count as sent.
        self._received_max = len(received) + RECEIVE_MAXIMUM
        self._reasons = reasons
        self._answer_bytes_max = answer_bytes_max
        # Reason code, text and senders that are refused by token, where it is not success.
        self._answers: dict[int, tuple[ReasonCode, str, tuple[str, ...]]] = {}
        # Senders for whom the client may not speak, of the PUBLISH that is taken now.
        self._foreign: dict[str, None] = {}
        self._dropped_for = _CODES[DropReason.INVALID]

    def publish(self, packet: Publish) -> None:
        """Check and submit the message of a PUBLISH."""
        if packet.qos and (
            len(self._unacked) >= RECEIVE_MAXIMUM
            or (packet.qos > 1 and len(self._received) >= self._received_max)
        ):
            self._connection.close(CloseReason.RECEIVE_MAXIMUM)
            return
        super().publish(packet)

    def leave(self) -> None:
        """Acknowledge nothing more, and drop the reason codes that were due."""
        super().leave()
        self._answers.clear()

    def _settled_otherwise(self, token: int, refusal: Refusal | RequestRefusal | None) -> None:
        if self.has_left or refusal is None or refusal is Refusal.CLOSED:
            super()._settled_otherwise(token, refusal)
            return
        if refusal is Refusal.UNROUTED:
            self._refuse(token, _UNROUTED)
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
        if self._foreign:
            self._refuse(token, _CODES[DropReason.FOREIGN_IDENTITY], tuple(self._foreign))
        else:
            self._refuse(token, self._dropped_for)

    def _refuse_foreign(
        self, packet: Publish, sender: str | None, detail: str, *, size: int
    ) -> None:
        if sender is not None:
            self._foreign[sender] = None
        self._drop(DropReason.FOREIGN_IDENTITY, packet, detail, size=size)

    def _settle_batch(self, settle: Settle) -> Settle:
        if self._foreign:
            return partial(self._settled_in_part, tuple(self._foreign))
        return settle

    def _settled_in_part(
        self, foreign: tuple[str, ...], token: int, refusal: Refusal | None
    ) -> None:
        if self.has_left or refusal is not None:
            # A refusal after which it is sent again counts first.
            self._settled_otherwise(token, refusal)
        else:
            self._refuse(token, _CODES[DropReason.FOREIGN_IDENTITY], foreign)

    def _refuse(
        self, token: int, answer: tuple[ReasonCode, str], senders: tuple[str, ...] = ()
    ) -> None:
        self._answers[token] = *answer, senders
        self._early[token] = True
        self._acknowledge_early()

    def _answer(self, token: int, packet_id: int) -> bytes:
        answer = self._answers.pop(token, None)
        if answer is None:
            return super()._answer(token, packet_id)
        code, text, senders = answer
        head = self._head(token)
        if head == PUBREC_HEAD and code >= FIRST_FAILURE:
            # No PUBREL follows, also where a part of a batch was taken.
            self._received.release(packet_id, _nothing)
        if not self._reasons:
            return refusal_bytes(head, packet_id, code)
        bytes_max = self._answer_bytes_max
        if len(senders) <= SENDERS_NAMED_MAX:
            named = refusal_bytes(head, packet_id, code, text, senders)
            if bytes_max is None or len(named) <= bytes_max:
                return named
        return refusal_bytes(head, packet_id, code, text)

    def _careful(self, packet: Publish) -> Taken | None:
        self._foreign.clear()
        return super()._careful(packet)


def _nothing() -> None:
    """Ignore the end of a release."""
