"""The routes of the HTTP API: operations, probes, metrics, the page."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from edgehub.operations.problem import ProblemError
from edgehub.web import metrics
from edgehub.web.answers import ApiAnswer, json_answer
from edgehub.web.openapi import openapi_document
from edgehub.web.operations import operation_routes
from edgehub.web.page import page_route
from edgehub.web.routes import ApiRoute, ApiRoutes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.operations.operation import Operation
    from edgehub.web.request import ApiRequest


def build_routes(
    operations: Sequence[Operation],
    *,
    status: Callable[[], dict[str, Any]],
    unready: Callable[[], str],
) -> ApiRoutes:
    """Build all routes.

    Args:
        operations: All of them.
        status: Returns the status of the whole hub, for metrics.
        unready: Returns why the hub should not be sent messages, empty = it may.
    """
    described = openapi_document(operations)

    async def openapi(_request: ApiRequest) -> ApiAnswer:
        return json_answer(described)

    async def show_metrics(_request: ApiRequest) -> ApiAnswer:
        return ApiAnswer(metrics.text(status()).encode(), media_type=metrics.MEDIA_TYPE)

    async def healthz(_request: ApiRequest) -> ApiAnswer:
        return json_answer({"status": "ok"})

    async def readyz(_request: ApiRequest) -> ApiAnswer:
        if reason := unready():
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", reason, headers={"Retry-After": "5"}
            )
        return json_answer({"status": "ready"})

    return ApiRoutes(
        [
            page_route(),
            ApiRoute("GET", "/openapi.json", openapi),
            ApiRoute("GET", "/metrics", show_metrics),
            ApiRoute("GET", "/healthz", healthz),
            ApiRoute("GET", "/readyz", readyz),
            *operation_routes(operations),
        ]
    )
