"""The incremental decoder of the server's side: bytes of one connection in, control packets out.

Owns framing, the protocol level of the connection, topic aliases, and what is left of an incomplete
packet. Invariant: how the bytes were cut into reads changes neither the packets nor whether and
where the stream is found malformed. Memory for an incomplete packet is bounded by the packet limit;
of a PUBLISH of MQTT 3.1.1 over that limit only the topic is kept while the rest is read and
discarded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import MORE_DIGITS, read_variable
from edgehub.mqtt.message_properties import MessageProperties, read_message_properties
from edgehub.mqtt.packets import (
    BAD_PUBLISH,
    DUP,
    HAS_PROPERTIES,
    LEVEL_5,
    PUBLISH,
    TYPE,
    OversizedPublish,
    Puback,
    Pubcomp,
    Publish,
    Publish5,
    Pubrec,
    Pubrel,
)
from edgehub.mqtt.reasons import (
    ACKNOWLEDGEMENTS,
    RELEASES,
    OversizedPublishError,
    ReasonCode,
    ReasonedError,
)
from edgehub.mqtt.server_packets import (
    parse_acknowledgement,
    parse_connect,
    parse_disconnect,
    parse_pingreq,
    parse_subscribe,
    parse_unsubscribe,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.mqtt.packets import Packet

CONTROL_BYTES_MAX: Final = 96 * 1024
"""Longest packet of MQTT 3.1.1 other than PUBLISH: room for a will of 64 KiB or about a thousand
filters."""

TOPIC_ALIAS_MAX: Final = 16
"""Topic aliases that a client may use; each holds a topic of up to 64 KiB."""

_HEADER_BYTES_MIN: Final = 2
_QOS_3: Final = 3
_BLOCKS_MAX: Final = 4096
_BLOCK_BYTES_MAX: Final = 256
_NO_TOPIC: Final = "PUBLISH with neither a topic nor a topic alias that stands for one"
_CONNECT: Final = 0x10

# First byte, flags included, to the parser of the body. PUBLISH has its own path.
_PARSERS: Final[dict[int, Callable[[bytes, int], Packet]]] = {
    0x40: partial(parse_acknowledgement, Puback, ACKNOWLEDGEMENTS),
    0x50: partial(parse_acknowledgement, Pubrec, ACKNOWLEDGEMENTS),
    0x62: partial(parse_acknowledgement, Pubrel, RELEASES),
    0x70: partial(parse_acknowledgement, Pubcomp, RELEASES),
    0x82: parse_subscribe,
    0xA2: parse_unsubscribe,
    0xC0: parse_pingreq,
    0xE0: parse_disconnect,
}
_TYPES: Final = frozenset(head & TYPE for head in _PARSERS)


class Decoder:
    """Decodes what one client sends.

    Args:
        publish_bytes_max: Longest remaining length of a PUBLISH that is kept, and of any packet of
            MQTT 5.
        blocks: Property blocks that were parsed before; decoders share one such cache.

    Attributes:
        level: Protocol level of the connection, 0 = there was no CONNECT yet.
    """

    __slots__ = (
        "_aliases",
        "_blocks",
        "_failed",
        "_need",
        "_oversized",
        "_pending",
        "_publish_bytes_max",
        "_skip",
        "level",
    )

    def __init__(
        self, *, publish_bytes_max: int, blocks: dict[bytes, MessageProperties] | None = None
    ) -> None:
        self.level = 0
        self._aliases: dict[int, bytes] = {}
        self._blocks = {} if blocks is None else blocks
        self._publish_bytes_max = publish_bytes_max
        self._pending = bytearray()
        # Length of `_pending` before which it need not be looked at again, 0 = it is empty.
        self._need = 0
        self._oversized: Publish | None = None
        self._skip = 0
        self._failed: ProtocolError | None = None

    def feed(self, data: bytes, packets: list[Packet]) -> None:
        """Decode bytes and append the packets that they complete to `packets`.

        Raises:
            ProtocolError: If the stream is malformed; `packets` then holds what came before, and
                every later call raises again.
        """
        if self._failed is not None:
            raise self._failed
        try:
            if self._skip:
                data = self._discard(data, packets)
            if self._need:
                self._pending += data
                if len(self._pending) < self._need:
                    return
                data = bytes(self._pending)
                self._pending.clear()
                self._need = 0
            if self.level == LEVEL_5:
                self._split5(data, packets)
            else:
                self._split(data, packets)
        except ProtocolError as error:
            self._failed = error
            self._pending.clear()
            raise

    def _split(self, data: bytes, packets: list[Packet]) -> None:  # noqa: C901 - see below
        # One loop with locals and without calls for a PUBLISH: it runs once per message, and a call
        # would cost as much as the rest of the work.
        at = 0
        end = len(data)
        publish_bytes_max = self._publish_bytes_max if self.level else -1
        while end - at >= _HEADER_BYTES_MIN:
            head = data[at]
            start = at + 2
            length = data[at + 1]
            if length >= MORE_DIGITS:
                if end > start and data[start] < MORE_DIGITS:
                    length += (data[start] - 1) << 7
                    start += 1
                else:
                    length, start = read_variable(data, at + 1, end)
                    if length < 0:
                        break
            stop = start + length
            if head & TYPE != PUBLISH or stop > end or length > publish_bytes_max:
                at = self._other(data, at, start, stop, packets)
                if at < 0:
                    return
                publish_bytes_max = self._publish_bytes_max
                continue
            topic_at = start + 2
            topic_end = topic_at + (data[start] << 8 | data[start + 1]) if length > 1 else end + 1
            qos = head >> 1 & 3
            packet_id = 0
            body_at = topic_end
            if qos:
                body_at += 2
                if body_at <= stop:
                    packet_id = data[topic_end] << 8 | data[topic_end + 1]
                if not packet_id or qos == _QOS_3:
                    raise ProtocolError(BAD_PUBLISH)
            elif head & DUP or body_at > stop:
                raise ProtocolError(BAD_PUBLISH)
            packets.append(
                Publish(data[topic_at:topic_end], data[body_at:stop], packet_id, qos, head & 1)
            )
            at = stop
        if at < end:
            self._keep(data, at, end - at + 1)

    def _other(self, data: bytes, at: int, start: int, stop: int, packets: list[Packet]) -> int:
        """Handle what is not a whole PUBLISH within the limit.

        Returns:
            Where the next packet begins, -1 when all of `data` is used up.
        """
        head = data[at]
        if head & TYPE == PUBLISH and self.level:
            return self._long_publish(data, at, start, stop, packets)
        self._check(head, stop - start)
        if stop > len(data):
            self._keep(data, at, stop - at)
            return -1
        body = data[start:stop]
        if self.level:
            packets.append(_PARSERS[head](body, self.level))
            return stop
        connect = parse_connect(body)
        self.level = connect.level
        packets.append(connect)
        if self.level == LEVEL_5:
            self._split5(data[stop:], packets)
            return -1
        return stop

    def _check(self, head: int, length: int) -> None:
        # Before the body has arrived, so that nothing refused is kept or waited for.
        if not self.level and head != _CONNECT:
            raise ProtocolError(f"first packet is not CONNECT but {head:#04x}")
        if self.level == LEVEL_5 and length > self._publish_bytes_max:
            reason = f"packet of {length} bytes; CONNACK says how large one may be"
            if head & TYPE == PUBLISH:
                raise OversizedPublishError(length, reason)
            raise ReasonedError(ReasonCode.PACKET_TOO_LARGE, reason)
        if self.level and head not in _PARSERS:
            if head & TYPE in _TYPES:
                raise ProtocolError(f"packet {head:#04x} with wrong reserved flags")
            raise ReasonedError(
                ReasonCode.PROTOCOL_ERROR, f"packet {head:#04x} is not for a client to send"
            )
        if self.level != LEVEL_5 and length > CONTROL_BYTES_MAX:
            raise ProtocolError(f"packet {head:#04x} of {length} bytes")

    def _discard(self, data: bytes, packets: list[Packet]) -> bytes:
        if len(data) < self._skip:
            self._skip -= len(data)
            return b""
        assert self._oversized is not None
        packets.append(self._oversized)
        rest = data[self._skip :]
        self._oversized = None
        self._skip = 0
        return rest

    def _keep(self, data: bytes, at: int, need: int) -> None:
        self._pending += data[at:]
        self._need = need

    def _long_publish(
        self, data: bytes, at: int, start: int, stop: int, packets: list[Packet]
    ) -> int:
        """Handle a PUBLISH that is incomplete or over the limit.

        Returns:
            Where the next packet begins, -1 when all of `data` is used up.
        """
        if stop - start <= self._publish_bytes_max:
            self._keep(data, at, stop - at)
            return -1
        topic_start = start + 2
        if len(data) < topic_start:
            self._keep(data, at, topic_start - at)
            return -1
        head = data[at]
        qos = head >> 1 & 3
        topic_end = topic_start + (data[start] << 8 | data[start + 1])
        body_at = topic_end + (2 if qos else 0)
        if body_at > stop or qos == _QOS_3 or (not qos and head & DUP):
            raise ProtocolError(BAD_PUBLISH)
        if len(data) < body_at:
            self._keep(data, at, body_at - at)
            return -1
        packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 0
        if qos and not packet_id:
            raise ProtocolError(BAD_PUBLISH)
        packet = OversizedPublish(
            data[topic_start:topic_end], None, packet_id, qos, head & 1, stop - body_at
        )
        if stop <= len(data):
            packets.append(packet)
            return stop
        self._oversized = packet
        self._skip = stop - len(data)
        return -1

    def _split5(self, data: bytes, packets: list[Packet]) -> None:
        # As `_split`, for MQTT 5.
        at = 0
        end = len(data)
        packet_bytes_max = self._publish_bytes_max
        while end - at >= _HEADER_BYTES_MIN:
            head = data[at]
            start = at + 2
            length = data[at + 1]
            if length >= MORE_DIGITS:
                if end > start and data[start] < MORE_DIGITS:
                    length += (data[start] - 1) << 7
                    start += 1
                else:
                    length, start = read_variable(data, at + 1, end)
                    if length < 0:
                        break
            stop = start + length
            if length > packet_bytes_max or head & TYPE != PUBLISH:
                self._check(head, length)
            if stop > end:
                self._keep(data, at, stop - at)
                return
            if head & TYPE == PUBLISH:
                packets.append(self._publish5(data, head, start, stop))
            else:
                packets.append(_PARSERS[head](data[start:stop], LEVEL_5))
            at = stop
        if at < end:
            self._keep(data, at, end - at + 1)

    def _publish5(self, data: bytes, head: int, start: int, stop: int) -> Publish:
        qos = head >> 1 & 3
        topic_at = start + 2
        if topic_at > stop:
            raise ProtocolError(BAD_PUBLISH)
        topic_end = topic_at + (data[start] << 8 | data[start + 1])
        at = topic_end + 2 if qos else topic_end
        if at >= stop or qos == _QOS_3:
            raise ProtocolError(BAD_PUBLISH)
        packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 0
        if not packet_id if qos else head & DUP:
            raise ProtocolError(BAD_PUBLISH)
        topic = data[topic_at:topic_end]
        block_length = data[at]
        if not block_length:
            if not topic:
                raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
            return Publish(topic, data[at + 1 : stop], packet_id, qos, head & 1)
        block_at = at + 1
        if block_length >= MORE_DIGITS:
            block_length, block_at = read_variable(data, at, stop)
        body_at = block_at + block_length
        if block_length < 0 or body_at > stop:
            raise ProtocolError("properties longer than their packet")
        properties = self._properties(data[block_at:body_at])
        if properties.topic_alias is not None:
            topic = self._resolve(properties.topic_alias, topic)
        elif not topic:
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
        flags = head & 1 | HAS_PROPERTIES
        return Publish5(topic, data[body_at:stop], packet_id, qos, flags, properties)

    def _properties(self, block: bytes) -> MessageProperties:
        properties = self._blocks.get(block)
        if properties is None:
            properties = read_message_properties(block)
            if len(block) <= _BLOCK_BYTES_MAX:
                if len(self._blocks) >= _BLOCKS_MAX:
                    # Cheaper than an order of use: steady blocks are back after one message each.
                    self._blocks.clear()
                self._blocks[block] = properties
        return properties

    def _resolve(self, alias: int, topic: bytes) -> bytes:
        if not 0 < alias <= TOPIC_ALIAS_MAX:
            raise ReasonedError(
                ReasonCode.TOPIC_ALIAS_INVALID,
                f"topic alias {alias}; 1 to {TOPIC_ALIAS_MAX} may be used",
            )
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
        return known
