"""Settings of one hub: what there is to set, where it is read from, and what may be wrong."""

from edgehub.settings.faults import SettingsError
from edgehub.settings.loading import load_settings
from edgehub.settings.model import (
    MESSAGE_BYTES_MAX,
    AnyEndpoint,
    EndpointSettings,
    FileEndpointSettings,
    LogSettings,
    MqttEndpointSettings,
    MqttSettings,
    Settings,
    StoreSettings,
)

__all__ = [
    "MESSAGE_BYTES_MAX",
    "AnyEndpoint",
    "EndpointSettings",
    "FileEndpointSettings",
    "LogSettings",
    "MqttEndpointSettings",
    "MqttSettings",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "load_settings",
]
