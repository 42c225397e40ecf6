"""Settings of one hub: their names, units, ranges and defaults.

Owns the model that file, environment and flags are checked against (see `loading`);
calls nothing of the hub. Invariant: a `Settings` object that exists is valid and never changes.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from edgehub.mqtt.topic_filter import covers, filter_fault, overlaps
from edgehub.settings.affinity import AffinitySettings
from edgehub.settings.broker import BrokerSettings  # noqa: TC001 - pydantic reads it
from edgehub.settings.device_bound import DeviceBoundSettings
from edgehub.settings.endpoints import (
    AnyEndpoint,
    EndpointName,
    MqttEndpointSettings,
    session_faults,
)
from edgehub.settings.lora import LoraSettings
from edgehub.settings.mapper import EntitySettings, MapperSettings
from edgehub.settings.redis import RedisSettings
from edgehub.settings.routing_table import RoutingTableSettings, TenantName, TenantSettings
from edgehub.settings.tls import ClientAuthorities, ServerCertificateFile, ServerKeyFile  # noqa: TC001 - pydantic reads it
from edgehub.settings.values import (
    NUMBER,
    BytesOrShare,
    Host,
    HostName,
    OptionalFile,
    OptionalPath,
    OptionalText,
    PathName,
    Real,
    Section,
    Whole,
)
from edgehub.settings.web import WebSettings
from edgehub.settings.workload import WorkloadSettings
from edgehub.storage.hub_folder import control_path, default_data_dir

MESSAGE_BYTES_MAX: Final = 262_144
VARIABLE_PREFIX: Final = "EDGEHUB_"
"""Of environment variables that are settings."""


def _local_topic(topic_filter: str) -> str:
    fault = filter_fault(topic_filter)
    if not fault and topic_filter.startswith("$"):
        fault = "topics that begin with `$` belong to the hub"
    if not fault and overlaps(topic_filter, "devices/#"):
        fault = "takes topics below `devices/`, which belong to the IoT Hub dialect"
    if fault:
        raise ValueError(fault)
    return topic_filter


LocalTopic = Annotated[str, AfterValidator(_local_topic)]
# The same keys at both listeners of devices, and each in its own place among others.
Anonymous = Annotated[
    bool, Field(description="Let clients in without a password; on loopback addresses only.")
]
MessageBytes = Annotated[
    int,
    Field(ge=1, le=256 * 2**20, description="Largest message: body, property names and values."),
    NUMBER,
]


class StoreSettings(Section):
    """`[store]`: the queues on disk."""

    durable: bool = Field(
        default=True,
        description="False keeps everything in memory only: a stop or power cut loses it.",
    )
    commit_delay_ms: Whole = Field(
        default=0,
        ge=0,
        le=1000,
        description="Longest wait of a row for its commit, fixed; 0 = adaptive, up to 40 ms.",
    )
    check_entire_queue_on_cleanup: bool = Field(
        default=True,
        description="True removes every expired row; false stops at the first row of a queue that "
        "has not expired.",
    )
    cache_bytes: Whole = Field(
        default=16 * 2**20,
        ge=0,
        le=2**30,
        description="Memory for rows that are also on disk, over all queues.",
    )
    rows_max: Whole = Field(
        default=0, ge=0, description="Rows of all queues, those in flight included; 0 = no limit."
    )
    bytes_max: BytesOrShare = Field(
        default=2**30,
        description='Bytes of all queues, or a share of the volume such as "75%"; 0 = no limit.',
    )
    queue_rows_max: Whole = Field(
        default=0, ge=0, description="Rows of each queue, those in flight included; 0 = no limit."
    )
    queue_bytes_max: Whole = Field(
        default=0, ge=0, description="Bytes of each queue; 0 = no limit."
    )
    free_bytes_min: BytesOrShare = Field(
        default=256 * 2**20,
        description="Space of the volume that rows leave free, at most a tenth of a small one, or "
        'a share such as "5%"; 0 = none.',
    )
    overflow: Literal["by_value", "drop_oldest", "drop_newest", "reject_new"] = Field(
        default="by_value",
        description="What happens to a message at a limit: by_value = older rows of its own or a "
        "worse priority give way; drop_oldest = the oldest rows give way; drop_newest = "
        "it is acknowledged and dropped; reject_new = it is refused.",
    )


class JournalSettings(Section):
    """`[journal]`: what became of every message, for reports."""

    enabled: bool = Field(default=True, description="Keep a journal.")
    keep_days: Whole = Field(
        default=30,
        ge=1,
        le=3650,
        description="Days after which files of the journal are deleted, exported or not.",
    )
    bytes_max: Whole = Field(
        default=256 * 2**20,
        ge=2**20,
        description="Space for its files, at most a tenth of the volume; exported ones go first.",
    )


class ClockSettings(Section):
    """`[clock]`: what is made of the time of day."""

    trust: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="auto = once the kernel says that it is set by NTP or the like; always = also "
        "without, for a machine with a battery-backed clock and no NTP.",
    )
    ttl_while_off: Literal["count", "pause"] = Field(
        default="count",
        description="pause = times to live stand still while the hub or its machine is off.",
    )


class MqttSettings(Section):
    """`[mqtt]`: the listener for devices and modules."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole = Field(default=1883, ge=0, le=65535, description="0 = any free port.")
    tls_port: Whole = Field(
        default=8883,
        ge=0,
        le=65535,
        description="Port for MQTT over TLS, in addition to `port`; needs a certificate.",
        json_schema_extra={"x-needs": "certificate_file"},
    )
    ws_port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for MQTT over WebSocket; absent = none; 0 = any free port.",
        examples=[9001],
    )
    wss_port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for MQTT over WebSocket with TLS; absent = none; 0 = any free port.",
        examples=[443],
        json_schema_extra={"x-needs": "certificate_file"},
    )
    certificate_file: OptionalFile = Field(
        default=None,
        description="Certificate in PEM, with its chain; absent = no TLS.",
        examples=["/var/lib/edgehub/hub.pem"],
    )
    key_file: OptionalFile = Field(
        default=None,
        description="Key of certificate_file, not encrypted.",
        examples=["/var/lib/edgehub/hub.key"],
    )
    client_ca_file: ClientAuthorities = None
    anonymous: Anonymous = True
    identities_file: OptionalFile = Field(
        default=None,
        description="Hashed passwords and rights; see `edgehub identity`.",
        examples=["/var/lib/edgehub/identities"],
    )
    clients_max: Whole = Field(default=1000, ge=1, le=100_000, description="Connections at once.")
    message_bytes_max: MessageBytes = MESSAGE_BYTES_MAX
    connect_timeout_s: Real = Field(
        default=30,
        gt=0,
        le=300,
        description="Longest wait for a client's CONNECT, and for its TLS handshake.",
    )
    ack_timeout_s: Real = Field(
        default=30,
        gt=0,
        le=3600,
        description="Longest wait for a client's PUBACK of a message to it; then the message is "
        "sent again.",
    )
    store_qos0: bool = Field(
        default=True, description="Store QoS 0 messages too; false drops them while offline."
    )

    local_topics: tuple[LocalTopic, ...] = Field(
        default=(),
        description="Filters of further local topics, in addition to `te/#` and `c8y/#`.",
        examples=[["site/#"]],
    )
    local_retained_max: Whole = Field(
        default=10_000, ge=0, le=1_000_000, description="Retained messages."
    )
    local_retained_bytes_max: Whole = Field(
        default=16 * 2**20, ge=0, le=2**30, description="Size of all retained messages."
    )
    local_queue_max: Whole = Field(
        default=10_000, ge=1, le=1_000_000, description="Messages that wait for one local client."
    )
    local_queue_bytes_max: Whole = Field(
        default=4 * 2**20,
        ge=1024,
        le=2**30,
        description="Size of the messages that wait for one local client.",
    )
    local_queues_bytes_max: Whole = Field(
        default=64 * 2**20,
        ge=1024,
        le=2**32,
        description="Size of the messages that wait for all local clients.",
    )
    twins_bytes_max: Whole = Field(
        default=32 * 2**20, ge=2**16, le=2**30, description="Size of all twins."
    )


class HttpSettings(Section):
    """`[http]`: messages by POST, in the REST form of Azure IoT Hub."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Absent = no HTTP; 0 = any free port.",
        examples=[8080],
    )
    anonymous: Anonymous = True
    host_names: tuple[HostName, ...] = Field(
        default=(),
        description="Further names than loopback ones under which requests without a password may "
        "come in, as through a proxy that asks for a password itself.",
        examples=[["gateway-7.example.org"]],
    )
    certificate_file: ServerCertificateFile = None
    key_file: ServerKeyFile = None
    client_ca_file: ClientAuthorities = None
    connections_max: Whole = Field(
        default=1000, ge=1, le=100_000, description="Connections at once."
    )
    message_bytes_max: MessageBytes = MESSAGE_BYTES_MAX
    batch_bytes_max: Whole = Field(
        default=2**20, ge=1, le=256 * 2**20, description="Largest body that holds a batch."
    )
    body_timeout_s: Real = Field(
        default=30,
        gt=0,
        le=3600,
        description="Longest wait for the body of a request, and a second more for each KiB of it.",
    )


class LogSettings(Section):
    """`[log]`: what goes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least of what is logged."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto = console on a terminal, JSON otherwise."
    )


class Settings(BaseModel):
    """All settings of one hub."""

    # See `loading.settings_check`. A section that is left out is made of its defaults unchecked:
    # that takes no validator of its own.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    hub_id: OptionalText = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$",
        max_length=128,
        description="Absent = host name and four hex digits, kept from the first start on.",
        examples=["gateway-7"],
    )
    data_dir: PathName = Field(
        default_factory=default_data_dir,
        description="Databases and control socket; absent = ./edgehub-data, or systemd's.",
    )
    manifest: OptionalPath = Field(
        default=None,
        description="Deployment manifest with the routes; absent = all upstream.",
        examples=["/etc/edgehub/manifest.json"],
    )
    drain_timeout_s: Real = Field(
        default=20, ge=0, le=600, description="Longest wait at a stop for what is in flight."
    )
    control_socket: OptionalPath = Field(
        default=None,
        description="Socket of the command line; absent = control.sock in data_dir, or systemd's.",
        examples=["/run/edgehub/control.sock"],
    )
    store: StoreSettings = Field(default_factory=StoreSettings.model_construct)
    journal: JournalSettings = Field(default_factory=JournalSettings.model_construct)
    clock: ClockSettings = Field(default_factory=ClockSettings.model_construct)
    mqtt: MqttSettings = Field(default_factory=MqttSettings.model_construct)
    http: HttpSettings = Field(default_factory=HttpSettings.model_construct)
    broker: BrokerSettings | None = Field(
        default=None, description="An existing MQTT broker that the hub joins; absent = none."
    )
    lora: LoraSettings = Field(default_factory=LoraSettings.model_construct)
    workload: WorkloadSettings = Field(default_factory=WorkloadSettings.model_construct)
    entities: EntitySettings = Field(default_factory=EntitySettings.model_construct)
    mapper: MapperSettings = Field(default_factory=MapperSettings.model_construct)
    web: WebSettings = Field(default_factory=WebSettings.model_construct)
    redis: RedisSettings = Field(default_factory=RedisSettings.model_construct)
    routing_table: RoutingTableSettings = Field(
        default_factory=RoutingTableSettings.model_construct
    )
    tenants: dict[TenantName, TenantSettings] = Field(
        default_factory=dict,
        description="Who shares the hub without seeing one another; absent = everybody is one.",
    )
    affinity: AffinitySettings = Field(default_factory=AffinitySettings.model_construct)
    device_bound: DeviceBoundSettings = Field(default_factory=DeviceBoundSettings.model_construct)
    upstream: AnyEndpoint | None = Field(
        default=None, description="Where $upstream goes; absent = collect only."
    )
    endpoints: dict[EndpointName, AnyEndpoint] = Field(
        default_factory=dict, description="Further endpoints by name, for the sink Endpoint(name)."
    )
    log: LogSettings = Field(default_factory=LogSettings.model_construct)

    @model_validator(mode="after")
    def _names_are_free(self) -> Settings:
        if "upstream" in self.endpoints:
            raise ValueError(
                "endpoints.upstream: the name belongs to $upstream; use the [upstream] section"
            )
        named = {f"endpoints.{name}": options for name, options in self.endpoints.items()}
        if self.upstream is not None:
            named = {"upstream": self.upstream, **named}
        without_url = self.redis_keys if self.redis.url is None else []
        faults = [f"{key} is redis, but redis.url is not set" for key in without_url]
        if self.affinity.registry == "twin" and not (
            isinstance(self.upstream, MqttEndpointSettings) and self.upstream.identity == "device"
        ):
            faults.append("affinity.registry is twin, but upstream.identity is not device")
        for name, options in self.endpoints.items():
            if isinstance(options, MqttEndpointSettings):
                misplaced = {
                    "identity: only upstream has sessions of devices": options.identity == "device",
                    "twins: only upstream has twins": options.twins,
                    "manifest_topic: only upstream has a manifest": options.manifest_topic,
                }
                faults += [f"endpoints.{name}.{text}" for text, is_so in misplaced.items() if is_so]
        faults += session_faults(named, broker=self.broker)
        if faults:
            # Each line becomes a fault of its own.
            raise ValueError("\n".join(faults))
        return self

    @model_validator(mode="after")
    def _shared_topics_are_local(self) -> Settings:
        shared = () if self.broker is None else self.broker.local_topics or ()
        mapper = self.mapper
        local = ["te/#", "c8y/#", f"{mapper.topic_root}/#", f"{mapper.topic_prefix}/#"]
        local += self.mqtt.local_topics
        for topic_filter in shared:
            if not any(covers(each, topic_filter) for each in local):
                raise ValueError(
                    f"broker.local_topics: {topic_filter} is not in the local topic space; "
                    "add it to mqtt.local_topics"
                )
        return self

    @property
    def redis_keys(self) -> list[str]:
        """Return the keys of what is kept in Redis."""
        kept = {
            "affinity.coordinator": self.affinity.coordinator,
            "affinity.registry": self.affinity.registry,
            "routing_table.storage": self.routing_table.storage,
        }
        return [key for key, value in kept.items() if value == "redis"]

    @property
    def control_path(self) -> Path:
        """Return the path of the control socket."""
        given = "data_dir" in self.model_fields_set
        return control_path(self.data_dir if given else None, self.control_socket)
