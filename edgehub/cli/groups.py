"""Groups of commands. Owns what an unknown command is answered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgehub.routes.hints import near_miss

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommandGroup(click.Group):
    """A group that names the command which was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and the remaining arguments.

        Raises:
            click.UsageError: There is no such command.
        """
        name = args[0]
        is_option = name.startswith("-")
        if not (is_option or ctx.resilient_parsing or self.get_command(ctx, name)):
            ctx.fail(f"No such command {name!r}. {hint(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def hint(word: str, known: Sequence[str]) -> str:
    """Return which known word was probably meant, or all of them, as a sentence."""
    close = near_miss(word, known)
    return f"Did you mean {close!r}?" if close else f"There are {', '.join(known)}."
