"""The packet of the hot path out, MQTT 3.1.1: PUBLISH with QoS 1.

Pure functions on bytes. Invariant: `publish_bytes` is the length of what `build_publish` builds.

Source: MQTT 3.1.1, sections 2.2 and 3.3.
"""

from __future__ import annotations

from typing import Final

from edgehub.endpoints.mqtt_inbound import REMAINING_MAX

PUBLISH_QOS1: Final = 0x32


def publish_bytes(topic_bytes: int, body_bytes: int) -> int:
    """Give the length of the whole packet: header, topic, packet id and body."""
    remaining = topic_bytes + body_bytes + 4
    if remaining < 0x80:  # noqa: PLR2004 - a length byte carries seven bits
        return remaining + 2
    return remaining + 1 + (remaining.bit_length() + 6) // 7


def build_publish(topic: bytes, mid: int, body: bytes) -> bytes:
    """Build a PUBLISH with QoS 1; the topic has at most 65 535 bytes."""
    remaining = len(topic) + len(body) + 4
    assert remaining <= REMAINING_MAX, remaining
    header = bytearray((PUBLISH_QOS1,))
    while remaining > 0x7F:  # noqa: PLR2004 - a length byte carries seven bits
        header.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    header.append(remaining)
    return b"".join((header, len(topic).to_bytes(2, "big"), topic, mid.to_bytes(2, "big"), body))
