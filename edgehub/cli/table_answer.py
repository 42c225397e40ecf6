"""The routing table's answers on the command line: documents, refusals, how far a change has come.

Owns the form of refusals, which keep line, column and hint, and their exit codes.
"""

from __future__ import annotations

from typing import Any, Final

import click

from edgehub.cli.config import EXIT_CONFIG
from edgehub.cli.daemon import CommandError, RunningHub
from edgehub.cli.output import print_json, print_line
from edgehub.telemetry.plural import counted

EXIT_FAILED: Final = 1

# What is wrong with the route or manifest itself, as its author has to correct it.
_WRONG_INPUT: Final = ("InvalidRouteError", "ManifestError")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
tenant_option = click.option(
    "--tenant", metavar="ORG/APPLICATION", help="On hubs with several tenants; absent = the usual."
)
revision_option = click.option(
    "--if-revision",
    "if_match",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only if the route still has this revision, as `route show` prints it.",
)
wait_option = click.option(
    "--wait", is_flag=True, help="Wait until all hubs that share the table have applied it."
)


class RefusedError(click.exceptions.Exit):
    """The table said no, and it has been printed."""


def ask_table(obj: dict[str, Any], command: str, *, as_json: bool, **arguments: Any) -> Any:
    """Ask the daemon and give its document.

    Raises:
        RefusedError: With the exit code; what is wrong has been printed.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if "hub" not in obj:
        # The pages of one list warn of wrong settings once.
        obj["hub"] = RunningHub(obj["config"])
    try:
        return obj["hub"].call(command, **given)
    except CommandError as error:
        if not error.members:
            raise
        if as_json:
            print_json({"error": error.members})
        else:
            _print_error(error.members)
        is_input = error.members["type"] in _WRONG_INPUT
        raise RefusedError(EXIT_CONFIG if is_input else EXIT_FAILED) from error


def print_warnings(warnings: list[str]) -> None:
    """Print what was accepted but is hardly meant, one a line, on stderr."""
    for warning in warnings:
        print_line(f"warning: {warning}", err=True)


def print_applied(applied: dict[str, Any] | None) -> int:
    """Return how far a change has come; gives the exit code."""
    if applied is None:
        return 0
    result = applied["result"]
    if result == "complete":
        print_line(f"applied by {counted(len(applied['by']), 'hub')}")
        return 0
    print_line(f"stored, but not applied everywhere ({result})", err=True)
    for instance in applied["behind"]:
        print_line(f"  {instance}: behind", err=True)
    for failed in applied["failed"]:
        print_line(f"  {failed['instance']}: {failed['reason']}", err=True)
    return EXIT_FAILED


def _print_error(error: dict[str, Any]) -> None:
    faults = error.get("faults") or []
    for fault in faults:
        hint = f" ({fault['hint']})" if fault.get("hint") else ""
        place = ""
        if fault.get("line") is not None:
            place = f"line {fault['line']}, column {fault['column']}: "
        path = f"{fault['path']}: " if fault.get("path") else ""
        print_line(f"edgehub: {path}{place}{fault['message']}{hint}", err=True)
    if not faults:
        print_line(f"edgehub: {error['message']}", err=True)
