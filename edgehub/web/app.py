"""The HTTP API as one application: operations, probes, metrics, the page, one form of errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from edgehub.errors import EdgeHubError
from edgehub.operations.problem import ProblemError, problem_of
from edgehub.web import metrics
from edgehub.web.answers import JsonResponse, problem_response
from edgehub.web.openapi import openapi_document
from edgehub.web.operations import operation_routes
from edgehub.web.page import page_route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from edgehub.operations.operation import Operation

_DETAILS: Final = {
    HTTPStatus.NOT_FOUND: "nothing has this path; /openapi.json lists what there is",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path has other methods; see the header Allow",
}


def build_app(
    operations: Sequence[Operation],
    *,
    status: Callable[[], dict[str, Any]],
    unready: Callable[[], str],
) -> Starlette:
    """Build the application.

    Args:
        operations: All of them.
        status: Returns the status of the whole hub, for metrics.
        unready: Returns why the hub should not be sent messages, empty = it may.
    """
    described = openapi_document(operations)

    async def openapi(_request: Request) -> Response:
        return JsonResponse(described)

    async def show_metrics(_request: Request) -> Response:
        return Response(metrics.text(status()), media_type=metrics.MEDIA_TYPE)

    async def healthz(_request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        if reason := unready():
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", reason, headers={"Retry-After": "5"}
            )
        return JsonResponse({"status": "ready"})

    app = Starlette(
        routes=[
            page_route(),
            Route("/openapi.json", openapi),
            Route("/metrics", show_metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *operation_routes(operations),
        ],
        exception_handlers={EdgeHubError: _hub_error, HTTPException: _http_error},
    )
    # A path is what it is: no redirect that loses the token of a client on the way.
    app.router.redirect_slashes = False
    return app


async def _hub_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EdgeHubError), "it is registered for that"
    problem = problem_of(error)
    if problem is None:
        raise error
    return problem_response(problem)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for that"
    status = HTTPStatus(error.status_code)
    problem = ProblemError(
        status, status.name.lower(), _DETAILS.get(status, ""), headers=error.headers
    )
    return problem_response(problem)
