"""Settings of one hub: what there is to set, where it is read from, and what may be wrong."""

from edgehub.settings.endpoints import (
    ENDPOINT_TYPES,
    AnyEndpoint,
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    MqttEndpointSettings,
)
from edgehub.settings.faults import SettingsError
from edgehub.settings.loading import check_settings, load_settings, read_document
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

__all__ = [
    "ENDPOINT_TYPES",
    "MESSAGE_BYTES_MAX",
    "AnyEndpoint",
    "ClockSettings",
    "EndpointSettings",
    "FileEndpointSettings",
    "HttpEndpointSettings",
    "HttpSettings",
    "JournalSettings",
    "LogSettings",
    "MqttEndpointSettings",
    "MqttSettings",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "check_settings",
    "load_settings",
    "read_document",
]
