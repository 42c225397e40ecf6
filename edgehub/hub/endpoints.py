"""The way out of one hub: an endpoint and its pump for each destination that is named.

Owns the pumps and their tasks. Invariant: an endpoint id has at most one pump, also while a reload
puts another endpoint in its place; queues whose endpoint nobody names are orphans, served by none,
until they expire or it is named again.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.endpoints.scheduled import CLOSED, ScheduledEndpoint
from edgehub.hub.destinations import Destinations
from edgehub.message import UPSTREAM, DeliveryRules, EndpointId, Order
from edgehub.pump.dealing_queue import DealtQueues
from edgehub.pump.options import PumpOptions
from edgehub.pump.pump import Pump
from edgehub.settings import EndpointSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.hub.destinations import Relay, Surroundings
    from edgehub.message import Row
    from edgehub.pump.queue import PumpQueue
    from edgehub.settings import Settings

REPLACE_DRAIN_S: Final = 3.0
"""What is in flight at an endpoint that is replaced may settle for so long; the rest goes back to
its queue and leaves again through the new one."""

TIDY_S: Final = 2.0
"""Between two looks for endpoints that are not needed any more."""

ADJUSTABLE: Final = frozenset(
    {
        "order",
        "max_attempts",
        "max_age_s",
        "head_of_line_ms",
        "in_flight_max",
        "rate_bytes_s_max",
        "aging_s",
        "batch_linger_ms",
    }
)
"""Settings of an endpoint that change while its link stays."""

BATCH_PIECE_SHARE: Final = 0.4
"""See `PumpOptions.piece_share`: what compresses well together, and an alarm still waits little."""

log = structlog.get_logger(__name__)


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

    __slots__ = ("dealt", "pump", "task")

    def __init__(self, pump: Pump, task: asyncio.Task[None], dealt: DealtQueues | None) -> None:
        self.pump = pump
        self.task = task
        self.dealt = dealt


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
        self._relays: dict[EndpointId, Relay] = {}
        self._listening: set[str] = set()
        self._unneeded: set[EndpointId] = set()
        self._ending = asyncio.Lock()

    @property
    def has_upstream(self) -> bool:
        """Whether the settings name where $upstream goes."""
        return UPSTREAM in self._named

    def ensure(self) -> None:
        """Start what settings, routes and stored queues ask for and is not there yet."""
        wanted = {*self._named, *self._around.table().endpoints}
        wanted |= {queue.endpoint_id for queue in self._around.store.queues()}
        destinations = Destinations(
            self._named, ack_timeout_s=self._ack_timeout_s, around=self._around
        )
        for endpoint_id in sorted(wanted - self._served.keys()):
            self._serve(endpoint_id, destinations)

    def open(self, endpoint_id: EndpointId) -> None:
        """Start an endpoint that a route is about to send to, if it is not there yet."""
        self._unneeded.discard(endpoint_id)
        if endpoint_id in self._served:
            return
        destinations = Destinations(
            self._named, ack_timeout_s=self._ack_timeout_s, around=self._around
        )
        self._serve(endpoint_id, destinations)

    def release(self, endpoint_id: EndpointId) -> None:
        """Let an endpoint end that no route sends to any more; see `tidy`."""
        if endpoint_id not in self._named:
            self._unneeded.add(endpoint_id)

    async def tidy(self) -> None:
        """End, now and then, released endpoints for which nothing waits any more."""
        while True:
            await self._around.clock.sleep(TIDY_S)
            waiting = self._stored()
            for endpoint_id in sorted(self._unneeded - waiting):
                self._unneeded.discard(endpoint_id)
                async with self._ending:
                    if endpoint_id in self._served and not self._still_wanted(endpoint_id):
                        await self._end([endpoint_id])

    def _still_wanted(self, endpoint_id: EndpointId) -> bool:
        return endpoint_id in self._named or endpoint_id in self._around.table().endpoints

    def _stored(self) -> set[EndpointId]:
        return {
            queue.endpoint_id for queue in self._around.store.queues() if queue.statistics().depth
        }

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
                self._served[endpoint_id].pump.adjust(PumpOptions(**_bounds(now)))
                adjusted.append(endpoint_id)
        async with self._ending:
            await self._end(name for name in ended if name in self._served)
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

    def next_window_s(self, endpoint_id: EndpointId) -> float | None:
        """Give the time to the next connection window of a closed endpoint; None = not closed."""
        served = self._served.get(endpoint_id)
        if served is None or served.pump.endpoint.state != CLOSED:
            return None
        return served.pump.endpoint.retry_in_s

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

    def stalled(self, seconds: float) -> dict[str, float]:
        """Give the pumps that have stood still for at least `seconds`, and for how long."""
        found = {name: served.pump.stalled_s() for name, served in sorted(self._served.items())}
        return {name: stalled_s for name, stalled_s in found.items() if stalled_s >= seconds}

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
            if served.dealt is not None:
                served.dealt.close()

    def orphans(self) -> set[EndpointId]:
        """Give the endpoints of stored queues that nobody serves; $upstream is never one."""
        return self._stored() - self.served()

    def endpoint_documents(self, drain_s: Mapping[EndpointId, float]) -> list[dict[str, Any]]:
        """Describe all endpoints.

        Args:
            drain_s: Seconds until nothing waits, where that can be said.
        """
        return [
            _endpoint_document(served.pump, drain_eta_seconds=drain_s.get(endpoint_id))
            | {"keeps_windows": getattr(served.pump.endpoint, "keeps_windows", None)}
            | {"left_out_filters": getattr(served.pump.endpoint, "left_out_filters", ())}
            | self._platform_document(endpoint_id)
            for endpoint_id, served in sorted(self._served.items())
        ]

    def _platform_document(self, endpoint_id: EndpointId) -> dict[str, Any]:
        downlink = self._around.platforms.get(endpoint_id)
        return {} if downlink is None else {"platform": downlink.document()}

    def waiting_bytes(self) -> dict[EndpointId, int]:
        """Give the bytes that wait for each endpoint whose link is up."""
        return {
            endpoint_id: sum(
                queue.statistics().bytes for queue in self._around.store.queues_of(endpoint_id)
            )
            for endpoint_id, served in self._served.items()
            if served.pump.endpoint.state == "up"
        }

    def pump(self, endpoint_id: EndpointId) -> Pump | None:
        """Give the pump of an endpoint, None = nobody serves it."""
        served = self._served.get(endpoint_id)
        return None if served is None else served.pump

    def _serve(self, endpoint_id: EndpointId, destinations: Destinations) -> None:
        """Start an endpoint, or record that nothing serves it."""
        built = destinations.build(endpoint_id)
        if built is not None:
            self._start(*built)
        elif self._around.store.journal is not None:
            self._around.store.journal.endpoint_unserved(endpoint_id)

    def _start(self, endpoint: Endpoint, relay: Relay | None) -> None:
        around = self._around
        endpoint_id = endpoint.id
        if relay is not None:
            self._relays[endpoint_id] = relay
            for device_id in self._listening:
                relay.subscribe_device(device_id)
        dealt = None
        queues: Callable[[], Sequence[PumpQueue]] = partial(around.store.queues_of, endpoint_id)
        if sessions := around.device_sessions.get(endpoint_id):
            queues = dealt = DealtQueues(queues, around.lanes_of(sessions))
        pump = Pump(
            endpoint,
            queues=queues,
            rules=lambda row: self._rules(row, endpoint_id),
            clock=around.clock,
            now_ms=around.store.hub_time.now_ms,
            rng=around.rng,
            options=PumpOptions(**_bounds(self._named.get(endpoint_id, EndpointSettings()))),
            listener=around.store.journal,
        )
        if dealt is not None:
            dealt.wake = pump.rows_ready
        pump.follow(around.succession)
        pump.remember_closes(around.store.suspects)
        around.store.watch(endpoint_id, pump.rows_ready)
        if isinstance(endpoint, ScheduledEndpoint):
            around.store.watch(endpoint_id, endpoint.rows_ready)
        task = around.spawn(pump.run, f"pump[{endpoint_id}]")
        self._served[endpoint_id] = _Served(pump, task, dealt)
        if not getattr(self._named.get(endpoint_id), "batches", False):
            # Of several rows together, and compressed, nobody knows the size beforehand.
            around.limits.watch(endpoint)

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
        if isinstance(served.pump.endpoint, ScheduledEndpoint):
            self._around.store.unwatch(endpoint_id, served.pump.endpoint.rows_ready)
        self._relays.pop(endpoint_id, None)
        self._around.limits.unwatch(endpoint_id)
        self._around.platforms.pop(endpoint_id, None)
        self._around.device_sessions.pop(endpoint_id, None)
        if served.dealt is not None:
            served.dealt.close()
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


def _endpoint_document(pump: Pump, *, drain_eta_seconds: float | None) -> dict[str, Any]:
    """Describe one endpoint and its pump.

    Args:
        pump: The pump.
        drain_eta_seconds: Until nothing waits for it, None = that cannot be said.
    """
    figures = asdict(pump.statistics())
    latency = figures.pop("latency")
    return {
        "id": pump.endpoint.id,
        **figures,
        "drain_eta_seconds": drain_eta_seconds,
        "latency": {str(priority): summary for priority, summary in latency.items()},
    }


def _named(settings: Settings) -> dict[EndpointId, EndpointSettings]:
    named: dict[EndpointId, EndpointSettings] = {
        EndpointId(name): options for name, options in settings.endpoints.items()
    }
    if settings.upstream is not None:
        named[UPSTREAM] = settings.upstream
    return named


def _link_of(options: EndpointSettings) -> tuple[type[EndpointSettings], dict[str, Any]]:
    return type(options), options.model_dump(exclude=set(ADJUSTABLE))


def _bounds(options: EndpointSettings) -> dict[str, Any]:
    rows_max = PumpOptions().rows_in_flight_max
    return {
        "head_of_line_ms": options.head_of_line_ms,
        "rows_in_flight_max": getattr(options, "in_flight_max", rows_max),
        "rate_bytes_s_max": options.rate_bytes_s_max,
        "aging_s": options.aging_s,
        "piece_share": BATCH_PIECE_SHARE if getattr(options, "batches", False) else 0,
        "linger_s": getattr(options, "batch_linger_ms", 0) / 1000,
    }
