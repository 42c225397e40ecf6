"""From settings to endpoints: which object serves an endpoint id, and with what.

Owns nothing; it builds, and whoever asked owns what was built. Called when an endpoint starts, at
the start of the hub and at a reload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import edgehub
from edgehub.endpoints.cumulocity import CumulocityDownlink, CumulocityTopics
from edgehub.endpoints.device_session import SessionOptions
from edgehub.endpoints.device_sessions import DeviceSessions
from edgehub.endpoints.file import FileEndpoint, FileOptions
from edgehub.endpoints.http import HttpEndpoint, HttpEndpointOptions
from edgehub.endpoints.http_link import HttpLinkOptions
from edgehub.endpoints.module_input import ModuleInputEndpoint
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_link import LinkOptions
from edgehub.endpoints.mqtt_payload import BatchedRows, BatchTopic, SingleRows
from edgehub.endpoints.mqtt_topic import IotHubTopics, TopicTemplate
from edgehub.endpoints.schedule import ScheduleOptions
from edgehub.endpoints.scheduled import ScheduledEndpoint
from edgehub.message import UPSTREAM, EndpointId, split_module_input
from edgehub.packet_limits import PacketLimits
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
    import asyncio
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.devices.upstream_lanes import UpstreamLanes
    from edgehub.endpoints.cumulocity import Publish
    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.module_input import ModuleSessions
    from edgehub.endpoints.mqtt_payload import Payloads
    from edgehub.endpoints.mqtt_topic import Topics
    from edgehub.pump.succession import Succession
    from edgehub.routes.table import RouteTable
    from edgehub.settings import BrokerSettings
    from edgehub.store.store import Store

    Relay = MqttEndpoint | DeviceSessions
    """What takes messages to devices."""

    Spawn = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What endpoints and pumps need from the rest of the hub.

    Attributes:
        hub_id: Client id towards upstream peers.
        store: The queues.
        sessions: Modules that are connected.
        device_bound: Delivers messages from upstream to connected devices.
        table: Gives the route table in force.
        clock: Timers.
        rng: Randomness for jitter.
        spawn: Starts a supervised task in the group of the pumps.
        succession: Knows predecessors of rows.
        publish_local: Publishes in the local topic space.
        cloud_prefix: First level of the local topics of Cumulocity.
        cloud_id: External id of the gateway there.
        lanes_of: Gives an endpoint at which devices have their own sessions its lanes.
        platforms: What comes from Cumulocity, by endpoint.
        device_sessions: Endpoints at which devices have their own sessions.
        limits: Learns which endpoints have a largest packet.
        broker: The broker that the hub joins, None = none.
    """

    hub_id: str
    store: Store
    sessions: ModuleSessions
    device_bound: Deliver
    table: Callable[[], RouteTable]
    clock: Clock
    rng: random.Random
    spawn: Spawn
    succession: Succession
    publish_local: Publish
    cloud_prefix: str
    cloud_id: str
    lanes_of: Callable[[DeviceSessions], UpstreamLanes]
    platforms: dict[EndpointId, CumulocityDownlink] = field(default_factory=dict)
    device_sessions: dict[EndpointId, DeviceSessions] = field(default_factory=dict)
    limits: PacketLimits = field(default_factory=PacketLimits)
    broker: BrokerSettings | None = None


class Destinations:
    """What there is to build.

    Args:
        named: Options of the endpoints by id.
        ack_timeout_s: A module's time to confirm.
        around: See `Surroundings`.
    """

    def __init__(
        self,
        named: Mapping[EndpointId, EndpointSettings],
        *,
        ack_timeout_s: float,
        around: Surroundings,
    ) -> None:
        self._named = named
        self._ack_timeout_s = ack_timeout_s
        self._around = around

    def build(self, endpoint_id: EndpointId) -> tuple[Endpoint, Relay | None] | None:
        """Build an endpoint, and name the part of it that relays device-bound messages.

        None for $upstream without settings, which collects, and for a name of old settings.
        """
        link = self._build_link(endpoint_id)
        options = self._named.get(endpoint_id)
        if link is None:
            return None
        relay = link if isinstance(link, MqttEndpoint | DeviceSessions) and link.relays else None
        if options is None or not options.open_at:
            return link, relay
        return self._scheduled(link, options), relay

    def _scheduled(self, link: Endpoint, options: EndpointSettings) -> ScheduledEndpoint:
        endpoint_id = link.id
        store = self._around.store

        def urgent_waits(priority: int) -> bool:
            queues = [queue for queue in store.queues_of(endpoint_id) if queue.priority <= priority]
            return any(queue.statistics().depth for queue in queues)

        return ScheduledEndpoint(
            link,
            ScheduleOptions(
                open_at=options.open_at,
                open_for_s=options.open_for_s,
                urgent_priority=None if options.urgent_priority < 0 else options.urgent_priority,
            ),
            clock=self._around.clock,
            trusted=lambda: store.statistics().clock.trusted,
            urgent_waits=urgent_waits,
        )

    def _build_link(self, endpoint_id: EndpointId) -> Endpoint | None:
        options = self._named.get(endpoint_id)
        if isinstance(options, MqttEndpointSettings):
            if options.identity == "device":
                return self._build_sessions(endpoint_id, options)
            return self._build_mqtt(endpoint_id, options)
        if isinstance(options, CumulocityEndpointSettings):
            return self._build_cumulocity(endpoint_id, options)
        if isinstance(options, FileEndpointSettings):
            return self._build_file(endpoint_id, options)
        if isinstance(options, HttpEndpointSettings):
            return self._build_http(endpoint_id, options)
        return self._build_module_input(endpoint_id)

    def _build_module_input(self, endpoint_id: EndpointId) -> ModuleInputEndpoint | None:
        module = split_module_input(endpoint_id)
        if module is None:
            return None
        return ModuleInputEndpoint(
            *module,
            self._around.sessions,
            clock=self._around.clock,
            now_ms=self._around.store.hub_time.now_ms,
            ack_timeout_s=self._ack_timeout_s,
        )

    def _build_http(self, endpoint_id: EndpointId, options: HttpEndpointSettings) -> Endpoint:
        around = self._around
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
            ),
            clock=around.clock,
            rng=around.rng,
            utc_ms=around.store.utc_ms,
        )

    def _build_file(self, endpoint_id: EndpointId, options: FileEndpointSettings) -> FileEndpoint:
        around = self._around
        return FileEndpoint(
            endpoint_id,
            FileOptions(
                path=options.path, rotate_bytes=options.rotate_bytes, keep_files=options.keep_files
            ),
            utc_ms=around.store.utc_ms,
            clock=around.clock,
            rng=around.rng,
        )

    def _client_id(self, endpoint_id: EndpointId, options: MqttEndpointSettings) -> str:
        if options.client_id is not None:
            return options.client_id
        # Two endpoints may lead to one broker, where one client id would end the other's session.
        if options.username is None:
            hub_id = self._around.hub_id
            return hub_id if endpoint_id == UPSTREAM else f"{hub_id}-{endpoint_id}"
        # A parent hub and Azure want the client id to be the user's id.
        identity = identity_of(options.username)
        return f"{identity}-{endpoint_id}" if self._is_shared(endpoint_id, options) else identity

    def _is_shared(self, endpoint_id: EndpointId, options: MqttEndpointSettings) -> bool:
        """Tell whether an endpoint before this one signs in as the same user at the same peer."""
        key = (options.host, options.port, options.username)
        others = (
            other
            for name, other in self._named.items()
            if isinstance(other, MqttEndpointSettings)
            and other.client_id is None
            and (name == UPSTREAM or (endpoint_id != UPSTREAM and name < endpoint_id))
            and name != endpoint_id
        )
        return any((other.host, other.port, other.username) == key for other in others)

    def _build_mqtt(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings, *, relays: bool = True
    ) -> MqttEndpoint:
        around = self._around
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
                    tls=_tls_of(options),
                    keep_alive_s=options.keep_alive_s,
                ),
                payloads=self._payloads(endpoint_id, options, client_id),
                row_bytes_max=options.row_bytes_max,
                ack_timeout_s=options.ack_timeout_s,
            ),
            clock=around.clock,
            rng=around.rng,
            device_bound=around.device_bound if relays else None,
        )

    def _build_sessions(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings
    ) -> DeviceSessions:
        around = self._around
        sessions = around.device_sessions[endpoint_id] = DeviceSessions(
            self._build_mqtt(endpoint_id, options, relays=False),
            SessionOptions(
                host=options.host,
                port=options.port,
                version=5 if options.device_mqtt == "5" else 4,
                username=options.device_username,
                password_file=options.device_password_file,
                tls=_tls_of(options),
                keep_alive_s=options.keep_alive_s,
                ack_timeout_s=options.ack_timeout_s,
                origin=around.hub_id if self._is_joined(options) else None,
            ),
            on_behalf=options.on_behalf,
            clock=around.clock,
            device_bound=around.device_bound if options.device_bound else None,
        )
        return sessions

    def _is_joined(self, options: MqttEndpointSettings) -> bool:
        """Return whether an endpoint's peer is the broker that the hub subscribes to."""
        broker = self._around.broker
        return broker is not None and is_same_broker(
            options.host, options.port, broker.host, broker.port
        )

    def _build_cumulocity(
        self, endpoint_id: EndpointId, options: CumulocityEndpointSettings
    ) -> MqttEndpoint:
        around = self._around
        downlink = around.platforms[endpoint_id] = CumulocityDownlink(
            endpoint_id,
            prefix=around.cloud_prefix,
            publisher=around.hub_id,
            templates=options.templates,
            publish=around.publish_local,
            clock=around.clock,
        )
        return MqttEndpoint(
            endpoint_id,
            MqttOptions(
                link=LinkOptions(
                    host=options.host,
                    port=options.port,
                    client_id=options.client_id or around.cloud_id,
                    username=options.username,
                    password_file=options.password_file,
                    tls=_tls_of(options),
                    keep_alive_s=options.keep_alive_s,
                ),
                payloads=SingleRows(CumulocityTopics(around.cloud_prefix), options.row_bytes_max),
                row_bytes_max=options.row_bytes_max,
                ack_timeout_s=options.ack_timeout_s,
            ),
            clock=around.clock,
            rng=around.rng,
            downlink=downlink,
        )

    def _payloads(
        self, endpoint_id: EndpointId, options: MqttEndpointSettings, client_id: str
    ) -> Payloads:
        compress = options.batch == "zstd"
        topics: Topics
        if options.topic is not None:
            topics = TopicTemplate(
                options.topic, endpoint_id=endpoint_id, key=f"{endpoint_id}.topic"
            )
        elif options.batches:
            topics = BatchTopic(client_id, compress=compress)
        else:
            topics = IotHubTopics()
        if not options.batches:
            return SingleRows(topics, options.row_bytes_max)
        return BatchedRows(
            topics,
            self._around.store.utc_ms,
            rows_max=options.batch_rows_max,
            bytes_max=options.batch_bytes_max,
            compress=compress,
            packet_bytes_max=options.row_bytes_max,
        )


def _tls_of(options: MqttEndpointSettings | CumulocityEndpointSettings) -> TlsOptions | None:
    return TlsOptions.of(options) if options.tls else None
