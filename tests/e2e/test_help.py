"""Examples of help texts, run as they stand there against a running hub."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from edgehub.cli.main import cli
from edgehub.routes.content import read_body
from edgehub.routes.tenant import DEFAULT_TENANT
from edgehub.web.openapi import ROUTE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

SHORTER = {"/var/lib/edgehub": ".", "20": "1", "60": "1"}
"""What the test does not have or wait for: `selftest` names the state folder, and a minute."""


def texts(command: click.Command) -> Iterator[str]:
    """Yield the help texts of a command and of all below it."""
    yield command.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from texts(child)


def examples() -> list[list[str]]:
    """Return the arguments of each example."""
    found = []
    for text in texts(cli):
        for block in re.findall(r"\x08\n *Example:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL):
            program, *arguments = shlex.split(block.replace("\\\n", " "))
            assert program == "edgehub", block
            found.append(arguments)
    return found


def test_every_example_of_a_help_text_is_looked_at() -> None:
    """An example that does not stand in the form that is read would never be run."""
    assert len(examples()) == sum(len(re.findall(r"[Ee]xample\b", text)) for text in texts(cli))
    assert len(examples()) >= 4


@pytest.mark.parametrize("arguments", examples(), ids=lambda each: " ".join(each[:2]))
def test_an_example_of_a_help_text_works(
    make_daemon: Callable[..., Daemon], arguments: list[str]
) -> None:
    """It is accepted as it stands, without a warning."""
    hub = make_daemon().start()
    (hub.folder / "secret.txt").write_text("secret\n", "utf-8")
    if arguments[0] == "selftest":
        arguments = [SHORTER.get(each, each) for each in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "edgehub", "--config", str(hub.config), *arguments],
        cwd=hub.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "warning" not in done.stderr


def test_examples_of_the_api_s_document_are_accepted() -> None:
    """The routes that the OpenAPI document shows can be sent as they are."""
    assert ROUTE_SCHEMA["examples"]
    for example in ROUTE_SCHEMA["examples"]:
        assert not read_body(example, DEFAULT_TENANT).warnings
