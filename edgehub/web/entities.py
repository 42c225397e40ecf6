"""Entities over HTTP: who is behind the hub, who sends without being registered.

Maps requests to calls of the entity directory; what a registration may say is for the
mapper to know. Invariant: what is answered with success is durable.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from edgehub.entities.faults import NO_ENTITIES, NoEntitiesError
from edgehub.web.answers import JsonResponse
from edgehub.web.body import json_body
from edgehub.web.problem import ProblemError, problem_answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.operations.entities import EntityDirectory

_ENTITY: Final = "/api/v1/entities/{topic_id:path}"
_CHANGES: Final = problem_answers(
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.INSUFFICIENT_STORAGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)


class Which(BaseModel):
    """Parameters of the list."""

    model_config = ConfigDict(extra="forbid")

    root: str | None = Field(default=None, description="Only this one and all below it.")
    parent: str | None = Field(default=None, description="Only those right below this one.")
    type: Literal["device", "child-device", "service"] | None = None


class EntityView(BaseModel):
    """One entity; `edgehub entity list --json` has the same members."""

    model_config = ConfigDict(extra="allow")

    topic_id: str = Field(alias="@topic-id", description="Four segments.")
    type_: str = Field(alias="@type", description="`device`, `child-device` or `service`.")
    external_id: str = Field(alias="@id", description="Its id at the cloud.")
    parent: str | None = Field(alias="@parent", description="Null for the gateway.")
    health: str | None = Field(alias="@health")
    name: str
    auto_registered: bool
    announced: bool = Field(description="False: the cloud has refused to create it.")


class EntitiesView(BaseModel):
    """A list of entities."""

    entities: list[EntityView]


class WholeEntityView(EntityView):
    """One entity with what is known of it."""

    twin: dict[str, Any]
    children: list[str] = Field(description="Topic ids of those right below it.")


class RegisteredView(BaseModel):
    """What became of a registration."""

    model_config = ConfigDict(extra="allow")

    outcome: str = Field(description="`registered`, `updated`, `unchanged` or `pending`.")
    entity: WholeEntityView | None = Field(default=None, description="Absent while it is pending.")
    advice: str | None = Field(
        default=None, description="Why automatic registration should be off; else absent."
    )


class RemovedView(BaseModel):
    """What was forgotten."""

    removed: list[str] = Field(description="Topic ids.")


class DebtView(BaseModel):
    """Who sends without being registered."""

    model_config = ConfigDict(extra="allow")

    messages: int = Field(description="Held in all.")
    bytes: int
    evicted_total: int
    expired_total: int
    entities_total: int
    entities: list[dict[str, Any]] = Field(description="The largest debts first.")


def entities_router(kept: EntityDirectory | None) -> APIRouter:
    """Make the router.

    Args:
        kept: The directory, None = the hub runs no mapper.
    """

    def directory() -> EntityDirectory:
        if kept is None:
            raise NoEntitiesError(NO_ENTITIES)
        return kept

    router = APIRouter(tags=["entities"])
    _add_reading(router, directory)
    _add_writing(router, directory)
    return router


def _add_reading(router: APIRouter, directory: Callable[[], EntityDirectory]) -> None:
    @router.get(
        "/api/v1/entities",
        response_model=EntitiesView,
        operation_id="list_entities",
        responses=problem_answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def list_entities(options: Annotated[Which, Query()]) -> JsonResponse:
        """List registered entities, the gateway first."""
        found = directory().entities(root=options.root, parent=options.parent, type_=options.type)
        return JsonResponse({"entities": found})

    @router.get(
        "/api/v1/registration-debt",
        response_model=DebtView,
        operation_id="registration_debt",
        responses=problem_answers(HTTPStatus.NOT_FOUND),
    )
    async def registration_debt() -> JsonResponse:
        """Show who sends without being registered, the largest debts first."""
        return JsonResponse(directory().pending())

    @router.get(
        _ENTITY,
        response_model=WholeEntityView,
        operation_id="show_entity",
        responses=problem_answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def show_entity(topic_id: str) -> JsonResponse:
        """Show one entity; slashes at the end of its topic id may be left out."""
        return JsonResponse(directory().show(topic_id))


def _add_writing(router: APIRouter, directory: Callable[[], EntityDirectory]) -> None:
    @router.put(
        _ENTITY,
        response_model=RegisteredView,
        operation_id="register_entity",
        responses=_CHANGES,
        openapi_extra=_BODY,
    )
    async def register_entity(request: Request, topic_id: str) -> JsonResponse:
        """Register an entity, or change its registration, as a message on its topic would."""
        document = _object(await json_body(request))
        return JsonResponse(await directory().register(topic_id, document))

    @router.patch(
        _ENTITY,
        response_model=RegisteredView,
        operation_id="change_entity",
        responses=_CHANGES,
        openapi_extra=_BODY,
    )
    async def change_entity(request: Request, topic_id: str) -> JsonResponse:
        """Change `@parent` or `@health` of an entity."""
        document = _object(await json_body(request))
        return JsonResponse(await directory().change(topic_id, document))

    @router.delete(
        _ENTITY,
        response_model=RemovedView,
        operation_id="remove_entity",
        responses=_CHANGES,
    )
    async def remove_entity(topic_id: str) -> JsonResponse:
        """Forget an entity and all below it; the cloud is told nothing."""
        return JsonResponse(await directory().remove(topic_id))


_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def _object(document: Any) -> dict[str, Any]:
    if isinstance(document, dict):
        return document
    raise ProblemError(
        HTTPStatus.UNPROCESSABLE_ENTITY, "not_an_object", "a registration is a JSON object"
    )
