"""Wills: the message that the hub submits for a client that goes away without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.packets import ConnectCode
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.topics import (
    RETAIN_PROPERTY,
    WILL_PROPERTY,
    parse_events_topic,
    with_property,
)
from edgehub.message import Message
from edgehub.property_bag import BagError

if TYPE_CHECKING:
    from edgehub.heads.mqtt.packets import Will
    from edgehub.heads.mqtt.sign_in import Client


def will_message(will: Will, client: Client, *, message_bytes_max: int) -> Message:
    """Build the message of a will.

    Raises:
        SignInError: If its topic is not the client's own telemetry topic, or it is too large; a
            will that could never be sent is better refused when the client connects.
    """
    try:
        topic = parse_events_topic(will.topic.decode())
    except (UnicodeDecodeError, BagError) as error:
        raise SignInError(ConnectCode.NOT_AUTHORIZED, f"will topic: {error}") from error
    if topic is None or topic.sender != client.id:
        raise SignInError(ConnectCode.NOT_AUTHORIZED, "will topic is not the client's events topic")
    if len(will.body) + topic.properties_bytes > message_bytes_max:
        raise SignInError(ConnectCode.NOT_AUTHORIZED, "will is larger than a message may be")
    properties = with_property(topic.properties, *WILL_PROPERTY)
    if will.retain:
        properties = with_property(properties, RETAIN_PROPERTY, "true")
    return Message(
        topic.device_id, topic.module_id, topic.source, properties, topic.system, will.body
    )
