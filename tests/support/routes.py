"""Builders for tests of routes: messages, manifests, and conditions tried on messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edgehub.message import Message
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.query.body import NOT_READ
from edgehub.routes.query.codegen import compile_value
from edgehub.routes.query.parser import parse_condition
from edgehub.routes.table import RouteTable

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.message import EndpointId


def a_message(
    *,
    device_id: str = "d1",
    module_id: str | None = None,
    source: str = "/messages/",
    properties: dict[str, str | None] | None = None,
    system: dict[str, str | None] | None = None,
    json_body: Any = None,
    body: bytes = b"",
    encoding: str = "utf-8",
) -> Message:
    """Build a message; `json_body` also sets content type and encoding."""
    system = dict(system or {})
    if json_body is not None:
        body = json.dumps(json_body).encode()
    if json_body is not None or body:
        system = {"contentType": "application/json", "contentEncoding": encoding} | system
    return Message(device_id, module_id, source, dict(properties or {}), system, body)


def a_manifest(routes: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Build the desired properties of a hub."""
    return {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
        **members,
    }


def a_table(
    routes: dict[str, Any], *, endpoints: Collection[EndpointId] = (), hub_id: str = ""
) -> RouteTable:
    """Compile routes as the daemon does."""
    manifest = parse_manifest(a_manifest(routes), file="test")
    return RouteTable.compile(manifest, endpoints=endpoints, hub_id=hub_id)


def matches(condition: str, message: Message | None = None) -> bool:
    """Return whether a route with this condition takes the message."""
    table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
    return bool(table.evaluate(message or a_message()))


def value_of(condition: str, message: Message | None = None) -> Any:
    """Return the value of a condition, by the code that does not take the short forms."""
    expression = parse_condition(condition).expression
    assert expression is not None
    return compile_value(expression, "")(message or a_message(), [NOT_READ])
