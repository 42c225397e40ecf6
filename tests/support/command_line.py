"""The command line in the test's own process: a command takes milliseconds, a process a second."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

from edgehub.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def edgehub(
    *arguments: str, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> CommandResult:
    """Run `edgehub` with these arguments.

    Working folder, environment and standard streams are those of the process: one at a time.

    Args:
        arguments: As on the command line.
        cwd: Working folder.
        stdin: Standard input; never a terminal.
        env: Variables beside those of the tests.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, env or {}),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return CommandResult(code, out.getvalue(), err.getvalue())
