"""The work of a condition on texts, bounded before it is evaluated.

Owns the estimate: how often functions and comparisons pass over each property and body value, which
the condition alone decides, and the bound on passes times characters, which is checked per message.
Few conditions pass over a text more than `FREE_PASSES` times; the others are not checked, since
what they cost is in proportion to the message. Invariant: a condition is undefined on a message on
which it would exceed `WORK_MAX`, whatever other routes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.routes.query.functions import ValueType
from edgehub.routes.query.syntax import (
    AppProperty,
    BodyValue,
    Call,
    Coalesce,
    Comparison,
    Expression,
    Literal,
    SystemProperty,
    children,
)
from edgehub.routes.query.text import has_surrogates

if TYPE_CHECKING:
    from edgehub.routes.query.values import Value

    Leaf = AppProperty | SystemProperty | BodyValue

FREE_PASSES: Final = 4
WORK_MAX: Final = 2**20
"""Passes times characters, each a few nanoseconds at most: four over the largest message."""
CALL_CHARS: Final = 32
"""What a pass costs in addition to its characters."""
WIDE: Final = 2
"""What a character counts in a text that is not all ASCII."""
BROKEN: Final = 32
"""The same in one with half characters, which only escapes in a JSON body can write."""


def heavy_leaves(expression: Expression) -> list[tuple[int, Leaf]]:
    """Return the values that are passed over more than `FREE_PASSES` times, each with how often."""
    passes: dict[tuple[object, ...], tuple[int, Leaf]] = {}
    _count(expression, 0, passes)
    return [each for each in passes.values() if each[0] > FREE_PASSES]


def work_of(*weighted: tuple[int, Value]) -> int:
    """Return passes times characters, for pairs of passes and value."""
    work = 0
    for passes, value in weighted:
        if value.__class__ is str:
            work += passes * (len(value) * _factor(value) + CALL_CHARS)
    return work


def within_bound(*weighted: tuple[int, Value]) -> bool:
    """Return whether the work is allowed; compiled conditions check this first."""
    return work_of(*weighted) <= WORK_MAX


def _factor(value: str) -> int:
    if value.isascii():
        return 1
    return BROKEN if has_surrogates(value) else WIDE


def _count(
    expression: Expression, outer: int, passes: dict[tuple[object, ...], tuple[int, Leaf]]
) -> None:
    """Add what is passed over in an expression whose value is passed over `outer` times."""
    match expression:
        case AppProperty() | SystemProperty() | BodyValue():
            if outer:
                key = _key(expression)
                before, first = passes.get(key, (0, expression))
                passes[key] = (before + outer, first)
            return
        case Call():
            inner = 1 + (outer if expression.type is ValueType.TEXT else 0)
        case Comparison():
            # Against a constant, equality looks at no more than the constant has.
            sides = (expression.left, expression.right)
            constant = any(isinstance(side, Literal) for side in sides)
            inner = 0 if constant and expression.operator in ("=", "!=") else 1
        case Coalesce():
            inner = outer
        case _:
            inner = 0
    for child in children(expression):
        _count(child, inner, passes)


def _key(leaf: Leaf) -> tuple[object, ...]:
    if isinstance(leaf, AppProperty):
        return (leaf.name,)
    if isinstance(leaf, SystemProperty):
        return (leaf.name, leaf.app_name)
    return (leaf.steps, leaf.app_name)
