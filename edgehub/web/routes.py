"""The routes API: the routing table over HTTP.

Owns the way between requests and the table: revisions, waiting, tenants. What a route may be, and
who owns it, is for the table to say; its errors are translated by the application. Invariant: an
answer to a change names the revision by which the next one can be made conditional.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from edgehub.errors import EdgeHubError
from edgehub.web.answers import JsonResponse
from edgehub.web.body import json_body
from edgehub.web.problem import ProblemError, problem_answers
from edgehub.web.revisions import entity_tag, parse_if_match, parse_if_none_match
from edgehub.web.route_documents import (
    ROUTE_BODY,
    DriftView,
    InstancesView,
    RouteStatusesView,
    RoutesView,
    RouteView,
    WrittenView,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.routes.tenant import Tenant
    from edgehub.sync.routing_table import RoutingTable
    from edgehub.sync.views import Written
    from edgehub.web.revisions import Wanted

    TenantOf = Callable[[str | None, Request], Tenant]

PAGE_MAX: Final = 1000
WAIT_S_MAX: Final = 30.0

_ROUTE: Final = "/api/v1/routes/{route_id:path}"
_NO_REVISION: Final = -1


_WRITES: Final = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
_WRITTEN: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": WrittenView,
        "description": "Stored; with `wait=applied`, not every hub has applied it.",
    },
    **problem_answers(*_WRITES),
}
_CREATED: Final[dict[int | str, dict[str, Any]]] = {
    201: {"model": WrittenView, "description": "There was none before."},
    **_WRITTEN,
    **problem_answers(HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
}


class Whose(BaseModel):
    """Parameter that every request about routes may have."""

    model_config = ConfigDict(extra="forbid")

    tenant: str | None = Field(
        default=None,
        max_length=200,
        description="`org/application`, on hubs with several tenants; absent = the usual one.",
    )


class Paging(Whose):
    """Parameters of a list."""

    after: str | None = Field(default=None, description="Id of the last route before.")
    limit: int = Field(default=100, ge=1, le=PAGE_MAX, description="Routes of a page.")


class Waiting(Whose):
    """Parameters of a change."""

    wait: Literal["applied"] | None = Field(
        default=None, description="Answer once every hub has applied it."
    )
    timeout_s: float = Field(
        default=5.0, gt=0, le=WAIT_S_MAX, description="Longest wait for `applied`, in seconds."
    )

    def asked(self) -> dict[str, Any]:
        """Return them as the table wants them."""
        return {"wait": self.wait is not None, "timeout_s": self.timeout_s}


def routes_router(table: RoutingTable, tenant_of: TenantOf) -> APIRouter:
    """Make the router.

    Args:
        table: The routing table.
        tenant_of: Gives the tenant of a request, from its parameter and who asks.
    """
    router = APIRouter(tags=["routes"])
    _add_reading(router, table, tenant_of)
    _add_table(router, table)
    _add_switches(router, table, tenant_of)
    _add_writing(router, table, tenant_of)
    return router


def _add_reading(router: APIRouter, table: RoutingTable, tenant_of: TenantOf) -> None:
    @router.get(
        "/api/v1/routes",
        response_model=RoutesView,
        operation_id="list_routes",
        responses=problem_answers(HTTPStatus.NOT_FOUND),
    )
    async def list_routes(request: Request, options: Annotated[Paging, Query()]) -> JsonResponse:
        """List routes by id, as this hub has them."""
        page = await table.list(
            tenant=tenant_of(options.tenant, request), after=options.after, limit=options.limit
        )
        return JsonResponse(page.document())

    @router.get(
        f"{_ROUTE}/status",
        response_model=RouteStatusesView,
        operation_id="route_status",
        responses=problem_answers(HTTPStatus.NOT_FOUND),
    )
    async def route_status(
        request: Request, route_id: str, options: Annotated[Whose, Query()]
    ) -> JsonResponse:
        """Return whether a route runs, on every hub that shares the table."""
        found = await table.route_status(route_id, tenant=tenant_of(options.tenant, request))
        return JsonResponse({"instances": [each.document() for each in found]})

    @router.get(
        _ROUTE,
        response_model=RouteView,
        operation_id="show_route",
        responses=problem_answers(HTTPStatus.NOT_FOUND),
    )
    async def show_route(
        request: Request, route_id: str, options: Annotated[Whose, Query()]
    ) -> JsonResponse:
        """Show one route; the header `ETag` has its revision."""
        view = (await table.get(route_id, tenant=tenant_of(options.tenant, request))).document()
        return JsonResponse(view, headers={"ETag": entity_tag(view["revision"])})


def _add_table(router: APIRouter, table: RoutingTable) -> None:
    @router.get("/api/v1/table/instances", response_model=InstancesView, operation_id="instances")
    async def instances() -> JsonResponse:
        """List the hubs that share the table, and how far each is."""
        found = await table.instances()
        return JsonResponse({"instances": [each.document() for each in found]})

    @router.post("/api/v1/table/drift", response_model=DriftView, operation_id="drift")
    async def drift(
        repair: Annotated[bool, Query(description="Put right what differs.")] = True,
    ) -> JsonResponse:
        """Compare this hub's table with the storage now."""
        return JsonResponse((await table.drift(repair=repair)).document())


def _add_switches(router: APIRouter, table: RoutingTable, tenant_of: TenantOf) -> None:
    def add(
        change: Callable[..., Awaitable[Written]], method: str, path: str, name: str, about: str
    ) -> None:
        async def switch(
            request: Request, route_id: str, options: Annotated[Waiting, Query()]
        ) -> JsonResponse:
            tenant = tenant_of(options.tenant, request)
            wanted = parse_if_match(request.headers.get("if-match"))
            written = await change(
                route_id,
                tenant=tenant,
                if_match=await _revision(table, route_id, tenant, wanted),
                **options.asked(),
            )
            return _answer(written)

        router.add_api_route(
            path,
            switch,
            methods=[method],
            name=name,
            operation_id=name,
            description=about,
            response_model=WrittenView,
            responses=_WRITTEN,
            openapi_extra=_IF_MATCH,
        )

    about = "Let a route run; done twice it changes nothing."
    add(table.enable, "POST", f"{_ROUTE}/enable", "enable_route", about)
    about = "Keep a route in the table without running it."
    add(table.disable, "POST", f"{_ROUTE}/disable", "disable_route", about)
    about = "Remove a route; of one that is not there, `changed` is false."
    add(table.delete, "DELETE", _ROUTE, "remove_route", about)


def _add_writing(router: APIRouter, table: RoutingTable, tenant_of: TenantOf) -> None:
    @router.post(
        "/api/v1/routes",
        response_model=WrittenView,
        operation_id="add_route",
        responses=_CREATED,
        openapi_extra=ROUTE_BODY,
    )
    async def add_route(request: Request, options: Annotated[Waiting, Query()]) -> JsonResponse:
        """Add a route, or update the one with its `id`; without one, its hash becomes the id."""
        for name in ("If-Match", "If-None-Match"):
            if name in request.headers:
                raise ProblemError(
                    HTTPStatus.BAD_REQUEST,
                    "bad_header",
                    f"{name} does not go with POST",
                    hint="it goes with PUT of the route's own path",
                )
        written = await table.add(
            await json_body(request),
            tenant=tenant_of(options.tenant, request),
            **options.asked(),
        )
        return _answer(written)

    @router.put(
        _ROUTE,
        response_model=WrittenView,
        operation_id="put_route",
        responses=_CREATED,
        openapi_extra={**ROUTE_BODY, **_IF_EITHER},
    )
    async def put_route(
        request: Request, route_id: str, options: Annotated[Waiting, Query()]
    ) -> JsonResponse:
        """Write a route under its id; with `If-Match`, only in place of that revision."""
        whose = tenant_of(options.tenant, request)
        wanted = parse_if_match(request.headers.get("if-match"))
        new = parse_if_none_match(request.headers.get("if-none-match"))
        body = await json_body(request)
        if new and wanted is not None:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST,
                "bad_header",
                "If-Match and If-None-Match contradict each other",
                hint="send one of them",
            )
        written = await table.put(
            route_id,
            body,
            tenant=whose,
            if_match=await _revision(table, route_id, whose, wanted),
            if_none_match=new,
            **options.asked(),
        )
        return _answer(written)


async def _revision(
    table: RoutingTable, route_id: str, tenant: Tenant, wanted: Wanted | None
) -> int | None:
    """Return the one revision on which a change depends, None = on none."""
    if wanted is None:
        return None
    # To the table 0 means that there must be none, which no `If-Match` can ask for.
    if len(wanted.revisions) == 1 and 0 not in wanted.revisions:
        return next(iter(wanted.revisions))
    try:
        present: int = (await table.get(route_id, tenant=tenant)).document()["revision"]
    except EdgeHubError:
        # The table says why, and that none has this revision where there is no route.
        return _NO_REVISION
    if not wanted.anything and present not in wanted.revisions:
        raise _other_revision(f"the route has revision {present}")
    return present


def _other_revision(detail: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.PRECONDITION_FAILED,
        "other_revision",
        detail,
        hint="read it again, and send its ETag as If-Match",
    )


def _answer(written: Written) -> JsonResponse:
    document = written.document()
    applied, view = document["applied"], document["route"]
    headers = {}
    if view is not None:
        headers["ETag"] = entity_tag(view["revision"])
        if written.created:
            headers["Location"] = f"/api/v1/routes/{quote(view['id'], safe='')}"
    status = HTTPStatus.CREATED if written.created else HTTPStatus.OK
    if applied is not None and applied["result"] != "complete":
        status = HTTPStatus.ACCEPTED
    return JsonResponse(document, status.value, headers)


def _header(name: str, about: str) -> dict[str, Any]:
    return {"in": "header", "name": name, "description": about, "schema": {"type": "string"}}


_MATCH: Final = _header("If-Match", "Only in place of this revision, from the header `ETag`.")
_IF_MATCH: Final = {"parameters": [_MATCH]}
_IF_EITHER: Final = {
    "parameters": [_MATCH, _header("If-None-Match", "`*`: only if there is none yet.")]
}
