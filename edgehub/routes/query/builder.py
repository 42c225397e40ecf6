"""Parse trees into sources, sinks and checked expressions.

Owns the step from grammar rules to meaning; the rules of types are the checker's. Works without
recursion, since a tree may be deeper than Python's stack.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from edgehub.errors import RouteFaultKind
from edgehub.routes.hints import PartFault
from edgehub.routes.query.checker import Checker, span_of, start_of
from edgehub.routes.query.functions import ValueType
from edgehub.routes.query.lexer import unescape
from edgehub.routes.query.syntax import Expression, Span
from edgehub.routes.query.text import joined
from edgehub.routes.query.values import UNDEFINED
from edgehub.routes.sink import Sink, called_sink, named_sink
from edgehub.routes.source import (
    MQTT_PREFIX,
    MqttSource,
    Source,
    filter_fault,
    path_source,
    path_warning,
)

if TYPE_CHECKING:
    from typing import Protocol

    class Report(Protocol):
        """Records a fault, or a warning, at an offset of the text."""

        def __call__(self, kind: RouteFaultKind, offset: int, message: str, hint: str) -> None:
            """Record a fault or warning."""

    Nodes = list[Any]

_WORDS: Final = {
    "TRUE": (ValueType.BOOL, True),
    "FALSE": (ValueType.BOOL, False),
    "NULL": (ValueType.NULL, None),
    "UNDEFINED": (ValueType.UNDEFINED, UNDEFINED),
}
_HEX_BITS: Final = 64


class Builder(Checker):
    """One method for each rule of the grammar."""

    def __init__(self, complain: Report, warn: Report) -> None:
        super().__init__(
            partial(complain, RouteFaultKind.CONDITION), partial(warn, RouteFaultKind.CONDITION)
        )
        self._report = complain
        self._report_warning = warn

    def source_path(self, nodes: Nodes) -> Source:
        """Build a source of the form `/messages/*`."""
        text = "".join(nodes)
        warning = path_warning(text)
        if warning:
            self._report_warning(
                RouteFaultKind.SYNTAX, start_of(nodes[0]), f"`{text}`: {warning}", ""
            )
        return path_source(text)

    def source_filter(self, nodes: Nodes) -> Source:
        """Build a source of the form `/mqtt/<topic filter>`."""
        topic_filter = nodes[0][len(MQTT_PREFIX) :].replace("%20", " ")
        fault = filter_fault(topic_filter)
        if fault:
            self._report(RouteFaultKind.SYNTAX, start_of(nodes[0]), fault, "")
        return MqttSource(filter=topic_filter)

    def sink_name(self, nodes: Nodes) -> Sink | None:
        """Build `$upstream`."""
        try:
            return named_sink(nodes[0], nodes[0].line, nodes[0].column)
        except PartFault as fault:
            self._report(RouteFaultKind.SINK, start_of(nodes[0]), fault.message, fault.hint)
            return None

    def sink_call(self, nodes: Nodes) -> Sink | None:
        """Build `BrokeredEndpoint("...")` or `Endpoint("...")`; escapes in it are plain text."""
        function, _, argument, _ = nodes
        try:
            return called_sink(function, argument[1:-1], function.line, function.column)
        except PartFault as fault:
            self._report(RouteFaultKind.SINK, start_of(function), fault.message, fault.hint)
            return None

    def word(self, nodes: Nodes) -> Expression:
        """Build true, false, null or undefined."""
        return self.literal(nodes[0], *_WORDS[nodes[0].type])

    def number(self, nodes: Nodes) -> Expression:
        """Build a decimal number; one too large for a double is infinite."""
        return self.literal(nodes[0], ValueType.NUMBER, float(nodes[0]))

    def hexadecimal(self, nodes: Nodes) -> Expression:
        """Build a hexadecimal number, 64 bits in two's complement."""
        digits = nodes[0][2:].lstrip("0") or "0"
        if len(digits) * 4 > _HEX_BITS:
            message = f"`{nodes[0]}` has more than {_HEX_BITS} bits"
            self._complain(start_of(nodes[0]), message, "write it in decimal")
            return self.literal(nodes[0], ValueType.FAULTY, UNDEFINED)
        value = int(digits, 16)
        if value >= 1 << (_HEX_BITS - 1):
            value -= 1 << _HEX_BITS
        return self.literal(nodes[0], ValueType.NUMBER, float(value))

    def string(self, nodes: Nodes) -> Expression:
        """Build a text."""
        return self.literal(nodes[0], ValueType.TEXT, joined(unescape(nodes[0])))

    def dollar_property(self, nodes: Nodes) -> Expression:
        """Build `$name`."""
        return self.dollar_name(nodes[0], span_of(nodes[0]), braced=False)

    def braced_property(self, nodes: Nodes) -> Expression:
        """Build `{$name}`."""
        return self.dollar_name(nodes[1], _outer(nodes), braced=True)

    def call(self, nodes: Nodes) -> Expression:
        """Build a function call."""
        arguments = [node for node in nodes if isinstance(node, Expression)]
        return self.called(nodes[0], _outer(nodes), arguments)

    def nested(self, nodes: Nodes) -> Expression:
        """Return the inner expression; its span keeps the parentheses."""
        inner: Expression = nodes[1]
        return replace(inner, span=_outer(nodes))


def _outer(nodes: Nodes) -> Span:
    return Span(start=start_of(nodes[0]), end=span_of(nodes[-1]).end)
