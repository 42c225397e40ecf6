"""Settings of entities and of the mapper.

Owns these two sections of the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from edgehub.mqtt.topic_filter import filter_fault
from edgehub.settings.values import OptionalText, Section, Text, Whole, address_fault

_ENTITY_SLASHES: Final = 3
_OPERATIONS = Literal[
    "restart",
    "software_list",
    "software_update",
    "log_upload",
    "config_snapshot",
    "config_update",
    "firmware_update",
    "device_profile",
]
_KNOWN_FRAGMENTS: Final = frozenset(
    {
        "c8y_Restart",
        "c8y_SoftwareUpdate",
        "c8y_LogfileRequest",
        "c8y_UploadConfigFile",
        "c8y_DownloadConfigFile",
        "c8y_Firmware",
        "c8y_DeviceProfile",
    }
)


def _level(text: str) -> str:
    if any(character in text for character in "/+#$\0"):
        raise ValueError(f"{text!r} must be one level of a topic, without / + # $")
    if text == "devices":
        raise ValueError("topics below `devices/` belong to the IoT Hub dialect")
    return text


def _entity(text: str) -> str:
    if text.count("/") != _ENTITY_SLASHES or any(character in text for character in "+#\0"):
        raise ValueError(f"{text!r} is no topic id: it has four segments, such as device/main//")
    return text


def _filter(text: str) -> str:
    fault = filter_fault(text)
    if fault:
        raise ValueError(fault)
    return text


def _external_id(text: str | None) -> str | None:
    if text is not None and (not text.isprintable() or any(c in text for c in "/+#")):
        raise ValueError(
            "must hold neither / + # nor control characters, it becomes part of a topic"
        )
    return text


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    is_plain = parts.scheme in {"http", "https"} and parts.hostname
    if not is_plain or parts.query or parts.fragment:
        raise ValueError("not http://<host>[:port][/path]")
    if fault := address_fault(text):
        raise ValueError(fault)
    return text


def _own_name(name: str) -> str:
    if name in get_args(_OPERATIONS):
        raise ValueError(f"{name!r} is an operation that the hub knows")
    return name


def _own_fragment(name: str) -> str:
    if name in _KNOWN_FRAGMENTS:
        raise ValueError(f"{name!r} belongs to an operation that the hub knows")
    return name


Level = Annotated[Text, AfterValidator(_level)]
TopicId = Annotated[Text, AfterValidator(_entity)]
TopicFilter = Annotated[Text, AfterValidator(_filter)]
ExternalId = Annotated[OptionalText, AfterValidator(_external_id)]
BaseUrl = Annotated[Text, AfterValidator(_base_url)]
OperationName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64), AfterValidator(_own_name)
]
Fragment = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=128), AfterValidator(_own_fragment)
]


class EntitySettings(Section):
    """`[entities]`: who is behind the hub, and what is held for those not registered yet."""

    auto_register: bool = Field(
        default=False,
        description="Register `device/<id>//` and its services by their first message; never "
        "together with registrations that are nested or carry an `@id`.",
    )
    clean_start: bool = Field(
        default=False,
        description="Forget entities at the start; retained registrations bring them back.",
    )
    telemetry_cache_size: Whole = Field(
        default=100,
        ge=0,
        le=1_000_000,
        description="Measurements, events and alarms that are held for an entity that is not "
        "registered; beyond it the oldest is dropped.",
    )
    telemetry_cache_scope: Literal["entity", "global"] = Field(
        default="entity",
        description="Whether telemetry_cache_size counts for each entity or for all together.",
    )
    pending_ttl_s: Whole = Field(
        default=86_400, ge=1, le=366 * 86_400, description="Longest wait for a registration."
    )
    pending_max: Whole = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Messages held for all entities that are not registered.",
    )
    pending_bytes_max: Whole = Field(
        default=16 * 2**20,
        ge=1024,
        le=2**30,
        description="Size of messages held for all entities that are not registered.",
    )
    pending_client_bytes_max: Whole = Field(
        default=2**20,
        ge=1024,
        le=2**30,
        description="Size of messages of one client that are held for entities that are not "
        "registered.",
    )
    entities_max: Whole = Field(
        default=10_000, ge=1, le=1_000_000, description="Registered entities; more are refused."
    )
    state_bytes_max: Whole = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**32,
        description="Size of registrations and twin values.",
    )


class MapperSettings(Section):
    """`[mapper]`: what messages of entities become at Cumulocity."""

    enabled: bool | None = Field(
        default=None,
        description="Run the module `c8y-mapper`; absent = where an endpoint is of type "
        "cumulocity.",
        examples=[True],
    )
    external_id: ExternalId = Field(
        default=None,
        description="The gateway's id at the cloud; absent = the hub's id.",
        examples=["gateway-7"],
    )
    topic_root: Level = Field(default="te", description="First level of the local topics.")
    device_topic_id: TopicId = Field(
        default="device/main//", description="Topic id of the gateway itself."
    )
    topic_prefix: Level = Field(
        default="c8y", description="First level of the cloud's topics as local clients see them."
    )
    topics: tuple[TopicFilter, ...] = Field(
        default=(),
        description="Filters of the topics that are taken; empty = all of the scheme.",
        examples=[["te/+/+/+/+", "te/+/+/+/+/m/+"]],
    )
    service_type: Text = Field(
        default="service", description="Type at the cloud of services that name none."
    )
    child_device_marker: bool = Field(
        default=False,
        description="Value of the last field of the line that creates a child device.",
    )
    use_operation_id: bool = Field(
        default=True, description="Report operations by id; false = by name."
    )
    packet_bytes_max: Whole = Field(
        default=16_184,
        ge=256,
        le=256 * 2**20,
        description="Largest packet that the cloud takes, topic and header included.",
    )
    alarm_sync_ms: Whole = Field(
        default=3000,
        ge=0,
        le=600_000,
        description="Time after a start in which local alarms are collected before they are "
        "compared with the cloud's; 0 = they are not compared.",
    )
    availability: bool = Field(
        default=False, description="Have the cloud watch that devices are alive."
    )
    availability_interval_s: Whole = Field(
        default=3600,
        ge=0,
        le=366 * 86_400,
        description="Time in which the cloud expects a sign of life; 0 = no heartbeats.",
    )
    software_lists: bool = Field(default=True, description="Pass software lists on.")
    software_types: bool = Field(
        default=False, description="Pass on the types of software that a device declares."
    )
    disabled_operations: tuple[_OPERATIONS, ...] = Field(
        default=(),
        description="Operations that are neither declared nor taken.",
        examples=[["log_upload"]],
    )
    custom_operations: dict[OperationName, Fragment] = Field(
        default_factory=dict,
        description="Operations of your own: local name of the command, and the fragment that asks "
        "for it at the cloud.",
        examples=[{"valve_test": "acme_ValveTest"}],
    )
    file_transfer_url: BaseUrl = Field(
        default="http://127.0.0.1:8000",
        description="Where devices exchange files with the gateway.",
    )
    tenant_host: OptionalText = Field(
        default=None,
        description="Host of the tenant; devices fetch its URLs through proxy_url; absent = "
        "directly.",
        examples=["acme.cumulocity.com"],
    )
    proxy_url: BaseUrl = Field(
        default="http://127.0.0.1:8001/c8y",
        description="URL that local clients use in place of the tenant's.",
    )

    @model_validator(mode="after")
    def _topics_differ(self) -> MapperSettings:
        if self.topic_root == self.topic_prefix:
            raise ValueError(
                "topic_root and topic_prefix are the same; entities and cloud need their own"
            )
        fragments = list(self.custom_operations.values())
        if len(set(fragments)) < len(fragments):
            raise ValueError("custom_operations: two of them have the same fragment")
        return self
