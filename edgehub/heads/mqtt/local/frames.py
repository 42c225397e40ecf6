"""Messages of the local topic space as the bytes of a PUBLISH.

Pure. What the publisher said beside the payload is passed on as it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.fields import variable
from edgehub.heads.mqtt.packets import publish
from edgehub.heads.mqtt.properties import Property

if TYPE_CHECKING:
    from edgehub.local_message import LocalMessage

_EXPIRY: Final = bytes((Property.MESSAGE_EXPIRY_INTERVAL,))


def frame(
    message: LocalMessage,
    *,
    qos: int,
    packet_id: int,
    retain: bool,
    again: bool,
    left_ms: int | None,
    with_properties: bool,
) -> bytes:
    """Write a PUBLISH.

    Args:
        message: The message.
        qos: 0 or 1.
        packet_id: 0 with QoS 0.
        retain: The retain flag.
        again: Whether it may have been sent before.
        left_ms: What is left of its message expiry interval, None = it does not expire.
        with_properties: Whether the client speaks MQTT 5.
    """
    properties = b""
    if with_properties:
        block = message.properties
        if left_ms is not None:
            # Rounded up: 0 would mean that it is over.
            block += _EXPIRY + max(1, -(-left_ms // 1000)).to_bytes(4, "big")
        properties = variable(len(block)) + block
    return publish(
        message.topic.encode(),
        message.body,
        qos=qos,
        packet_id=packet_id,
        retain=retain,
        again=again,
        properties=properties,
    )
