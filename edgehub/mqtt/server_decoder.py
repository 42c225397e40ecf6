"""The incremental MQTT decoder: bytes of one connection in, control packets out.

What follows the CONNECT of a client of MQTT 5 goes to `Decoder5`.

Owns framing, the protocol level of the connection, and what is left of an incomplete packet.
Invariant: how the bytes were cut into reads changes neither the packets nor whether and where the
stream is found malformed; memory for an incomplete packet is bounded by the packet limit, and of a
PUBLISH over that limit only the topic is kept while the rest is read and discarded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.errors import ProtocolError
from edgehub.mqtt import packets5
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
from edgehub.mqtt.packets import (
    LEVEL_5,
    OversizedPublish,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    parse_acknowledgement,
    parse_connect,
    parse_disconnect,
    parse_pingreq,
    parse_subscribe,
    parse_unsubscribe,
)
from edgehub.mqtt.server_decoder5 import Decoder5

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.mqtt.message_properties import MessageProperties
    from edgehub.mqtt.packets import Packet

CONTROL_BYTES_MAX: Final = 96 * 1024
"""Longest packet other than PUBLISH: room for a will of 64 KiB or some thousand filters."""

_CONNECT: Final = 0x10

# First byte, flags included, to the parser of the body. PUBLISH has its own path.
_PARSERS: Final[dict[int, Callable[[bytes], Packet]]] = {
    0x40: partial(parse_acknowledgement, Puback),
    0x50: partial(parse_acknowledgement, Pubrec),
    0x62: partial(parse_acknowledgement, Pubrel),
    0x70: partial(parse_acknowledgement, Pubcomp),
    0x82: parse_subscribe,
    0xA2: parse_unsubscribe,
    0xC0: parse_pingreq,
    0xE0: parse_disconnect,
}


class Decoder:
    """Decodes what one client sends.

    Args:
        publish_bytes_max: Longest remaining length of a PUBLISH that is kept, and of any packet of
            MQTT 5.
        blocks: Property blocks that were read before; decoders share one such cache.

    Attributes:
        level: Protocol level of the connection, 0 = no CONNECT was seen yet.
    """

    __slots__ = (
        "_blocks",
        "_failed",
        "_five",
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
        self._blocks = {} if blocks is None else blocks
        self._five: Decoder5 | None = None
        self._publish_bytes_max = publish_bytes_max
        self._pending = bytearray()
        self._need = 0
        self._oversized: Publish | None = None
        self._skip = 0
        self._failed: ProtocolError | None = None

    def feed(self, data: bytes, packets: list[Packet]) -> None:
        """Take bytes and append the packets that they complete to `packets`.

        Raises:
            ProtocolError: If the stream is malformed; `packets` then holds what came before, and
                every later call raises again.
        """
        if self._failed is not None:
            raise self._failed
        try:
            if self._five is None:
                self._feed(data, packets)
            else:
                self._five.feed(data, packets)
        except ProtocolError as error:
            self._failed = error
            self._pending.clear()
            if self._five is not None:
                self._five.forget()
            raise

    def _feed(self, data: bytes, packets: list[Packet]) -> None:
        if self._skip:
            data = self._discard(data, packets)
        if self._pending:
            self._pending += data
            if len(self._pending) < self._need:
                return
            data = bytes(self._pending)
            self._pending.clear()
        self._split(data, packets)

    def _split(self, data: bytes, packets: list[Packet]) -> None:  # noqa: C901 - see below
        # One loop with locals and without calls for a PUBLISH: it runs once per message, and a call
        # would cost as much as the rest of the work.
        at = 0
        end = len(data)
        publish_bytes_max = self._publish_bytes_max if self.level else -1
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
                if not packet_id or qos == QOS_3:
                    raise ProtocolError(HEAD, BAD_PUBLISH)
            elif head & DUP or body_at > stop:
                raise ProtocolError(HEAD, BAD_PUBLISH)
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
        self._check_control(head, stop - start)
        if stop > len(data):
            self._keep(data, at, stop - at)
            return -1
        packets.append(self._control(head, data[start:stop]))
        if self.level == LEVEL_5:
            self._five = Decoder5(packet_bytes_max=self._publish_bytes_max, blocks=self._blocks)
            self._five.feed(data[stop:], packets)
            return -1
        return stop

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
        if body_at > stop or qos == QOS_3 or (not qos and head & DUP):
            raise ProtocolError(HEAD, BAD_PUBLISH)
        if len(data) < body_at:
            self._keep(data, at, body_at - at)
            return -1
        packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 0
        if qos and not packet_id:
            raise ProtocolError(HEAD, BAD_PUBLISH)
        packet = OversizedPublish(
            data[topic_start:topic_end], packet_id, qos, head & 1, body_bytes=stop - body_at
        )
        if stop <= len(data):
            packets.append(packet)
            return stop
        self._oversized = packet
        self._skip = stop - len(data)
        return -1

    def _check_control(self, head: int, length: int) -> None:
        # Before the body has arrived, so that nobody makes us wait for, or keep, what is refused.
        if not self.level:
            if head != _CONNECT:
                raise ProtocolError(HEAD, f"first packet is not CONNECT but {head:#04x}")
        elif head not in _PARSERS:
            raise ProtocolError(HEAD, f"packet {head:#04x} is not for a client to send")
        if length > CONTROL_BYTES_MAX:
            raise ProtocolError(HEAD, f"packet {head:#04x} of {length} bytes")

    def _control(self, head: int, body: bytes) -> Packet:
        if self.level:
            return _PARSERS[head](body)
        is_5 = body.startswith(packets5.CONNECT_BEGIN)
        connect = packets5.parse_connect(body) if is_5 else parse_connect(body)
        self.level = connect.level
        return connect
