"""Tokens of a grammar rule into a source, a sink or a checked expression.

Owns the step from grammar rules to meaning; the rules of types are the checker's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from edgehub.errors import RouteFaultKind
from edgehub.routes.hints import PartFault
from edgehub.routes.query.checker import Checker, span_of
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
    from collections.abc import Sequence
    from typing import Protocol

    from edgehub.routes.query.lexer import RouteToken

    class Report(Protocol):
        """Records a fault, or a warning, at an offset of the text."""

        def __call__(self, kind: RouteFaultKind, offset: int, message: str, hint: str) -> None:
            """Record a fault or warning."""


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

    def source_path(self, tokens: Sequence[RouteToken]) -> Source:
        """Build a source of the form `/messages/*`."""
        text = "".join(tokens)
        warning = path_warning(text)
        if warning:
            self._report_warning(RouteFaultKind.SYNTAX, tokens[0].start, f"`{text}`: {warning}", "")
        return path_source(text)

    def source_filter(self, token: RouteToken) -> Source:
        """Build a source of the form `/mqtt/<topic filter>`."""
        topic_filter = token[len(MQTT_PREFIX) :].replace("%20", " ")
        fault = filter_fault(topic_filter)
        if fault:
            self._report(RouteFaultKind.SYNTAX, token.start, fault, "")
        return MqttSource(filter=topic_filter)

    def sink_name(self, token: RouteToken) -> Sink | None:
        """Build `$upstream`."""
        try:
            return named_sink(token, token.line, token.column)
        except PartFault as fault:
            self._report(RouteFaultKind.SINK, token.start, fault.message, fault.hint)
            return None

    def sink_call(self, function: RouteToken, argument: RouteToken) -> Sink | None:
        """Build `BrokeredEndpoint("...")` or `Endpoint("...")`; escapes in it are plain text."""
        try:
            return called_sink(function, argument[1:-1], function.line, function.column)
        except PartFault as fault:
            self._report(RouteFaultKind.SINK, function.start, fault.message, fault.hint)
            return None

    def word(self, token: RouteToken) -> Expression:
        """Build true, false, null or undefined."""
        return self.literal(token, *_WORDS[token.type])

    def number(self, token: RouteToken) -> Expression:
        """Build a decimal number; one too large for a double is infinite."""
        return self.literal(token, ValueType.NUMBER, float(token))

    def hexadecimal(self, token: RouteToken) -> Expression:
        """Build a hexadecimal number, 64 bits in two's complement."""
        digits = token[2:].lstrip("0") or "0"
        if len(digits) * 4 > _HEX_BITS:
            message = f"`{token}` has more than {_HEX_BITS} bits"
            self._complain(token.start, message, "write it in decimal")
            return self.literal(token, ValueType.FAULTY, UNDEFINED)
        value = int(digits, 16)
        if value >= 1 << (_HEX_BITS - 1):
            value -= 1 << _HEX_BITS
        return self.literal(token, ValueType.NUMBER, float(value))

    def string(self, token: RouteToken) -> Expression:
        """Build a text."""
        return self.literal(token, ValueType.TEXT, joined(unescape(token)))

    def dollar_property(self, token: RouteToken) -> Expression:
        """Build `$name`."""
        return self.dollar_name(token, span_of(token), braced=False)

    def braced_property(
        self, opening: RouteToken, token: RouteToken, closing: RouteToken
    ) -> Expression:
        """Build `{$name}`."""
        return self.dollar_name(token, _outer(opening, closing), braced=True)

    def call(
        self, name: RouteToken, arguments: Sequence[Expression], closing: RouteToken
    ) -> Expression:
        """Build a function call."""
        return self.called(name, _outer(name, closing), arguments)

    def nested(self, opening: RouteToken, inner: Expression, closing: RouteToken) -> Expression:
        """Return the inner expression; its span keeps the parentheses."""
        return replace(inner, span=_outer(opening, closing))


def _outer(first: RouteToken, last: RouteToken) -> Span:
    return Span(start=first.start, end=last.end)
