"""From PUBLISH to Message to PUBACK or PUBREC: the messages of one client.

Owns the client's messages that are not acknowledged yet. Invariants: PUBACKs and PUBRECs leave in
the order of their PUBLISHes, however the store settles them [MQTT-4.6.0-2, 4.6.0-3]; a PUBLISH with
QoS 1 or 2 is acknowledged only when it is durable, or dropped and counted for a reason that MQTT
3.1.1 has no code for; `Ingress5` has reason codes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ProtocolError, extra_hint
from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES
from edgehub.heads.mqtt.batch import (
    UNPACKED_AT_ONCE_S,
    Batch,
    RecordError,
    Unpacking,
    message_of,
    record_bytes,
)
from edgehub.heads.mqtt.limits import READ_BYTES_MAX
from edgehub.heads.mqtt.local.ingress import is_utf8
from edgehub.heads.mqtt.requests import ClientRequest, RequestRefusal
from edgehub.heads.mqtt.statistics import CloseReason, DropReason
from edgehub.heads.mqtt.topics import DIALECT, with_property
from edgehub.local_message import LocalMessage
from edgehub.message import Message, Refusal, message_source
from edgehub.mqtt.batch import BatchError, BatchLibraryError
from edgehub.mqtt.hub_path import LoopError
from edgehub.mqtt.message_properties import MessageProperties
from edgehub.mqtt.packets import (
    PUBACK_HEAD,
    PUBREC_HEAD,
    RETAIN,
    OversizedPublish,
    Publish5,
    pack_answer,
    pubcomp,
    topic_name,
)
from edgehub.mqtt.property_bag import RETAIN_PROPERTY, BagError, is_batch, without_marks
from edgehub.mqtt.reasons import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.heads.head import Settle
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.local.ingress import LocalIngress
    from edgehub.heads.mqtt.received import ReceivedIds
    from edgehub.heads.mqtt.requests import RequestHandler
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.heads.mqtt.topics import EventsTopic
    from edgehub.mqtt.packets import Publish
    from edgehub.mqtt.property_bag import Properties

    Taken = Message | LocalMessage | ClientRequest | Batch
    """What a PUBLISH becomes."""

_SENDERS_MAX: Final = 4096
_SHOWN_BYTES_MAX: Final = 80
_PACKET_ID_BITS: Final = 16
_PACKET_ID: Final = 0xFFFF
_LEFT: Final = -1
_NOT_RECORDED: Final = frozenset(
    {DropReason.QOS0_OFFLINE, DropReason.CLOSING, DropReason.BRIDGE_STATE}
)
"""Reasons that are not in the journal: at another time the message would have been taken, or it is
nothing to store."""

_NOT_LOGGED: Final = frozenset({DropReason.BRIDGE_STATE, DropReason.LOOP})
"""Reasons without a log line for each connection: nothing is wrong, or there is one for all."""

_FINAL: Final = {
    Refusal.INVALID: "the store can never take it",
    RequestRefusal.NOT_AUTHORIZED: "its identity may not send it",
    RequestRefusal.QUEUE_DEPTH: "as many messages wait for the device as may",
    Refusal.RESERVED: "has the content type of batches, which only hubs send",
}
"""Final refusals, with their log text."""

_NO_PROPERTIES: Final = MessageProperties({})
_NO_PATTERN: Final = "for which its identity has no on_behalf pattern"


class Ingress:
    """Messages of one client.

    Args:
        context: Shared by the connections of the listener.
        client: The signed-in client.
        connection: Of the client.
        local: Handles topics of the local topic space.
        received: Packet ids of its session received with QoS 2.

    Attributes:
        usage: Of the backlog, by clients of its kind.
    """

    __slots__ = (
        "_backlog",
        "_bytes_max",
        "_connection",
        "_context",
        "_counters",
        "_early",
        "_exactly_once",
        "_first",
        "_holding",
        "_local",
        "_max",
        "_model_id",
        "_next",
        "_on_settled",
        "_on_settled_qos0",
        "_publish_local",
        "_received",
        "_senders",
        "_submit",
        "_topics",
        "_unacked",
        "_unsettled_sizes",
        "acks",
        "bytes",
        "client",
        "dropped",
        "unfinished",
        "usage",
        "wake_bytes",
    )

    def __init__(
        self,
        context: ListenerContext,
        client: SignedInClient,
        connection: ClientConnection,
        local: LocalIngress,
        received: ReceivedIds,
    ) -> None:
        self.client = client
        self.bytes = 0
        # Unsettled bytes at which a waiting client goes on; -1 = it does not wait.
        self.wake_bytes = -1
        # A batch that is not completely built or submitted yet; later packets wait for it.
        self.unfinished: Unpacking | Batch | None = None
        self.dropped: dict[DropReason, int] = {}
        # PUBACKs and PUBRECs to write with the next flush.
        self.acks: list[bytes] = []
        self._context = context
        self._connection = connection
        self._local = local
        self._received = received
        self._submit = context.submit
        self._publish_local = context.space.publish
        self._topics = context.topics
        self._backlog = context.backlog
        self.usage = (
            context.backlog.anonymous if client.identity is None else context.backlog.identified
        )
        self._counters = context.counters
        self._max = context.settings.message_bytes_max
        # The read that crosses the bound still fits under it.
        bytes_max = context.limits.connection_bytes_max
        self._bytes_max = max(bytes_max - READ_BYTES_MAX, bytes_max // 2)
        # Size and packet id in one number, in order; `_first` is the token of the oldest.
        self._unacked: deque[int] = deque()
        self._first = 0
        self._next = 0
        # Tokens settled before their turn: True = to acknowledge, False = never.
        self._early: dict[int, bool] = {}
        # Tokens of messages of QoS 2.
        self._exactly_once: set[int] = set()
        self._unsettled_sizes: dict[int, int] = {}
        self._holding: DropReason | None = None
        self._model_id = client.model_id
        self._senders: set[str] = {client.id}
        self._on_settled = self._settled
        self._on_settled_qos0 = self._settled_qos0

    @property
    def must_pause(self) -> bool:
        """Whether so many bytes are unacknowledged that reading has to stop."""
        if not self._unacked:
            return False
        return self.bytes >= self._bytes_max or self.usage.is_full

    @property
    def may_resume(self) -> bool:
        """Whether a paused client can be read again."""
        return self.bytes * 2 <= self._bytes_max

    @property
    def has_left(self) -> bool:
        """Whether the connection is closed."""
        return self._first == _LEFT

    def publish(self, packet: Publish) -> None:
        """Check and submit the message of a PUBLISH."""
        self._counters.received_total += 1
        if packet.qos != 1:
            if packet.qos:
                self._publish_qos2(packet)
            else:
                self._publish_qos0(packet)
            return
        if self._holding is not None:
            # Not acknowledged any more, so the client sends it again.
            return
        topic = self._topics.get(packet.topic)
        body = packet.body
        if (
            topic is None
            or body is None
            or topic.sender not in self._senders
            or len(body) + topic.properties_bytes > self._max
            or packet.flags
            or self._model_id
        ):
            self._take(packet, self._checked(packet))
            return
        message = Message(
            topic.device_id,
            topic.module_id,
            topic.source,
            topic.properties,
            topic.system,
            body,
            header=topic.header,
        )
        size = len(packet.topic) + len(body) + MESSAGE_OVERHEAD_BYTES
        # As `_expect` has it, without the call.
        token = self._next
        self._next = token + 1
        self._unacked.append(size << _PACKET_ID_BITS | packet.packet_id)
        self.bytes += size
        self.usage.used += size
        self._submit(message, self._on_settled, token)
        if not topic.header:
            topic.header = message.header

    def release(self, packet_id: int) -> bool:
        """Release a packet id for a PUBREL and send PUBCOMP; returns whether the id is known."""
        return self._received.release(packet_id, lambda: self._connection.write(pubcomp(packet_id)))

    def refuse_unread(self, packet_bytes: int) -> None:
        """Count and record a message of which only the size is known."""
        self._counters.received_total += 1
        self._counters.dropped[DropReason.TOO_LARGE] += 1
        self._context.refused(self.client.id, packet_bytes, DropReason.TOO_LARGE.value)
        self._note(DropReason.TOO_LARGE, f"a packet of {packet_bytes} bytes")

    def hold(self, reason: DropReason) -> None:
        """Take no more messages before a close; those of QoS 0 are dropped for `reason`."""
        self._holding = reason

    def leave(self) -> None:
        """Acknowledge nothing more; submitted messages are still counted until they are settled."""
        if self._first == _LEFT:
            return
        for place, entry in enumerate(self._unacked):
            token = self._first + place
            size = entry >> _PACKET_ID_BITS
            if token in self._early:
                self.usage.used -= size
            else:
                self._unsettled_sizes[token] = size
        self._first = _LEFT
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is not None:
            unfinished.abandon()
        self._unacked.clear()
        self._early.clear()
        self._exactly_once.clear()

    def _settled(self, token: int, refusal: Refusal | None) -> None:
        if refusal is None and token == self._first and not self._early:
            entry = self._unacked.popleft()
            self._first = token + 1
            size = entry >> _PACKET_ID_BITS
            self.bytes -= size
            self.usage.used -= size
            if not self.acks:
                self._connection.request_flush()
            self.acks.append(pack_answer(PUBACK_HEAD, entry & _PACKET_ID))
        else:
            self._settled_otherwise(token, refusal)

    def _dropped(self, token: int) -> None:
        """Acknowledge a dropped message in its turn."""
        self._settled_otherwise(token, None)

    def _answer(self, token: int, packet_id: int) -> bytes:
        """Write the PUBACK or PUBREC of a message that was not settled in the usual way."""
        return pack_answer(self._head(token), packet_id)

    def _head(self, token: int) -> int:
        """Return how the PUBACK or PUBREC of a message begins; called once a message."""
        if token not in self._exactly_once:
            return PUBACK_HEAD
        self._exactly_once.discard(token)
        return PUBREC_HEAD

    def _settled_otherwise(self, token: int, refusal: Refusal | RequestRefusal | None) -> None:
        if self._first == _LEFT:
            self.usage.used -= self._unsettled_sizes.pop(token, 0)
            self._backlog.check()
            return
        if refusal in _FINAL:
            reason = self._context.count_refused(refusal)
            self._note(reason, _FINAL[refusal])
            refusal = None
        elif refusal is Refusal.UNROUTED:
            refusal = None
        self._early[token] = refusal is None
        if refusal is Refusal.CLOSED:
            self._connection.close(CloseReason.HUB_CLOSED)
        elif refusal in {Refusal.LIMIT, Refusal.UNAVAILABLE}:
            self._connection.refused_by_limit()
        else:
            self._acknowledge_early()

    def _acknowledge_early(self) -> None:
        while self._early.get(self._first, False):
            token = self._first
            del self._early[token]
            entry = self._unacked.popleft()
            self._first = token + 1
            size = entry >> _PACKET_ID_BITS
            self.bytes -= size
            self.usage.used -= size
            if not self.acks:
                self._connection.request_flush()
            self.acks.append(self._answer(token, entry & _PACKET_ID))

    def _take(self, packet: Publish, message: Taken | None) -> None:
        """Submit the checked message of a PUBLISH of QoS 1 or 2, None = it was dropped."""
        if self._first == _LEFT or self.unfinished is not None:
            return
        submit: Callable[..., None] = self._submit
        settle: Settle = self._on_settled if packet.qos == 1 else self._settled_otherwise
        if message.__class__ is LocalMessage:
            submit = self._publish_local
        elif message.__class__ is Batch:
            submit, settle = self._submit_batch, self._settle_batch(settle)
        elif isinstance(message, ClientRequest):
            submit = message.handler
        size = MESSAGE_OVERHEAD_BYTES if message is None else _size(packet, message)
        token = self._expect(packet, size)
        if message is None:
            self._dropped(token)
        elif packet.qos == 1:
            submit(message, settle, token)
        else:
            self._received.take(packet.packet_id, message, submit, settle, token)

    def _settle_batch(self, settle: Settle) -> Settle:
        """Return the `settle` of the batch that was just built."""
        return settle

    def _expect(self, packet: Publish, size: int) -> int:
        """Count a message that will be acknowledged; returns its token."""
        token = self._next
        self._next = token + 1
        self._unacked.append(size << _PACKET_ID_BITS | packet.packet_id)
        if packet.qos > 1:
            self._exactly_once.add(token)
        self.bytes += size
        self.usage.used += size
        return token

    def _publish_qos2(self, packet: Publish) -> None:
        if self._holding is not None:
            return
        received = self._received
        if packet.packet_id in received:
            token = self._expect(packet, MESSAGE_OVERHEAD_BYTES)
            received.repeat(packet.packet_id, self._settled_otherwise, token)
        elif received.has_room:
            self._take(packet, self._checked(packet))
        else:
            self._settled_otherwise(self._expect(packet, MESSAGE_OVERHEAD_BYTES), Refusal.LIMIT)

    def _publish_qos0(self, packet: Publish) -> None:
        if self._holding is not None:
            self._drop(self._holding, packet)
        elif self.bytes >= self._bytes_max or self.usage.is_full:
            self._drop(DropReason.QOS0_BACKLOG, packet)
        else:
            self._take_qos0(packet, self._checked(packet))

    def _take_qos0(self, packet: Publish, message: Taken | None) -> None:
        """Submit the checked message of a PUBLISH of QoS 0, None = it was dropped."""
        if message is None:
            return
        size = _size(packet, message)
        submit: Callable[..., None] = self._submit
        if isinstance(message, LocalMessage):
            submit = self._publish_local
        elif isinstance(message, Batch):
            submit = self._submit_batch
        elif isinstance(message, ClientRequest):
            submit = message.handler
        elif not self._context.takes_qos0():
            self._drop(DropReason.QOS0_OFFLINE, packet)
            return
        self.bytes += size
        self.usage.used += size
        submit(message, self._on_settled_qos0, size)

    def _settled_qos0(self, size: int, refusal: Refusal | None) -> None:
        self.bytes -= size
        self.usage.used -= size
        self._backlog.check()
        if self.bytes <= self.wake_bytes:
            self._connection.request_flush()
        if refusal is not None and refusal is not Refusal.UNROUTED:
            reason = self._context.count_refused(refusal)
            self._note(reason, "")

    def _submit_batch(self, batch: Batch, settle: Settle, token: int) -> None:
        batch.submit(self._submit, settle, token)
        self.unfinished = None if batch.is_submitted else batch

    def go_on(self) -> None:
        """Build or submit more of the unfinished batch."""
        unfinished = self.unfinished
        if isinstance(unfinished, Unpacking):
            packet = unfinished.packet
            batch = self._build(unfinished)
            if not packet.qos:
                self._take_qos0(packet, batch)
            elif self._holding is None:
                self._take(packet, batch)
        elif unfinished is not None:
            unfinished.go_on()
            if unfinished.is_submitted:
                self.unfinished = None

    def _unpacked(self, packet: Publish, body: bytes) -> Batch | None:
        """Begin to build a batch; see `_build`."""
        if self.client.scope is None:
            detail = "sent a batch of messages: its identity needs on_behalf for that"
            self._refuse_foreign(packet, None, detail, size=len(body))
            return None
        self.unfinished = Unpacking(packet, body, self._max, self.usage)
        return self._build(self.unfinished)

    def _build(self, unpacking: Unpacking) -> Batch | None:
        """Build the next messages of a batch.

        Returns:
            The batch once all are built; None = it is `unfinished`, all its messages were dropped,
            or the connection was closed.
        """
        monotonic = self._context.clock.monotonic
        until_s = monotonic() + UNPACKED_AT_ONCE_S
        try:
            if not unpacking.read(lambda: monotonic() >= until_s):
                return None
        except BatchLibraryError as error:
            self._connection.close(CloseReason.BATCH_UNREADABLE, f"{error}; {extra_hint('zstd')}")
            return None
        except BatchError as error:
            self._finish(unpacking)
            self._drop(DropReason.BATCH_MALFORMED, unpacking.packet, str(error))
            return None
        while unpacking.records:
            message = self._record(unpacking.packet, unpacking.records.popleft())
            if message is not None:
                unpacking.messages.append(message)
            if self.has_left or (unpacking.records and monotonic() >= until_s):
                return None
        self._finish(unpacking)
        return Batch(unpacking.messages) if unpacking.messages else None

    def _finish(self, unpacking: Unpacking) -> None:
        unpacking.abandon()
        self.unfinished = None

    def _too_large(self, packet: Publish, topic: EventsTopic) -> None:
        if self.client.scope is not None and self._is_batch(topic, topic.system):
            # Its messages may be small enough; the child sends them again in smaller batches.
            detail = f"more than {self._max} bytes: set batch_bytes_max of the child lower"
            self._connection.close(CloseReason.BATCH_TOO_LARGE, detail)
        else:
            self._drop(DropReason.TOO_LARGE, packet, shown(packet.topic))

    def _record(self, packet: Publish, record: dict[str, Any]) -> Message | None:
        try:
            message, fits = message_of(record, message_bytes_max=self._max)
        except RecordError as error:
            self._drop(DropReason.BATCH_MALFORMED, packet, str(error), size=record_bytes(record))
            return None
        if not self._may_speak_for(message.sender):
            detail = f"a batch holds a message of {message.sender!a}, {_NO_PATTERN}"
            self._refuse_foreign(packet, message.sender, detail, size=record_bytes(record))
            return None
        if not fits:
            detail = f"a record of {message.sender!a}"
            self._drop(DropReason.TOO_LARGE, packet, detail, size=record_bytes(record))
            return None
        try:
            message.properties = self._own(message.properties, message.system)
        except LoopError:
            self._drop_loop(packet, message.sender, size=record_bytes(record))
            return None
        if self._model_id:
            message.system["modelId"] = self._model_id
        return message

    def _checked(self, packet: Publish) -> Taken | None:
        """Build the message after all checks; None = dropped and counted, or connection closed."""
        try:
            return self._careful(packet)
        except ProtocolError as error:
            self._connection.close(CloseReason.PROTOCOL_ERROR, error.reason, reason_of(error))
            return None

    def _careful(self, packet: Publish) -> Taken | None:
        """Build the message as `_checked` does.

        Raises:
            ProtocolError: If the topic is not a topic name at all.
        """
        handler = self._context.requests.find(packet.topic)
        if handler is not None:
            return self._request(packet, handler)
        if not packet.topic.startswith(DIALECT):
            return self._local_message(packet)
        topic = self._allowed_topic(packet)
        return None if topic is None else self._event(packet, topic)

    def _event(self, packet: Publish, topic: EventsTopic) -> Message | Batch | None:
        body, given = packet.body, _properties_of(packet)
        size = topic.properties_bytes + given.properties_bytes
        if body is None or len(body) + size > self._max:
            self._too_large(packet, topic)
            return None
        if given.is_text and not is_utf8(body):
            self._drop(DropReason.BODY_NOT_UTF8, packet, shown(packet.topic))
            return None
        properties, system, source = topic.properties, topic.system, topic.source
        # The property bag takes precedence: clients of both protocol versions have it.
        if given.properties:
            properties = {**given.properties, **properties}
        if given.system:
            system = {**given.system, **system}
            source = message_source(topic.module_id, system.get("outputName"))
        try:
            properties = self._own(properties, system)
        except LoopError:
            self._drop_loop(packet, topic.sender, size=len(body))
            return None
        if packet.flags & RETAIN:
            properties = with_property(properties, RETAIN_PROPERTY, "true")
        if self._model_id:
            system = with_property(system, "modelId", self._model_id)
        message = Message(
            topic.device_id, topic.module_id, source, properties, system, body, given.expiry_ms
        )
        return self._unpacked(packet, body) if self._is_batch(topic, system) else message

    def _local_message(self, packet: Publish) -> LocalMessage | None:
        taken = self._local.take(packet)
        if isinstance(taken, LocalMessage):
            return taken
        self._drop(taken, packet, shown(packet.topic))
        return None

    def _request(self, packet: Publish, handler: RequestHandler) -> ClientRequest | None:
        """Build a request.

        Raises:
            ProtocolError: If the topic is not a topic name at all.
        """
        body = packet.body
        if body is None or len(body) > self._max:
            self._drop(DropReason.TOO_LARGE, packet, shown(packet.topic))
            return None
        expiry_ms = _properties_of(packet).expiry_ms
        return ClientRequest(self.client, topic_name(packet.topic), body, expiry_ms, handler)

    def _is_batch(self, topic: EventsTopic, system: Properties) -> bool:
        """Return whether a message is a batch of the client itself.

        One on the topic of another sender is refused like any message with that content type.
        """
        return is_batch(system) and topic.sender == self.client.id

    def _own(self, properties: Properties, system: Properties) -> Properties:
        """Return properties without those that only hubs write, unless the client may be a hub.

        Raises:
            LoopError: If it is a hub, and the message has passed this one before.
        """
        if self.client.scope is None:
            return without_marks(properties)
        return self._context.hub_path.entered(properties, system)

    def _drop_loop(self, packet: Publish, sender: str, *, size: int) -> None:
        # Refused, it would be sent again, or end among the dead letters of the other hub.
        self._drop(DropReason.LOOP, packet, f"sent back a message of {sender!a}", size=size)

    def _refuse_foreign(
        self, packet: Publish, sender: str | None, detail: str, *, size: int
    ) -> None:
        """Close the connection, since a PUBACK would confirm the row of a child hub."""
        del sender, size
        self._counters.newest_dropped[DropReason.FOREIGN_IDENTITY] = self._about(detail)
        reason = CloseReason.FOREIGN_IDENTITY
        self._context.refused(self.client.id, _body_bytes(packet), reason.value)
        self._connection.close(reason, detail)

    def _allowed_topic(self, packet: Publish) -> EventsTopic | None:
        """Return the topic of a message, None = the client may not send there."""
        topic = self._topic(packet)
        if topic is None or self._may_speak_for(topic.sender):
            return topic
        detail = f"sent on the topic of {topic.sender!a}, {_NO_PATTERN}"
        self._refuse_foreign(packet, topic.sender, detail, size=_body_bytes(packet))
        return None

    def _topic(self, packet: Publish) -> EventsTopic | None:
        raw = packet.topic
        topic = self._topics.get(raw)
        if topic is not None:
            return topic
        try:
            topic = self._context.events_topic(raw)
        except BagError as error:
            self._drop(DropReason.BAG_MALFORMED, packet, str(error))
        else:
            if topic is None:
                self._drop(DropReason.TOPIC_NOT_ALLOWED, packet, shown(raw))
        return topic

    def _may_speak_for(self, sender: str) -> bool:
        if sender in self._senders:
            return True
        if not self.client.may_speak_for(sender):
            return False
        if len(self._senders) >= _SENDERS_MAX:
            self._senders = {self.client.id}
        self._senders.add(sender)
        return True

    def _drop(
        self, reason: DropReason, packet: Publish, detail: str = "", *, size: int | None = None
    ) -> None:
        self._counters.dropped[reason] += 1
        if reason not in _NOT_RECORDED:
            size = _body_bytes(packet) if size is None else size
            self._context.refused(self.client.id, size, reason.value)
        self._note(reason, detail)

    def _about(self, detail: str) -> str:
        client = f"client {self.client.id}"
        return f"{client}: {detail}" if detail else client

    def _note(self, reason: DropReason, detail: str) -> None:
        # The first one of a reason is logged, the others are counted when the connection ends.
        count = self.dropped.get(reason, 0)
        self.dropped[reason] = count + 1
        self._counters.newest_dropped[reason] = self._about(detail)
        if not count and reason not in _NOT_LOGGED:
            self._context.log.warning(
                "mqtt.message_dropped", client_id=self.client.id, reason=reason.value, detail=detail
            )


def _size(packet: Publish, message: Taken) -> int:
    if isinstance(message, LocalMessage | Batch):
        return message.size + MESSAGE_OVERHEAD_BYTES
    properties_bytes = _properties_of(packet).properties_bytes
    return len(packet.topic) + properties_bytes + len(message.body) + MESSAGE_OVERHEAD_BYTES


def _properties_of(packet: Publish) -> MessageProperties:
    return packet.properties if isinstance(packet, Publish5) else _NO_PROPERTIES


def _body_bytes(packet: Publish) -> int:
    if isinstance(packet, OversizedPublish):
        return packet.body_bytes
    return len(packet.body or b"")


def shown(raw: bytes) -> str:
    """Return a topic for a log line."""
    # Text of a peer is kept short and printable.
    return ascii(raw[:_SHOWN_BYTES_MAX].decode(errors="backslashreplace"))
