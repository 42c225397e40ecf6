"""Topics of the IoT Hub dialect: telemetry topics, and topic filters of deliveries.

Pure functions and their values. Invariant: an `EventsTopic` holds valid ids and is shared by all
messages of its topic, so neither it nor its dictionaries are ever changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgehub.devices.ids import is_device_id
from edgehub.message import message_source
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
    """

    __slots__ = (
        "device_id",
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
        self.is_plain = not ("messageId" in system or is_batch(system) or has_marks(properties))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A parsed topic filter of the dialect.

    Attributes:
        prefix: The filter without its `#`; topics of deliveries begin with it.
        device_id: Device that the filter names.
        module_id: Module of the inputs, None = messages to the device.
    """

    prefix: str
    device_id: str
    module_id: str | None

    @property
    def target(self) -> str:
        """`<device>` or `<device>/<module>` that gets the deliveries."""
        return self.device_id if self.module_id is None else f"{self.device_id}/{self.module_id}"


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


def parse_subscription(topic_filter: str) -> Subscription | None:
    """Parse a topic filter, None = it is not one of the dialect."""
    module_id: str | None
    match topic_filter.split("/"):
        case ["devices", device_id, "messages", "devicebound", "#"]:
            module_id = None
        case ["devices", device_id, "modules", module_id, "#"]:
            pass
        case ["devices", device_id, "modules", module_id, "inputs", "#"]:
            pass
        case ["devices", device_id, "modules", module_id, "inputs", input_name, "#"] if (
            is_device_id(input_name)
        ):
            pass
        case _:
            return None
    if not is_device_id(device_id) or not (module_id is None or is_device_id(module_id)):
        return None
    return Subscription(
        prefix=topic_filter.removesuffix("#"), device_id=device_id, module_id=module_id
    )


def device_bound_prefix(device_id: str) -> str:
    """Return the topic of messages to a device, up to the property bag."""
    return f"devices/{device_id}/messages/devicebound/"


def input_prefixes(device_id: str, module_id: str, input_name: str) -> tuple[str, str, str]:
    """Return the prefixes under which a module gets one input, the topic's own first."""
    module = f"devices/{device_id}/modules/{module_id}/"
    return f"{module}inputs/{input_name}/", f"{module}inputs/", module


def with_property(properties: Properties, name: str, value: str) -> Properties:
    """Return a copy with one more property; dictionaries of topics are shared."""
    return {**properties, name: value}
