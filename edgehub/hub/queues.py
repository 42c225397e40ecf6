"""The queues as a part of the hub: what is expected of them, and what is asked of their rows."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

from edgehub.errors import ManifestError
from edgehub.hub import status
from edgehub.hub.part import Part
from edgehub.hub.store import store_caps
from edgehub.operations.forecast.forecast import QueueForecast
from edgehub.operations.manifest_change import Present, difference_document
from edgehub.operations.operation import Operation, Resource
from edgehub.operations.queues import QueueOperations
from edgehub.operations.room import Room
from edgehub.operations.routes import MANIFEST
from edgehub.routes.manifest import parse_manifest
from edgehub.settings.configuration import compile_table, endpoint_names, fault_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.hub.endpoints import EndpointsPart
    from edgehub.hub.entities import EntitiesPart
    from edgehub.hub.journal import JournalPart
    from edgehub.hub.routes import RoutesPart
    from edgehub.router import Router
    from edgehub.store.store import Store


class QueuesPart(Part):
    """Forecasts of the queues, and operations on them.

    Args:
        store: The queues.
        endpoints: The pumps.
        journal: Knows what became of rows.
        router: Has the route table in force.
        routes: Knows which routes come from a manifest.
        entities: Keeps account of rows that others depend on.
        clock: For all timers.
        describe: Returns the status of the whole hub.
    """

    name = "queues"

    def __init__(
        self,
        *,
        store: Store,
        endpoints: EndpointsPart,
        journal: JournalPart,
        router: Router,
        routes: RoutesPart,
        entities: EntitiesPart,
        clock: Clock,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._endpoints = endpoints
        self._router = router
        self._routes = routes
        self._describe = describe
        self._forecast = QueueForecast(store, endpoints, clock)
        self._shown: dict[str, Any] = {}
        self._asked = QueueOperations(
            store=store,
            endpoints=endpoints,
            forecast=self._forecast,
            journal=journal.asked,
            router=router,
            rows_changed=entities.rows_changed,
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        await self._forecast.run()

    def status(self) -> dict[str, Any]:
        """Return all endpoints and queues."""
        self._shown = {
            "endpoints": self._forecast.endpoint_documents(),
            "queues": self._forecast.queue_documents(),
        }
        return self._shown

    def warnings(self) -> list[str]:
        """List the endpoints that do not take what waits, and rows that will expire over it."""
        endpoints = self._shown["endpoints"]
        return [
            *status.parked_warnings(endpoints),
            *status.refused_warnings(endpoints, self._shown["queues"]),
            *status.left_out_warnings(endpoints),
            *status.window_warnings(endpoints, self._store.statistics().clock),
            *self._forecast.warnings(),
        ]

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of queues, and what another manifest would make of them."""
        return [
            Operation(
                name="status",
                about="Describe the whole hub.",
                handler=self._status,
                result="edgehub.operations.results.queues:StatusDocument",
            ),
            Operation(
                name="queue list",
                about="List all queues.",
                handler=self._list,
                result="edgehub.operations.results.queues:QueuesDocument",
                resource=Resource(method="GET", path="/api/v1/queues"),
            ),
            Operation(
                name="manifest diff",
                about="Say what another manifest would make of routes, queues and disk.",
                handler=self._manifest_difference,
                result="edgehub.operations.results.routes:ManifestDifferenceDocument",
                arguments=MANIFEST,
            ),
            *self._asked.table(),
        ]

    async def _status(self) -> dict[str, Any]:
        await self._forecast.refresh()
        return self._describe()

    async def _list(self) -> dict[str, Any]:
        status = await self._status()
        return {"started": status["started"], "queues": status["queues"]}

    async def _manifest_difference(self, *, text: str, file: str) -> dict[str, Any]:
        settings, hub_id = self._routes.settings, self._routes.hub_id
        try:
            names = endpoint_names(settings)
            after = await asyncio.to_thread(parse_manifest, text, file=file, endpoints=names)
            table = await asyncio.to_thread(compile_table, after, settings, hub_id=hub_id)
        except ManifestError as error:
            return {"faults": fault_documents(error)}
        usage = await asyncio.to_thread(shutil.disk_usage, settings.data_dir)
        manifest = self._routes.manifest()
        of_manifest = {spec.name for spec in manifest.routes}
        present = Present(
            manifest=manifest,
            # The name of a tenant's route holds its tenant.
            others=[
                spec
                for spec in self._router.table.manifest.routes
                if spec.name not in of_manifest and "/" not in spec.name
            ],
            queues=[queue.statistics() for queue in self._store.queues.all()],
            rates=self._forecast.rates(),
            served=self._endpoints.served(),
            room=Room.of(
                store_caps(settings.store), total_bytes=usage.total, free_bytes=usage.free
            ),
        )
        document = await asyncio.to_thread(difference_document, present, table.manifest)
        return {"faults": [], **document}
