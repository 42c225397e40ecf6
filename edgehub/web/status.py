"""The status of the hub and its queues, as the command line shows them, and as metrics.

Owns nothing: the documents are those of the control socket, made anew for each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from edgehub.web import metrics
from edgehub.web.answers import JsonResponse

if TYPE_CHECKING:
    from collections.abc import Callable


class Drain(BaseModel):
    """When a queue will be empty."""

    state: str = Field(
        description="`empty`, `drains`, `never`, `offline`, `unserved` or `unknown`."
    )
    seconds: float | None = Field(description="Until then, where it can be said.")


class QueueView(BaseModel):
    """One queue; `edgehub queue list --json` has the same members."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="Such as `upstream_Pri0`.")
    endpoint: str
    priority: int = Field(description="0 is the best; 2000000000 = the default one, behind 9.")
    state: str
    orphaned: bool = Field(description="No settings or route name its endpoint any more.")
    depth: int = Field(description="Messages, those in flight included.")
    bytes: int
    in_flight: int
    oldest_age_s: float | None
    sent: int
    expired: int
    dropped: int
    dead_lettered: int
    drain: Drain


class EndpointView(BaseModel):
    """One endpoint and its pump."""

    model_config = ConfigDict(extra="allow")

    id: str
    state: str
    reason: str = Field(description="Why it is not sending, empty while it is.")
    in_flight_rows: int
    sent_total: int
    drain_eta_seconds: float | None


class StatusView(BaseModel):
    """The whole hub; `edgehub status --json` prints the same."""

    model_config = ConfigDict(extra="allow")

    hub_id: str
    version: str
    started: str = Field(description="UTC of the start; counters count since then.")
    phase: str = Field(description="`starting`, `running`, `draining` or `stopped`.")
    summary: str = Field(description="In a few words, whether it delivers.")
    degraded: bool
    warnings: list[str] = Field(description="What a person should look at.")
    stalled: list[str] = Field(description="Endpoints whose pump stands still.")
    routes: int
    unrouted: int = Field(description="Messages that no route took.")
    store: dict[str, Any]
    endpoints: list[EndpointView]
    queues: list[QueueView]


class QueuesView(BaseModel):
    """All queues, by endpoint and priority."""

    queues: list[QueueView]


def status_router(status: Callable[[], dict[str, Any]]) -> APIRouter:
    """Make the router.

    Args:
        status: Describes the whole hub.
    """
    router = APIRouter(tags=["status"])

    @router.get("/api/v1/status", response_model=StatusView, operation_id="status")
    async def show() -> JsonResponse:
        """Describe the whole hub."""
        return JsonResponse(status())

    @router.get("/api/v1/queues", response_model=QueuesView, operation_id="queues")
    async def queues() -> JsonResponse:
        """Describe all queues."""
        return JsonResponse({"queues": status()["queues"]})

    @router.get(
        "/metrics",
        response_class=Response,
        operation_id="metrics",
        responses={
            200: {
                "description": "Prometheus text, version 0.0.4",
                "content": {metrics.MEDIA_TYPE: {"schema": {"type": "string"}}},
            }
        },
    )
    async def show_metrics() -> Response:
        """Return the figures of the status in the text format of Prometheus."""
        return Response(metrics.text(status()), media_type=metrics.MEDIA_TYPE)

    return router
