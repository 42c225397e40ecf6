"""Bare words that were probably meant as texts: `kind = alarm` for `kind = 'alarm'`.

Owns the rule. A word is suspicious where a text in quotes would usually stand: on the right of `=`
or `!=` with a property or body value on the left, or as what `starts_with`, `ends_with`, `contains`
or `index_of` looks for. A name that the condition uses in any other place, for example in
`is_defined(name)`, is taken for the property that it is. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.routes.query.functions import FUNCTIONS
from edgehub.routes.query.syntax import AppProperty, Call, Comparison, Expression, Literal, children
from edgehub.routes.query.text import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

_SEARCHES: Final = frozenset(
    overload.runs
    for name in ("starts_with", "ends_with", "contains", "index_of")
    for overload in FUNCTIONS[name]
)


def bare_words(expression: Expression) -> Iterable[AppProperty]:
    """Return the first place of each suspicious word, in the order of the condition."""
    words: dict[str, AppProperty] = {}
    properties: set[str] = set()
    _sort(expression, words, properties)
    return [word for name, word in words.items() if name not in properties]


def _sort(expression: Expression, words: dict[str, AppProperty], properties: set[str]) -> None:
    suspicious = _in_place_of_a_text(expression)
    for child in children(expression):
        if suspicious is not None and child is suspicious:
            words.setdefault(fold(suspicious.name), suspicious)
        elif isinstance(child, AppProperty):
            properties.add(fold(child.name))
        else:
            _sort(child, words, properties)


def _in_place_of_a_text(expression: Expression) -> AppProperty | None:
    """Return the side or argument that is a bare word where a text is usual."""
    place: Expression | None = None
    if isinstance(expression, Comparison) and expression.operator in ("=", "!="):
        place, other = expression.right, expression.left
        if not isinstance(place, AppProperty):
            place, other = other, place
        if isinstance(other, Literal) or _same(place, other):
            return None
    elif isinstance(expression, Call) and expression.overload.runs in _SEARCHES:
        place = expression.arguments[1]
    return place if isinstance(place, AppProperty) else None


def _same(one: Expression, other: Expression) -> bool:
    if not isinstance(one, AppProperty) or not isinstance(other, AppProperty):
        return False
    return fold(one.name) == fold(other.name)
