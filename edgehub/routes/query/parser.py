"""Route text into a checked route.

Owns the checks of a route as a whole. May call the lexer, the grammar with its builder, and
the rules of conditions. Invariant: for any text, the result is a route or one
`RouteCompileError` with all faults and their places.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from edgehub.errors import RouteCompileError, RouteFault, RouteFaultKind
from edgehub.routes.hints import clipped
from edgehub.routes.query.bare_words import bare_words
from edgehub.routes.query.builder import Builder
from edgehub.routes.query.functions import ValueType
from edgehub.routes.query.grammar import Grammar, UnexpectedTokenError
from edgehub.routes.query.lexer import END, FAULTS_MAX, Positions, tokenize
from edgehub.routes.query.syntax import Condition, Expression, Route, parts
from edgehub.routes.query.syntax_errors import unexpected
from edgehub.routes.query.work import WORK_MAX, heavy_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.routes.query.lexer import RouteToken

DEPTH_MAX: Final = 50
"""Levels of nested expressions; the code made from a condition nests as deep."""

PARTS_MAX: Final = 440
"""Properties, constants, comparisons, calls and operators of a condition.

A condition is compiled in one go, which takes up to 22 microseconds for each of them: 10 ms. To
evaluate the largest one takes 0.2 ms.
"""

_PASSES_UNUSUAL: Final = 64
"""From so many passes over one text on, texts of 16 KiB may be too much work."""

_NEVER_TRUE: Final = frozenset(
    {ValueType.TEXT, ValueType.NUMBER, ValueType.NULL, ValueType.UNDEFINED}
)


def parse_route(text: str) -> Route:
    """Parse and check a whole route, `FROM source WHERE condition INTO sink`.

    Raises:
        RouteCompileError: With all faults.
    """
    return _Parse(text).route()


def parse_condition(text: str) -> Condition:
    """Parse and check a condition on its own, as it may stand behind WHERE.

    Raises:
        RouteCompileError: With all faults, places counted from the condition's start.
    """
    return _Parse(text).condition()


class _Parse:
    """One run over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._positions = Positions(text)
        self._tokens = tokenize(text, self._positions)
        self._faults: list[tuple[int, RouteFault]] = []
        self._warnings: list[RouteFault] = []

    def route(self) -> Route:
        try:
            source, tree, sink = self._grammar().route()
        except UnexpectedTokenError as error:
            raise RouteCompileError([self._syntax_fault(error)]) from error
        condition = Condition(text="true", expression=None)
        if tree is not None:
            clause = [token.type for token in self._tokens]
            condition = self._condition(
                self._tokens[clause.index("WHERE") + 1 : clause.index("INTO")], tree
            )
        self._raise_faults()
        assert sink is not None
        return Route(
            text=self._text,
            source=source,
            condition=condition,
            sink=sink,
            warnings=tuple(self._warnings),
        )

    def condition(self) -> Condition:
        try:
            tree = self._grammar().condition()
        except UnexpectedTokenError as error:
            raise RouteCompileError([self._syntax_fault(error)]) from error
        condition = self._condition(self._tokens, tree)
        self._raise_faults()
        return condition

    def _condition(self, tokens: Sequence[RouteToken], tree: Expression) -> Condition:
        start, end = tokens[0].start, tokens[-1].end
        if tree.depth > DEPTH_MAX:
            self._complain(
                RouteFaultKind.CONDITION,
                start,
                f"the condition is nested {tree.depth} levels deep, {DEPTH_MAX} are allowed",
                "split it over several routes",
            )
        if not self._faults and (count := parts(tree)) > PARTS_MAX:
            self._complain(
                RouteFaultKind.CONDITION,
                start,
                f"the condition has {count} parts (properties, constants, comparisons, calls and "
                f"operators), {PARTS_MAX} are allowed",
                "split it over several routes",
            )
        if tree.type in _NEVER_TRUE:
            self._warn(
                RouteFaultKind.CONDITION,
                start,
                f"the condition is a {tree.type}, not a bool: the route takes nothing",
                "compare it with something",
            )
        if tree.depth <= DEPTH_MAX:
            self._warn_of_work(tree)
            self._warn_of_bare_words(tree)
        return Condition(
            text=self._text[start:end], expression=tree, warnings=tuple(self._warnings)
        )

    def _warn_of_work(self, tree: Expression) -> None:
        passes, leaf = max(heavy_leaves(tree), key=itemgetter(0), default=(0, tree))
        if passes > _PASSES_UNUSUAL:
            name = self._text[leaf.span.start : leaf.span.end]
            self._warn(
                RouteFaultKind.CONDITION,
                leaf.span.start,
                f"the condition passes over `{name}` {passes} times, and is undefined where it has "
                f"more than some {WORK_MAX // passes} characters",
                "split it over several routes",
            )

    def _warn_of_bare_words(self, tree: Expression) -> None:
        for word in bare_words(tree):
            self._warn(
                RouteFaultKind.CONDITION,
                word.span.start,
                f"`{word.name}` is the name of a property; for a text write '{word.name}'",
                f"where it is one, `is_defined({word.name}) AND ...` ends this warning",
            )

    def _grammar(self) -> Grammar:
        return Grammar(self._tokens, Builder(self._complain, self._warn))

    def _syntax_fault(self, error: UnexpectedTokenError) -> RouteFault:
        token = error.token
        end = len(self._text.rstrip())
        offset = end if token.type == END else token.start
        before = [each for each in self._tokens if each.start < offset]
        message, hint = unexpected(token, before, error.fitting)
        return self._fault(RouteFaultKind.SYNTAX, offset, message, hint)

    def _complain(self, kind: RouteFaultKind, offset: int, message: str, hint: str) -> None:
        self._faults.append((offset, self._fault(kind, offset, message, hint)))

    def _warn(self, kind: RouteFaultKind, offset: int, message: str, hint: str) -> None:
        self._warnings.append(self._fault(kind, offset, message, hint))

    def _fault(self, kind: RouteFaultKind, offset: int, message: str, hint: str) -> RouteFault:
        line, column = self._positions.at(offset)
        return RouteFault(
            kind=kind, line=line, column=column, message=clipped(message), hint=clipped(hint)
        )

    def _raise_faults(self) -> None:
        if self._faults:
            self._faults.sort(key=lambda fault: fault[0])
            raise RouteCompileError([fault for _, fault in self._faults[:FAULTS_MAX]])
