"""Static types of the condition language: builds checked expressions, or reports type errors.

Owns the typing rules. Every rule looks at its operands only, so that all faults of a condition are
found in one go; an operand with a fault fits everywhere. Invariant: an
expression that came out without a fault can be evaluated on any message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from edgehub.routes.hints import PartFault, near_miss
from edgehub.routes.query.body_path import parse_body_path
from edgehub.routes.query.functions import CONCAT, FUNCTIONS, ValueType, pick_overload
from edgehub.routes.query.syntax import (
    AppProperty,
    Arithmetic,
    BodyValue,
    Call,
    Coalesce,
    Comparison,
    Expression,
    Literal,
    Logic,
    Negation,
    Not,
    Span,
    SystemProperty,
)
from edgehub.routes.query.values import UNDEFINED, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.routes.query.lexer import RouteToken

    Complain = Callable[[int, str, str], None]

_BODY_PREFIX: Final = "$body."
_TWIN_FUNCTION: Final = "twin_change_includes"
_LOOKS_LIKE_OPERATORS: Final = re.compile(r"['+*%!|&]|^[0-9.]+-")
_COMPARABLE_WITH_BODY: Final = frozenset(
    {ValueType.TEXT, ValueType.NUMBER, ValueType.BOOL, ValueType.NULL, ValueType.DYNAMIC}
)
_LOGICAL: Final = frozenset({ValueType.BOOL, ValueType.NULL, ValueType.UNDEFINED})

ARGUMENTS_MAX: Final = 256
"""Of one call, a chain of `||` included."""

_BLANKS_HINT: Final = "put blanks around operators and words"
_AS_NUMBER_HINT: Final = "a property is text: write as_number(...) to compare or compute numbers"
_AS_NUMBER_BODY_HINT: Final = "write as_number($body...)"
_BODY_BOOL_HINT: Final = "write `$body... = true`, or put the body value on the left"


class Checker:
    """Builds the expressions of one condition and reports type errors."""

    def __init__(self, complain: Complain, warn: Complain) -> None:
        self._complain = complain
        self._warn = warn

    def literal(self, token: RouteToken, kind: ValueType, value: Value) -> Expression:
        """Build a constant."""
        return Literal(span=span_of(token), type=kind, value=value)

    def app_property(self, token: RouteToken) -> Expression:
        """Build a bare name."""
        name = str(token)
        if _LOOKS_LIKE_OPERATORS.search(name):
            self._warn(token.start, f"`{name}` is read as one property name", _BLANKS_HINT)
        return AppProperty(span=span_of(token), type=ValueType.TEXT, name=name)

    def dollar_name(self, token: RouteToken, span: Span, *, braced: bool) -> Expression:
        """Build `$name`, `{$name}` or a body value."""
        name = str(token)
        brackets = "[" in name or "]" in name
        if name.lower().startswith(_BODY_PREFIX):
            return self._body_value(name, span, None if brackets or braced else name)
        if brackets:
            # As in the original: such a name can be no property, so it is the constant undefined.
            self._warn(span.start, f"`{name}` names nothing", "only a body path has brackets")
            return Literal(span=span, type=ValueType.UNDEFINED, value=UNDEFINED)
        app_name = None if braced else name
        return SystemProperty(span=span, type=ValueType.TEXT, name=name[1:], app_name=app_name)

    def _body_value(self, name: str, span: Span, app_name: str | None) -> Expression:
        try:
            steps = parse_body_path(name[len(_BODY_PREFIX) :])
        except PartFault as fault:
            self._complain(span.start, f"`{name}`: {fault.message}", fault.hint)
            return _faulty(span)
        return BodyValue(span=span, type=ValueType.DYNAMIC, steps=steps, app_name=app_name)

    def called(self, token: RouteToken, span: Span, arguments: Sequence[Expression]) -> Expression:
        """Build a function call."""
        name = token.lower()
        if name not in FUNCTIONS:
            self._unknown_function(token)
            return _faulty(span)
        if not self._few_enough(token, len(arguments)):
            return _faulty(span)
        types = tuple(argument.type for argument in arguments)
        overload = pick_overload(name, types)
        if overload is None:
            self._complain(token.start, *_misfit(name, types))
            return _faulty(span)
        return Call(
            span=span,
            type=overload.result,
            depth=_depth(*arguments),
            overload=overload,
            arguments=tuple(arguments),
        )

    def _unknown_function(self, token: RouteToken) -> None:
        if token.lower() == _TWIN_FUNCTION:
            hint = "it never worked in a route; look at the body of a twin change instead"
        else:
            close = near_miss(token.lower(), FUNCTIONS)
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(FUNCTIONS)}"
        self._complain(token.start, f"unknown function `{token}`", hint)

    def concat(self, left: Expression, operator: RouteToken, right: Expression) -> Expression:
        """Build `left || right`."""
        span = _around(left, right)
        fits = (ValueType.TEXT, ValueType.DYNAMIC)
        if not self._all_of(operator, (left, right), fits, "joins texts"):
            return _faulty(span)
        chained = isinstance(left, Call) and left.overload is CONCAT
        parts = (*left.arguments, right) if isinstance(left, Call) and chained else (left, right)
        if not self._few_enough(operator, len(parts)):
            return _faulty(span)
        # A chain may be long: its depth is taken from what is known, not from all its parts.
        depth = max(left.depth, 1 + right.depth) if chained else _depth(left, right)
        return Call(span=span, type=ValueType.TEXT, depth=depth, overload=CONCAT, arguments=parts)

    def _few_enough(self, function: RouteToken, count: int) -> bool:
        if count > ARGUMENTS_MAX:
            self._complain(
                function.start,
                f"`{function}` has more than {ARGUMENTS_MAX} arguments",
                "join parts of them first, each part in a concat(...) of its own",
            )
        return count <= ARGUMENTS_MAX

    def negative(self, operator: RouteToken, operand: Expression) -> Expression:
        """Build a unary minus."""
        span = Span(start=operator.start, end=operand.span.end)
        if not self._all_of(operator, (operand,), (ValueType.NUMBER,), "takes a number"):
            return _faulty(span)
        return Negation(span=span, type=ValueType.NUMBER, depth=_depth(operand), operand=operand)

    def arithmetic(self, left: Expression, operator: RouteToken, right: Expression) -> Expression:
        """Build `+ - * / %`."""
        span = _around(left, right)
        fits: tuple[ValueType, ...] = (ValueType.NUMBER,)
        if operator != "%":
            fits += (ValueType.DYNAMIC,)
        if not self._all_of(operator, (left, right), fits, "takes numbers"):
            return _faulty(span)
        dynamic = ValueType.DYNAMIC in (left.type, right.type)
        return Arithmetic(
            span=span,
            type=ValueType.DYNAMIC if dynamic else ValueType.NUMBER,
            depth=_depth(left, right),
            operator=str(operator),
            left=left,
            right=right,
        )

    def comparison(self, left: Expression, operator: RouteToken, right: Expression) -> Expression:
        """Build `= != <> < <= > >=`."""
        span = _around(left, right)
        if not self._comparable(operator, left, right):
            return _faulty(span)
        return Comparison(
            span=span,
            type=ValueType.BOOL,
            depth=_depth(left, right),
            operator="!=" if operator == "<>" else str(operator),
            left=left,
            right=right,
        )

    def coalesce(self, left: Expression, operator: RouteToken, right: Expression) -> Expression:
        """Build `left ?? right`."""
        span = _around(left, right)
        if not self._comparable(operator, left, right):
            return _faulty(span)
        kind = left.type if left.type is right.type else ValueType.DYNAMIC
        return Coalesce(span=span, type=kind, depth=_depth(left, right), left=left, right=right)

    def logical_not(self, operator: RouteToken, operand: Expression) -> Expression:
        """Build NOT."""
        span = Span(start=operator.start, end=operand.span.end)
        fits = (ValueType.BOOL, ValueType.NULL, ValueType.DYNAMIC)
        if not self._all_of(operator, (operand,), fits, "takes a bool"):
            return _faulty(span)
        return Not(span=span, type=ValueType.BOOL, depth=_depth(operand), operand=operand)

    def logic(self, left: Expression, operator: RouteToken, right: Expression) -> Expression:
        """Build AND or OR; a chain of the same operator becomes one expression."""
        span = _around(left, right)
        name = operator.upper()
        if not self._logical(operator, left, right):
            return _faulty(span)
        nulls = (left.type is ValueType.NULL) + (right.type is ValueType.NULL)
        is_null = nulls == 2 or (nulls == 1 and name == "AND")  # noqa: PLR2004 - both of the two
        chained = isinstance(left, Logic) and left.operator == name
        operands = (*left.operands, right) if isinstance(left, Logic) and chained else (left, right)
        return Logic(
            span=span,
            type=ValueType.NULL if is_null else ValueType.BOOL,
            depth=max(left.depth, 1 + right.depth) if chained else _depth(left, right),
            operator=name,
            operands=operands,
        )

    def _logical(self, operator: RouteToken, left: Expression, right: Expression) -> bool:
        if ValueType.FAULTY in (left.type, right.type):
            return False
        dynamic = left.type is ValueType.DYNAMIC
        left_fits = dynamic or left.type in _LOGICAL
        right_fits = right.type in _LOGICAL or (dynamic and right.type is ValueType.DYNAMIC)
        if left_fits and right_fits:
            return True
        wrong = right if left_fits else left
        hint = _BODY_BOOL_HINT if wrong.type is ValueType.DYNAMIC else _operand_hint(wrong)
        self._complain(
            operator.start,
            f"`{operator}` takes bools, not {left.type} and {right.type}",
            hint or "compare the value with something",
        )
        return False

    def _comparable(self, operator: RouteToken, left: Expression, right: Expression) -> bool:
        kinds = (left.type, right.type)
        if ValueType.FAULTY in kinds:
            return False
        if left.type is right.type:
            return True
        if ValueType.DYNAMIC in kinds and _COMPARABLE_WITH_BODY.issuperset(kinds):
            return True
        self._complain(
            operator.start,
            f"`{operator}` takes two values of one type, not {left.type} and {right.type}",
            _comparison_hint(left, right),
        )
        return False

    def _all_of(
        self,
        operator: RouteToken,
        operands: tuple[Expression, ...],
        fits: tuple[ValueType, ...],
        wants: str,
    ) -> bool:
        kinds = tuple(operand.type for operand in operands)
        wrong = [operand for operand in operands if operand.type not in (*fits, ValueType.FAULTY)]
        if wrong:
            hint = _operand_hint(wrong[0]) if ValueType.NUMBER in fits else ""
            given = " and ".join(kinds)
            self._complain(operator.start, f"`{operator}` {wants}, not {given}", hint)
        return not wrong and ValueType.FAULTY not in kinds


def _misfit(name: str, types: tuple[ValueType, ...]) -> tuple[str, str]:
    overloads = FUNCTIONS[name]
    forms = " or ".join(
        f"{name}({', '.join(_parameter(kind) for kind in overload.parameters)}"
        f"{', ...' if overload.more else ''})"
        for overload in overloads
    )
    given = ", ".join(types) or "nothing"
    if not any(overload.takes_count(len(types)) for overload in overloads):
        return f"`{name}` does not take {len(types)} arguments", f"write {forms}"
    return f"`{name}` does not take ({given})", f"write {forms}"


def _parameter(kind: ValueType) -> str:
    return "any value" if kind is ValueType.DYNAMIC else kind


def _comparison_hint(left: Expression, right: Expression) -> str:
    for side in (left, right):
        if isinstance(side, AppProperty) and _LOOKS_LIKE_OPERATORS.search(side.name):
            return f"`{side.name}` is read as one property name: {_BLANKS_HINT}"
    kinds = {left.type, right.type}
    if ValueType.UNDEFINED in kinds:
        return "write is_defined(...) to ask whether there is a value"
    if ValueType.NULL in kinds:
        return "write is_null(...) to ask for null"
    if kinds == {ValueType.TEXT, ValueType.NUMBER}:
        return _AS_NUMBER_HINT
    if isinstance(left, Comparison | Not) or isinstance(right, Comparison | Not):
        return "put parentheses around what belongs together; NOT binds tighter than a comparison"
    return ""


def _operand_hint(operand: Expression) -> str:
    if operand.type is ValueType.DYNAMIC:
        return _AS_NUMBER_BODY_HINT
    if isinstance(operand, AppProperty) and _LOOKS_LIKE_OPERATORS.search(operand.name):
        return f"`{operand.name}` is read as one property name: {_BLANKS_HINT}"
    return _AS_NUMBER_HINT if operand.type is ValueType.TEXT else ""


def _faulty(span: Span) -> Expression:
    return Literal(span=span, type=ValueType.FAULTY, value=UNDEFINED)


def _depth(*children: Expression) -> int:
    return 1 + max((child.depth for child in children), default=0)


def span_of(token: RouteToken) -> Span:
    """Return the place of a token."""
    return Span(start=token.start, end=token.end)


def _around(left: Expression, right: Expression) -> Span:
    return Span(start=left.span.start, end=right.span.end)
