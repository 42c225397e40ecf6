"""The incremental decoder of MQTT 5, behind the CONNECT: bytes in, control packets out.

Owns framing, topic aliases, and what is left of an incomplete packet. Invariants: how the bytes
were cut into reads changes neither the packets nor whether and where the stream is found malformed;
memory for an incomplete packet is bounded by the largest packet that the client was told of.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.errors import ProtocolError
from edgehub.mqtt.fields import HEAD
from edgehub.mqtt.framing import (
    BAD_PUBLISH,
    DUP,
    HEADER_BYTES_MIN,
    MORE_DIGITS,
    PUBLISH,
    QOS_3,
    TYPE,
    long_length,
)
from edgehub.mqtt.message_properties import MessageProperties, read_message_properties
from edgehub.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Publish5,
    Pubrec,
    Pubrel,
    parse_pingreq,
)
from edgehub.mqtt.packets5 import (
    parse_acknowledgement,
    parse_disconnect,
    parse_subscribe,
    parse_unsubscribe,
)
from edgehub.mqtt.reasons import (
    ACKNOWLEDGEMENTS,
    RELEASES,
    OversizedPublishError,
    ReasonCode,
    ReasonedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.mqtt.packets import Packet

TOPIC_ALIAS_MAX: Final = 16
"""Aliases that a client may use; each holds a topic of up to 64 KiB."""

_BLOCKS_MAX: Final = 4096
_BLOCK_BYTES_MAX: Final = 256
_NO_TOPIC: Final = "PUBLISH with neither a topic nor a topic alias that stands for one"

# First byte, flags included, to the parser of the body. PUBLISH has its own path.
_PARSERS: Final[dict[int, Callable[[bytes], Packet]]] = {
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


class Decoder5:
    """Decodes what one client of MQTT 5 sends after its CONNECT.

    Args:
        packet_bytes_max: Longest remaining length of a packet.
        blocks: Property blocks that were read before; decoders share one such cache.
    """

    __slots__ = ("_aliases", "_blocks", "_need", "_packet_bytes_max", "_pending")

    def __init__(self, *, packet_bytes_max: int, blocks: dict[bytes, MessageProperties]) -> None:
        self._packet_bytes_max = packet_bytes_max
        self._blocks = blocks
        self._aliases: dict[int, bytes] = {}
        self._pending = bytearray()
        self._need = 0

    def feed(self, data: bytes, packets: list[Packet]) -> None:
        """Take bytes and append the packets that they complete to `packets`.

        Raises:
            ProtocolError: If the stream is malformed; `packets` then holds what came before.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._need:
                return
            data = bytes(self._pending)
            self._pending.clear()
        self._split(data, packets)

    def forget(self) -> None:
        """Give back what an incomplete packet holds; the stream is not decoded any further."""
        self._pending.clear()

    def _split(self, data: bytes, packets: list[Packet]) -> None:
        # As in the decoder of MQTT 3.1.1 one loop with locals; it runs once per message.
        at = 0
        end = len(data)
        while end - at >= HEADER_BYTES_MIN:
            head = data[at]
            start = at + 2
            length = data[at + 1]
            if length >= MORE_DIGITS:
                if end > start and data[start] < MORE_DIGITS:
                    length += (data[start] - 1) << 7
                    start += 1
                else:
                    length, start = long_length(data, at, end)
                    if length < 0:
                        break
            stop = start + length
            if length > self._packet_bytes_max or head & TYPE != PUBLISH:
                self._check(head, length)
            if stop > end:
                self._pending += data[at:]
                self._need = stop - at
                return
            if head & TYPE == PUBLISH:
                packets.append(self._publish(data, head, start, stop))
            else:
                packets.append(_PARSERS[head](data[start:stop]))
            at = stop
        if at < end:
            self._pending += data[at:]
            self._need = end - at + 1

    def _check(self, head: int, length: int) -> None:
        # Before the body has arrived, so that nobody makes us wait for, or keep, what is refused.
        if length > self._packet_bytes_max:
            reason = f"packet of {length} bytes; CONNACK says how large one may be"
            if head & TYPE == PUBLISH:
                raise OversizedPublishError(length, reason)
            raise ReasonedError(ReasonCode.PACKET_TOO_LARGE, reason)
        if head not in _PARSERS:
            if head & TYPE in _TYPES:
                raise ProtocolError(HEAD, f"packet {head:#04x} with wrong reserved flags")
            reason = f"packet {head:#04x} is not for a client to send"
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, reason)

    def _publish(self, data: bytes, head: int, start: int, stop: int) -> Publish:
        qos = head >> 1 & 3
        topic_at = start + 2
        if topic_at > stop:
            raise ProtocolError(HEAD, BAD_PUBLISH)
        topic_end = topic_at + (data[start] << 8 | data[start + 1])
        at = topic_end + 2 if qos else topic_end
        if at >= stop or qos == QOS_3:
            raise ProtocolError(HEAD, BAD_PUBLISH)
        packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 0
        if not packet_id if qos else head & DUP:
            raise ProtocolError(HEAD, BAD_PUBLISH)
        topic = data[topic_at:topic_end]
        block_length = data[at]
        if not block_length:
            if not topic:
                raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
            return Publish(topic, data[at + 1 : stop], packet_id, qos, head & 1)
        block_at = at + 1
        if block_length >= MORE_DIGITS:
            block_length, block_at = long_length(data, at - 1, stop)
        body_at = block_at + block_length
        if block_length < 0 or body_at > stop:
            raise ProtocolError(HEAD, "properties longer than their packet")
        properties = self._properties(data[block_at:body_at])
        if properties.topic_alias is not None:
            topic = self._resolve(properties.topic_alias, topic)
        elif not topic:
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
        return Publish5(topic, data[body_at:stop], packet_id, qos, head & 1, properties)

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
            reason = f"topic alias {alias}; 1 to {TOPIC_ALIAS_MAX} may be used"
            raise ReasonedError(ReasonCode.TOPIC_ALIAS_INVALID, reason)
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise ReasonedError(ReasonCode.PROTOCOL_ERROR, _NO_TOPIC)
        return known
