"""One line of `edgehub route test`: a condition or a route, tried on a message.

Owns the form of the lines and of the answers. Every line gets an answer, whatever it holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from edgehub.errors import RouteCompileError
from edgehub.message import DEFAULT_PRIORITY, UPSTREAM
from edgehub.routes.explain import RouteOutcome, explain_routing
from edgehub.routes.message_form import MessageFormError, read_message
from edgehub.routes.query.parser import parse_condition, parse_route
from edgehub.routes.query.syntax import Route
from edgehub.routes.sink import Sink
from edgehub.routes.source import path_source
from edgehub.routes.spec import Manifest, RouteRules, RouteSpec
from edgehub.routes.table import RouteTable

if TYPE_CHECKING:
    from edgehub.message import Message


class _UnusableLineError(Exception):
    """The line asks nothing that could be answered; the text says why."""


def try_line(line: bytes) -> tuple[dict[str, Any], bool]:
    """Answer one line of JSON.

    Returns:
        The answer (`id`, `ok`, `match`, `error`, `warnings`; `source`, `condition` and `sink` of a
        route), and whether the line could be used. A text that does not compile is an answer.
    """
    answer: dict[str, Any] = {"id": None, "ok": False, "match": None}
    try:
        question = _read(line)
        answer["id"] = question.get("id")
        form = question.get("message")
        answer |= _answer(question, None if form is None else read_message(form))
    except (_UnusableLineError, MessageFormError) as error:
        unusable = {"kind": "line", "line": None, "column": None, "message": str(error), "hint": ""}
        return answer | {"error": unusable, "errors": [unusable], "warnings": []}, False
    return answer, True


def _read(line: bytes) -> dict[str, Any]:
    try:
        question = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _UnusableLineError(f"not JSON: {error}") from error
    if not isinstance(question, dict):
        raise _UnusableLineError("the line must be a JSON object")
    return question


def _answer(question: dict[str, Any], message: Message | None) -> dict[str, Any]:
    texts = [name for name in ("condition", "route") if question.get(name) is not None]
    if len(texts) != 1 or not isinstance(question[texts[0]], str):
        raise _UnusableLineError("one of `condition` and `route` must be given, as a text")
    is_route = texts == ["route"]
    try:
        route = parse_route(question["route"]) if is_route else _as_route(question["condition"])
    except RouteCompileError as error:
        faults = list(map(to_builtins, error.faults))
        return {"ok": False, "error": faults[0], "errors": faults, "warnings": []}
    answer: dict[str, Any] = {
        "ok": True,
        "error": None,
        "errors": [],
        "warnings": list(map(to_builtins, route.warnings)),
    }
    if is_route:
        answer |= {
            "source": str(route.source),
            "condition": route.condition.text,
            "sink": str(route.sink),
        }
    if message is not None:
        verdict = explain_routing(table_of(route), message)[0]
        answer |= {
            "match": verdict.outcome is RouteOutcome.ROUTED,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
        }
    return answer


def _as_route(condition: str) -> Route:
    """Put a condition where telemetry comes from; places stay those of the condition alone."""
    parsed = parse_condition(condition)
    return Route(
        text=condition,
        source=path_source("/messages/*"),
        condition=parsed,
        sink=Sink(endpoint_id=UPSTREAM, named=False, line=1, column=1),
        warnings=parsed.warnings,
    )


def table_of(route: Route) -> RouteTable:
    """Compile a table of one route; a named endpoint is taken to exist."""
    spec = RouteSpec(
        name="route",
        path="route",
        route=route,
        priority=DEFAULT_PRIORITY,
        ttl_ms=None,
        recency=None,
        rules=RouteRules(),
    )
    manifest = Manifest(
        file="-", schema_version="1.1", routes=(spec,), global_ttl_ms=None, warnings=()
    )
    return RouteTable.compile(manifest, endpoints=[route.sink.endpoint_id])
