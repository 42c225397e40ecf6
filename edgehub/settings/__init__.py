"""Settings of one hub: what there is to set, where it is read from, and what may be wrong."""

from edgehub.settings.faults import SettingsError
from edgehub.settings.loading import check_settings, load_settings, read_document
from edgehub.settings.model import (
    ENDPOINT_TYPES,
    MESSAGE_BYTES_MAX,
    AnyEndpoint,
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    HttpSettings,
    LogSettings,
    MqttEndpointSettings,
    MqttSettings,
    Settings,
    StoreSettings,
)

__all__ = [
    "ENDPOINT_TYPES",
    "MESSAGE_BYTES_MAX",
    "AnyEndpoint",
    "EndpointSettings",
    "FileEndpointSettings",
    "HttpEndpointSettings",
    "HttpSettings",
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
