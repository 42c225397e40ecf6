"""Operations over HTTP: a route for each.

Owns the way between requests and operations: path, query, headers and body become arguments, the
result becomes the response. Invariant: the response to a change of a resource with a revision has
it as its entity tag.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.routing import Route

from edgehub.devices.token_file import Role
from edgehub.operations.operation import ArgumentError, ArgumentKind
from edgehub.operations.problem import ProblemError
from edgehub.web.access import read_only
from edgehub.web.answers import JsonResponse
from edgehub.web.body import json_body
from edgehub.web.revisions import conditions, entity_tag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request

    from edgehub.operations.operation import Argument, Operation
    from edgehub.web.access import Principal

HEADER_ARGUMENTS: Final = {"if_match", "if_exists", "if_absent"}
"""Arguments that the headers `If-Match` and `If-None-Match` stand for."""

_FLAGS: Final = {"true": True, "false": False}


def operation_routes(operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of all operations; the longest paths first, since one may end another."""
    found = []
    for operation in operations:
        path = operation.place.path.replace("}", ":path}")
        found.append(Route(path, _endpoint(operation), methods=[operation.place.method]))
    return sorted(found, key=lambda route: len(route.path), reverse=True)


def reading_requests(operations: Iterable[Operation]) -> frozenset[tuple[str, str]]:
    """Return methods and paths that change nothing, a `POST` too: a token for reading will do."""
    return frozenset(
        (each.place.method, each.place.path) for each in operations if not each.changes
    )


def _endpoint(operation: Operation) -> Callable[[Request], Awaitable[JsonResponse]]:
    async def respond(request: Request) -> JsonResponse:
        arguments = await _arguments(operation, request)
        return _response(operation, await operation(arguments))

    return respond


async def _arguments(operation: Operation, request: Request) -> dict[str, Any]:
    place = operation.place
    arguments: dict[str, Any] = dict(request.path_params)
    if operation.changes:
        names = {argument.name for argument in operation.arguments}
        arguments |= conditions(request.headers, names)
    if operation.takes_object:
        arguments |= await _members(request)
    else:
        arguments |= _parameters(operation, request)
        if place.body:
            arguments[place.body] = await json_body(request)
        elif await request.body():
            raise ArgumentError("there is no body here; arguments go into the query: ?name=value")
    for argument in operation.arguments:
        if argument.kind is ArgumentKind.TENANT:
            arguments[argument.name] = _tenant(arguments.get(argument.name), request)
        if argument.protected and arguments.get(argument.name):
            _require_write(request, argument)
    return arguments


async def _members(request: Request) -> dict[str, Any]:
    """Return the arguments that are the body, an object."""
    if request.query_params:
        raise ArgumentError("arguments go into the body, a JSON object")
    body = await json_body(request)
    if not isinstance(body, dict):
        raise ArgumentError("want the arguments as a JSON object")
    if named := sorted(body.keys() & request.path_params.keys()):
        raise ArgumentError(f"`{named[0]}` is in the path, and in the body too")
    return body


def _parameters(operation: Operation, request: Request) -> dict[str, Any]:
    elsewhere = {*request.path_params, operation.place.body, *HEADER_ARGUMENTS}
    kinds = {each.name: each.kind for each in operation.arguments if each.name not in elsewhere}
    given: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name in given:
            raise ArgumentError(f"`{name}` is given twice")
        if name not in kinds:
            known = f"there are {', '.join(kinds)}" if kinds else "there are none"
            raise ArgumentError(f"{operation.name} has no parameter `{name}`; {known}")
        given[name] = _value(kinds[name], text)
    return given


def _value(kind: ArgumentKind, text: str) -> Any:
    if kind is ArgumentKind.WHOLE and text.isdecimal() and text.isascii():
        # Longer ones are beyond every bound, and cost time to read.
        return int(text[:20])
    if kind is ArgumentKind.SECONDS:
        try:
            return float(text[:20])
        except ValueError:
            return text
    return _FLAGS.get(text, text) if kind is ArgumentKind.FLAG else text


def _tenant(given: Any, request: Request) -> Any:
    """Return the tenant of a request: what it names, confined to that of its token."""
    principal: Principal = request.state.principal
    if principal.tenant is None or given in {None, principal.tenant}:
        return principal.tenant if given is None else given
    raise ProblemError(
        HTTPStatus.FORBIDDEN,
        "other_tenant",
        f"the token {principal.name!r} is for {principal.tenant} only",
    )


def _require_write(request: Request, argument: Argument) -> None:
    if request.state.principal.role is not Role.WRITE:
        raise read_only(
            f"`{argument.name}` shows what clients sent, and a token that may read only does not"
        )


def _response(operation: Operation, result: Any) -> JsonResponse:
    place = operation.place
    if place.entity is None:
        return JsonResponse(result)
    entity: Mapping[str, Any] | None = result[place.entity] if place.entity else result
    status, headers = HTTPStatus.OK, {}
    if entity is not None:
        headers["ETag"] = entity_tag(entity["revision"])
    if entity is not None and operation.changes and result["created"]:
        status = HTTPStatus.CREATED
        headers["Location"] = f"{place.path.partition('/{')[0]}/{quote(entity['id'], safe='')}"
    if result.get("applied") and result["applied"]["result"] != "complete":
        status = HTTPStatus.ACCEPTED
    return JsonResponse(result, status.value, headers)
