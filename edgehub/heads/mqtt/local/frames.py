"""Messages of the local topic space as the bytes of a PUBLISH.

Pure. The properties of the publisher are passed on unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.mqtt.fields import variable
from edgehub.mqtt.message_properties import expiry_s
from edgehub.mqtt.packets import publish
from edgehub.mqtt.properties import Property

if TYPE_CHECKING:
    from edgehub.local_message import LocalMessage

_EXPIRY: Final = bytes((Property.MESSAGE_EXPIRY_INTERVAL,))


def frame(
    message: LocalMessage,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool,
    dup: bool = False,
    identifiers: bytes = b"",
    now_ms: int,
    with_properties: bool,
) -> bytes:
    """Write a PUBLISH.

    Args:
        message: The message.
        qos: Quality of service with which it travels.
        packet_id: 0 with QoS 0.
        retain: The retain flag.
        dup: Whether it may have been sent before.
        identifiers: Subscription identifiers as they are written.
        now_ms: Hub time, from which what is left of its message expiry interval follows.
        with_properties: Whether the receiver uses MQTT 5.
    """
    properties = b""
    if with_properties:
        block = identifiers + message.properties
        if message.expires_ms is not None:
            block += _EXPIRY + expiry_s(message.expires_ms - now_ms).to_bytes(4, "big")
        properties = variable(len(block)) + block
    return publish(
        message.topic.encode(),
        message.body,
        qos=qos,
        packet_id=packet_id,
        retain=retain,
        dup=dup,
        properties=properties,
    )
