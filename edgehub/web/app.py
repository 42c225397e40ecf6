"""The HTTP API as one application: routers, one form of errors, a document true to both.

Owns nothing at run time; `serving.py` passes in the routers, each made for what it shows.
Invariant: what the OpenAPI document says of requests and answers is what happens.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response  # noqa: TC002 - FastAPI reads the annotation

import edgehub
from edgehub.errors import EdgeHubError
from edgehub.web.access import OPEN_PATHS
from edgehub.web.answers import JsonResponse
from edgehub.web.problem import MEDIA_TYPE, ProblemDocument, answer_problems, problem_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from edgehub.web.problem import ProblemError

_ABOUT: Final = (
    "What a hub is, does and routes. Every error is a problem document (RFC 9457). Where the hub "
    "has a tokens file, send `Authorization: Bearer <token>`; where it has none, this machine may "
    "read without one."
)
_EVERYWHERE: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST)
"""Answers of the gate, to every request that needs somebody."""

_SOMETIMES: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)


def build_app(
    routers: Sequence[APIRouter],
    *,
    translate: Callable[[EdgeHubError], ProblemError | None] = lambda _error: None,
) -> FastAPI:
    """Build the application.

    Args:
        routers: All that there is to ask, in the order of the document.
        translate: Makes a problem of an error of the hub's parts, None = it is a fault of the hub.
    """
    app = FastAPI(
        title="edgehub",
        version=edgehub.__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A path is what it is: no answer of 307 that loses the token of a client on the way.
        redirect_slashes=False,
    )
    answer_problems(app)

    @app.exception_handler(EdgeHubError)
    async def _hub_error(_request: Request, error: EdgeHubError) -> Response:
        problem = translate(error)
        if problem is None:
            raise error
        return problem.response()

    for router in routers:
        app.include_router(router)
    described: dict[str, Any] = {}

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not described:
            described.update(document(app))
        return JsonResponse(described)

    return app


def document(app: FastAPI) -> dict[str, Any]:
    """Describe the API (OpenAPI 3.1), with the answers that the gate gives."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = described.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"))
    schemas["Problem"] = problem
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return described


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add to one operation what holds for all, in place of what the framework supposes."""
    answers = operation["responses"]
    statuses = [*_SOMETIMES]
    if "422" in answers and MEDIA_TYPE not in answers["422"].get("content", {}):
        del answers["422"]
        statuses.append(HTTPStatus.UNPROCESSABLE_ENTITY)
    if path not in OPEN_PATHS:
        # Without a token too: that is for loopback and a hub without a tokens file.
        operation["security"] = [{"token": []}, {}]
        statuses += _EVERYWHERE
    if "requestBody" in operation:
        statuses.append(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    for status, answer in problem_answers(*statuses).items():
        answers.setdefault(str(status), answer)
    operation["responses"] = dict(sorted(answers.items()))
