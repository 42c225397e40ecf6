"""From settings to endpoints: which object serves an endpoint id, and with what.

Owns the settings in force; what is built belongs to the caller. Called when an endpoint starts, at
the start of the hub and at a reload.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

import edgehub
from edgehub.endpoints.client_uplink import ClientDownlink
from edgehub.endpoints.cumulocity import CumulocityDownlink, CumulocityTopics
from edgehub.endpoints.device_session import SessionOptions
from edgehub.endpoints.device_sessions import DeviceSessions
from edgehub.endpoints.file import FileEndpoint
from edgehub.endpoints.http import HttpEndpoint, HttpEndpointOptions
from edgehub.endpoints.http_link import HttpLinkOptions
from edgehub.endpoints.json_lines import JsonLinesFile
from edgehub.endpoints.manifest_topic import ManifestDownlink
from edgehub.endpoints.module_input import ModuleInputEndpoint
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_link import LinkOptions, SharedAccess, first_level
from edgehub.endpoints.mqtt_payload import BatchedRows, BatchTopic, RowProperties, SingleRows
from edgehub.endpoints.mqtt_topic import IotHubTopics, TopicTemplate
from edgehub.endpoints.schedule import ScheduleOptions
from edgehub.endpoints.scheduled import ScheduledEndpoint
from edgehub.message import UPSTREAM, EndpointId, split_module_input
from edgehub.mqtt.azure import is_azure
from edgehub.mqtt.hub_path import HubPath
from edgehub.mqtt.property_bag import outgoing
from edgehub.settings import (
    CumulocityEndpointSettings,
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    MqttEndpointSettings,
)
from edgehub.settings.endpoints import identity_of
from edgehub.settings.loops import is_same_broker
from edgehub.storage.credentials import TlsOptions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from edgehub.clock import Clock
    from edgehub.endpoints.client_uplink import ClientUplink
    from edgehub.endpoints.device_bound import Accept, DeviceBoundRelay
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.manifest_topic import ManifestUplink
    from edgehub.endpoints.mqtt_payload import Payloads
    from edgehub.endpoints.mqtt_topic import Topics
    from edgehub.endpoints.relays import Relay
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.settings import Settings
    from edgehub.store.store import Store


class Destination(Struct, frozen=True, kw_only=True):
    """What serves an endpoint id.

    Attributes:
        endpoint: The endpoint.
        relay: The part of it that relays messages to devices, None = none does.
        sessions: The part of it at which devices have their own sessions, None = none has.
        downlink: What comes from Cumulocity by it, None = nothing does.
    """

    endpoint: Endpoint
    relay: Relay | None = None
    sessions: DeviceSessions | None = None
    downlink: CumulocityDownlink | None = None


class EndpointFactory:
    """Builds endpoints from the settings in force.

    Args:
        settings: Those; `use` changes them.
        hub_id: Client id towards upstream peers.
        store: The queues.
        listener: Takes messages to modules and local topics.
        device_bound: Stores messages to devices.
        manifest: Takes the manifest of a topic upstream.
        clients: Takes what concerns twins and methods of clients.
        clock: Timers.
        rng: Randomness for jitter; pumps share it.
    """

    def __init__(  # noqa: PLR0913 - what endpoints work with, each by name
        self,
        settings: Settings,
        *,
        hub_id: str,
        store: Store,
        listener: MqttListener,
        device_bound: Accept,
        manifest: ManifestUplink,
        clients: ClientUplink,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._hub_id = hub_id
        self._store = store
        self._listener = listener
        self._device_bound = device_bound
        self._manifest = manifest
        self._clients = clients
        self._clock = clock
        self._hub_path = HubPath(store.store_id)
        self.rng = rng

    def use(self, settings: Settings) -> bool:
        """Build by other settings from now on; returns whether inputs of modules change."""
        before, self._settings = self._settings, settings
        return settings.mqtt.ack_timeout_s != before.mqtt.ack_timeout_s

    def named(self) -> dict[EndpointId, EndpointSettings]:
        """Return the endpoints that the settings name, with their options."""
        named: dict[EndpointId, EndpointSettings] = {
            EndpointId(name): options for name, options in self._settings.endpoints.items()
        }
        if self._settings.upstream is not None:
            named[UPSTREAM] = self._settings.upstream
        return named

    def build(self, endpoint_id: EndpointId) -> Destination | None:
        """Build what serves an endpoint id.

        None for $upstream without settings, which collects, and for a name of old settings.
        """
        built = self._build(endpoint_id)
        options = self.named().get(endpoint_id)
        if built is None or options is None or not options.open_at:
            return built
        return replace(built, endpoint=self._scheduled(built.endpoint, options))

    def _scheduled(self, link: Endpoint, options: EndpointSettings) -> ScheduledEndpoint:
        endpoint_id = link.id
        store = self._store

        def urgent_waits(priority: int) -> bool:
            queues = [queue for queue in store.queues.of(endpoint_id) if queue.priority <= priority]
            return any(queue.statistics().depth for queue in queues)

        return ScheduledEndpoint(
            link,
            ScheduleOptions(
                open_at=options.open_at,
                open_for_s=options.open_for_s,
                urgent_priority=None if options.urgent_priority < 0 else options.urgent_priority,
            ),
            clock=self._clock,
            trusted=lambda: store.clock_trusted,
            urgent_waits=urgent_waits,
        )

    def _build(self, endpoint_id: EndpointId) -> Destination | None:
        options = self.named().get(endpoint_id)
        if isinstance(options, MqttEndpointSettings):
            if options.identity == "device":
                return self._build_sessions(endpoint_id, options)
            link = self._build_mqtt(endpoint_id, options)
            return Destination(endpoint=link, relay=link if link.relays else None)
        if isinstance(options, CumulocityEndpointSettings):
            return self._build_cumulocity(endpoint_id, options)
        if isinstance(options, FileEndpointSettings):
            return Destination(endpoint=self._build_file(endpoint_id, options))
        if isinstance(options, HttpEndpointSettings):
            return Destination(endpoint=self._build_http(endpoint_id, options))
        module = split_module_input(endpoint_id)
        return None if module is None else Destination(endpoint=self._build_module_input(*module))

    def _build_module_input(self, module: str, name: str) -> ModuleInputEndpoint:
        return ModuleInputEndpoint(
            module,
            name,
            self._listener,
            clock=self._clock,
            now_ms=self._store.hub_time.now_ms,
            ack_timeout_s=self._settings.mqtt.ack_timeout_s,
        )

    def _build_http(self, endpoint_id: EndpointId, options: HttpEndpointSettings) -> Endpoint:
        link = HttpLinkOptions(
            url=options.url,
            headers=options.headers,
            token_file=options.token_file,
            username=options.username,
            password_file=options.password_file,
            tls=TlsOptions.of(options),
            user_agent=f"edgehub/{edgehub.__version__}",
        )
        return HttpEndpoint(
            endpoint_id,
            HttpEndpointOptions(
                link=link,
                batch_rows_max=options.batch_rows_max,
                batch_bytes_max=options.batch_bytes_max,
                requests_max=options.requests_max,
                timeout_s=options.timeout_s,
                gzip=options.gzip,
                path_of=self._hub_path.of if options.is_hub else None,
            ),
            clock=self._clock,
            rng=self.rng,
            utc_ms=self._store.utc_ms,
        )

    def _build_file(self, endpoint_id: EndpointId, options: FileEndpointSettings) -> FileEndpoint:
        return FileEndpoint(
            endpoint_id,
            JsonLinesFile(
                options.path, rotate_bytes=options.rotate_bytes, keep_files=options.keep_files
            ),
            utc_ms=self._store.utc_ms,
            clock=self._clock,
            rng=self.rng,
        )

    def _client_id(self, endpoint_id: EndpointId, options: MqttEndpointSettings) -> str:
        if options.client_id is not None:
            return options.client_id
        # Two endpoints may lead to one broker, where one client id would end the other's session.
        if options.username is None:
            hub_id = self._hub_id
            return hub_id if endpoint_id == UPSTREAM else f"{hub_id}-{endpoint_id}"
        # A parent hub and Azure want the client id to be the user's id.
        identity = identity_of(options.username)
        return f"{identity}-{endpoint_id}" if self._is_shared(endpoint_id, options) else identity

    def _is_shared(self, endpoint_id: EndpointId, options: MqttEndpointSettings) -> bool:
        """Return whether an endpoint before this one signs in as the same user at the same peer."""
        key = (options.host, options.port, options.username)
        others = (
            other
            for name, other in self.named().items()
            if isinstance(other, MqttEndpointSettings)
            and other.client_id is None
            and (name == UPSTREAM or (endpoint_id != UPSTREAM and name < endpoint_id))
            and name != endpoint_id
        )
        return any((other.host, other.port, other.username) == key for other in others)

    def _build_mqtt(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings, *, relays: bool = True
    ) -> MqttEndpoint:
        relays = relays and options.device_bound and options.topic is None
        client_id = self._client_id(endpoint_id, options)
        return MqttEndpoint(
            endpoint_id,
            MqttOptions(
                link=LinkOptions(
                    host=options.host,
                    port=options.port,
                    client_id=client_id,
                    username=options.username,
                    password_file=options.password_file,
                    shared_access=_shared_access(
                        options, options.shared_access_key_file, "shared_access_key_file"
                    ),
                    tls=_tls_of(options),
                    keep_alive_s=options.keep_alive_s,
                    level=first_level(options.mqtt, options.host),
                ),
                falls_back=options.mqtt == "auto",
                payloads=self._payloads(endpoint_id, options, client_id),
                row_bytes_max=options.row_bytes_max,
                ack_timeout_s=options.ack_timeout_s,
                relays_own_only=is_azure(options.host),
            ),
            clock=self._clock,
            rng=self.rng,
            device_bound=self._device_bound if relays else None,
            clients=self._other_downlink(endpoint_id, options, client_id),
        )

    def _other_downlink(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings, client_id: str
    ) -> Callable[[DeviceBoundRelay | None], ClientDownlink | ManifestDownlink] | None:
        """Return what builds the way down for all but messages to devices, None = there is none."""
        topic = options.manifest_topic
        if topic is not None:
            return lambda relay: ManifestDownlink(
                endpoint_id, self._manifest, topic=topic, relay=relay
            )
        if not options.twins:
            return None
        for_all = options.identity == "hub" and not is_azure(options.host)
        return lambda relay: ClientDownlink(
            endpoint_id, self._clients, own_id=client_id, for_all=for_all, relay=relay
        )

    def _build_sessions(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings
    ) -> Destination:
        tls = _tls_of(options)
        if tls is not None and options.device_certificate_file is not None:
            tls = replace(
                tls,
                certificate_file=_path(options.device_certificate_file),
                key_file=_path(options.device_key_file),
            )
        sessions = DeviceSessions(
            self._build_mqtt(endpoint_id, options, relays=False),
            SessionOptions(
                host=options.host,
                port=options.port,
                level=first_level(options.device_mqtt, options.host),
                falls_back=options.device_mqtt == "auto",
                username=options.device_username,
                password_file=_path(options.device_password_file),
                shared_access=_shared_access(
                    options,
                    _path(options.device_shared_access_key_file),
                    "device_shared_access_key_file",
                ),
                tls=tls,
                keep_alive_s=options.keep_alive_s,
                ack_timeout_s=options.ack_timeout_s,
                properties=self._properties(options),
                takes_modules=not is_azure(options.host),
            ),
            on_behalf=options.on_behalf,
            clock=self._clock,
            device_bound=self._device_bound if options.device_bound else None,
            clients=self._clients if options.twins else None,
        )
        return Destination(
            endpoint=sessions, relay=sessions if sessions.relays else None, sessions=sessions
        )

    def _is_joined(self, options: MqttEndpointSettings) -> bool:
        """Return whether an endpoint's peer is the broker that the hub subscribes to."""
        broker = self._settings.broker
        return broker is not None and is_same_broker(
            options.host, options.port, broker.host, broker.port
        )

    def _build_cumulocity(
        self, endpoint_id: EndpointId, options: CumulocityEndpointSettings
    ) -> Destination:
        prefix = self._settings.mapper.topic_prefix
        gateway_id = self._settings.mapper.external_id or self._hub_id
        downlink = CumulocityDownlink(
            endpoint_id,
            prefix=prefix,
            publisher=self._hub_id,
            templates=options.templates,
            publish=self._listener.context.space.publish,
            clock=self._clock,
        )
        endpoint = MqttEndpoint(
            endpoint_id,
            MqttOptions(
                link=LinkOptions(
                    host=options.host,
                    port=options.port,
                    client_id=options.client_id or gateway_id,
                    username=options.username,
                    password_file=options.password_file,
                    tls=_tls_of(options),
                    keep_alive_s=options.keep_alive_s,
                ),
                payloads=SingleRows(CumulocityTopics(prefix), options.row_bytes_max),
                row_bytes_max=options.row_bytes_max,
                ack_timeout_s=options.ack_timeout_s,
            ),
            clock=self._clock,
            rng=self.rng,
            downlink=downlink,
        )
        return Destination(endpoint=endpoint, downlink=downlink)

    def _properties(self, options: MqttEndpointSettings) -> RowProperties:
        dialect = options.topic is None
        return RowProperties(
            self._store.hub_time.now_ms,
            named=not dialect,
            expiry=dialect if options.expiry is None else options.expiry,
            origin=self._hub_id if self._is_joined(options) else None,
        )

    def _payloads(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings, client_id: str
    ) -> Payloads:
        compress = options.batch == "zstd"
        topics: Topics
        # What carries messages of others in the dialect's form goes to a hub; Azure takes nothing
        # else of a session than its own.
        is_hub = options.topic is None and (options.identity == "hub" or options.on_behalf)
        leaving = self._hub_path.leaving if is_hub else outgoing
        if options.topic is not None:
            topics = TopicTemplate(
                options.topic, endpoint_id=endpoint_id, key=f"{endpoint_id}.topic"
            )
        elif options.batches:
            topics = BatchTopic(client_id, compress=compress)
        else:
            topics = IotHubTopics(leaving, only=client_id if is_azure(options.host) else None)
        if not options.batches:
            return SingleRows(topics, options.row_bytes_max, self._properties(options))
        return BatchedRows(
            topics,
            self._store.utc_ms,
            rows_max=options.batch_rows_max,
            bytes_max=options.batch_bytes_max,
            compress=compress,
            packet_bytes_max=options.row_bytes_max,
            leaving=leaving,
        )


def _tls_of(options: MqttEndpointSettings | CumulocityEndpointSettings) -> TlsOptions | None:
    return TlsOptions.of(options) if options.tls else None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _shared_access(
    options: MqttEndpointSettings, file: Path | None, setting: str
) -> SharedAccess | None:
    if file is None:
        return None
    return SharedAccess(file=file, setting=setting, lasts_s=options.signature_s)
