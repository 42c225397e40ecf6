"""Probes: does the process answer, and may it be sent messages?

Owns the words. A probe needs no token and tells no figures.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from edgehub.web.answers import JsonResponse
from edgehub.web.problem import ProblemError, problem_answers

if TYPE_CHECKING:
    from collections.abc import Callable


class Healthy(BaseModel):
    """The event loop answers."""

    status: Literal["ok"] = Field(description="Always `ok`.")


class Ready(BaseModel):
    """Messages are taken and routed by a table that is current."""

    status: Literal["ready"] = Field(description="Always `ready`.")


def probes_router(unready: Callable[[], str]) -> APIRouter:
    """Make the router.

    Args:
        unready: Says in a few words why the hub should not be sent messages, empty = it may.
    """
    router = APIRouter(tags=["probes"])

    @router.get("/healthz", response_model=Healthy, operation_id="healthz")
    async def healthz() -> JsonResponse:
        """Say that the process works; for a probe that starts it anew otherwise."""
        return JsonResponse({"status": "ok"})

    @router.get(
        "/readyz",
        response_model=Ready,
        operation_id="readyz",
        responses=problem_answers(HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def readyz() -> JsonResponse:
        """Return whether messages should be sent here; 503 with `code` `not_ready` otherwise.

        Its `detail` is `starting`, `draining`, or why the table is not current: `table stale`.
        """
        reason = unready()
        if reason:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", reason, headers={"Retry-After": "5"}
            )
        return JsonResponse({"status": "ready"})

    return router
