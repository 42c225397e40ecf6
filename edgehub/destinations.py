"""From settings to endpoints: which object serves an endpoint id, and with what.

Owns nothing; it builds, and whoever asked owns what was built. Called when an endpoint starts, at
the start of the hub and at a reload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import edgehub
from edgehub.endpoints.aiomqtt_bridge import LinkOptions, TlsOptions
from edgehub.endpoints.file import FileEndpoint, FileOptions
from edgehub.endpoints.module_input import ModuleInputEndpoint
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.endpoints.schedule import ScheduleOptions
from edgehub.endpoints.scheduled import ScheduledEndpoint
from edgehub.message import UPSTREAM, EndpointId, split_module_input
from edgehub.settings import (
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    MqttEndpointSettings,
)

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.module_input import ModuleSessions
    from edgehub.routes.table import RouteTable
    from edgehub.store.store import Store

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
    """

    hub_id: str
    store: Store
    sessions: ModuleSessions
    device_bound: Deliver
    table: Callable[[], RouteTable]
    clock: Clock
    rng: random.Random
    spawn: Spawn


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

    def build(self, endpoint_id: EndpointId) -> tuple[Endpoint, MqttEndpoint | None] | None:
        """Build an endpoint, and name the part of it that relays device-bound messages.

        None for $upstream without settings, which collects, and for a name of old settings.
        """
        link = self._build_link(endpoint_id)
        options = self._named.get(endpoint_id)
        if link is None:
            return None
        relay = link if isinstance(link, MqttEndpoint) and link.relays else None
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
            return self._build_mqtt(endpoint_id, options)
        if isinstance(options, FileEndpointSettings):
            return self._build_file(endpoint_id, options)
        if isinstance(options, HttpEndpointSettings):
            return self._build_http(endpoint_id, options)
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
        from edgehub.endpoints.http import HttpEndpoint, HttpEndpointOptions  # noqa: PLC0415 - the library and its parser are loaded by hubs that use HTTP only
        from edgehub.endpoints.http_link import HttpLinkOptions  # noqa: PLC0415 - likewise

        around = self._around
        link = HttpLinkOptions(
            url=options.url,
            headers=options.headers,
            token_file=options.token_file,
            username=options.username,
            password_file=options.password_file,
            ca_file=options.ca_file,
            certificate_file=options.certificate_file,
            key_file=options.key_file,
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
        identity = _identity_of(options.username)
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

    def _build_mqtt(self, endpoint_id: EndpointId, options: MqttEndpointSettings) -> MqttEndpoint:
        around = self._around
        tls = None
        if options.tls:
            tls = TlsOptions(
                ca_file=options.ca_file,
                certificate_file=options.certificate_file,
                key_file=options.key_file,
            )
        relays = options.device_bound and options.topic is None
        return MqttEndpoint(
            endpoint_id,
            MqttOptions(
                link=LinkOptions(
                    host=options.host,
                    port=options.port,
                    client_id=self._client_id(endpoint_id, options),
                    username=options.username,
                    password_file=options.password_file,
                    tls=tls,
                    keep_alive_s=options.keep_alive_s,
                ),
                topics=None
                if options.topic is None
                else TopicTemplate(
                    options.topic, endpoint_id=endpoint_id, key=f"{endpoint_id}.topic"
                ),
                row_bytes_max=options.row_bytes_max,
                ack_timeout_s=options.ack_timeout_s,
            ),
            clock=around.clock,
            rng=around.rng,
            device_bound=around.device_bound if relays else None,
        )


def _identity_of(username: str) -> str:
    # `<host>/<device>[/<module>]/?api-version=...` is how IoT Hub writes a user name.
    parts = username.split("/")
    ids = parts[1:-1]
    return "/".join(ids) if 1 <= len(ids) <= 2 and "api-version=" in parts[-1] else username  # noqa: PLR2004 - device, module
