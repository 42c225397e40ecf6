"""The way out of one hub: an endpoint and its pump for each destination that is named.

Owns the pumps and their tasks. Invariant: an endpoint id has at most one pump; queues whose
endpoint nobody names are orphans, served by none, until they expire or it is named again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from edgehub import status
from edgehub.endpoints.aiomqtt_bridge import LinkOptions, TlsOptions
from edgehub.endpoints.file import FileEndpoint, FileOptions
from edgehub.endpoints.module_input import ModuleInputEndpoint
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.message import UPSTREAM, DeliveryRules, EndpointId, Order, split_module_input
from edgehub.pump.pump import Pump, PumpOptions
from edgehub.settings import EndpointSettings, FileEndpointSettings, MqttEndpointSettings

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock
    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.module_input import ModuleSessions
    from edgehub.message import Row
    from edgehub.routes.table import RouteTable
    from edgehub.settings import Settings
    from edgehub.store.store import Store

    Spawn = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]

log = structlog.get_logger(__name__)


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


class Egress:
    """The endpoints and pumps of one hub.

    Args:
        settings: Names and options of the endpoints.
        around: See `Surroundings`.
    """

    def __init__(self, settings: Settings, around: Surroundings) -> None:
        self._around = around
        self._named: dict[EndpointId, EndpointSettings] = {
            EndpointId(name): options for name, options in settings.endpoints.items()
        }
        if settings.upstream is not None:
            self._named[UPSTREAM] = settings.upstream
        self._ack_timeout_s = settings.mqtt.ack_timeout_s
        self._pumps: dict[EndpointId, Pump] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._relays: list[MqttEndpoint] = []

    @property
    def has_upstream(self) -> bool:
        """Whether the settings name where $upstream goes."""
        return UPSTREAM in self._named

    def ensure(self) -> None:
        """Start what settings, routes and stored queues ask for and is not there yet."""
        wanted = {*self._named, *self._around.table().endpoints}
        wanted |= {queue.endpoint_id for queue in self._around.store.queues()}
        for endpoint_id in sorted(wanted - self._pumps.keys()):
            endpoint = self._build(endpoint_id)
            if endpoint is not None:
                self._start(endpoint, self._named.get(endpoint_id, EndpointSettings()))

    def upstream_is_up(self) -> bool:
        """Tell whether rows for $upstream can leave right now."""
        pump = self._pumps.get(UPSTREAM)
        return pump is not None and pump.endpoint.state == "up"

    def device_bound_interest(self, device_id: str, wanted: bool) -> None:
        """Have messages to a device relayed, or no more; see `MqttEndpoint.subscribe_device`."""
        for relay in self._relays:
            if wanted:
                relay.subscribe_device(device_id)
            else:
                relay.unsubscribe_device(device_id)

    def retry_now(self) -> None:
        """Try every link at once."""
        for pump in self._pumps.values():
            pump.retry_now()

    async def drain(self, deadline: float) -> None:
        """Let what is in flight settle until `deadline`, monotonic seconds of the clock."""
        async with asyncio.TaskGroup() as group:
            for endpoint_id, pump in self._pumps.items():
                group.create_task(pump.drain(deadline), name=f"drain[{endpoint_id}]")

    def cancel(self) -> None:
        """End all pumps; what they still have in flight goes back to its queues."""
        for task in self._tasks:
            task.cancel()

    def orphans(self) -> set[EndpointId]:
        """Give the endpoints of stored queues that nobody serves; $upstream is never one."""
        stored = {
            queue.endpoint_id for queue in self._around.store.queues() if queue.statistics().depth
        }
        return stored - self._pumps.keys() - {UPSTREAM}

    def queue_documents(self) -> list[dict[str, Any]]:
        """Describe all queues, by endpoint and priority."""
        store = self._around.store
        orphans = self.orphans()
        return [
            status.queue_document(
                queue,
                now_ms=store.hub_time.now_ms(),
                pump=self._pumps.get(queue.endpoint_id),
                orphaned=queue.endpoint_id in orphans,
            )
            for queue in sorted(store.queues(), key=lambda q: (q.endpoint_id, q.priority))
        ]

    def endpoint_documents(self) -> list[dict[str, Any]]:
        """Describe all endpoints."""
        return [status.endpoint_document(pump) for _, pump in sorted(self._pumps.items())]

    def _start(self, endpoint: Endpoint, options: EndpointSettings) -> None:
        around = self._around
        endpoint_id = endpoint.id
        in_flight_max = PumpOptions().rows_in_flight_max
        if isinstance(options, MqttEndpointSettings):
            in_flight_max = options.in_flight_max
        pump = Pump(
            endpoint,
            queues=lambda: around.store.queues_of(endpoint_id),
            rules=lambda row: self._rules(row, options),
            clock=around.clock,
            now_ms=around.store.hub_time.now_ms,
            rng=around.rng,
            options=PumpOptions(
                head_of_line_ms=options.head_of_line_ms, rows_in_flight_max=in_flight_max
            ),
        )
        self._pumps[endpoint_id] = pump
        around.store.watch(endpoint_id, pump.rows_ready)
        self._tasks.append(around.spawn(pump.run, f"pump[{endpoint_id}]"))

    def _rules(self, row: Row, options: EndpointSettings) -> DeliveryRules:
        order, attempts, age_s = Order(options.order), options.max_attempts, options.max_age_s
        try:
            route = self._around.table().delivery_rules(row.routes[0])
        except (KeyError, IndexError):
            # It was stored under a route that is gone; the endpoint's rules hold.
            pass
        else:
            order = order if route.order is None else Order(route.order)
            attempts = attempts if route.max_attempts is None else route.max_attempts
            age_s = age_s if route.max_age_s is None else route.max_age_s
        return DeliveryRules(order=order, max_attempts=attempts, max_age_s=age_s or None)

    def _build(self, endpoint_id: EndpointId) -> Endpoint | None:
        options = self._named.get(endpoint_id)
        if isinstance(options, MqttEndpointSettings):
            return self._build_mqtt(endpoint_id, options)
        if isinstance(options, FileEndpointSettings):
            return self._build_file(endpoint_id, options)
        module = split_module_input(endpoint_id)
        if module is None:
            # $upstream without settings collects; any other name is an orphan of old settings.
            return None
        return ModuleInputEndpoint(
            *module,
            self._around.sessions,
            clock=self._around.clock,
            ack_timeout_s=self._ack_timeout_s,
        )

    def _build_file(self, endpoint_id: EndpointId, options: FileEndpointSettings) -> FileEndpoint:
        around = self._around
        hub_time = around.store.hub_time
        return FileEndpoint(
            endpoint_id,
            FileOptions(
                path=options.path, rotate_bytes=options.rotate_bytes, keep_files=options.keep_files
            ),
            utc_ms=lambda hub_ms: around.clock.wall_ms() - (hub_time.now_ms() - hub_ms),
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
        endpoint = MqttEndpoint(
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
        if relays:
            self._relays.append(endpoint)
        return endpoint


def _identity_of(username: str) -> str:
    # `<host>/<device>[/<module>]/?api-version=...` is how IoT Hub writes a user name.
    parts = username.split("/")
    ids = parts[1:-1]
    return "/".join(ids) if 1 <= len(ids) <= 2 and "api-version=" in parts[-1] else username  # noqa: PLR2004 - device, module
