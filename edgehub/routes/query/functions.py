"""The functions of the condition language: parameters, results, implementations.

Owns the one table of signatures that type checks and generated code share. Names ignore case.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.routes.query import values

if TYPE_CHECKING:
    from collections.abc import Callable


class ValueType(StrEnum):
    """Static type of an expression; the text is what error messages say."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "bool"
    NULL = "null"
    UNDEFINED = "undefined"
    DYNAMIC = "body value"
    FAULTY = "faulty"  # of an expression with a fault


class Overload(Struct, frozen=True, kw_only=True):
    """One way to call a function.

    Attributes:
        parameters: Static types of the arguments; a body value fits all of them. Where one itself
            is `DYNAMIC`, any argument fits.
        result: Static type of the result.
        runs: The implementation.
        more: The last parameter may be repeated.
    """

    parameters: tuple[ValueType, ...]
    result: ValueType
    runs: Callable[..., values.Value]
    more: bool = False

    def takes_count(self, count: int) -> bool:
        """Return whether so many arguments fit."""
        least = len(self.parameters)
        return count >= least if self.more else count == least

    def takes(self, types: tuple[ValueType, ...]) -> bool:
        """Return whether arguments of these types fit."""
        if not self.takes_count(len(types)):
            return False
        wanted = self.parameters + self.parameters[-1:] * (len(types) - len(self.parameters))
        return all(map(_fits, wanted, types))


_ANYTHING: Final = ValueType.DYNAMIC
"""As a parameter: any argument fits."""


def pick_overload(name: str, types: tuple[ValueType, ...]) -> Overload | None:
    """Find how to call function `name` with arguments of these types, None = not at all.

    An overload made for exactly these types goes before one that merely takes them.
    """
    overloads = FUNCTIONS[name]
    exact = (overload for overload in overloads if overload.parameters == types)
    return next(exact, None) or next((each for each in overloads if each.takes(types)), None)


def _fits(wanted: ValueType, given: ValueType) -> bool:
    return given in (wanted, ValueType.DYNAMIC, ValueType.FAULTY) or wanted is _ANYTHING


def _one(
    parameter: ValueType, result: ValueType, runs: Callable[..., values.Value]
) -> tuple[Overload, ...]:
    return (Overload(parameters=(parameter,), result=result, runs=runs),)


def _two(
    parameter: ValueType, result: ValueType, runs: Callable[..., values.Value]
) -> tuple[Overload, ...]:
    return (Overload(parameters=(parameter, parameter), result=result, runs=runs),)


_TEXT: Final = ValueType.TEXT
_NUMBER: Final = ValueType.NUMBER
_BOOL: Final = ValueType.BOOL

CONCAT: Final = Overload(parameters=(_TEXT, _TEXT), result=_TEXT, runs=values.concat, more=True)

FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "as_number": _one(_TEXT, _NUMBER, values.as_number) + _one(_NUMBER, _NUMBER, values.as_number),
    "is_defined": _one(_ANYTHING, _BOOL, values.is_defined),
    "is_null": _one(_ANYTHING, _BOOL, values.is_null),
    "is_number": _one(_ANYTHING, _BOOL, values.is_number),
    "is_string": _one(_ANYTHING, _BOOL, values.is_string),
    "is_bool": _one(_ANYTHING, _BOOL, values.is_bool) + _one(_BOOL, _BOOL, values.is_bool_of_bool),
    "concat": (CONCAT,),
    "length": _one(_TEXT, _NUMBER, values.length),
    "lower": _one(_TEXT, _TEXT, values.lower),
    "upper": _one(_TEXT, _TEXT, values.upper),
    "substring": (
        Overload(parameters=(_TEXT, _NUMBER), result=_TEXT, runs=values.substring),
        Overload(
            parameters=(_TEXT, _NUMBER, _NUMBER), result=_TEXT, runs=values.substring_of_length
        ),
    ),
    "index_of": _two(_TEXT, _NUMBER, values.index_of),
    "starts_with": _two(_TEXT, _BOOL, values.starts_with),
    "ends_with": _two(_TEXT, _BOOL, values.ends_with),
    "contains": _two(_TEXT, _BOOL, values.contains),
    "abs": _one(_NUMBER, _NUMBER, values.absolute),
    "ceiling": _one(_NUMBER, _NUMBER, values.ceiling),
    "floor": _one(_NUMBER, _NUMBER, values.floor),
    "sign": _one(_NUMBER, _NUMBER, values.sign),
    "sqrt": _one(_NUMBER, _NUMBER, values.square_root),
    "square": _one(_NUMBER, _NUMBER, values.square),
    "exp": _one(_NUMBER, _NUMBER, values.exponential),
    "power": _two(_NUMBER, _NUMBER, values.power),
}
