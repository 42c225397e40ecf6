"""Operations on the routing table.

An error of the table keeps its members, so that lines and columns of a route's faults reach its
author.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgehub.operations.arguments import document, flag, text, whole
from edgehub.operations.operation import ArgumentError, ArgumentKind, Operation
from edgehub.routes.content import InvalidRouteError
from edgehub.routes.tenant import Tenant
from edgehub.sync.faults import (
    ConflictError,
    OwnedByManifestError,
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
    StorageUnavailableError,
    TableError,
    UnknownTenantError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.errors import EdgeHubError
    from edgehub.operations.operation import Handler
    from edgehub.sync.routing_table import RoutingTable

    Arguments = Mapping[str, Any]

_FIELDS: Final[dict[type[TableError], tuple[str, ...]]] = {
    ConflictError: ("reason", "revision"),
    OwnedByManifestError: ("route_id", "file"),
    PreconditionError: ("route_id", "revision", "wanted"),
    QuotaError: ("tenant", "limit"),
    RouteNotFoundError: ("route_id",),
    StorageUnavailableError: ("reason", "unsure"),
    UnknownTenantError: ("tenant",),
}


MANIFEST: Final = (
    text("text", "The manifest.", kind=ArgumentKind.FILE, required=True),
    text("file", "Its name, for faults.", required=True),
)
_TENANT: Final = text("tenant", "`organisation/application`; absent = the default one.")
_HOW: Final = (
    _TENANT,
    whole("if_match", "Only in place of this revision."),
    flag("wait", "Answer once every hub has applied it."),
)
_ID: Final = text("id", "Of the route.", required=True)


def error_document(error: EdgeHubError) -> dict[str, Any] | None:
    """Return what is wrong with a route or its change, by members; None = it is another error."""
    if isinstance(error, InvalidRouteError):
        faults = [asdict(fault) for fault in error.faults]
        return {"type": type(error).__name__, "message": str(error), "faults": faults}
    if isinstance(error, TableError):
        fields = {name: getattr(error, name) for name in _FIELDS.get(type(error), ())}
        return {"type": type(error).__name__, "message": str(error), **fields}
    return None


class RouteOperations:
    """Operations on the routing table.

    Args:
        table: What is asked.
    """

    __slots__ = ("_table",)

    def __init__(self, table: RoutingTable) -> None:
        self._table = table

    def table(self) -> list[Operation]:
        """Return every operation."""

        def change(name: str, about: str, handler: Handler) -> Operation:
            return Operation(
                name=f"route {name}",
                about=about,
                handler=handler,
                arguments=(_ID, *_HOW),
                changes=True,
                resource=True,
            )

        return [
            Operation(
                name="route list",
                about="List routes by id.",
                handler=self._list,
                arguments=(
                    _TENANT,
                    text("after", "Id of the last one before."),
                    whole("limit", "Most routes.", default=1000),
                ),
                resource=True,
            ),
            Operation(
                name="route show",
                about="Show one route, and its state on every hub.",
                handler=self._show,
                arguments=(_ID, _TENANT),
                resource=True,
            ),
            Operation(
                name="route add",
                about="Add a route, or change the one with its id.",
                handler=self._add,
                arguments=(
                    document("body", "the route", required=True),
                    text("id", "Of the route; absent = its content says it."),
                    *_HOW,
                ),
                changes=True,
                resource=True,
            ),
            change("remove", "Remove a route.", self._remove),
            change("enable", "Let a route run.", partial(self._switch, True)),
            change("disable", "Keep a route without running it.", partial(self._switch, False)),
            Operation(
                name="route drift",
                about="Compare this hub's table with the storage.",
                handler=self._drift,
                arguments=(flag("repair", "Put right what differs.", default=True),),
                changes=True,
                resource=True,
            ),
            Operation(
                name="route instances",
                about="List the hubs that share the table.",
                handler=self._instances,
                resource=True,
            ),
            Operation(
                name="manifest apply",
                about="Put the routes of a manifest into the shared table.",
                handler=self._apply,
                arguments=(
                    *MANIFEST,
                    whole("expected_revision", "Only at this revision of the table."),
                    flag("wait", "Answer once every hub has applied it."),
                ),
                changes=True,
            ),
        ]

    async def _list(self, arguments: Arguments) -> dict[str, Any]:
        page = await self._table.list(
            tenant=_tenant(arguments), after=arguments.get("after"), limit=arguments["limit"]
        )
        return page.document()

    async def _show(self, arguments: Arguments) -> dict[str, Any]:
        route_id, tenant = arguments["id"], _tenant(arguments)
        view = await self._table.get(route_id, tenant=tenant)
        try:
            states = await self._table.route_status(route_id, tenant=tenant)
        except StorageUnavailableError:
            # What this hub knows is worth an answer.
            states = ()
        return {**view.document(), "instances": [each.document() for each in states]}

    async def _add(self, arguments: Arguments) -> dict[str, Any]:
        body, tenant, wait = arguments["body"], _tenant(arguments), arguments["wait"]
        route_id, if_match = arguments.get("id"), arguments.get("if_match")
        if route_id is None and if_match is None:
            return (await self._table.add(body, tenant=tenant, wait=wait)).document()
        if route_id is None:
            raise ArgumentError("want `id`, the route's")
        written = await self._table.put(route_id, body, tenant=tenant, if_match=if_match, wait=wait)
        return written.document()

    async def _remove(self, arguments: Arguments) -> dict[str, Any]:
        return (await self._table.delete(arguments["id"], **_how(arguments))).document()

    async def _switch(self, on: bool, arguments: Arguments) -> dict[str, Any]:
        work = self._table.enable if on else self._table.disable
        return (await work(arguments["id"], **_how(arguments))).document()

    async def _drift(self, arguments: Arguments) -> dict[str, Any]:
        report = await self._table.drift(repair=arguments["repair"])
        return report.document()

    async def _instances(self, _arguments: Arguments) -> dict[str, Any]:
        views = await self._table.instances()
        return {"instances": [view.document() for view in views]}

    async def _apply(self, arguments: Arguments) -> dict[str, Any]:
        applied = await self._table.apply_manifest(
            arguments["text"],
            arguments["file"],
            expected_revision=arguments.get("expected_revision"),
            wait=arguments["wait"],
        )
        return applied.document()


def _how(arguments: Arguments) -> dict[str, Any]:
    return {
        "tenant": _tenant(arguments),
        "if_match": arguments.get("if_match"),
        "wait": arguments["wait"],
    }


def _tenant(arguments: Arguments) -> Tenant:
    try:
        return Tenant.parse(arguments.get("tenant") or "")
    except ValueError as error:
        raise ArgumentError(str(error)) from error
