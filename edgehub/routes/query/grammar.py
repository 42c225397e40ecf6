"""The grammar of the route language: tokens into a source, a checked condition and a sink.

Owns the order of clauses and the ranks of operators. Works without recursion, since a text may be
nested deeper than Python's stack. Invariant: for any tokens, the result is what the builder made of
all of them, or one `UnexpectedTokenError`.

    route     = [SELECT "*"] FROM source [WHERE condition] INTO sink
    source    = ("/" ("*" | name))+  |  MQTT filter
    sink      = $name  |  name "(" string ")"
    condition = operand (operator operand)*
    operand   = ("-" | NOT)* (constant | name | $name | "{" $name "}" | call | "(" condition ")")
    call      = name "(" [condition ("," condition)*] ")"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.routes.query.builder import Builder
from edgehub.routes.query.lexer import END, RouteToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from edgehub.routes.query.syntax import Expression
    from edgehub.routes.sink import Sink
    from edgehub.routes.source import Source

_OPERATORS: Final = {
    # How tightly each binds, and the rule for it; those of one rank are read from the left.
    "COALESCE": (1, Builder.coalesce),
    "OR": (2, Builder.logic),
    "AND": (3, Builder.logic),
    "EQUALITY": (4, Builder.comparison),
    "ORDER": (5, Builder.comparison),
    "PLUS": (6, Builder.arithmetic),
    "MINUS": (6, Builder.arithmetic),
    "CONCAT": (6, Builder.concat),
    "STAR": (7, Builder.arithmetic),
    "SLASH": (7, Builder.arithmetic),
    "PERCENT": (7, Builder.arithmetic),
}
_PREFIXES: Final = {"MINUS": Builder.negative, "NOT": Builder.logical_not}
_LEAVES: Final[Mapping[str, Callable[[Builder, RouteToken], Expression]]] = {
    "TRUE": Builder.word,
    "FALSE": Builder.word,
    "NULL": Builder.word,
    "UNDEFINED": Builder.word,
    "INTEGER": Builder.number,
    "REAL": Builder.number,
    "HEX": Builder.hexadecimal,
    "STRING": Builder.string,
    "NAME": Builder.app_property,
    "DOLLAR_NAME": Builder.dollar_property,
}
_OPERANDS: Final = frozenset({*_LEAVES, *_PREFIXES, "LBRACE", "LPAR"})


class UnexpectedTokenError(Exception):
    """A token fits nowhere.

    Attributes:
        token: The token, of type `END` where the text ends too early.
        fitting: Types of token that would have fitted.
    """

    def __init__(self, token: RouteToken, fitting: Iterable[str]) -> None:
        super().__init__(token)
        self.token = token
        self.fitting = frozenset(fitting)


class _Level:
    """The part of a condition that has been read at one level of parentheses.

    Args:
        build: Makes expressions.
        opening: The parenthesis, or the name of the function; None = the whole condition.
    """

    def __init__(self, build: Builder, opening: RouteToken | None = None) -> None:
        self._build = build
        self._operands: list[Expression] = []
        self._operators: list[RouteToken] = []
        self._prefixes: list[RouteToken] = []
        self.opening = opening
        self.arguments: list[Expression] = []

    @property
    def is_call(self) -> bool:
        return self.opening is not None and self.opening.type == "NAME"

    def prefix(self, token: RouteToken) -> None:
        """Record an operator in front of the next operand."""
        self._prefixes.append(token)

    def operand(self, expression: Expression) -> None:
        """Record an operand, and bind the operators in front of it."""
        while self._prefixes:
            token = self._prefixes.pop()
            expression = _PREFIXES[token.type](self._build, token, expression)
        self._operands.append(expression)

    def operator(self, token: RouteToken) -> None:
        """Record an operator between operands, and bind those before it that bind as tightly."""
        self._bind(_OPERATORS[token.type][0])
        self._operators.append(token)

    def value(self) -> Expression:
        """Return the expression of all that was read, and start the next one."""
        self._bind(0)
        return self._operands.pop()

    def _bind(self, rank: int) -> None:
        while self._operators and _OPERATORS[self._operators[-1].type][0] >= rank:
            token = self._operators.pop()
            right, left = self._operands.pop(), self._operands.pop()
            rule = _OPERATORS[token.type][1]
            self._operands.append(rule(self._build, left, token, right))


class Grammar:
    """One run over the tokens of one text.

    Args:
        tokens: All of them.
        build: Makes sources, sinks and expressions of them.
    """

    def __init__(self, tokens: Sequence[RouteToken], build: Builder) -> None:
        self._tokens = iter(tokens)
        self._build = build
        self._token = RouteToken(END)
        self._step()

    def route(self) -> tuple[Source, Expression | None, Sink | None]:
        """Read a whole route; the sink is None if it has a fault.

        Raises:
            UnexpectedTokenError: At the first token that fits nowhere.
        """
        if self._take("SELECT", "FROM").type == "SELECT":
            self._take("STAR")
            self._take("FROM")
        source = self._source()
        expression = None
        if self._token.type == "WHERE":
            self._step()
            expression = self._condition("INTO")
        self._take("INTO")
        sink = self._sink()
        self._take(END)
        return source, expression, sink

    def condition(self) -> Expression:
        """Read a condition that stands alone.

        Raises:
            UnexpectedTokenError: At the first token that fits nowhere.
        """
        return self._condition(END)

    def _step(self) -> RouteToken:
        token = self._token
        self._token = next(self._tokens, RouteToken(END))
        return token

    def _take(self, *fitting: str) -> RouteToken:
        if self._token.type not in fitting:
            raise UnexpectedTokenError(self._token, fitting)
        return self._step()

    def _source(self) -> Source:
        if self._token.type == "MQTT_FILTER":
            source = self._build.source_filter(self._step())
            fitting = {"WHERE", "INTO"}
        else:
            path = [self._take("SLASH", "MQTT_FILTER"), self._take("STAR", "NAME")]
            while self._token.type == "SLASH":
                path += [self._step(), self._take("STAR", "NAME")]
            source = self._build.source_path(path)
            fitting = {"SLASH", "WHERE", "INTO"}
        if self._token.type not in fitting:
            raise UnexpectedTokenError(self._token, fitting)
        return source

    def _sink(self) -> Sink | None:
        name = self._take("DOLLAR_NAME", "NAME")
        if name.type == "DOLLAR_NAME":
            return self._build.sink_name(name)
        self._take("LPAR")
        argument = self._take("STRING")
        self._take("RPAR")
        return self._build.sink_call(name, argument)

    def _condition(self, end: str) -> Expression:
        """Read an expression up to a token of type `end`, which is left."""
        levels = [_Level(self._build)]
        self._operand(levels)
        while True:
            level = levels[-1]
            token = self._token
            if token.type in _OPERATORS:
                self._step()
                level.operator(token)
                self._operand(levels)
            elif token.type == "COMMA" and level.is_call:
                self._step()
                level.arguments.append(level.value())
                self._operand(levels)
            elif token.type == "RPAR" and level.opening is not None:
                level.arguments.append(level.value())
                self._close(levels)
            elif token.type == end and level.opening is None:
                return level.value()
            else:
                closing = {end} if level.opening is None else {"RPAR"}
                more = {"COMMA"} if level.is_call else set()
                raise UnexpectedTokenError(token, _OPERATORS.keys() | closing | more)

    def _operand(self, levels: list[_Level]) -> None:
        """Read up to the end of an operand, into parentheses that open before it."""
        while True:
            token = self._token
            if token.type not in _OPERANDS:
                raise UnexpectedTokenError(token, _OPERANDS)
            self._step()
            if token.type in _PREFIXES:
                levels[-1].prefix(token)
            elif token.type == "LPAR":
                levels.append(_Level(self._build, token))
            elif token.type == "LBRACE":
                name, closing = self._take("DOLLAR_NAME"), self._take("RBRACE")
                levels[-1].operand(self._build.braced_property(token, name, closing))
                return
            elif token.type == "NAME" and self._token.type == "LPAR":
                self._step()
                levels.append(_Level(self._build, token))
                if self._token.type not in _OPERANDS:
                    self._close(levels)
                    return
            else:
                levels[-1].operand(_LEAVES[token.type](self._build, token))
                return

    def _close(self, levels: list[_Level]) -> None:
        """Close the innermost parenthesis; what stands in it is an operand of the next level."""
        if self._token.type != "RPAR":
            raise UnexpectedTokenError(self._token, _OPERANDS | {"RPAR"})
        closing = self._step()
        level = levels.pop()
        assert level.opening is not None
        if level.is_call:
            value = self._build.call(level.opening, level.arguments, closing)
        else:
            (inner,) = level.arguments
            value = self._build.nested(level.opening, inner, closing)
        levels[-1].operand(value)
