"""The commands of the control socket on the routing table.

Owns what arguments must look like. An error of the table is an answer, not a failure of the
command, so that lines and columns of a route's faults reach the person who wrote it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ConfigError
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
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.operations.operation import Command
    from edgehub.sync.routing_table import RoutingTable

    Arguments = Mapping[str, Any]
    Work = Callable[[Arguments], Awaitable[dict[str, Any]]]

_FIELDS: Final[dict[type[TableError], tuple[str, ...]]] = {
    ConflictError: ("reason", "revision"),
    OwnedByManifestError: ("route_id", "file"),
    PreconditionError: ("route_id", "revision", "wanted"),
    QuotaError: ("tenant", "limit"),
    RouteNotFoundError: ("route_id",),
    StorageUnavailableError: ("reason", "unsure"),
    UnknownTenantError: ("tenant",),
}


class RouteCommands:
    """See the module.

    Args:
        table: What is asked.
    """

    __slots__ = ("_table",)

    def __init__(self, table: RoutingTable) -> None:
        self._table = table

    def table(self) -> Mapping[str, Command]:
        """Give every command by its name."""
        works: dict[str, Work] = {
            "route list": self._list,
            "route show": self._show,
            "route add": self._add,
            "route remove": self._remove,
            "route enable": partial(self._switch, True),
            "route disable": partial(self._switch, False),
            "route drift": self._drift,
            "route instances": self._instances,
            "manifest apply": self._apply,
        }
        return {name: partial(self._answered, work) for name, work in works.items()}

    async def _answered(self, work: Work, arguments: Arguments) -> dict[str, Any]:
        try:
            return await work(arguments)
        except InvalidRouteError as error:
            faults = [asdict(fault) for fault in error.faults]
            named = {"type": type(error).__name__, "message": str(error), "faults": faults}
            return {"error": named}
        except TableError as error:
            fields = {name: getattr(error, name) for name in _FIELDS.get(type(error), ())}
            return {"error": {"type": type(error).__name__, "message": str(error), **fields}}

    async def _list(self, arguments: Arguments) -> dict[str, Any]:
        after, limit = arguments.get("after"), arguments.get("limit", 1000)
        if not isinstance(after, str | None) or not isinstance(limit, int):
            raise _wrong("`after` is an id and `limit` a number")
        page = await self._table.list(tenant=_tenant(arguments), after=after, limit=limit)
        return page.document()

    async def _show(self, arguments: Arguments) -> dict[str, Any]:
        route_id, tenant = _id(arguments), _tenant(arguments)
        view = await self._table.get(route_id, tenant=tenant)
        try:
            states = await self._table.route_status(route_id, tenant=tenant)
        except StorageUnavailableError:
            # What this hub knows is worth an answer.
            states = ()
        return {**view.document(), "instances": [each.document() for each in states]}

    async def _add(self, arguments: Arguments) -> dict[str, Any]:
        if "body" not in arguments:
            raise _wrong("want `body`, the route")
        body, tenant, wait = arguments["body"], _tenant(arguments), arguments.get("wait") is True
        if arguments.get("id") is None and arguments.get("if_match") is None:
            return (await self._table.add(body, tenant=tenant, wait=wait)).document()
        route_id = _id(arguments)
        if_match = _if_match(arguments)
        written = await self._table.put(route_id, body, tenant=tenant, if_match=if_match, wait=wait)
        return written.document()

    async def _remove(self, arguments: Arguments) -> dict[str, Any]:
        return (await self._table.delete(_id(arguments), **_how(arguments))).document()

    async def _switch(self, on: bool, arguments: Arguments) -> dict[str, Any]:
        work = self._table.enable if on else self._table.disable
        return (await work(_id(arguments), **_how(arguments))).document()

    async def _drift(self, arguments: Arguments) -> dict[str, Any]:
        report = await self._table.drift(repair=arguments.get("repair") is not False)
        return report.document()

    async def _instances(self, _arguments: Arguments) -> dict[str, Any]:
        views = await self._table.instances()
        return {"instances": [view.document() for view in views]}

    async def _apply(self, arguments: Arguments) -> dict[str, Any]:
        text, file = arguments.get("text"), arguments.get("file")
        expected = arguments.get("expected_revision")
        if not isinstance(text, str) or not isinstance(file, str):
            raise _wrong("want the manifest's `text` and its `file` name")
        if not isinstance(expected, int | None):
            raise _wrong("`expected_revision` is a number")
        applied = await self._table.apply_manifest(
            text, file, expected_revision=expected, wait=arguments.get("wait") is True
        )
        return applied.document()


def _how(arguments: Arguments) -> dict[str, Any]:
    return {
        "tenant": _tenant(arguments),
        "if_match": _if_match(arguments),
        "wait": arguments.get("wait") is True,
    }


def _id(arguments: Arguments) -> str:
    route_id = arguments.get("id")
    if not isinstance(route_id, str) or not route_id:
        raise _wrong("want `id`, the route's")
    return route_id


def _if_match(arguments: Arguments) -> int | None:
    revision = arguments.get("if_match")
    if not isinstance(revision, int | None):
        raise _wrong("`if_match` is a revision")
    return revision


def _tenant(arguments: Arguments) -> Tenant:
    text = arguments.get("tenant")
    if not isinstance(text, str | None):
        raise _wrong("`tenant` is organisation/application")
    try:
        return Tenant.parse(text or "")
    except ValueError as error:
        raise _wrong(str(error)) from error


def _wrong(reason: str) -> ConfigError:
    return ConfigError("arguments", reason)
