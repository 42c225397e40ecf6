"""Arguments of commands as they come over the control socket, checked.

Pure. Invariant: a value that is not what was asked for is an error that says what was wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ArgumentError(EdgeHubError):
    """A command was called with arguments that it cannot use."""


def text(arguments: Mapping[str, object], name: str) -> str:
    """Give a text that must be there and not be empty.

    Raises:
        ArgumentError: It is not.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"want `{name}`, a text that is not empty")
    return value


def optional_text(arguments: Mapping[str, object], name: str) -> str | None:
    """Give a text, None = it is absent.

    Raises:
        ArgumentError: It is something else, or empty.
    """
    return None if arguments.get(name) is None else text(arguments, name)


def whole(arguments: Mapping[str, object], name: str, *, default: int, maximum: int = 2**62) -> int:
    """Give a whole number from 0 to `maximum`; absent = `default`.

    Raises:
        ArgumentError: It is something else.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise ArgumentError(f"want `{name}`, a whole number from 0 to {maximum}")
    return value


def wholes(arguments: Mapping[str, object], name: str, *, count_max: int) -> list[int]:
    """Give a list of whole numbers, at most `count_max`.

    Raises:
        ArgumentError: It is something else.
    """
    values = arguments.get(name)
    if not isinstance(values, list) or len(values) > count_max:
        raise ArgumentError(f"want `{name}`, a list of at most {count_max} whole numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
            raise ArgumentError(f"want whole numbers in `{name}`, not {value!r}")
    return values
