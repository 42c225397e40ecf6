"""The OpenAPI document of the HTTP API, made of the table of operations.

Pure. Invariant: what it describes of requests and responses is what happens.

Source: OpenAPI 3.1.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

import edgehub
from edgehub.operations.problem import Problem
from edgehub.web import metrics
from edgehub.web.answers import PROBLEM_TYPE
from edgehub.web.operations import HEADER_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgehub.operations.operation import Argument, Operation

_ABOUT: Final = (
    "What a hub is, does and routes. Every error is a problem document (RFC 9457). Where the hub "
    "has a tokens file, send `Authorization: Bearer <token>`; where it has none, this machine may "
    "read without one."
)
_REFUSALS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_REFUSED_BODIES: Final = (
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
ROUTE_SCHEMA: Final[dict[str, Any]] = {
    "description": "As an entry of a manifest: its text, or an object.",
    "oneOf": [
        {"type": "string"},
        {
            "type": "object",
            "required": ["route"],
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"},
                "route": {"type": "string", "description": "Text of the route."},
                "priority": {"type": "integer", "minimum": 0, "maximum": 9},
                "timeToLiveSecs": {"type": "integer", "minimum": 0},
                "Recency": {
                    "type": "object",
                    "required": ["Seconds"],
                    "properties": {
                        "Seconds": {"type": "integer", "minimum": 1},
                        "FallbackPriority": {"type": "integer", "minimum": 0, "maximum": 9},
                    },
                },
                "order": {"enum": ["strict", "skip"]},
                "maxAttempts": {"type": "integer", "minimum": 0},
                "maxAgeSecs": {"type": "integer", "minimum": 0},
                "description": {"type": "string"},
                "enabled": {"type": "boolean", "default": True},
            },
        },
    ],
    "examples": [
        "FROM /messages/* INTO $upstream",
        {
            "route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
            "priority": 0,
            "timeToLiveSecs": 3600,
        },
    ],
}
_BODIES: Final = {"body": ROUTE_SCHEMA}
"""Schemas of arguments that are a whole body; of others an object."""

_HEADERS: Final = {
    "if_match": ("If-Match", "Only in place of this revision, from the header `ETag`; `*`: any."),
    "if_absent": ("If-None-Match", "`*`: only if there is none yet."),
}
_ATTRIBUTE: Final = re.compile(r"^    ([@\w-]+): (.+(?:\n {6,}.+)*)", re.MULTILINE)


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document."""
    schemas, components = _schemas(operations)
    paths: dict[str, Any] = _fixed_paths()
    for operation in operations:
        place = operation.place
        described = _described(operation, schemas[operation.name])
        paths.setdefault(place.path, {})[place.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgehub", "version": edgehub.__version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of each operation's result by its name, and all that they refer to."""
    types = {each.name: resolve_name(each.result) for each in operations} | {"": Problem}
    schemas, rest = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(type_)) for name, type_ in types.items()],
        ref_template="#/components/schemas/{model}",
    )
    components: dict[str, Any] = rest["$defs"]
    for schema in components.values():
        _describe_members(schema)
    return {name: schema for (name, _), schema in schemas.items()}, components


def _describe_members(schema: dict[str, Any]) -> None:
    """Move the section `Attributes` of a type's docstring to the members that it describes."""
    about, _, attributes = schema.get("description", "").partition("\n\nAttributes:\n")
    schema["description"] = about
    for name, text in _ATTRIBUTE.findall(attributes):
        schema["properties"][name]["description"] = " ".join(text.split())


def _described(operation: Operation, result: dict[str, Any]) -> dict[str, Any]:
    place = operation.place
    responses: dict[str, Any] = {"200": _content("As the command line prints it.", result)}
    statuses = [*_REFUSALS]
    names = {argument.name for argument in operation.arguments}
    if place.entity is not None and operation.changes:
        responses["202"] = _content("Stored; not every hub has applied it.", result)
        statuses.append(HTTPStatus.PRECONDITION_FAILED)
        if place.body:
            responses["201"] = _content("There was none before.", result)
    described: dict[str, Any] = {
        "operationId": operation.name.replace(" ", "_"),
        "description": operation.about,
        "tags": [operation.name.partition(" ")[0]],
        # Without a token too: that is for loopback and a hub without a tokens file.
        "security": [{"token": []}, {}],
        "responses": responses,
    }
    in_path = [each for each in operation.arguments if _is_in_path(operation, each)]
    if operation.takes_object:
        members = [each for each in operation.arguments if each not in in_path]
        described["requestBody"] = _body(
            {
                "type": "object",
                "properties": {each.name: _member(each) for each in members},
                "required": [each.name for each in members if each.required],
                "additionalProperties": False,
            }
        )
    elif place.body:
        described["requestBody"] = _body(_BODIES.get(place.body, {"type": "object"}))
    if "requestBody" in described:
        statuses += _REFUSED_BODIES
    if operation.changes:
        statuses.append(HTTPStatus.INSUFFICIENT_STORAGE)
    if not operation.takes_object:
        described["parameters"] = [
            *(
                _parameter(operation, each)
                for each in operation.arguments
                if _is_parameter(operation, each)
            ),
            *(_header(*_HEADERS[name]) for name in _HEADERS if name in names),
        ]
    elif in_path:
        described["parameters"] = [_parameter(operation, each) for each in in_path]
    for status in statuses:
        responses[str(status.value)] = _problem(status)
    return described


def _is_parameter(operation: Operation, argument: Argument) -> bool:
    return argument.name not in {operation.place.body, *HEADER_ARGUMENTS}


def _is_in_path(operation: Operation, argument: Argument) -> bool:
    return f"{{{argument.name}}}" in operation.place.path


def _parameter(operation: Operation, argument: Argument) -> dict[str, Any]:
    return {
        "in": "path" if _is_in_path(operation, argument) else "query",
        "name": argument.name,
        "required": argument.required,
        "description": argument.about,
        "schema": argument.schema(),
    }


def _member(argument: Argument) -> dict[str, Any]:
    """Return the schema of an argument in a body, where null counts as absent."""
    schema = argument.schema()
    if argument.required or "type" not in schema:
        return schema
    choices = {"enum": [*argument.choices, None]} if argument.choices else {}
    return schema | choices | {"type": [schema["type"], "null"]}


def _header(name: str, about: str) -> dict[str, Any]:
    return {"in": "header", "name": name, "description": about, "schema": {"type": "string"}}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _content(about: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": about, "content": {kind: {"schema": schema}}}


def _problem(status: HTTPStatus) -> dict[str, Any]:
    return _content(status.phrase, {"$ref": "#/components/schemas/Problem"}, PROBLEM_TYPE)


def _fixed_paths() -> dict[str, Any]:
    """Describe what is no operation: the probes and the metrics."""
    yes = _content("Yes.", {"type": "object", "properties": {"status": {"type": "string"}}})
    exposition = _content("Prometheus text.", {"type": "string"}, metrics.MEDIA_TYPE)
    bad, unavailable = HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE
    refusals = (
        bad,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.MISDIRECTED_REQUEST,
        unavailable,
    )
    health = "Check that the process works; else restart it."
    ready = "Check whether messages should be sent here; the `detail` of a 503 says why not."
    figures = "Return the figures of the status in the text format of Prometheus."
    shown = _get("metrics", figures, "status", exposition, refusals)
    return {
        "/healthz": {"get": _get("healthz", health, "probes", yes, (bad, unavailable))},
        "/readyz": {"get": _get("readyz", ready, "probes", yes, (bad, unavailable))},
        "/metrics": {"get": {**shown, "security": [{"token": []}, {}]}},
    }


def _get(
    name: str, about: str, tag: str, content: dict[str, Any], refusals: Iterable[HTTPStatus]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "description": about,
        "tags": [tag],
        "responses": {"200": content, **{str(each.value): _problem(each) for each in refusals}},
    }
