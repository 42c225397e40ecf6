"""Operations on the routing table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from edgehub.operations.arguments import (
    PAGE_MAX,
    document,
    flag,
    seconds,
    tenant,
    text,
    whole,
    wholes,
)
from edgehub.operations.operation import ArgumentError, ArgumentKind, Operation, Resource
from edgehub.routes.tenant import DEFAULT_TENANT
from edgehub.sync.faults import RouteNotFoundError, StorageUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.operations.operation import Argument, Handler
    from edgehub.routes.tenant import Tenant
    from edgehub.sync.routing_table import RoutingTable
    from edgehub.sync.views import Written

WAIT_S_MAX: Final = 30
REVISIONS_MAX: Final = 100
_NO_REVISION: Final = -1

MANIFEST: Final = (
    text("text", "The manifest.", kind=ArgumentKind.FILE, required=True),
    text("file", "Its name, for faults.", required=True),
)
_TENANT: Final = tenant("tenant", "`organisation/application`; absent = the default one.")
_WAITING: Final = (
    flag("wait", "Answer once every hub has applied it."),
    seconds("timeout_s", "Longest wait, in seconds.", default=5.0, maximum=WAIT_S_MAX),
)
_MATCH: Final = (
    wholes(
        "if_match", "Only in place of one of these revisions.", minimum=1, maximum=REVISIONS_MAX
    ),
    flag("if_exists", "Only in place of one that exists."),
)
_ID: Final = text("id", "Of the route.", required=True)
_BODY: Final = document("body", "the route: its text, or an object", required=True)
_PATH: Final = "/api/v1/routes/{id}"


class RouteOperations:
    """Operations on the routing table.

    Args:
        table: The table.
    """

    __slots__ = ("_table",)

    def __init__(self, table: RoutingTable) -> None:
        self._table = table

    def table(self) -> list[Operation]:
        """Return every operation."""

        def change(
            name: str, about: str, handler: Handler, resource: Resource, *arguments: Argument
        ) -> Operation:
            return Operation(
                name=f"route {name}",
                about=about,
                handler=handler,
                result="edgehub.operations.results.routes:WrittenDocument",
                arguments=(*arguments, *_WAITING, _TENANT),
                changes=True,
                resource=resource,
            )

        return [
            Operation(
                name="route list",
                about="List routes by id, a page at a time, as this hub has them.",
                handler=self._list,
                result="edgehub.operations.results.routes:RoutesDocument",
                arguments=(
                    _TENANT,
                    text("after", "Id of the last one before.", kind=ArgumentKind.FILE),
                    whole("limit", "Most routes.", default=100, minimum=1, maximum=PAGE_MAX),
                ),
                resource=Resource(method="GET", path="/api/v1/routes"),
            ),
            Operation(
                name="route show",
                about="Show one route, and its state on every hub that shares the table.",
                handler=self._show,
                result="edgehub.operations.results.routes:ShownRoute",
                arguments=(_ID, _TENANT),
                resource=Resource(method="GET", path=_PATH, entity=""),
            ),
            change(
                "add",
                "Add a route, or change the one with its `id`; without one, its hash is the id.",
                self._add,
                Resource(method="POST", path="/api/v1/routes", body="body", entity="route"),
                _BODY,
            ),
            change(
                "put",
                "Write a route under its id.",
                self._put,
                Resource(method="PUT", path=_PATH, body="body", entity="route"),
                _ID,
                _BODY,
                *_MATCH,
                flag("if_absent", "Only if there is none yet."),
            ),
            change(
                "remove",
                "Remove a route; of one that is not there, `changed` is false.",
                partial(self._change, self._table.delete),
                Resource(method="DELETE", path=_PATH, entity="route"),
                _ID,
                *_MATCH,
            ),
            change(
                "enable",
                "Start a route; done twice it changes nothing.",
                partial(self._change, self._table.enable),
                Resource(method="POST", path=f"{_PATH}/enable", entity="route"),
                _ID,
                *_MATCH,
            ),
            change(
                "disable",
                "Keep a route in the table without running it.",
                partial(self._change, self._table.disable),
                Resource(method="POST", path=f"{_PATH}/disable", entity="route"),
                _ID,
                *_MATCH,
            ),
            Operation(
                name="route drift",
                about="Compare this hub's table with the storage now.",
                handler=self._drift,
                result="edgehub.operations.results.routes:DriftDocument",
                arguments=(flag("repair", "Repair what differs.", default=True),),
                changes=True,
                resource=Resource(method="POST", path="/api/v1/table/drift"),
            ),
            Operation(
                name="route instances",
                about="List the hubs that share the table, and how far each is.",
                handler=self._instances,
                result="edgehub.operations.results.routes:InstancesDocument",
                resource=Resource(method="GET", path="/api/v1/table/instances"),
            ),
            Operation(
                name="manifest apply",
                about="Put the routes of a manifest into the shared table.",
                handler=self._apply,
                result="edgehub.sync.views:ManifestApplied",
                arguments=(
                    *MANIFEST,
                    whole("expected_revision", "Only at this revision of the table."),
                    flag("wait", "Answer once every hub has applied it."),
                ),
                changes=True,
            ),
        ]

    async def _list(
        self, *, limit: int, after: str | None = None, tenant: Tenant | None = None
    ) -> dict[str, Any]:
        return await self._table.list(tenant=tenant or DEFAULT_TENANT, after=after, limit=limit)

    async def _show(self, *, tenant: Tenant | None = None, **named: Any) -> dict[str, Any]:
        route_id, tenant = named["id"], tenant or DEFAULT_TENANT
        view = await self._table.get(route_id, tenant=tenant)
        try:
            states = await self._table.route_status(route_id, tenant=tenant)
        except StorageUnavailableError:
            # What this hub knows is worth an answer.
            states = ()
        return {**view.document(), "instances": list(map(to_builtins, states))}

    async def _add(self, *, body: Any, tenant: Tenant | None = None, **how: Any) -> dict[str, Any]:
        written = await self._table.add(body, tenant=tenant or DEFAULT_TENANT, **how)
        return written.document()

    async def _put(self, *, body: Any, if_absent: bool, **arguments: Any) -> dict[str, Any]:
        if if_absent and (arguments.get("if_match") is not None or arguments["if_exists"]):
            raise ArgumentError("`if_absent` contradicts `if_match` and `if_exists`")
        put = partial(self._table.put, body=body, if_none_match=if_absent)
        return await self._change(put, **arguments)

    async def _change(
        self,
        change: Callable[..., Awaitable[Written]],
        *,
        if_exists: bool,
        if_match: list[int] | None = None,
        tenant: Tenant | None = None,
        **how: Any,
    ) -> dict[str, Any]:
        route_id, tenant = how.pop("id"), tenant or DEFAULT_TENANT
        revision = await self._revision(if_match, route_id, tenant, if_exists=if_exists)
        written = await change(route_id, if_match=revision, tenant=tenant, **how)
        return written.document()

    async def _revision(
        self, wanted: list[int] | None, route_id: str, tenant: Tenant, *, if_exists: bool
    ) -> int | None:
        """Return the one revision on which a change depends, None = on none."""
        if wanted is None and not if_exists:
            return None
        if wanted is not None and len(wanted) == 1:
            return wanted[0]
        try:
            view = await self._table.get(route_id, tenant=tenant)
        except RouteNotFoundError:
            # The table reports that the route does not exist.
            return _NO_REVISION
        return view.revision if wanted is None or view.revision in wanted else _NO_REVISION

    async def _drift(self, *, repair: bool) -> dict[str, Any]:
        report = await self._table.drift(repair=repair)
        return report.document()

    async def _instances(self) -> dict[str, Any]:
        return {"instances": list(map(to_builtins, await self._table.instances()))}

    async def _apply(self, *, text: str, file: str, **how: Any) -> dict[str, Any]:
        applied = await self._table.apply_manifest(text, file, **how)
        document: dict[str, Any] = to_builtins(applied)
        return document
