"""The parts of a parsed route: source, condition, sink.

Owns the immutable tree that the parser builds and the code generator reads. Every expression
carries its static type and its place in the route text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.errors import RouteFault
    from edgehub.routes.query.functions import Overload, ValueType
    from edgehub.routes.query.values import Value
    from edgehub.routes.sink import Sink
    from edgehub.routes.source import Source

    Step = str | int


class Span(Struct, frozen=True, kw_only=True):
    """A piece of the route text: offsets of its first character and of the one after its last."""

    start: int
    end: int


class Node(Struct, frozen=True, kw_only=True):
    """The attributes of all expressions.

    Attributes:
        span: Its text, with enclosing parentheses.
        type: Static type.
        depth: Levels of expressions below and including this one.
    """

    span: Span
    type: ValueType
    depth: int = 1


class Literal(Node, frozen=True, kw_only=True):
    """A constant."""

    value: Value


class AppProperty(Node, frozen=True, kw_only=True):
    """An application property, looked up ignoring case."""

    name: str


class SystemProperty(Node, frozen=True, kw_only=True):
    """A system property by `$name`.

    Attributes:
        name: Without the `$`.
        app_name: Application property that goes before it, None where braces exclude that.
    """

    name: str
    app_name: str | None


class BodyValue(Node, frozen=True, kw_only=True):
    """A value of the JSON body.

    Attributes:
        steps: Member names and indexes.
        app_name: Application property that goes before it, None where there can be none.
    """

    steps: tuple[Step, ...]
    app_name: str | None


class Call(Node, frozen=True, kw_only=True):
    """A function with its arguments; `||` is one as well."""

    overload: Overload
    arguments: tuple[Expression, ...]


class Arithmetic(Node, frozen=True, kw_only=True):
    """`+ - * / %` of two operands."""

    operator: str
    left: Expression
    right: Expression


class Negation(Node, frozen=True, kw_only=True):
    """Unary minus."""

    operand: Expression


class Comparison(Node, frozen=True, kw_only=True):
    """`= != < <= > >=` of two operands (`<>` is written `!=` here)."""

    operator: str
    left: Expression
    right: Expression


class Not(Node, frozen=True, kw_only=True):
    """Logical negation."""

    operand: Expression


class Logic(Node, frozen=True, kw_only=True):
    """A chain of ANDs or of ORs.

    Attributes:
        operator: `AND` or `OR`.
        operands: Two or more.
    """

    operator: str
    operands: tuple[Expression, ...]


class Coalesce(Node, frozen=True, kw_only=True):
    """`left ?? right`: the left value unless it is undefined."""

    left: Expression
    right: Expression


Expression = (
    Literal
    | AppProperty
    | SystemProperty
    | BodyValue
    | Call
    | Arithmetic
    | Negation
    | Comparison
    | Not
    | Logic
    | Coalesce
)


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly below one."""
    match expression:
        case Call():
            return expression.arguments
        case Arithmetic() | Comparison() | Coalesce():
            return (expression.left, expression.right)
        case Negation() | Not():
            return (expression.operand,)
        case Logic():
            return expression.operands
        case Literal() | AppProperty() | SystemProperty() | BodyValue():
            return ()
        case _:
            assert_never(expression)


def parts(expression: Expression) -> int:
    """Count the expressions in one, itself included."""
    count = 0
    waiting = [expression]
    while waiting:
        count += 1
        waiting.extend(children(waiting.pop()))
    return count


class Condition(Struct, frozen=True, kw_only=True):
    """A whole condition.

    Attributes:
        text: Its text as written, without blanks and comments around it.
        expression: Its tree, None = always true, there was no WHERE.
        warnings: What is allowed but probably not intended.
    """

    text: str
    expression: Expression | None
    warnings: tuple[RouteFault, ...] = ()


class Route(Struct, frozen=True, kw_only=True):
    """A parsed and checked route.

    Attributes:
        text: The whole route text.
        source: Senders of its messages.
        condition: Which of them it takes.
        sink: Their destination.
        warnings: What is allowed but probably not intended, those of the condition included.
    """

    text: str
    source: Source
    condition: Condition
    sink: Sink
    warnings: tuple[RouteFault, ...]
