"""What follows from several sections of the settings together.

Pure. Invariant: hubs whose settings name no Cumulocity endpoint run no mapper, unless enabled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.mqtt.azure import is_azure
from edgehub.settings.endpoints import MqttEndpointSettings, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.settings.broker import BrokerSettings
    from edgehub.settings.model import Settings

CUMULOCITY: Final = "cumulocity"


def mapper_runs(settings: Settings) -> bool:
    """Return whether the hub runs the mapper."""
    enabled = settings.mapper.enabled
    return has_platform(settings) if enabled is None else enabled


def has_platform(settings: Settings) -> bool:
    """Return whether an endpoint connects to Cumulocity."""
    named = [*settings.endpoints.values(), settings.upstream]
    return any(getattr(endpoint, "type", None) == CUMULOCITY for endpoint in named)


def mapper_topics(settings: Settings) -> tuple[str, ...]:
    """Return the filters of the local topics on which clients talk to the mapper."""
    if not mapper_runs(settings):
        return ()
    return f"{settings.mapper.topic_root}/#", f"{settings.mapper.topic_prefix}/#"


def twins_upstream(settings: Settings, hub_id: str) -> Callable[[str], bool]:
    """Return what says of a client whether the peer upstream has its twin."""
    upstream = settings.upstream
    if not isinstance(upstream, MqttEndpointSettings) or not upstream.twins:
        return lambda _client_id: False
    if upstream.identity == "device":
        # Modules have no session of their own.
        return lambda client_id: "/" not in client_id or client_id == hub_id
    if is_azure(upstream.host):
        return lambda client_id: client_id == hub_id
    return lambda _client_id: True


def is_edge_hub_module(settings: Settings) -> bool:
    """Return whether the hub signs in upstream as the module `$edgeHub` of its device.

    Its own twin is that of the module then, whose desired properties are a manifest as a whole.
    """
    upstream = settings.upstream
    if not isinstance(upstream, MqttEndpointSettings):
        return False
    name = upstream.client_id or (identity_of(upstream.username) if upstream.username else "")
    return name.endswith("/$edgeHub")


def manifest_topic(settings: Settings) -> str | None:
    """Return the topic of the peer upstream that has the hub's manifest, None = none has."""
    upstream = settings.upstream
    return upstream.manifest_topic if isinstance(upstream, MqttEndpointSettings) else None


def twin_warnings(settings: Settings) -> Iterator[str]:
    """List what of twins is not what it seems."""
    upstream = settings.upstream
    if not isinstance(upstream, MqttEndpointSettings) or not upstream.twins:
        return
    if is_azure(upstream.host) and upstream.identity == "hub":
        yield (
            "upstream.twins: only the gateway's own twin is synchronised with Azure IoT Hub; those "
            "of devices and modules are served here, unless identity = device"
        )


def broker_topics(settings: Settings, broker: BrokerSettings) -> tuple[str, ...]:
    """Return the filters of the local topics that broker and local topic space share."""
    if broker.local_topics is not None:
        return broker.local_topics
    if broker.version == "5" and mapper_runs(settings):
        return (f"{settings.mapper.topic_root}/#",)
    return ()
