"""Options of commands that print a list a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of entries at most.",
)


def after_option(what: str) -> Callable[[Any], Any]:
    """Return the option that begins a list behind the entry of a page before."""
    return click.option("--after", default="", help=f"Begin after this {what}.")


def print_next(page: dict[str, Any]) -> None:
    """Print how to get the next page, if there is one."""
    if page["next"]:
        print_line(f"more with --after {page['next']}", err=True)
