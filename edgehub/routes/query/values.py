"""Values of the condition language at run time, and all that is computed on them.

A value is a `str`, a `float` that is never NaN, `True`, `False`, `None` (null) or `UNDEFINED`.
Compiled conditions call these functions; the static types were checked before, so only values of
the JSON body and undefined ones need looking at. Invariant: no function raises, whatever it gets.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from edgehub.routes.query import text

if TYPE_CHECKING:
    from collections.abc import Callable

Value = Any
"""`str | float | bool | None | Undefined`; compiled code is not typed."""


class Undefined:
    """The type of the one undefined value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Final = Undefined()

TEXT_CHARS_MAX: Final = 2**20
"""Longest text that is built; no other function gives more characters than it gets."""

_NUMBER: Final = re.compile(
    r"(?:(?P<paren>\()|(?P<sign>[+-]))?"
    r"(?P<digits>[0-9][0-9,]*+(?:\.[0-9]*+)?|\.[0-9]++)(?P<exponent>[eE][+-]?[0-9]++)?"
    r"[\t-\r ]*+(?(paren)\)|(?(sign)|(?P<trailing>[+-])?))"
)
_BLANKS: Final = " \t\n\v\f\r"
_INFINITIES: Final = {"infinity": math.inf, "+infinity": math.inf, "-infinity": -math.inf}


def as_number(value: Value) -> Value:
    """Read a text as a number: sign on either side, thousands, decimals, exponent, `(8)` = -8."""
    if value.__class__ is float:
        return value
    if value.__class__ is not str:
        return UNDEFINED
    # Blanks go first: a pattern with blanks on both sides of an optional sign takes quadratic time.
    written = value.rstrip("\0").strip(_BLANKS)
    found = _NUMBER.fullmatch(written)
    if found is None:
        return _INFINITIES.get(written.lower(), UNDEFINED)
    paren, sign, digits, exponent, trailing = found.groups()
    number = float(digits.replace(",", "") + (exponent or ""))
    return -number if paren or sign == "-" or trailing == "-" else number


def defined(number: float) -> Value:
    """Return `number`, or undefined for NaN."""
    return UNDEFINED if number != number else number  # noqa: PLR0124 - the test for NaN


# Arithmetic.


def add(left: Value, right: Value) -> Value:
    """Return `left + right`."""
    if left.__class__ is float and right.__class__ is float:
        return defined(left + right)
    return UNDEFINED


def subtract(left: Value, right: Value) -> Value:
    """Return `left - right`."""
    if left.__class__ is float and right.__class__ is float:
        return defined(left - right)
    return UNDEFINED


def multiply(left: Value, right: Value) -> Value:
    """Return `left * right`."""
    if left.__class__ is float and right.__class__ is float:
        return defined(left * right)
    return UNDEFINED


def divide(left: Value, right: Value) -> Value:
    """Return `left / right`; by zero gives an infinity, 0 / 0 is undefined."""
    if left.__class__ is not float or right.__class__ is not float:
        return UNDEFINED
    if right == 0.0:
        return UNDEFINED if left == 0.0 else math.copysign(math.inf, left) * math.copysign(1, right)
    return defined(left / right)


def modulo(left: Value, right: Value) -> Value:
    """Return `left % right` with the sign of `left`."""
    if left.__class__ is not float or right.__class__ is not float:
        return UNDEFINED
    if right == 0.0 or math.isinf(left):
        return UNDEFINED
    return math.fmod(left, right)


def negate(value: Value) -> Value:
    """Return a number with the other sign."""
    return -value if value.__class__ is float else UNDEFINED


def absolute(value: Value) -> Value:
    """Return the magnitude of a number."""
    return abs(value) if value.__class__ is float else UNDEFINED


def ceiling(value: Value) -> Value:
    """Round towards positive infinity."""
    return _rounded(value, math.ceil)


def floor(value: Value) -> Value:
    """Round towards negative infinity."""
    return _rounded(value, math.floor)


def _rounded(value: Value, towards: Callable[[float], int]) -> Value:
    if value.__class__ is not float:
        return UNDEFINED
    return value if math.isinf(value) else float(towards(value))


def sign(value: Value) -> Value:
    """Return -1, 0 or 1: the sign of a number."""
    if value.__class__ is not float:
        return UNDEFINED
    return 0.0 if value == 0.0 else math.copysign(1.0, value)


def square_root(value: Value) -> Value:
    """Return the square root; undefined for negative numbers."""
    return math.sqrt(value) if value.__class__ is float and value >= 0.0 else UNDEFINED


def square(value: Value) -> Value:
    """Return a number times itself."""
    return value * value if value.__class__ is float else UNDEFINED


def exponential(value: Value) -> Value:
    """Return E to the power of a number; infinite where it is too large."""
    if value.__class__ is not float:
        return UNDEFINED
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def power(base: Value, exponent: Value) -> Value:
    """Return `base` to the power of `exponent`, with the infinities of IEEE 754."""
    if base.__class__ is not float or exponent.__class__ is not float:
        return UNDEFINED
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return _signed_infinity(base, exponent)
    except ValueError:
        # Either 0 to a negative power, which is infinite, or a root of a negative number.
        return _signed_infinity(base, exponent) if base == 0.0 else UNDEFINED


def _signed_infinity(base: float, exponent: float) -> float:
    odd = math.fmod(exponent, 2.0) in (1.0, -1.0)
    return math.copysign(math.inf, base) if odd else math.inf


# Text.


def text_or_undefined(value: Value) -> Value:
    """Return a property for a comparison with a body value; undefined if it has no value."""
    return UNDEFINED if value is None else value


def concat(*parts: Value) -> Value:
    """Join texts; null counts as empty.

    Returns:
        Undefined where a part is, or where the whole would have more than `TEXT_CHARS_MAX`
        characters, which are counted first.
    """
    texts = []
    size = 0
    for part in parts:
        if part.__class__ is str:
            texts.append(part)
            size += len(part)
        elif part is not None:
            return UNDEFINED
    return UNDEFINED if size > TEXT_CHARS_MAX else text.joined("".join(texts))


def length(value: Value) -> Value:
    """Count UTF-16 code units."""
    return float(text.length(value)) if value.__class__ is str else UNDEFINED


def lower(value: Value) -> Value:
    """Return the text in lower case, letter by letter."""
    return text.lower(value) if value.__class__ is str else UNDEFINED


def upper(value: Value) -> Value:
    """Return the text in upper case, letter by letter."""
    return text.upper(value) if value.__class__ is str else UNDEFINED


def substring(value: Value, start: Value) -> Value:
    """Cut a text from `start`, in UTF-16 code units, to its end."""
    if value.__class__ is not str or start.__class__ is not float:
        return UNDEFINED
    return _cut(value, start, None)


def substring_of_length(value: Value, start: Value, count: Value) -> Value:
    """Cut `count` UTF-16 code units out of a text; undefined where it has fewer."""
    if value.__class__ is not str or start.__class__ is not float or count.__class__ is not float:
        return UNDEFINED
    return _cut(value, start, count)


def _cut(value: str, start: float, count: float | None) -> Value:
    raw = None if text.one_unit_each(value) else text.units(value)
    size = len(value) if raw is None else len(raw) // 2
    if not -1 < start < (size + 1 if count is None else size):
        return UNDEFINED
    first = int(start)
    if count is not None and not -1 < count < size - first + 1:
        return UNDEFINED
    end = size if count is None else first + int(count)
    return value[first:end] if raw is None else text.from_units(raw[2 * first : 2 * end])


def index_of(value: Value, part: Value) -> Value:
    """Return the place of the first `part`, -1 where there is none."""
    if value.__class__ is str and part.__class__ is str:
        return float(text.find(value, part))
    return UNDEFINED


def starts_with(value: Value, part: Value) -> Value:
    """Return whether a text begins with another."""
    if value.__class__ is str and part.__class__ is str:
        return text.starts_with(value, part)
    return UNDEFINED


def ends_with(value: Value, part: Value) -> Value:
    """Return whether a text ends with another."""
    if value.__class__ is str and part.__class__ is str:
        return text.ends_with(value, part)
    return UNDEFINED


def contains(value: Value, part: Value) -> Value:
    """Return whether a text holds another."""
    if value.__class__ is str and part.__class__ is str:
        return text.contains(value, part)
    return UNDEFINED


# Tests of kind.


def is_defined(value: Value) -> bool:
    """Return whether there is a value; null is one."""
    return value is not UNDEFINED


def is_null(value: Value) -> bool:
    """Return whether the value is null; undefined is not."""
    return value is None


def is_number(value: Value) -> bool:
    """Return whether the value is a finite number."""
    return value.__class__ is float and not math.isinf(value)


def is_string(value: Value) -> bool:
    """Return whether the value is a text."""
    return value.__class__ is str


def is_bool(value: Value) -> bool:
    """Return whether a value is true or false."""
    return value.__class__ is bool


def is_bool_of_bool(value: Value) -> Value:
    """Return whether a condition is true or false: always, unless it is undefined."""
    return UNDEFINED if value is UNDEFINED else True


# Three-valued logic.


def conjunction(*values: Value) -> Value:
    """Return the AND: false wins, then undefined; what is not a bool counts as undefined."""
    result: Value = True
    for value in values:
        if value is False:
            return False
        if value is not True:
            result = UNDEFINED
    return result


def disjunction(*values: Value) -> Value:
    """Return the OR: true wins, then undefined; what is not a bool counts as undefined."""
    result: Value = False
    for value in values:
        if value is True:
            return True
        if value is not False:
            result = UNDEFINED
    return result


def negation(value: Value) -> Value:
    """Return the NOT of a value; what is not a bool counts as undefined."""
    return (not value) if value.__class__ is bool else UNDEFINED


# Comparison of two values of one static type, or of body values of any.


def equal(left: Value, right: Value) -> Value:
    """Return `left = right`; values of different kinds are not equal."""
    if left is UNDEFINED or right is UNDEFINED:
        return UNDEFINED
    return left.__class__ is right.__class__ and left == right


def unequal(left: Value, right: Value) -> Value:
    """Return `left != right`."""
    return negation(equal(left, right))


def less(left: Value, right: Value) -> Value:
    """Return `left < right`; undefined between values of different kinds."""
    if left.__class__ is not right.__class__ or left is UNDEFINED:
        return UNDEFINED
    if left.__class__ is str:
        return text.before(left, right)
    return left is not None and left < right


def less_or_equal(left: Value, right: Value) -> Value:
    """Return `left <= right`; undefined between values of different kinds."""
    return negation(less(right, left))


def greater(left: Value, right: Value) -> Value:
    """Return `left > right`; undefined between values of different kinds."""
    return less(right, left)


def greater_or_equal(left: Value, right: Value) -> Value:
    """Return `left >= right`; undefined between values of different kinds."""
    return negation(less(left, right))
