"""Operations over HTTP: a path for each that has no resource of its own.

Owns the way between requests and operations. `queue peek` is `GET /api/v1/queue/peek` with its
arguments as parameters; what changes something, or takes more than words, is a `POST` with them in
an object.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request

from edgehub.devices.token_file import Role
from edgehub.operations.operation import ArgumentError, ArgumentKind
from edgehub.web.answers import JsonResponse
from edgehub.web.body import json_body
from edgehub.web.problem import ProblemError, problem_answers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from edgehub.operations.operation import Argument, Operation

_REFUSALS: Final = problem_answers(
    HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY
)
_FLAGS: Final = {"true": True, "false": False}


def operations_router(operations: Iterable[Operation]) -> APIRouter:
    """Make the router of all operations without a resource of their own."""
    router = APIRouter(tags=["operations"])
    for operation in operations:
        if operation.resource:
            continue
        router.add_api_route(
            operation.path,
            _endpoint(operation),
            methods=["POST" if operation.takes_body else "GET"],
            name=operation.name,
            operation_id=operation.name.replace(" ", "_"),
            description=operation.about,
            response_model=None,
            responses={
                200: {
                    "description": f"As `edgehub {operation.name} --json` has it.",
                    "content": {"application/json": {"schema": {}}},
                },
                **_REFUSALS,
                **(
                    problem_answers(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
                    if operation.takes_body
                    else {}
                ),
            },
            openapi_extra=_described(operation),
        )
    return router


def reading_paths(operations: Iterable[Operation]) -> frozenset[str]:
    """Return the paths at which a `POST` changes nothing, so that it needs no more than a `GET`."""
    return frozenset(each.path for each in operations if each.takes_body and not each.changes)


def _endpoint(operation: Operation) -> Callable[[Request], Awaitable[JsonResponse]]:
    async def answer(request: Request) -> JsonResponse:
        given = await _body(request) if operation.takes_body else _parameters(operation, request)
        for argument in operation.arguments:
            if argument.protected and given.get(argument.name):
                _require_write(request, argument)
        return JsonResponse(await operation(given))

    return answer


async def _body(request: Request) -> dict[str, Any]:
    if request.query_params:
        raise ArgumentError("arguments go into the body, a JSON object")
    body = await json_body(request)
    if not isinstance(body, dict):
        raise ArgumentError("want the arguments as a JSON object")
    return body


def _parameters(operation: Operation, request: Request) -> dict[str, Any]:
    kinds = {argument.name: argument.kind for argument in operation.arguments}
    given: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name in given:
            raise ArgumentError(f"`{name}` is given twice")
        if kinds.get(name) is ArgumentKind.WHOLE and text.isdecimal() and text.isascii():
            # Longer ones are beyond every bound, and cost time to read.
            given[name] = int(text[:20])
        elif kinds.get(name) is ArgumentKind.FLAG:
            given[name] = _FLAGS.get(text, text)
        else:
            given[name] = text
    return given


def _require_write(request: Request, argument: Argument) -> None:
    principal = request.state.principal
    if principal.role is not Role.WRITE:
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            "read_only",
            f"`{argument.name}` shows what clients sent, and a token that may read only does not",
            hint="use a token with the role write: edgehub token add NAME --role write",
        )


def _described(operation: Operation) -> dict[str, Any]:
    """Describe the arguments for the API's document."""
    if operation.takes_body:
        schema = {
            "type": "object",
            "properties": {each.name: each.schema() for each in operation.arguments},
            "required": [each.name for each in operation.arguments if each.required],
            "additionalProperties": False,
        }
        return {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        }
    return {
        "parameters": [
            {
                "in": "query",
                "name": each.name,
                "required": each.required,
                "description": each.about,
                "schema": each.schema(),
            }
            for each in operation.arguments
        ]
    }
