"""Topics of the IoT Hub dialect: telemetry topics, and topic filters of deliveries.

Pure functions and their values. Invariant: an `EventsTopic` holds valid ids and is shared by all
messages of its topic, so its dictionaries are never changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.devices.ids import is_device_id, split_sender
from edgehub.message import message_source
from edgehub.mqtt.client_topics import CLIENTS_FILTER, OF_CLIENTS
from edgehub.mqtt.property_bag import bytes_of, has_marks, is_batch, parse_bag

if TYPE_CHECKING:
    from edgehub.mqtt.property_bag import Properties

DIALECT: Final = b"devices/"
"""Prefix of all topics of the dialect; topics of the local topic space never have it."""

BRIDGE_STATE: Final = b"$SYS/broker/connection/"
"""Prefix of the topics on which Mosquitto bridges publish whether they are connected."""

_DEVICE_EVENTS: Final = 4
_MODULE_EVENTS: Final = 6
_REST_LEVELS_MAX: Final = 2


class EventsTopic:
    """A parsed telemetry topic.

    Attributes:
        sender: `<device>` or `<device>/<module>` that the topic names.
        properties_bytes: Bytes that the properties count against the message limit.
        is_plain: Whether a message on it can be taken unchanged from any client: it is no batch,
            and has no id and no property that only hubs write.
        header: That of its messages, empty = none was stored yet.
    """

    __slots__ = (
        "device_id",
        "header",
        "is_plain",
        "module_id",
        "properties",
        "properties_bytes",
        "sender",
        "source",
        "system",
    )

    def __init__(
        self, device_id: str, module_id: str | None, properties: Properties, system: Properties
    ) -> None:
        self.device_id = device_id
        self.module_id = module_id
        self.sender = device_id if module_id is None else f"{device_id}/{module_id}"
        self.source = message_source(module_id, system.get("outputName"))
        self.properties = properties
        self.system = system
        self.properties_bytes = bytes_of(properties) + bytes_of(system)
        self.header = b""
        self.is_plain = not ("messageId" in system or is_batch(system) or has_marks(properties))


class ClientTopic(StrEnum):
    """What the hub sends to one client, a device or a module."""

    MESSAGES = "messages"
    TWIN_ANSWERS = "twin_answers"
    DESIRED = "desired"
    METHODS = "methods"
    CLIENTS = "clients"  # a hub: what is for those for whom it speaks


_OWN_TOPICS: Final = {
    ClientTopic.TWIN_ANSWERS: "$iothub/twin/res/",
    ClientTopic.DESIRED: "$iothub/twin/PATCH/properties/desired/",
    ClientTopic.METHODS: "$iothub/methods/POST/",
    ClientTopic.CLIENTS: CLIENTS_FILTER.removesuffix("#"),
}
"""Topics that are the same for all clients: each gets what is for itself."""

_OWN_PREFIXES: Final = {prefix: topic for topic, prefix in _OWN_TOPICS.items()}


class Subscription(Struct, frozen=True, kw_only=True):
    """A parsed topic filter of the dialect.

    Attributes:
        prefix: The filter without its `#`; topics of deliveries begin with it.
        target: `<device>` or `<device>/<module>` that gets the deliveries.
        topic: The topic of `$iothub/` that it names, None = its topics begin with the target.
    """

    prefix: str
    target: str
    topic: ClientTopic | None = None


def parse_events_topic(topic: str) -> EventsTopic | None:
    """Parse a telemetry topic, None = not a topic to publish to.

    Raises:
        BagError: If its property bag is malformed.
    """
    levels = topic.split("/")
    if levels[0] != "devices":
        return None
    if levels[2:_DEVICE_EVENTS] == ["messages", "events"]:
        module_id = None
        rest = levels[_DEVICE_EVENTS:]
    elif levels[2:3] == ["modules"] and levels[4:_MODULE_EVENTS] == ["messages", "events"]:
        module_id = levels[3]
        rest = levels[_MODULE_EVENTS:]
    else:
        return None
    if len(rest) > _REST_LEVELS_MAX or (len(rest) == _REST_LEVELS_MAX and rest[1]):
        return None
    if not is_device_id(levels[1]) or not (module_id is None or is_device_id(module_id)):
        return None
    properties, system = parse_bag(rest[0] if rest else "")
    return EventsTopic(levels[1], module_id, properties, system)


def parse_subscription(topic_filter: str, client_id: str) -> Subscription | None:
    """Parse a topic filter of a client, None = it is not one of the dialect."""
    prefix = topic_filter.removesuffix("#")
    topic = _OWN_PREFIXES.get(prefix)
    if topic is not None and prefix != topic_filter:
        return Subscription(prefix=prefix, target=client_id, topic=topic)
    module_id: str | None
    match topic_filter.split("/"):
        case ["devices", device_id, "messages", "devicebound", "#"]:
            module_id = None
        case ["devices", device_id, "modules", module_id, "#"]:
            pass
        case ["devices", device_id, "modules", module_id, "inputs", "#"]:
            pass
        case ["devices", device_id, "modules", module_id, "messages", "devicebound", "#"]:
            pass
        case ["devices", device_id, "modules", module_id, "inputs", input_name, "#"] if (
            is_device_id(input_name)
        ):
            pass
        case _:
            return None
    if not is_device_id(device_id) or not (module_id is None or is_device_id(module_id)):
        return None
    target = device_id if module_id is None else f"{device_id}/{module_id}"
    return Subscription(prefix=prefix, target=target)


def client_prefixes(target: str, topic: ClientTopic) -> tuple[str, ...]:
    """Return the prefixes under which a client gets what is on a topic, the topic's own first."""
    if topic is not ClientTopic.MESSAGES:
        prefix = _OWN_TOPICS[topic]
        return (prefix,) if topic is not ClientTopic.CLIENTS else (OF_CLIENTS, prefix)
    sender = split_sender(target)
    assert sender is not None, target
    device_id, module_id = sender
    if module_id is None:
        return (f"devices/{device_id}/messages/devicebound/",)
    module = f"devices/{device_id}/modules/{module_id}/"
    return f"{module}messages/devicebound/", module


def input_prefixes(device_id: str, module_id: str, input_name: str) -> tuple[str, str, str]:
    """Return the prefixes under which a module gets one input, the topic's own first."""
    module = f"devices/{device_id}/modules/{module_id}/"
    return f"{module}inputs/{input_name}/", f"{module}inputs/", module


def with_property(properties: Properties, name: str, value: str) -> Properties:
    """Return a copy with one more property; dictionaries of topics are shared."""
    return {**properties, name: value}
