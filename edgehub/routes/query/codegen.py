"""Conditions into Python functions.

Owns the one place where code is generated: a function per source that evaluates the conditions of
all its routes at once and returns a bit mask, since calling one function per route would cost
more than the comparisons do. Values of the route text enter the code as literals or by the
namespace, names are made here: no part of a route is ever taken as code. Invariant: a generated
function raises nothing and returns the same as `values.py`, only faster.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from edgehub.routes.query import body, functions, properties, text, values
from edgehub.routes.query.emitter import ABSENT, ARITHMETIC, COMPARISONS, Emitter, shapes
from edgehub.routes.query.syntax import AppProperty, Comparison, Expression, Literal, SystemProperty
from edgehub.routes.query.work import heavy_leaves, within_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import Message

    Memo = list[Any]
    Predicates = Callable[[Message, Memo], int]
    Evaluate = Callable[[Message, Memo], values.Value]

_LOGIC: Final = ("conjunction", "disjunction", "negation", "negate", "text_or_undefined")
"""Functions of `values.py` that code calls, in addition to those of operators and functions."""

_DISPATCH_MIN: Final = 3
"""From so many `property = 'text'` on, one dict lookup is faster than the comparisons."""


def compile_predicates(
    conditions: Sequence[tuple[int, Expression | None]], hub_id: str
) -> Predicates:
    """Return a function of the sum of the bits whose conditions are true.

    Args:
        conditions: Bit and condition, None = always true.
        hub_id: Device id of the hub itself, for `$edgeHubOriginInterface`.
    """
    trees = [tree for _, tree in conditions if tree is not None]
    emitter = Emitter(_repeated(trees))
    always = sum(bit for bit, tree in conditions if tree is None)
    lines = []
    dispatch: dict[str, dict[str, int]] = {}
    for bit, tree in conditions:
        if tree is None:
            continue
        entry = _dispatch_entry(emitter, tree)
        if entry is None:
            bound = _bound(emitter, tree)
            lines.append(f"if {bound and f'{bound} and '}{emitter.truth(tree)}: mask |= {bit}")
        else:
            local, literal = entry
            table = dispatch.setdefault(local, {})
            table[literal] = table.get(literal, 0) | bit
    for local, table in dispatch.items():
        if len(table) < _DISPATCH_MIN:
            lines += [f"if {local} == {word!r}: mask |= {bit}" for word, bit in table.items()]
        else:
            lines.append(f"mask |= {emitter.constant(table)}.get({local}, 0)")
    function: Predicates = _function(
        [*emitter.prologue(), f"mask = {always}", *lines, "return mask"], emitter, hub_id
    )
    return function


def compile_value(expression: Expression, hub_id: str) -> Evaluate:
    """Return a function of the value of one expression."""
    emitter = Emitter(frozenset())
    bound, code = _bound(emitter, expression), emitter.value(expression)
    lines = [f"if not {bound}: return U"] if bound else []
    function: Evaluate = _function([*emitter.prologue(), *lines, f"return {code}"], emitter, hub_id)
    return function


def _bound(emitter: Emitter, tree: Expression) -> str:
    """Return the condition under which an expression may be evaluated; empty = always."""
    weighted = [f"({passes}, {emitter.value(leaf)})" for passes, leaf in heavy_leaves(tree)]
    return f"within_bound({', '.join(weighted)})" if weighted else ""


def _dispatch_entry(emitter: Emitter, tree: Expression) -> tuple[str, str] | None:
    """Return property and text of a condition that is just `property = 'text'`."""
    if not isinstance(tree, Comparison) or tree.operator != "=":
        return None
    named, literal = tree.left, tree.right
    if isinstance(named, Literal):
        named, literal = literal, named
    if not isinstance(named, AppProperty | SystemProperty) or not isinstance(literal, Literal):
        return None
    return emitter.local(named), literal.value


def _repeated(trees: Sequence[Expression]) -> frozenset[Any]:
    """Return the shapes of calls and body values that occur more than once; these are kept."""
    counts: Counter[Any] = Counter()
    for tree in trees:
        counts.update(shapes(tree))
    return frozenset(shape for shape, count in counts.items() if count > 1)


def _function(lines: Sequence[str], emitter: Emitter, hub_id: str) -> Any:
    source = "\n    ".join(["def evaluate(message, memo):", *lines])
    namespace: dict[str, Any] = {**_RUNTIME, **emitter.constants, "hub_id": hub_id}
    # The source holds nothing but names and literals made by the emitter.
    exec(compile(source, "<routes>", "exec"), namespace)  # noqa: S102 - see above
    return namespace["evaluate"]


def _runtime() -> dict[str, Any]:
    runtime = {
        "U": values.UNDEFINED,
        "X": ABSENT,
        "app_view": properties.app_view,
        "system_view": properties.system_view,
        "body_value": body.body_value,
        "before": text.before,
        "within_bound": within_bound,
        "str": str,
        "float": float,
    }
    names = (*ARITHMETIC.values(), *COMPARISONS.values(), *_LOGIC)
    helpers = [
        *(getattr(values, name) for name in names),
        *(each.runs for overloads in functions.FUNCTIONS.values() for each in overloads),
    ]
    return runtime | {helper.__name__: helper for helper in helpers}


_RUNTIME: Final = _runtime()
