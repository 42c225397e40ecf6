"""Operations over HTTP: a route for each.

Owns the way between requests and operations: path, query, headers and body become arguments, the
result becomes the response. Invariant: the response to a change of a resource with a revision has
it as its entity tag.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from edgehub.devices.token_file import Role
from edgehub.operations.operation import ArgumentError, ArgumentKind
from edgehub.operations.problem import ProblemError
from edgehub.web.access import read_only
from edgehub.web.answers import ApiAnswer, json_answer
from edgehub.web.body import json_body
from edgehub.web.revisions import conditions, entity_tag
from edgehub.web.routes import ApiRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgehub.operations.operation import Argument, Operation
    from edgehub.web.request import ApiRequest

HEADER_ARGUMENTS: Final = {"if_match", "if_exists", "if_absent"}
"""Arguments that the headers `If-Match` and `If-None-Match` stand for."""

_FLAGS: Final = {"true": True, "false": False}

NUMBER_CHARACTERS_MAX: Final = 40


def operation_routes(operations: Iterable[Operation]) -> list[ApiRoute]:
    """Return the routes of all operations."""
    return [
        ApiRoute(each.place.method, each.place.path, _OperationHandler(each)) for each in operations
    ]


def reading_requests(operations: Iterable[Operation]) -> frozenset[tuple[str, str]]:
    """Return methods and paths that change nothing, a `POST` too: a token for reading will do."""
    return frozenset(
        (each.place.method, each.place.path) for each in operations if not each.changes
    )


class _OperationHandler:
    """Answers the requests for one operation."""

    __slots__ = ("_guarded", "_kinds", "_names", "_operation", "_place", "_takes_object")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._place = place = operation.place
        self._takes_object = operation.takes_object
        arguments = operation.arguments
        self._names = frozenset(each.name for each in arguments)
        elsewhere = {place.body, *HEADER_ARGUMENTS}
        self._kinds = {
            each.name: each.kind
            for each in arguments
            if each.name not in elsewhere and f"{{{each.name}}}" not in place.path
        }
        """Of the arguments that may be parameters of the query."""
        self._guarded = [
            each for each in arguments if each.protected or each.kind is ArgumentKind.TENANT
        ]

    async def __call__(self, request: ApiRequest) -> ApiAnswer:
        arguments = await self._arguments(request)
        return self._answer(await self._operation(arguments))

    async def _arguments(self, request: ApiRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(request.path_arguments)
        if self._operation.changes:
            arguments |= conditions(request.fields, self._names)
        if self._takes_object:
            arguments |= await _members(request)
        else:
            arguments |= self._parameters(request)
            if self._place.body:
                arguments[self._place.body] = await json_body(request)
            elif request.body:
                raise ArgumentError(
                    "there is no body here; arguments go into the query: ?name=value"
                )
        for argument in self._guarded:
            if argument.kind is ArgumentKind.TENANT:
                arguments[argument.name] = _tenant(arguments.get(argument.name), request)
            if argument.protected and arguments.get(argument.name):
                _require_write(request, argument)
        return arguments

    def _parameters(self, request: ApiRequest) -> dict[str, Any]:
        kinds = self._kinds
        given: dict[str, Any] = {}
        for name, text in request.query:
            if name in given:
                raise ArgumentError(f"`{name}` is given twice")
            if name not in kinds:
                known = f"there are {', '.join(kinds)}" if kinds else "there are none"
                raise ArgumentError(f"{self._operation.name} has no parameter `{name}`; {known}")
            given[name] = _value(kinds[name], text)
        return given

    def _answer(self, result: Any) -> ApiAnswer:
        place = self._place
        if place.entity is None:
            return json_answer(result)
        entity: Mapping[str, Any] | None = result[place.entity] if place.entity else result
        status, headers = HTTPStatus.OK, {}
        if entity is not None:
            headers["ETag"] = entity_tag(entity["revision"])
        if entity is not None and self._operation.changes and result["created"]:
            status = HTTPStatus.CREATED
            headers["Location"] = f"{place.path.partition('/{')[0]}/{quote(entity['id'], safe='')}"
        if result.get("applied") and result["applied"]["result"] != "complete":
            status = HTTPStatus.ACCEPTED
        return json_answer(result, status, headers)


async def _members(request: ApiRequest) -> dict[str, Any]:
    """Return the arguments that are the body, an object."""
    if request.query:
        raise ArgumentError("arguments go into the body, a JSON object")
    body = await json_body(request)
    if not isinstance(body, dict):
        raise ArgumentError("want the arguments as a JSON object")
    if named := sorted(body.keys() & request.path_arguments.keys()):
        raise ArgumentError(f"`{named[0]}` is in the path, and in the body too")
    return body


def _value(kind: ArgumentKind, text: str) -> Any:
    """Return the value of a parameter; what is none of its kind stays a text, and is refused."""
    if kind is ArgumentKind.FLAG:
        return _FLAGS.get(text, text)
    # Longer numbers are beyond every bound, and cost time to read.
    if len(text) <= NUMBER_CHARACTERS_MAX:
        if kind is ArgumentKind.WHOLE and text.isdecimal() and text.isascii():
            return int(text)
        if kind is ArgumentKind.SECONDS:
            with contextlib.suppress(ValueError):
                return float(text)
    return text


def _tenant(given: Any, request: ApiRequest) -> Any:
    """Return the tenant of a request: what it names, confined to that of its token."""
    principal = request.principal
    if principal.tenant is None or given in {None, principal.tenant}:
        return principal.tenant if given is None else given
    raise ProblemError(
        HTTPStatus.FORBIDDEN,
        "other_tenant",
        f"the token {principal.name!r} is for {principal.tenant} only",
    )


def _require_write(request: ApiRequest, argument: Argument) -> None:
    if request.principal.role is not Role.WRITE:
        raise read_only(
            f"`{argument.name}` shows what clients sent, and a token that may read only does not"
        )
