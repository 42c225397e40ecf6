"""Lines and documents on standard output and standard error.

Owns the one way in which commands print. Invariant: no text of a client, a peer or a file steers
the terminal or makes a line of its own; what is printed as JSON stays the same document.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable


EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 78

_AS_JSON: Final = "edgehub.as_json"


def printable(text: str) -> str:
    """Return text as it may stand on a line of a terminal: what would steer that is escaped.

    That is everything but letters, marks, figures, signs and the plain space: control characters
    of ASCII and C1, line ends, and what reverses the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        [each if each.isprintable() else each.encode("unicode_escape").decode() for each in text]
    )


def value_text(value: Any) -> str:
    """Write a value of an answer for reading: `-` for none, and members of a list one by one."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "-"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def print_members(document: dict[str, Any], prefix: str = "") -> None:
    """Print each member of an answer on a line of its own."""
    for name, value in document.items():
        print_line(f"{prefix}{name}: {value_text(value)}")


def print_outcome(done: str, otherwise: str, *, is_done: bool) -> int:
    """Print what a command has done, or why there was nothing to do; returns its exit code."""
    print_line(done if is_done else f"edgehub: {otherwise}", err=not is_done)
    return 0 if is_done else 1


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line.

    Args:
        text: May hold what others wrote; a line end in it is escaped.
        err: To standard error.
    """
    click.echo(printable(text), err=err)


def print_json(document: Any) -> None:
    """Print a JSON document."""
    click.echo(json.dumps(document, indent=2))


def json_option_of(about: str) -> Callable[[Any], Any]:
    """Return the option `--json`, which `wants_json` and `end_as_json` look at."""

    def record(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
        ctx.meta[_AS_JSON] = value

    return click.option("--json", is_flag=True, expose_value=False, callback=record, help=about)


json_option: Final = json_option_of("Print one JSON object.")


def wants_json() -> bool:
    """Return whether the command that runs was given `--json`."""
    return bool(click.get_current_context().meta.get(_AS_JSON))


def end_as_json(document: Any, code: int = 0) -> None:
    """Print an answer and end the command with an exit code, if it was given `--json`.

    Raises:
        click.exceptions.Exit: It is printed.
    """
    if wants_json():
        print_json(document)
        raise click.exceptions.Exit(code)


def print_json_line(document: Any) -> None:
    """Print a JSON document on one line, with letters of all languages as they are."""
    text = json.dumps(document, ensure_ascii=False)
    if not text.isprintable():
        # All of it is inside of strings, where JSON has escapes of its own.
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    click.echo(text)
