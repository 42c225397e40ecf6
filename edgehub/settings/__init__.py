"""Settings of one hub: what there is to set, where it is read from, and what may be wrong."""

from edgehub.settings.affinity import AffinitySettings
from edgehub.settings.broker import BrokerSettings
from edgehub.settings.endpoints import (
    ENDPOINT_TYPES,
    AnyEndpoint,
    CumulocityEndpointSettings,
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    MqttEndpointSettings,
)
from edgehub.settings.faults import SettingsError
from edgehub.settings.loading import check_settings, find_hub, load_settings, read_document
from edgehub.settings.lora import LoraSettings
from edgehub.settings.mapper import EntitySettings, MapperSettings
from edgehub.settings.model import (
    MESSAGE_BYTES_MAX,
    ClockSettings,
    HttpSettings,
    JournalSettings,
    LogSettings,
    MqttSettings,
    Settings,
    StoreSettings,
)
from edgehub.settings.redis import RedisSettings
from edgehub.settings.routing_table import RoutingTableSettings, TenantSettings
from edgehub.settings.web import WebSettings
from edgehub.settings.workload import WorkloadSettings

__all__ = [
    "ENDPOINT_TYPES",
    "MESSAGE_BYTES_MAX",
    "AffinitySettings",
    "AnyEndpoint",
    "BrokerSettings",
    "ClockSettings",
    "CumulocityEndpointSettings",
    "EndpointSettings",
    "EntitySettings",
    "FileEndpointSettings",
    "HttpEndpointSettings",
    "HttpSettings",
    "JournalSettings",
    "LogSettings",
    "LoraSettings",
    "MapperSettings",
    "MqttEndpointSettings",
    "MqttSettings",
    "RedisSettings",
    "RoutingTableSettings",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "TenantSettings",
    "WebSettings",
    "WorkloadSettings",
    "check_settings",
    "find_hub",
    "load_settings",
    "read_document",
]
