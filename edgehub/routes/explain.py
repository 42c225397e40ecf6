"""An explanation of the routing of one message, route by route.

Owns the texts. Slow, for commands only; it uses the table and the compiled code of the message
path, so that both agree.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.routes.query.body import NOT_READ
from edgehub.routes.query.codegen import compile_value
from edgehub.routes.query.functions import ValueType
from edgehub.routes.query.lexer import Positions
from edgehub.routes.query.syntax import (
    AppProperty,
    BodyValue,
    Expression,
    Literal,
    Logic,
    SystemProperty,
    children,
)
from edgehub.routes.query.text import upper
from edgehub.routes.query.values import UNDEFINED, Value
from edgehub.routes.query.work import heavy_leaves, within_bound, work_of
from edgehub.routes.source import MQTT_PREFIX, PathSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import EndpointId, Message, Priority
    from edgehub.routes.source import Source
    from edgehub.routes.spec import RouteSpec
    from edgehub.routes.table import RouteTable

_SHOWN_CHARS_MAX: Final = 60


class RouteOutcome(StrEnum):
    """The result of one route for one message."""

    ROUTED = "routed"
    BEATEN = "beaten"  # it matches, but a better route to the same endpoint does as well
    SOURCE = "source"  # the message comes from elsewhere
    FALSE = "false"
    UNDEFINED = "undefined"


class RouteExplanation(Struct, frozen=True, kw_only=True):
    """The result of one route for one message, and the reason.

    Attributes:
        route: Name of the route.
        endpoint: Where it sends.
        priority: Its priority.
        ttl_s: Time to live in seconds, None = endless.
        outcome: The result.
        reason: Text for the operator.
        winner: The better route, None = there is none.
        line: Line of what decided in the route text, None = the whole route.
        column: Column in that line.
    """

    route: str
    endpoint: EndpointId
    priority: Priority
    ttl_s: int | None
    outcome: RouteOutcome
    reason: str
    winner: str | None = None
    line: int | None = None
    column: int | None = None


def explain_routing(table: RouteTable, message: Message) -> list[RouteExplanation]:
    """Return an explanation per route, in the order of the manifest."""
    winners = {result.endpoint_id: result.routes[0] for result in table.evaluate(message)}
    return [_explanation(table, spec, message, winners) for spec in table.manifest.routes]


def listens_to(source: Source, message_source: str) -> bool:
    """Return whether a route's source takes messages from `message_source`."""
    if isinstance(source, PathSource):
        closed = message_source if message_source.endswith("/") else message_source + "/"
        return upper(closed).startswith(source.key)
    topic = message_source.removeprefix(MQTT_PREFIX)
    return message_source.startswith(MQTT_PREFIX) and source.matches(topic)


def _explanation(
    table: RouteTable, spec: RouteSpec, message: Message, winners: dict[EndpointId, str]
) -> RouteExplanation:
    outcome, reason, place = _result(spec, message, table.hub_id)
    winner = None
    endpoint_id = spec.route.sink.endpoint_id
    if outcome is RouteOutcome.ROUTED and winners[endpoint_id] != spec.name:
        outcome, winner = RouteOutcome.BEATEN, winners[endpoint_id]
        better = _why_better(table, spec, winner)
        reason = f"it matches, but `{winner}` sends to {endpoint_id} as well and {better}"
    ttl_ms = table.ttl_ms(spec)
    line, column = (None, None) if place is None else Positions(spec.route.text).at(place)
    return RouteExplanation(
        route=spec.name,
        endpoint=endpoint_id,
        priority=spec.priority,
        ttl_s=None if ttl_ms is None else ttl_ms // 1000,
        outcome=outcome,
        reason=reason,
        winner=winner,
        line=line,
        column=column,
    )


def _why_better(table: RouteTable, spec: RouteSpec, winner: str) -> str:
    """Return why another route to the same endpoint that matches too is better."""
    best = next(each for each in table.manifest.routes if each.name == winner)
    if best.priority != spec.priority:
        return "has a better priority"
    if table.ttl_ms(best) != table.ttl_ms(spec):
        return "has a longer time to live, at the same priority"
    return "comes first by its name, at the same priority and time to live"


def _result(spec: RouteSpec, message: Message, hub_id: str) -> tuple[RouteOutcome, str, int | None]:
    """Return outcome, reason and the offset of what decided."""
    route = spec.route
    if not listens_to(route.source, message.source):
        return (
            RouteOutcome.SOURCE,
            f"it takes {route.source}, the message is {message.source}",
            None,
        )
    tree = route.condition.expression
    if tree is None:
        return RouteOutcome.ROUTED, "there is no condition", None
    trace = _Trace(route.text, message, hub_id)
    value = trace.value(tree)
    if value is True:
        return RouteOutcome.ROUTED, "the condition is true", None
    excess = trace.excess(tree)
    if excess is not None:
        return RouteOutcome.UNDEFINED, trace.excess_reason(*excess), excess[1].span.start
    decider = trace.decider(tree)
    outcome = RouteOutcome.FALSE if value is False or value is None else RouteOutcome.UNDEFINED
    return outcome, trace.reason(decider), decider.span.start


class _Trace:
    """The values of one condition for one message."""

    def __init__(self, text: str, message: Message, hub_id: str) -> None:
        self._text = text
        self._message = message
        self._hub_id = hub_id
        self._memo: list[Any] = [NOT_READ]

    def value(self, expression: Expression) -> Value:
        return compile_value(expression, self._hub_id)(self._message, self._memo)

    def excess(self, tree: Expression) -> tuple[int, Expression] | None:
        """Return passes and value that cost most, None = the condition keeps to its bound."""
        weighted = [(passes, leaf, self.value(leaf)) for passes, leaf in heavy_leaves(tree)]
        if within_bound(*((passes, value) for passes, _, value in weighted)):
            return None
        passes, leaf, _ = max(weighted, key=lambda each: work_of((each[0], each[2])))
        return passes, leaf

    def excess_reason(self, passes: int, leaf: Expression) -> str:
        name = self._text[leaf.span.start : leaf.span.end]
        return (
            f"the condition is undefined, since it would pass over the {len(self.value(leaf))} "
            f"characters of `{name}` {passes} times, which is too much work for one message"
        )

    def decider(self, expression: Expression) -> Expression:
        """Find the smallest part that kept the whole from being true."""
        if not isinstance(expression, Logic) or expression.type is ValueType.NULL:
            return expression
        values = [self.value(operand) for operand in expression.operands]
        if expression.operator == "AND":
            # A false operand makes the whole false; without one, what is not true leaves it open.
            failing = _first(expression.operands, values, lambda value: value is False)
            failing = failing or _first(
                expression.operands, values, lambda value: value is not True
            )
        else:
            failing = _first(expression.operands, values, lambda value: value is not False)
        return expression if failing is None else self.decider(failing)

    def reason(self, expression: Expression) -> str:
        text = self._text[expression.span.start : expression.span.end]
        value = self.value(expression)
        word = "false" if value is False or value is None else "undefined"
        if expression.type not in (ValueType.BOOL, ValueType.DYNAMIC, ValueType.NULL):
            word = f"a {expression.type}, not a bool"
        facts = dict.fromkeys(self._fact(leaf) for leaf in _leaves(expression))
        facts_text = "; ".join(facts)
        return f"`{text}` is {word}" + (f": {facts_text}" if facts_text else "")

    def _fact(self, leaf: Expression) -> str:
        name = self._text[leaf.span.start : leaf.span.end]
        value = self.value(leaf)
        if value is UNDEFINED:
            if isinstance(leaf, BodyValue):
                return f"{name} is undefined, since {self._why_no_body_value()}"
            return f"the message has no property {name}"
        shown = json.dumps(value)
        if len(shown) > _SHOWN_CHARS_MAX:
            shown = shown[:_SHOWN_CHARS_MAX] + "..."
        return f"{name} is {shown}"

    def _why_no_body_value(self) -> str:
        if isinstance(self._memo[0], dict):
            return "it is an object or array"
        system = self._message.system
        if (system.get("contentType") or "").lower() != "application/json":
            return "the content type is not application/json"
        if (system.get("contentEncoding") or "").lower() not in ("utf-8", "utf-16", "utf-32"):
            return "the content encoding is none of utf-8, utf-16 and utf-32"
        return "the body is no JSON object"


def _first(
    operands: Sequence[Expression], values: Sequence[Value], holds: Callable[[Value], bool]
) -> Expression | None:
    for operand, value in zip(operands, values, strict=True):
        if holds(value):
            return operand
    return None


def _leaves(expression: Expression) -> list[Expression]:
    """Return the properties and body values in an expression."""
    if isinstance(expression, AppProperty | SystemProperty | BodyValue):
        return [expression]
    if isinstance(expression, Literal):
        return []
    return [leaf for child in children(expression) for leaf in _leaves(child)]
