"""The way out of one hub: an endpoint and its pump for each destination that is named.

Owns the pumps and their tasks. Invariant: an endpoint id has at most one pump, also while a reload
puts another endpoint in its place; queues whose endpoint nobody names are orphans, served by none,
until they expire or it is named again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

import edgehub
from edgehub import status
from edgehub.endpoints.aiomqtt_bridge import LinkOptions, TlsOptions
from edgehub.endpoints.file import FileEndpoint, FileOptions
from edgehub.endpoints.module_input import ModuleInputEndpoint
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.message import UPSTREAM, DeliveryRules, EndpointId, Order, split_module_input
from edgehub.pump.pump import Pump, PumpOptions
from edgehub.settings import (
    EndpointSettings,
    FileEndpointSettings,
    HttpEndpointSettings,
    MqttEndpointSettings,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable

    from edgehub.clock import Clock
    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.module_input import ModuleSessions
    from edgehub.message import Row
    from edgehub.routes.table import RouteTable
    from edgehub.settings import Settings
    from edgehub.store.store import Store

    Spawn = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]

REPLACE_DRAIN_S: Final = 3.0
"""What is in flight at an endpoint that is replaced may settle for so long; the rest goes back to
its queue and leaves again through the new one."""

ADJUSTABLE: Final = frozenset(
    {"order", "max_attempts", "max_age_s", "head_of_line_ms", "in_flight_max"}
)
"""Settings of an endpoint that change while its link stays."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressChange:
    """What a reload did to the endpoints, by id.

    Attributes:
        added: Started.
        replaced: Drained, and started anew with other settings.
        adjusted: Went on with other bounds or rules.
        removed: Drained and gone; what waits for them is orphaned.
    """

    added: tuple[EndpointId, ...] = ()
    replaced: tuple[EndpointId, ...] = ()
    adjusted: tuple[EndpointId, ...] = ()
    removed: tuple[EndpointId, ...] = ()


class _Served:
    """An endpoint id that is served: its pump and the pump's task."""

    __slots__ = ("pump", "task")

    def __init__(self, pump: Pump, task: asyncio.Task[None]) -> None:
        self.pump = pump
        self.task = task


class Egress:
    """The endpoints and pumps of one hub.

    Args:
        settings: Names and options of the endpoints.
        around: See `Surroundings`.
    """

    def __init__(self, settings: Settings, around: Surroundings) -> None:
        self._around = around
        self._named = _named(settings)
        self._ack_timeout_s = settings.mqtt.ack_timeout_s
        self._served: dict[EndpointId, _Served] = {}
        self._relays: dict[EndpointId, MqttEndpoint] = {}
        self._listening: set[str] = set()

    @property
    def has_upstream(self) -> bool:
        """Whether the settings name where $upstream goes."""
        return UPSTREAM in self._named

    def ensure(self) -> None:
        """Start what settings, routes and stored queues ask for and is not there yet."""
        wanted = {*self._named, *self._around.table().endpoints}
        wanted |= {queue.endpoint_id for queue in self._around.store.queues()}
        for endpoint_id in sorted(wanted - self._served.keys()):
            endpoint = self._build(endpoint_id)
            if endpoint is not None:
                self._start(endpoint)

    async def apply(self, settings: Settings) -> EgressChange:
        """Take over other settings: what did not change goes on, with its link.

        An endpoint whose peer changed, or that is gone, is drained first; its rows keep their
        places in the queues. May be cancelled while it drains; then `drain` and `cancel` still
        know every pump.
        """
        old, self._named = self._named, _named(settings)
        modules_change = self._ack_timeout_s != settings.mqtt.ack_timeout_s
        self._ack_timeout_s = settings.mqtt.ack_timeout_s
        before = set(self._served)
        ended: list[EndpointId] = []
        adjusted: list[EndpointId] = []
        for endpoint_id in sorted(before):
            then, now = old.get(endpoint_id), self._named.get(endpoint_id)
            if then is None and now is None:
                if modules_change:
                    ended.append(endpoint_id)
            elif then is None or now is None or _link_of(then) != _link_of(now):
                ended.append(endpoint_id)
            elif then != now:
                self._served[endpoint_id].pump.adjust(**_bounds(now))
                adjusted.append(endpoint_id)
        await self._end(ended)
        self.ensure()
        return EgressChange(
            added=tuple(sorted(self._served.keys() - before)),
            replaced=tuple(name for name in ended if name in self._served),
            adjusted=tuple(adjusted),
            removed=tuple(name for name in ended if name not in self._served),
        )

    def served(self) -> set[EndpointId]:
        """Give the endpoints that rows may wait for: those with a pump, and $upstream."""
        return {*self._served, UPSTREAM}

    def upstream_is_up(self) -> bool:
        """Tell whether rows for $upstream can leave right now."""
        served = self._served.get(UPSTREAM)
        return served is not None and served.pump.endpoint.state == "up"

    def device_bound_interest(self, device_id: str, wanted: bool) -> None:
        """Have messages to a device relayed, or no more; see `MqttEndpoint.subscribe_device`."""
        if wanted:
            self._listening.add(device_id)
        else:
            self._listening.discard(device_id)
        for relay in self._relays.values():
            if wanted:
                relay.subscribe_device(device_id)
            else:
                relay.unsubscribe_device(device_id)

    def retry_now(self) -> None:
        """Try every link at once."""
        for served in self._served.values():
            served.pump.retry_now()

    async def drain(self, deadline: float) -> None:
        """Let what is in flight settle until `deadline`, monotonic seconds of the clock."""
        async with asyncio.TaskGroup() as group:
            for endpoint_id, served in self._served.items():
                group.create_task(served.pump.drain(deadline), name=f"drain[{endpoint_id}]")

    def cancel(self) -> None:
        """End all pumps; what they still have in flight goes back to its queues."""
        for served in self._served.values():
            served.task.cancel()

    def orphans(self) -> set[EndpointId]:
        """Give the endpoints of stored queues that nobody serves; $upstream is never one."""
        stored = {
            queue.endpoint_id for queue in self._around.store.queues() if queue.statistics().depth
        }
        return stored - self.served()

    def queue_documents(self) -> list[dict[str, Any]]:
        """Describe all queues, by endpoint and priority."""
        store = self._around.store
        orphans = self.orphans()
        return [
            status.queue_document(
                queue,
                now_ms=store.hub_time.now_ms(),
                pump=self._pump(queue.endpoint_id),
                orphaned=queue.endpoint_id in orphans,
            )
            for queue in sorted(store.queues(), key=lambda q: (q.endpoint_id, q.priority))
        ]

    def endpoint_documents(self) -> list[dict[str, Any]]:
        """Describe all endpoints."""
        return [status.endpoint_document(served.pump) for _, served in sorted(self._served.items())]

    def _pump(self, endpoint_id: EndpointId) -> Pump | None:
        served = self._served.get(endpoint_id)
        return None if served is None else served.pump

    def _start(self, endpoint: Endpoint) -> None:
        around = self._around
        endpoint_id = endpoint.id
        pump = Pump(
            endpoint,
            queues=lambda: around.store.queues_of(endpoint_id),
            rules=lambda row: self._rules(row, endpoint_id),
            clock=around.clock,
            now_ms=around.store.hub_time.now_ms,
            rng=around.rng,
            options=PumpOptions(**_bounds(self._named.get(endpoint_id, EndpointSettings()))),
        )
        around.store.watch(endpoint_id, pump.rows_ready)
        task = around.spawn(pump.run, f"pump[{endpoint_id}]")
        self._served[endpoint_id] = _Served(pump, task)

    async def _end(self, endpoint_ids: Iterable[EndpointId]) -> None:
        deadline = self._around.clock.monotonic() + REPLACE_DRAIN_S
        async with asyncio.TaskGroup() as group:
            for endpoint_id in endpoint_ids:
                group.create_task(self._end_one(endpoint_id, deadline), name=f"end[{endpoint_id}]")

    async def _end_one(self, endpoint_id: EndpointId, deadline: float) -> None:
        served = self._served[endpoint_id]
        await served.pump.drain(deadline)
        served.task.cancel()
        # A connection is closed in order, and a write to a file ends, before another may begin.
        await asyncio.wait({served.task})
        self._around.store.unwatch(endpoint_id, served.pump.rows_ready)
        self._relays.pop(endpoint_id, None)
        del self._served[endpoint_id]

    def _rules(self, row: Row, endpoint_id: EndpointId) -> DeliveryRules:
        options = self._named.get(endpoint_id, EndpointSettings())
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
        if isinstance(options, HttpEndpointSettings):
            return self._build_http(endpoint_id, options)
        module = split_module_input(endpoint_id)
        if module is None:
            # $upstream without settings collects; any other name is an orphan of old settings.
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
        hub_time = around.store.hub_time
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
                timeout_s=options.timeout_s,
                gzip=options.gzip,
            ),
            clock=around.clock,
            rng=around.rng,
            utc_ms=lambda hub_ms: around.clock.wall_ms() - (hub_time.now_ms() - hub_ms),
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
            self._relays[endpoint_id] = endpoint
            for device_id in self._listening:
                endpoint.subscribe_device(device_id)
        return endpoint


def _named(settings: Settings) -> dict[EndpointId, EndpointSettings]:
    named: dict[EndpointId, EndpointSettings] = {
        EndpointId(name): options for name, options in settings.endpoints.items()
    }
    if settings.upstream is not None:
        named[UPSTREAM] = settings.upstream
    return named


def _link_of(options: EndpointSettings) -> tuple[type[EndpointSettings], dict[str, Any]]:
    return type(options), options.model_dump(exclude=set(ADJUSTABLE))


def _bounds(options: EndpointSettings) -> dict[str, int]:
    rows_max = PumpOptions().rows_in_flight_max
    return {
        "head_of_line_ms": options.head_of_line_ms,
        "rows_in_flight_max": getattr(options, "in_flight_max", rows_max),
    }


def _identity_of(username: str) -> str:
    # `<host>/<device>[/<module>]/?api-version=...` is how IoT Hub writes a user name.
    parts = username.split("/")
    ids = parts[1:-1]
    return "/".join(ids) if 1 <= len(ids) <= 2 and "api-version=" in parts[-1] else username  # noqa: PLR2004 - device, module
