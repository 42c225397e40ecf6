"""Arguments and options that several commands have: how they are written, and what is checked."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from edgehub.devices.ids import ID_RULE, split_sender

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Command = TypeVar("Command")

_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,9})\s*([a-z]*)")

client_argument: Final = click.argument("client_id", metavar="DEVICE[/MODULE]")


def client_arguments(client_id: str) -> dict[str, Any]:
    """Return the arguments of an operation on a client; the hub checks them."""
    device_id, slash, module_id = client_id.partition("/")
    return {"device_id": device_id, "module_id": module_id if slash else None}


def stacked(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return what adds options to a command, the first one first in its help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def checked(check: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T | None]:
    """Make a callback of a check that raises ValueError, so that a wrong value is wrong use."""

    def callback(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> T | None:
        try:
            return None if value is None else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def each(check: Callable[[str], object]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Make a check of the values of a repeatable option from the check of one."""

    def check_all(values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            check(value)
        return values

    return check_all


def sender_id(text: str) -> str:
    """Return an id of a device or module.

    Raises:
        ValueError: It is none.
    """
    if split_sender(text) is None:
        raise ValueError(f"{text!r} is not <device> or <device>/<module>, each {ID_RULE}")
    return text


def named_values(values: tuple[str, ...]) -> dict[str, str]:
    """Return values of the form NAME=VALUE by name; the last one of a name counts.

    Raises:
        ValueError: One is not NAME=VALUE.
    """
    found = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not (name and separator):
            raise ValueError(f"{value!r} is not NAME=VALUE")
        found[name] = text
    return found


def duration_s(text: str) -> int:
    """Return the seconds of a length of time such as `90s`, `10min`, `1h` or `2d`.

    Raises:
        ValueError: It is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no length of time; write 90s, 10min, 1h or 2d")
    return int(found[1]) * _UNITS[found[2]]


def json_value(text: str) -> Any:
    """Parse a JSON value.

    Raises:
        ValueError: It is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
