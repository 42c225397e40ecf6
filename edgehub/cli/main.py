"""The `edgehub` command: its groups, common options and exit codes.

Owns the translation of errors into exit codes: 0 done, 1 failed, 2 usage, 3 start-up failed,
4 daemon unreachable, 78 bad configuration; `report` adds 5: its counts do not close,
`journal export` 75: not all can go yet. Command modules are imported when they are used, so that
`edgehub status` stays quick.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from edgehub.cli.config_file import default_config
from edgehub.cli.groups import CommandGroup
from edgehub.cli.missing_package import missing_package
from edgehub.cli.output import EXIT_CONFIG, EXIT_FAILED, print_json, print_line
from edgehub.cli.refusal import CommandError
from edgehub.errors import ConfigError, DaemonUnreachableError, EdgeHubError, StartupError

EXIT_STARTUP: Final = 3
EXIT_UNREACHABLE: Final = 4

# Modules and rows hold no cycles; looking through them at the default pace costs a sixth of the
# start and a tenth of the ingest rate.
GC_THRESHOLDS: Final = (10_000, 20, 50)

_COMMANDS: Final = {
    "run": ("edgehub.cli.run", "run"),
    "demo": ("edgehub.cli.demo", "demo"),
    "send": ("edgehub.cli.send", "send"),
    "listen": ("edgehub.cli.listen", "listen"),
    "status": ("edgehub.cli.status", "status"),
    "queue": ("edgehub.cli.queue", "queue"),
    "why": ("edgehub.cli.why", "why"),
    "route": ("edgehub.cli.route", "route"),
    "config": ("edgehub.cli.config", "config"),
    "manifest": ("edgehub.cli.manifest", "manifest"),
    "identity": ("edgehub.cli.identity", "identity"),
    "token": ("edgehub.cli.token", "token"),
    "journal": ("edgehub.cli.journal", "journal"),
    "entity": ("edgehub.cli.entity", "entity"),
    "device": ("edgehub.cli.device", "device"),
    "lora": ("edgehub.cli.lora", "lora"),
    "session": ("edgehub.cli.session", "session"),
    "twin": ("edgehub.cli.twin", "twin"),
    "method": ("edgehub.cli.method", "method"),
    "affinity": ("edgehub.cli.affinity", "affinity"),
    "report": ("edgehub.cli.report", "report"),
    "selftest": ("edgehub.cli.selftest", "selftest"),
    "version": ("edgehub.cli.version", "version"),
}


class _Commands(CommandGroup):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="EDGEHUB_CONFIG",
    help="Settings file; default: edgehub.toml in systemd's folder or the working folder.",
)
@click.version_option(package_name="edgehub", message="edgehub %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, debug: bool) -> None:
    """Store-and-forward hub for gateways behind slow or unreliable uplinks."""
    ctx.obj = {"config": config or default_config(), "debug": debug}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(*GC_THRESHOLDS)
    arguments = sys.argv[1:] if arguments is None else arguments
    _hold_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Properties and paths may hold what the terminal's encoding cannot; a sign is better.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        outcome = _invoke(arguments)
    except click.exceptions.Abort:
        sys.exit(EXIT_FAILED)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name == "--config":
            hint = "it goes before the command: edgehub --config FILE status"
            error = click.UsageError(f"{error.format_message()} ({hint})", error.ctx)
        error.show()
        sys.exit(error.exit_code)
    except EdgeHubError as error:
        if "--debug" in arguments:
            raise
        _print_error(error, as_json="--json" in arguments)
        sys.exit(_exit_code(error))
    except OSError as error:
        # What no command expects: a full disk behind standard output, a folder that takes no files.
        if "--debug" in arguments:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print_line(f"edgehub: {where}{error.strerror or error}", err=True)
        sys.exit(EXIT_FAILED)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _invoke(arguments: list[str]) -> Any:
    try:
        return cli.main(args=arguments, prog_name="edgehub", standalone_mode=False)
    except (ImportError, ExceptionGroup) as error:
        missing = missing_package(error)
        if missing is None:
            raise
        raise missing from error


def _hold_standard_streams() -> None:
    """Open closed standard streams, so that no database or socket gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The system gives the lowest free number, which is that of the stream.
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8")
            setattr(sys, name, stream)


def _print_error(error: EdgeHubError, *, as_json: bool) -> None:
    if isinstance(error, CommandError) and as_json:
        print_json({"error": error.problem})
    for line in str(error).splitlines():
        print_line(f"edgehub: {line}", err=True)


def _exit_code(error: EdgeHubError) -> int:
    if isinstance(error, ConfigError) or (isinstance(error, CommandError) and error.is_input):
        return EXIT_CONFIG
    if isinstance(error, StartupError):
        return EXIT_STARTUP
    if isinstance(error, DaemonUnreachableError):
        return EXIT_UNREACHABLE
    return EXIT_FAILED
