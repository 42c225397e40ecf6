"""The routing table of one hub, put together: storage, live routes, and what those need below.

Owns which storage there is and the order of its start and end. Invariants: the table is loaded
before a head serves; a reload changes the routes of the manifest's file and no others; Redis is
imported only where the settings name it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins

from edgehub.devices.tenancy import Tenancy
from edgehub.endpoints.packet_limits import PacketLimits
from edgehub.errors import ManifestError, StartupError
from edgehub.hub.part import Part
from edgehub.message import EndpointId
from edgehub.operations.arguments import document
from edgehub.operations.manifest_change import manifest_document
from edgehub.operations.operation import Operation
from edgehub.operations.routes import RouteOperations
from edgehub.router import Router, TenantRouter
from edgehub.routes.catch_all import lost_warnings
from edgehub.routes.explain import explain_routing
from edgehub.routes.live import BuildError, RouteHost
from edgehub.routes.message_form import read_message
from edgehub.routes.named import unknown_endpoint
from edgehub.routes.tenant import Tenant
from edgehub.settings.configuration import named_endpoints
from edgehub.settings.loops import loop_warnings
from edgehub.sync.disk_copy import DiskCopy
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.options import TableOptions
from edgehub.sync.routing_table import RoutingTable
from edgehub.sync.sqlite import SCRIPT, TEMPORARY, SqliteStorage

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.hub.endpoints import EndpointsPart
    from edgehub.redis_link.link import RedisLink
    from edgehub.redis_link.write_probe import WriteProbe
    from edgehub.routes.content import RouteContent
    from edgehub.routes.spec import Manifest
    from edgehub.routes.table import RouteTable
    from edgehub.settings import Settings
    from edgehub.settings.configuration import Configuration
    from edgehub.storage.state_file import StateFile
    from edgehub.store.store import Store
    from edgehub.sync.storage import TableStorage
    from edgehub.telemetry.losses import Loss

INSTANCE_BYTES: Final = 4

log = structlog.get_logger(__name__)


class TableHost(RouteHost):
    """What live routes need from this hub; see `edgehub.routes.live.RouteHost`.

    Args:
        router: Takes the tables.
        settings: Say which endpoints there are.
        endpoints: Opened and closed by what routes need.
    """

    def __init__(self, router: Router, settings: Settings, endpoints: EndpointsPart) -> None:
        self._router = router
        self._named = _named(settings)
        self._endpoints = endpoints

    def use(self, settings: Settings) -> None:
        """Check routes by other settings from now on."""
        self._named = _named(settings)

    def check(self, content: RouteContent) -> None:
        """Refuse a route to an endpoint that the settings do not have."""
        sink = content.spec.route.sink
        if sink.named and sink.endpoint_id not in self._named:
            fault = unknown_endpoint(content.spec, self._named)
            raise BuildError(fault.message, fault)

    def open_endpoint(self, endpoint_id: EndpointId) -> None:
        """Start an endpoint."""
        self._endpoints.open_endpoint(endpoint_id)

    def close_endpoint(self, endpoint_id: EndpointId) -> None:
        """Release an endpoint that neither settings nor waiting rows need."""
        self._endpoints.release(endpoint_id)

    def put_in_force(self, table: RouteTable) -> None:
        """Hand the table to the router."""
        self._router.replace(table)


class RoutesPart(Part):
    """The routing table with its storage, and the routes in force.

    Args:
        configuration: What the hub starts with.
        hub_id: Name of this hub.
        router: Takes the tables.
        state: Keeps the table, or a copy of it.
        endpoints: Opened and closed by what routes need.
        clock: For all timers.
        rng: Jitter.

    Attributes:
        settings: In force.
        hub_id: Name of this hub.
        table: The routing table.
    """

    name = "routes"

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        router: Router,
        state: StateFile,
        endpoints: EndpointsPart,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        settings = configuration.settings
        self.settings = settings
        self.hub_id = hub_id
        self._manifest = configuration.manifest
        self._state = state
        self._router = router
        self._link: RedisLink | None = None
        self._probe: WriteProbe | None = None
        self._host = TableHost(router, settings, endpoints)
        instance = f"{hub_id}-{secrets.token_hex(INSTANCE_BYTES)}"
        storage = self._make_storage(instance, clock)
        options = settings.routing_table
        self.table = RoutingTable(
            storage,
            self._host,
            TableOptions(
                hub_id=hub_id,
                instance=instance,
                shared=options.storage == "redis",
                check_s=options.check_s,
                compare_s=options.compare_s,
                routes_max=options.routes_max,
                tenants={
                    Tenant.parse(name): tenant.routes_max
                    for name, tenant in settings.tenants.items()
                },
            ),
            configuration.manifest,
            clock=clock,
            rng=rng,
        )
        if options.storage == "redis":
            named = f"{settings.redis.url} {settings.redis.prefix}"
            self.table.copy_to(lambda known: DiskCopy(state, known, clock, table=named))

    async def open(self) -> None:
        """Load the table and put it in force.

        Raises:
            ManifestError: Routes of the manifest have ids that the hub's own table has as well.
            StartupError: The hub's own table cannot be read.
        """
        is_forgotten = self.settings.routing_table.storage == "memory"
        await self._state.add(TEMPORARY if is_forgotten else SCRIPT)
        try:
            await self.table.open()
        except StorageUnavailableError as error:
            raise StartupError(f"the routing table cannot be read: {error.reason}") from error
        figures = self.table.statistics()
        log.info(
            "sync.table_opened",
            storage=figures.storage,
            revision=figures.revision,
            routes=figures.routes,
            live_routes=figures.live_routes,
            failed=figures.failed,
        )

    async def run(self) -> None:
        """Keep the table in step, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.table.run(), name="table")
            if self._probe is not None:
                group.create_task(self._probe.run(), name="redis-writes")

    async def close(self) -> None:
        """Stop all routes, after the heads."""
        await self.table.close()
        if self._link is not None:
            await self._link.close()

    async def check(self, configuration: Configuration) -> None:
        """Refuse a manifest that a reload may not put in force.

        Raises:
            ManifestError: One of its routes has the id of a route of the hub's own table.
        """
        self.table.check_file(configuration.manifest)

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Take over settings and manifest of a reload, which have been checked.

        Returns:
            `warnings` of what the change of routes means.

        Raises:
            ManifestError: One of its routes has an id that was added since; nothing has changed.
        """
        self._host.use(configuration.settings)
        had_catch_all = self.table.live.table.has_catch_all()
        was, now = self._manifest, configuration.manifest
        if now.fingerprint == was.fingerprint and now.file == was.file:
            self.table.settings_changed()
        else:
            try:
                await self.table.follow_file(now)
            except ManifestError:
                self._host.use(self.settings)
                raise
        self._manifest, self.settings = now, configuration.settings
        return {"warnings": lost_warnings(had_catch_all, self.table.live.table.has_catch_all())}

    def manifest(self) -> Manifest:
        """Return the routes in force that come from a manifest."""
        return self.table.manifest_in_force()

    def status(self) -> dict[str, Any]:
        """Return figures of the routes in force and of the table that they come from."""
        return {
            "routes": len(self._router.table.manifest.routes),
            "unrouted": self._router.unrouted_total,
            "routing_table": self._document(),
        }

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = to_builtins(self.table.statistics())
        drift = self.table.last_drift
        document["last_drift"] = None if drift is None else drift.document()
        document["connections_made"] = 0 if self._link is None else self._link.sessions
        document["tenants"] = {
            tenant: {"refused_total": count} for tenant, count in self._refused().items()
        }
        return document

    def warnings(self) -> list[str]:
        """List what is wrong with the routes, or keeps them from being changed."""
        refused = [
            f"{count} messages of tenant {tenant} were refused, which may send no more a second"
            for tenant, count in self._refused().items()
            if count
        ]
        writes = [] if self._probe is None else self._probe.warnings()
        unwritable = [f"the routing table cannot be changed: {warning}" for warning in writes]
        table = self._router.table
        return [
            *map(str, table.manifest.warnings),
            *loop_warnings(self.settings, named_endpoints(self.settings), table.mqtt_filters),
            *self._state.warnings(),
            *self.table.warnings(),
            *unwritable,
            *refused,
        ]

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of routes and manifest."""
        return [
            *RouteOperations(self.table).table(),
            Operation(
                name="manifest show",
                about="Show the routes in force.",
                handler=self._show_manifest,
                result="edgehub.operations.results.routes:ManifestDocument",
            ),
            Operation(
                name="route explain",
                about="Say which routes take a message, and why others do not.",
                handler=self._explain,
                result="edgehub.operations.results.routes:ExplanationDocument",
                arguments=(document("message", "the message", required=True),),
            ),
        ]

    def losses(self) -> list[Loss]:
        """Return what no route took since the start."""
        return self._router.losses()

    async def _show_manifest(self) -> dict[str, Any]:
        return manifest_document(self._router.table.manifest)

    async def _explain(self, *, message: Any) -> dict[str, Any]:
        table = self._router.table
        verdicts = to_builtins(explain_routing(table, read_message(message)))
        return {"of": "hub", "manifest": table.manifest.file, "routes": verdicts}

    def _refused(self) -> Mapping[str, int]:
        router = self._router
        return router.tenancy.refused_total if isinstance(router, TenantRouter) else {}

    def _make_storage(self, instance: str, clock: Clock) -> TableStorage:
        options = self.settings.routing_table
        if options.storage != "redis":
            return SqliteStorage(self._state, clock, kind=options.storage)
        from edgehub.hub.redis import redis_link  # noqa: PLC0415 - only where configured
        from edgehub.redis_link.write_probe import WriteProbe  # noqa: PLC0415 - only where configured
        from edgehub.sync.redis import RedisStorage  # noqa: PLC0415 - only where configured

        redis = self.settings.redis
        self._link = redis_link(redis, name=f"edgehub-{instance}")
        self._probe = WriteProbe(self._link, f"{{{redis.prefix}:routes}}:probe", clock)
        return RedisStorage(
            self._link,
            prefix=redis.prefix,
            instance=instance,
            log_entries=options.log_entries,
        )


def build_router(
    configuration: Configuration,
    store: Store,
    *,
    identities: Identities,
    clock: Clock,
) -> Router:
    """Build the router; one that separates tenants only where the settings name some."""
    tenants = configuration.settings.tenants
    if not tenants:
        return Router(configuration.table, store.appender)
    rates = {name: tenant.event_rate_max for name, tenant in tenants.items()}
    tenancy = Tenancy(identities, rates, clock)
    return TenantRouter(configuration.table, store.appender, PacketLimits(), tenancy)


def _named(settings: Settings) -> frozenset[EndpointId]:
    return frozenset(EndpointId(name) for name in settings.endpoints)
