"""Comparisons into Python conditions, by the static types of their two sides.

Owns the short forms of most conditions: a property or body value against a constant.
Everything else calls the comparisons of `values.py`. Invariant: a piece of code is true exactly
when the comparison is defined and true.
"""

from __future__ import annotations

from typing import Final, Protocol

from edgehub.routes.query.functions import ValueType
from edgehub.routes.query.syntax import Comparison, Expression, Literal

COMPARISONS: Final = {
    "=": "equal",
    "!=": "unequal",
    "<": "less",
    "<=": "less_or_equal",
    ">": "greater",
    ">=": "greater_or_equal",
}

_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_PYTHON: Final = {"=": "=="}
_BEFORE: Final = {
    "<": "before({left}, {right})",
    ">": "before({right}, {left})",
    "<=": "not before({right}, {left})",
    ">=": "not before({left}, {right})",
}


class Emits(Protocol):
    """The emitter, as far as comparisons use it."""

    def truth(self, expression: Expression) -> str:
        """Emit the condition that the expression is true."""

    def falsity(self, expression: Expression) -> str:
        """Emit the condition that the expression is false."""

    def value(self, expression: Expression) -> str:
        """Emit the value."""

    def comparable(self, expression: Expression) -> str:
        """Emit the value for a comparison."""

    def bound(self, expression: Expression) -> tuple[str, str]:
        """Emit a value that is needed twice."""


def emit_comparison(emit: Emits, comparison: Comparison, operator: str) -> str:
    """Emit a Python condition: both sides are defined, and `operator` holds between them."""
    left, right = comparison.left, comparison.right
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right, operator = right, left, _MIRRORED[operator]
    code = ""
    if left.type is ValueType.DYNAMIC and isinstance(right, Literal):
        code = _body_with_constant(emit, left, right, operator)
    elif left.type is right.type is ValueType.TEXT:
        code = _texts(emit, left, right, operator)
    elif left.type is right.type is ValueType.NUMBER:
        code = _numbers(emit, left, right, operator)
    elif left.type is right.type is ValueType.BOOL:
        code = _bool_with_constant(emit, left, right, operator)
    if code:
        return code
    sides = f"{emit.comparable(left)}, {emit.comparable(right)}"
    return f"{COMPARISONS[operator]}({sides}) is True"


def _texts(emit: Emits, left: Expression, right: Expression, operator: str) -> str:
    if isinstance(right, Literal):
        constant = emit.value(right)
        if operator == "=":
            return f"{emit.value(left)} == {constant}"
        first, again = emit.bound(left)
        return f"({first}.__class__ is str and {_text_test(operator, again, constant)})"
    first, again = emit.bound(left)
    second, second_again = emit.bound(right)
    test = _text_test(operator, again, second_again)
    return f"({first}.__class__ is str and {second}.__class__ is str and {test})"


def _text_test(operator: str, left: str, right: str) -> str:
    if operator in _BEFORE:
        return _BEFORE[operator].format(left=left, right=right)
    return f"{left} {_PYTHON.get(operator, operator)} {right}"


def _numbers(emit: Emits, left: Expression, right: Expression, operator: str) -> str:
    sign = _PYTHON.get(operator, operator)
    if isinstance(right, Literal):
        constant = emit.value(right)
        if operator == "=":
            return f"{emit.value(left)} == {constant}"
        first, again = emit.bound(left)
        return f"({first} is not U and {again} {sign} {constant})"
    first, again = emit.bound(left)
    second, second_again = emit.bound(right)
    return f"({first} is not U and {second} is not U and {again} {sign} {second_again})"


def _bool_with_constant(emit: Emits, left: Expression, right: Expression, operator: str) -> str:
    if not isinstance(right, Literal) or operator not in ("=", "!="):
        return ""
    wanted = right.value is (operator == "=")
    return emit.truth(left) if wanted else emit.falsity(left)


def _body_with_constant(emit: Emits, left: Expression, right: Literal, operator: str) -> str:
    constant = emit.value(right)
    if right.type is ValueType.NUMBER:
        first, again = emit.bound(left)
        if operator == "!=":
            return (
                f"({first} is not U and ({again}.__class__ is not float or {again} != {constant}))"
            )
        sign = _PYTHON.get(operator, operator)
        return f"({first}.__class__ is float and {again} {sign} {constant})"
    if operator not in ("=", "!="):
        return ""
    same, other = ("==", "!=") if right.type is ValueType.TEXT else ("is", "is not")
    if operator == "=":
        return f"{emit.value(left)} {same} {constant}"
    first, again = emit.bound(left)
    return f"({first} is not U and {again} {other} {constant})"
