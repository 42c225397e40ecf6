"""The parts of a parsed route: source, condition, sink.

Owns the immutable tree that the parser builds and the code generator reads. Every expression
carries its static type and its place in the route text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from edgehub.errors import RouteFault
    from edgehub.routes.query.functions import Overload, ValueType
    from edgehub.routes.query.values import Value
    from edgehub.routes.sink import Sink
    from edgehub.routes.source import Source

    Step = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of the route text: offsets of its first character and of the one after its last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The attributes of all expressions.

    Attributes:
        span: Its text, with enclosing parentheses.
        type: Static type.
        depth: Levels of expressions below and including this one.
    """

    span: Span
    type: ValueType
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(Node):
    """A constant."""

    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AppProperty(Node):
    """An application property, looked up ignoring case."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemProperty(Node):
    """A system property by `$name`.

    Attributes:
        name: Without the `$`.
        app_name: Application property that goes before it, None where braces exclude that.
    """

    name: str
    app_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyValue(Node):
    """A value of the JSON body.

    Attributes:
        steps: Member names and indexes.
        app_name: Application property that goes before it, None where there can be none.
    """

    steps: tuple[Step, ...]
    app_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    """A function with its arguments; `||` is one as well."""

    overload: Overload
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic(Node):
    """`+ - * / %` of two operands."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Negation(Node):
    """Unary minus."""

    operand: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Node):
    """`= != < <= > >=` of two operands (`<>` is written `!=` here)."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Not(Node):
    """Logical negation."""

    operand: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Logic(Node):
    """A chain of ANDs or of ORs.

    Attributes:
        operator: `AND` or `OR`.
        operands: Two or more.
    """

    operator: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesce(Node):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A whole condition.

    Attributes:
        text: Its text as written, without blanks and comments around it.
        expression: Its tree, None = always true, there was no WHERE.
        warnings: What is allowed but probably not intended.
    """

    text: str
    expression: Expression | None
    warnings: tuple[RouteFault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
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
