"""Checked expressions into pieces of Python code.

Owns the shape of generated code. Each expression can be emitted in three ways: its value, whether
it is true, and whether it is false. A condition routes only when it is true, so a chain of ANDs,
ORs and NOTs needs plain Python conditions and no three-valued arithmetic: undefined is neither true
nor false. Comparisons are Python's own where the static types of both sides allow it. Invariant: a
piece of code reads no name that was not made here or in the runtime.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, assert_never

from edgehub.routes.query.functions import CONCAT, ValueType
from edgehub.routes.query.properties import system_name
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
    SystemProperty,
    children,
)
from edgehub.routes.query.text import fold
from edgehub.routes.query.values import UNDEFINED, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    Shape = tuple[Any, ...]

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

ABSENT: Final = object()
"""Marks a value that was not looked up yet, or not found where another may be."""

_NEGATED: Final = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}
_DERIVED: Final = {
    "connectiondeviceid": "message.device_id or U",
    "connectionmoduleid": "U if message.module_id is None else message.module_id",
    "edgemessageid": "message.message_id or U",
    "edgehuborigininterface": "'internal' if message.device_id == hub_id else 'downstream'",
}
_SEARCHES: Final = {
    "starts_with": "{text}.startswith({part})",
    "ends_with": "{text}.endswith({part})",
    "contains": "{part} in {text}",
}
_FIRST_SURROGATE: Final = "\ud800"


def shapes(expression: Expression) -> Iterator[Shape]:
    """Return the shape of every call and body value; those of equal shape have equal values."""
    if isinstance(expression, Call):
        yield _shape(expression)
    elif isinstance(expression, BodyValue):
        yield _body_shape(expression)
    for child in children(expression):
        yield from shapes(child)


def _body_shape(expression: BodyValue) -> Shape:
    name = expression.app_name
    return (BodyValue, expression.steps, None if name is None else fold(name))


def _shape(expression: Expression) -> Shape:
    own = tuple(
        getattr(expression, name)
        for name in expression.__struct_fields__
        if name not in ("span", "depth", "left", "right", "operand", "operands", "arguments")
    )
    # A literal counts as it is written: to Python, True and 1.0 are equal, and so are 0.0 and -0.0.
    written = repr(expression.value) if isinstance(expression, Literal) else ""
    below = tuple(_shape(child) for child in children(expression))
    return (expression.__class__, written, *own, *below)


class Emitter:
    """Emits the code of one function: call the emitting methods, then `prologue`."""

    def __init__(self, repeated: frozenset[Shape]) -> None:
        self._repeated = repeated
        self._lookups: dict[Any, tuple[str, list[str]]] = {}
        self._memos: list[str] = []
        self._kept: dict[Shape, str] = {}
        self._memo_of: dict[str, str] = {}
        self._temporaries = 0
        self._body_reads_app = False
        self.constants: dict[str, Any] = {}

    def prologue(self) -> list[str]:
        """Return the lines that look up properties and prepare what is kept."""
        lookups = [line for _, lines in self._lookups.values() for line in lines]
        lines = []
        if any("app(" in line for line in lookups) or self._body_reads_app:
            lines.append("app = app_view(message.properties).get")
        if any("system(" in line for line in lookups):
            lines.append("system = system_view(message.system).get")
        return [*lines, *lookups, *(f"{memo} = X" for memo in self._memos)]

    def constant(self, value: Any) -> str:
        """Return a name for a value that cannot be written as a literal."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # Whether an expression is true, and whether it is false.

    def truth(self, expression: Expression) -> str:
        """Emit a Python condition: the expression is true."""
        match expression:
            case Logic(type=ValueType.NULL):
                return "False"
            case Logic():
                joint = " and " if expression.operator == "AND" else " or "
                return f"({joint.join(map(self.truth, _operands(expression)))})"
            case Not(operand=operand):
                return "True" if operand.type is ValueType.NULL else self.falsity(operand)
            case Comparison():
                return _comparison(self, expression, expression.operator)
            case Call():
                return self._call_outcome(expression, wanted=True)
            case _:
                return self._plain_outcome(expression, wanted=True)

    def falsity(self, expression: Expression) -> str:
        """Emit a Python condition: the expression is false, which undefined is not."""
        match expression:
            case Logic():
                joint = " or " if expression.operator == "AND" else " and "
                return f"({joint.join(map(self.falsity, _operands(expression)))})"
            case Not(operand=operand):
                return "False" if operand.type is ValueType.NULL else self.truth(operand)
            case Comparison():
                return _comparison(self, expression, _NEGATED[expression.operator])
            case Call():
                return self._call_outcome(expression, wanted=False)
            case _:
                return self._plain_outcome(expression, wanted=False)

    def _plain_outcome(self, expression: Expression, *, wanted: bool) -> str:
        if expression.type not in (ValueType.BOOL, ValueType.DYNAMIC):
            return "False"
        return f"{self.value(expression)} is {wanted}"

    def _call_outcome(self, call: Call, *, wanted: bool) -> str:
        name = call.overload.runs.__name__
        if call.type is not ValueType.BOOL or isinstance(call.arguments[0], Literal):
            return self._plain_outcome(call, wanted=wanted)
        if name == "is_defined":
            return f"{self.value(call.arguments[0])} {'is not' if wanted else 'is'} U"
        if name == "is_null":
            return f"{self.value(call.arguments[0])} {'is' if wanted else 'is not'} None"
        if name in _SEARCHES and _is_simple_text(call.arguments[1]):
            first, again = self.bound(call.arguments[0])
            part = self.value(call.arguments[1])
            found = _SEARCHES[name].format(text=again, part=part)
            return f"({first}.__class__ is str and {'' if wanted else 'not '}{found})"
        return f"{self.value(call)} is {wanted}"

    # The value of an expression.

    def value(self, expression: Expression) -> str:
        """Emit a Python expression that gives the value."""
        match expression:
            case Literal():
                code = self._literal(expression.value)
            case AppProperty() | SystemProperty():
                code = self.local(expression)
            case BodyValue():
                code = self._body_value(expression)
            case Call():
                code = self._call(expression)
            case Not() | Logic() | Comparison():
                code = self._logical_value(expression)
            case Negation():
                code = self._applied("negate", expression.operand)
            case Arithmetic():
                code = self._arithmetic(expression)
            case Coalesce():
                first, again = self.bound(expression.left)
                code = f"({again} if {first} is not U else {self.value(expression.right)})"
            case _:
                assert_never(expression)
        return code

    def _logical_value(self, expression: Not | Logic | Comparison) -> str:
        match expression:
            case Not(operand=operand) if operand.type is ValueType.NULL:
                code = "True"
            case Not(operand=operand):
                code = self._applied("negation", operand)
            case Logic(type=ValueType.NULL):
                code = "None"
            case Logic():
                name = "conjunction" if expression.operator == "AND" else "disjunction"
                code = self._applied(name, *_operands(expression))
            case Comparison():
                sides = (self.comparable(expression.left), self.comparable(expression.right))
                code = f"{COMPARISONS[expression.operator]}({', '.join(sides)})"
            case _:
                assert_never(expression)
        return code

    def comparable(self, expression: Expression) -> str:
        """Emit a value for a comparison, in which a property without a value is undefined."""
        code = self.value(expression)
        if expression.type is ValueType.TEXT and not isinstance(expression, Literal):
            return f"text_or_undefined({code})"
        return code

    def bound(self, expression: Expression) -> tuple[str, str]:
        """Emit a value that is needed twice: code for the first and for later uses."""
        code = self.value(expression)
        if code.isidentifier():
            return code, code
        memo = self._memo_of.get(code)
        if memo is not None:
            return code, memo
        name = self._temporary()
        return f"({name} := {code})", name

    def local(self, expression: AppProperty | SystemProperty) -> str:
        """Return the local name that holds a property."""
        if isinstance(expression, AppProperty):
            key: Any = fold(expression.name)
        else:
            app_name = expression.app_name
            key = (None if app_name is None else fold(app_name), system_name(expression.name))
        if key not in self._lookups:
            name = f"p{len(self._lookups)}"
            self._lookups[key] = (name, _lookup(name, key))
        return self._lookups[key][0]

    def _literal(self, value: Value) -> str:
        if value is UNDEFINED:
            return "U"
        if value.__class__ is not float:
            return repr(value)
        if not math.isfinite(value):
            return self.constant(value)
        return repr(value) if value >= 0 else f"({value!r})"

    def _body_value(self, expression: BodyValue) -> str:
        shape = _body_shape(expression)
        *_, name = shape
        code = f"body_value(message, memo, {self.constant(expression.steps)})"
        if name is not None:
            self._body_reads_app = True
            found = self._temporary()
            code = f"({found} if ({found} := app({name!r}, X)) is not X else {code})"
        return self._keep(shape, code)

    def _arithmetic(self, expression: Arithmetic) -> str:
        left, right = expression.left, expression.right
        # With a finite constant other than 0 on the right, Python's operators raise nothing and
        # make no NaN; its `%` is another function than ours.
        plain = isinstance(right, Literal) and right.value != 0 and math.isfinite(right.value)
        if not plain or expression.type is not ValueType.NUMBER or expression.operator == "%":
            return self._applied(ARITHMETIC[expression.operator], left, right)
        first, again = self.bound(left)
        return f"(U if {first} is U else {again} {expression.operator} {self.value(right)})"

    def _call(self, call: Call) -> str:
        arguments = [
            # Null of the body is no text, while a property without a value joins as an empty one.
            f"text_or_undefined({self.value(argument)})"
            if call.overload is CONCAT and argument.type is ValueType.DYNAMIC
            else self.value(argument)
            for argument in call.arguments
        ]
        code = f"{call.overload.runs.__name__}({', '.join(arguments)})"
        return self._keep(_shape(call), code)

    def _keep(self, shape: Shape, code: str) -> str:
        """Emit code that computes a value that is needed again at most once per message."""
        if shape not in self._repeated:
            return code
        name = self._kept.get(shape)
        if name is None:
            name = self._kept[shape] = f"m{len(self._memos)}"
            self._memos.append(name)
        kept = f"({name} if {name} is not X else ({name} := {code}))"
        self._memo_of[kept] = name
        return kept

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def _applied(self, function: str, *operands: Expression) -> str:
        return f"{function}({', '.join(map(self.value, operands))})"


def _operands(logic: Logic) -> list[Expression]:
    """Return the operands without null, which changes nothing in an OR; a null AND is null."""
    return [operand for operand in logic.operands if operand.type is not ValueType.NULL]


def _is_simple_text(expression: Expression) -> bool:
    """Return whether Python's own search is the same as one by code unit."""
    return (
        isinstance(expression, Literal)
        and expression.value.__class__ is str
        and all(letter < _FIRST_SURROGATE for letter in expression.value)
    )


def _lookup(name: str, key: Any) -> list[str]:
    if key.__class__ is str:
        return [f"{name} = app({key!r}, U)"]
    app_name, system = key
    places = [f"app({app_name!r}, X)"] if app_name is not None else []
    if fold(system) in _DERIVED:
        places.append(_DERIVED[fold(system)])
    elif system == "correlationId":
        # On the wire it is `$.cid`, and conditions know it under both names.
        places += ["system('correlationId', X)", "system('cid', U)"]
    else:
        places.append(f"system({system!r}, U)")
    return [f"{name} = {places[0]}", *(f"if {name} is X: {name} = {each}" for each in places[1:])]


def _comparison(emit: Emitter, comparison: Comparison, operator: str) -> str:
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


def _texts(emit: Emitter, left: Expression, right: Expression, operator: str) -> str:
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


def _numbers(emit: Emitter, left: Expression, right: Expression, operator: str) -> str:
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


def _bool_with_constant(emit: Emitter, left: Expression, right: Expression, operator: str) -> str:
    if not isinstance(right, Literal) or operator not in ("=", "!="):
        return ""
    wanted = right.value is (operator == "=")
    return emit.truth(left) if wanted else emit.falsity(left)


def _body_with_constant(emit: Emitter, left: Expression, right: Literal, operator: str) -> str:
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
