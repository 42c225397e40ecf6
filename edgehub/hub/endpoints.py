"""The endpoints as a part of the hub: each destination that is named, with its pump.

Owns the pumps and their tasks. Invariant: an endpoint id has at most one pump, also while a reload
puts another endpoint in its place; queues whose endpoint nothing names are orphans, served by none,
until they expire or it is named again.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from msgspec import to_builtins

from edgehub.endpoints.scheduled import CLOSED, ScheduledEndpoint
from edgehub.hub.part import Part
from edgehub.message import UPSTREAM, DeliveryRules, EndpointId, Order
from edgehub.pump.fair_queue import FairQueues
from edgehub.pump.options import PumpOptions
from edgehub.pump.pump import Pump
from edgehub.settings import EndpointSettings
from edgehub.telemetry.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.endpoints.relays import Relays
    from edgehub.hub.devices import DevicesPart
    from edgehub.hub.endpoint_factory import Destination, EndpointFactory
    from edgehub.hub.entities import EntitiesPart
    from edgehub.hub.supervision import Supervision
    from edgehub.message import Row
    from edgehub.pump.queue import PumpQueue
    from edgehub.router import Router
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store

REPLACE_DRAIN_S: Final = 3.0
"""What is in flight at an endpoint that is replaced may settle for so long; the rest goes back to
its queue and leaves again through the new one."""

TIDY_S: Final = 2.0
"""Between two looks for endpoints that are not needed any more."""

_NOT_NAMED: Final = EndpointSettings.model_construct()
"""What holds for an endpoint that the settings do not name: that of an input of a module."""

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
"""As `PumpOptions.piece_share`: what compresses well together, and an alarm still waits little."""

log = structlog.get_logger(__name__)


class _Phase(Enum):
    """Whether pumps may be started."""

    BEFORE = auto()
    SERVING = auto()
    ENDED = auto()


class _Served(NamedTuple):
    """An endpoint id that is served: its pump, the pump's task, and its queues if they are fair."""

    destination: Destination
    pump: Pump
    task: asyncio.Task[None]
    dealt: FairQueues | None


class EndpointsPart(Part):
    """The endpoints and pumps of one hub.

    Args:
        factory: Builds the endpoints, by the settings in force.
        store: The queues.
        router: Has the route table in force, and the limits of peers.
        relays: Connects endpoints with devices that listen.
        devices: Controls the sessions of an endpoint at which devices have their own.
        entities: Knows which rows others depend on.
        clock: Timers.
        rng: Randomness for jitter.
        supervision: Of the pumps.
    """

    name = "endpoints"

    def __init__(
        self,
        factory: EndpointFactory,
        *,
        store: Store,
        router: Router,
        relays: Relays,
        devices: DevicesPart,
        entities: EntitiesPart,
        clock: Clock,
        supervision: Supervision,
    ) -> None:
        self._factory = factory
        self._store = store
        self._router = router
        self._relays = relays
        self._devices = devices
        self._entities = entities
        self._clock = clock
        self._supervision = supervision
        self._named = factory.named()
        self._served: dict[EndpointId, _Served] = {}
        self._unneeded: set[EndpointId] = set()
        self._ending = asyncio.Lock()
        self._tasks = asyncio.TaskGroup()
        self._phase = _Phase.BEFORE

    async def run(self) -> None:
        """Serve what settings, routes and stored queues ask for, until cancelled."""
        try:
            async with self._tasks:
                self._phase = _Phase.SERVING
                self.ensure()
                while True:
                    await self._clock.sleep(TIDY_S)
                    await self._tidy()
        finally:
            # What the pumps had in flight is back in its queues.
            self._phase = _Phase.ENDED
            for served in self._served.values():
                if served.dealt is not None:
                    served.dealt.close()

    async def drain(self, deadline: float) -> None:
        """Wait for what is in flight; nothing new is sent."""
        async with self._ending:
            self._phase = _Phase.ENDED
            async with asyncio.TaskGroup() as group:
                for endpoint_id, served in self._served.items():
                    group.create_task(served.pump.drain(deadline), name=f"drain[{endpoint_id}]")

    def ensure(self) -> None:
        """Start what settings, routes and stored queues ask for and is not there yet."""
        wanted = {*self._named, *self._router.table.endpoints}
        wanted |= {queue.endpoint_id for queue in self._store.queues.all()}
        for endpoint_id in sorted(wanted - self._served.keys()):
            self._serve(endpoint_id)

    def open_endpoint(self, endpoint_id: EndpointId) -> None:
        """Start an endpoint that a route is about to send to, if it is not there yet."""
        self._unneeded.discard(endpoint_id)
        if endpoint_id not in self._served:
            self._serve(endpoint_id)

    def release(self, endpoint_id: EndpointId) -> None:
        """Release an endpoint that no route sends to any more; see `tidy`."""
        if endpoint_id not in self._named:
            self._unneeded.add(endpoint_id)

    async def _tidy(self) -> None:
        """End released endpoints for which nothing waits any more."""
        waiting = self._stored()
        for endpoint_id in sorted(self._unneeded - waiting):
            self._unneeded.discard(endpoint_id)
            async with self._ending:
                is_idle = endpoint_id in self._served and not self._still_wanted(endpoint_id)
                if is_idle and self._phase is _Phase.SERVING:
                    await self._end([endpoint_id])

    def _still_wanted(self, endpoint_id: EndpointId) -> bool:
        return endpoint_id in self._named or endpoint_id in self._router.table.endpoints

    def _stored(self) -> set[EndpointId]:
        return {queue.endpoint_id for queue in self._store.queues.all() if queue.statistics().depth}

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Take over other settings: what did not change goes on, with its link.

        An endpoint whose peer changed, or that was removed, is drained first; its rows keep their
        places in the queues. May be cancelled while it drains; then `drain` and `cancel` still
        know every pump.
        """
        modules_change = self._factory.use(configuration.settings)
        old, self._named = self._named, self._factory.named()
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
        change = {
            "added": sorted(self._served.keys() - before),
            "replaced": [name for name in ended if name in self._served],
            "adjusted": adjusted,
            "removed": [name for name in ended if name not in self._served],
        }
        for served in self._served.values():
            # An operator who asks for a reload does not want to wait for a back-off.
            served.pump.retry_now()
        return {"endpoints": change}

    def served(self) -> set[EndpointId]:
        """Return the endpoints that rows may wait for: those with a pump, and $upstream."""
        return {*self._served, UPSTREAM}

    def next_window_s(self, endpoint_id: EndpointId) -> float | None:
        """Return the time to the next connection window of a closed endpoint; None = not closed."""
        served = self._served.get(endpoint_id)
        if served is None or served.pump.endpoint.state != CLOSED:
            return None
        return served.pump.endpoint.retry_in_s

    def stalled(self, seconds: float) -> dict[str, float]:
        """Return the pumps that have stood still for at least `seconds`, and for how long."""
        found = {name: served.pump.stalled_s() for name, served in sorted(self._served.items())}
        return {name: stalled_s for name, stalled_s in found.items() if stalled_s >= seconds}

    def orphans(self) -> set[EndpointId]:
        """Return the endpoints of stored queues that no pump serves; $upstream is never one."""
        return self._stored() - self.served()

    def endpoint_documents(self, drain_s: Mapping[EndpointId, float]) -> list[dict[str, Any]]:
        """Describe all endpoints.

        Args:
            drain_s: Seconds until nothing waits, where that can be said.
        """
        return [
            _endpoint_document(served, drain_eta_seconds=drain_s.get(endpoint_id))
            for endpoint_id, served in sorted(self._served.items())
        ]

    def waiting_bytes(self) -> dict[EndpointId, int]:
        """Return the bytes that wait for each endpoint whose link is up."""
        return {
            endpoint_id: sum(
                queue.statistics().bytes for queue in self._store.queues.of(endpoint_id)
            )
            for endpoint_id, served in self._served.items()
            if served.pump.endpoint.state == "up"
        }

    def warnings(self) -> list[str]:
        """List the endpoints of which rows are orphaned."""
        return [
            f"messages of endpoint {name!r} are orphaned: no settings or route name it any more"
            " (edgehub queue move takes them elsewhere)"
            for name in sorted(self.orphans())
        ]

    def losses(self) -> Iterator[Loss]:
        """Return what queues have lost since the start."""
        for queue in self._store.queues.all():
            figures = queue.statistics()
            pump = self.pump(queue.endpoint_id)
            state = "not named in the settings" if pump is None else pump.endpoint.state
            yield Loss(
                key=("expired", queue.id),
                total=figures.expired_total,
                what=f"of {queue.id} expired",
                example="" if state == "up" else f"its endpoint was {state}",
                hint="edgehub journal show --event expired lists them",
                event="store.rows_expired",
                fields={"queue": queue.id, "endpoint_state": state},
            )
            yield Loss(
                key=("dropped", queue.id),
                total=figures.dropped_total,
                what=f"of {queue.id} {{was}} dropped because of a limit",
                hint="edgehub journal show --event dropped lists them",
            )

    def pump(self, endpoint_id: EndpointId) -> Pump | None:
        """Return the pump of an endpoint, None = there is none."""
        served = self._served.get(endpoint_id)
        return None if served is None else served.pump

    def _serve(self, endpoint_id: EndpointId) -> None:
        """Start an endpoint, or record that nothing serves it."""
        if self._phase is not _Phase.SERVING:
            # Before, the start will find what is wanted; after, no pump may start any more.
            return
        built = self._factory.build(endpoint_id)
        if built is not None:
            self._start(built)
        elif self._store.journal is not None:
            self._store.journal.endpoint_unserved(endpoint_id)

    def _start(self, destination: Destination) -> None:
        endpoint, store = destination.endpoint, self._store
        endpoint_id = endpoint.id
        dealt = None
        queues: Callable[[], Sequence[PumpQueue]] = partial(store.queues.of, endpoint_id)
        if destination.sessions is not None:
            queues = dealt = FairQueues(queues, self._devices.control(destination.sessions))
        self._relays.add(endpoint, destination.relay)
        pump = Pump(
            endpoint,
            queues=queues,
            rules=lambda row: self._rules(row, endpoint_id),
            clock=self._clock,
            now_ms=store.hub_time.now_ms,
            rng=self._factory.rng,
            options=PumpOptions(**_bounds(self._named.get(endpoint_id, _NOT_NAMED))),
            close_counts=store.suspects,
            dependency_tracker=self._entities,
            listener=store.journal,
        )
        if dealt is not None:
            dealt.wake = pump.rows_ready
        store.queues.watch(endpoint_id, pump.rows_ready)
        if isinstance(endpoint, ScheduledEndpoint):
            store.queues.watch(endpoint_id, endpoint.rows_ready)
        name = f"pump[{endpoint_id}]"
        task = self._tasks.create_task(self._supervision.run(pump.run, name), name=name)
        self._served[endpoint_id] = _Served(destination, pump, task, dealt)
        if not getattr(self._named.get(endpoint_id), "batches", False):
            # Of several rows together, and compressed, nothing says the size beforehand.
            self._router.limits.watch(endpoint)

    async def _end(self, endpoint_ids: Iterable[EndpointId]) -> None:
        deadline = self._clock.monotonic() + REPLACE_DRAIN_S
        async with asyncio.TaskGroup() as group:
            for endpoint_id in endpoint_ids:
                group.create_task(self._end_one(endpoint_id, deadline), name=f"end[{endpoint_id}]")

    async def _end_one(self, endpoint_id: EndpointId, deadline: float) -> None:
        served = self._served[endpoint_id]
        await served.pump.drain(deadline)
        served.task.cancel()
        # A connection is closed in order, and a write to a file ends, before another may begin.
        await asyncio.wait({served.task})
        self._store.queues.unwatch(endpoint_id, served.pump.rows_ready)
        if isinstance(served.pump.endpoint, ScheduledEndpoint):
            self._store.queues.unwatch(endpoint_id, served.pump.endpoint.rows_ready)
        self._relays.remove(endpoint_id)
        self._router.limits.unwatch(endpoint_id)
        if served.dealt is not None:
            served.dealt.close()
        del self._served[endpoint_id]

    def _rules(self, row: Row, endpoint_id: EndpointId) -> DeliveryRules:
        options = self._named.get(endpoint_id, _NOT_NAMED)
        order, attempts, age_s = Order(options.order), options.max_attempts, options.max_age_s
        try:
            route = self._router.table.delivery_rules(row.routes[0])
        except (KeyError, IndexError):
            # It was stored under a route that was removed; the endpoint's rules hold.
            pass
        else:
            order = order if route.order is None else Order(route.order)
            attempts = attempts if route.max_attempts is None else route.max_attempts
            age_s = age_s if route.max_age_s is None else route.max_age_s
        return DeliveryRules(order=order, max_attempts=attempts, max_age_s=age_s or None)


def _endpoint_document(served: _Served, *, drain_eta_seconds: float | None) -> dict[str, Any]:
    """Describe one endpoint and its pump.

    Args:
        served: The endpoint.
        drain_eta_seconds: Until nothing waits for it, None = that cannot be said.
    """
    endpoint, downlink = served.pump.endpoint, served.destination.downlink
    figures = to_builtins(served.pump.statistics())
    latency = figures.pop("latency")
    return {
        "id": endpoint.id,
        **figures,
        "drain_eta_seconds": drain_eta_seconds,
        "latency": {str(priority): summary for priority, summary in latency.items()},
        "keeps_windows": getattr(endpoint, "keeps_windows", None),
        "mqtt_version": getattr(endpoint, "mqtt_version", None),
        "left_out_filters": getattr(endpoint, "left_out_filters", ()),
        **({} if downlink is None else {"platform": downlink.document()}),
    }


def _link_of(options: EndpointSettings) -> tuple[type[EndpointSettings], dict[str, Any]]:
    return type(options), {key: value for key, value in options if key not in ADJUSTABLE}


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
