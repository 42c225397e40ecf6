"""Groups of commands: what an unknown command is answered with."""

import click
import pytest
from click.testing import CliRunner

from edgehub.cli.main import cli


def groups(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all groups of commands."""
    if not isinstance(command, click.Group):
        return []
    context = click.Context(command)
    below = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [path, *(each for name, child in below for each in groups(child, (*path, name)))]


def commands(path: tuple[str, ...]) -> list[str]:
    """Return the names of the commands of a group."""
    command: click.Command = cli
    for name in path:
        command = command.get_command(click.Context(command), name)
    return command.list_commands(click.Context(command))


@pytest.mark.parametrize("path", groups(cli), ids=" ".join)
def test_a_slip_of_the_pen_is_answered_with_the_command(path):
    """In every group: two letters swapped name the command that was meant, and nothing else."""
    meant = max(commands(path), key=len)
    slip = meant[:-2] + meant[-1] + meant[-2]
    result = CliRunner().invoke(cli, [*path, slip])
    assert result.exit_code == 2
    assert result.output.endswith(f"No such command {slip!r}. Did you mean {meant!r}?\n")


@pytest.mark.parametrize("path", groups(cli), ids=" ".join)
def test_a_word_that_is_like_no_command_is_answered_with_all(path):
    """In every group: nothing is near, so its commands are listed."""
    result = CliRunner().invoke(cli, [*path, "xyz"])
    assert result.exit_code == 2
    assert f"There are {', '.join(commands(path))}." in result.output


def test_options_are_no_commands():
    """An unknown option of a group is called an option."""
    result = CliRunner().invoke(cli, ["queue", "--xyz"])
    assert "No such option" in result.output
