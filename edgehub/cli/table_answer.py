"""What commands on the routing table share: options, warnings, how far a change was applied."""

from __future__ import annotations

from typing import Any

import click

from edgehub.cli.output import EXIT_FAILED, print_line
from edgehub.telemetry.plural import counted

tenant_option = click.option(
    "--tenant",
    metavar="ORG/APPLICATION",
    help="Tenant, on hubs with several; default: the default tenant.",
)
revision_option = click.option(
    "--if-revision",
    "if_match",
    type=click.IntRange(min=1),
    metavar="N",
    callback=lambda _ctx, _parameter, value: None if value is None else [value],
    help="Only if the route still has this revision, as `route show` prints it.",
)
wait_option = click.option(
    "--wait", is_flag=True, help="Wait until all hubs that share the table have applied it."
)


def print_warnings(warnings: list[str]) -> None:
    """Print what was accepted but is hardly meant, one a line, on stderr."""
    for warning in warnings:
        print_line(f"warning: {warning}", err=True)


def applied_code(applied: dict[str, Any] | None) -> int:
    """Return the exit code of a change that has come so far."""
    return 0 if applied is None or applied["result"] == "complete" else EXIT_FAILED


def print_applied(applied: dict[str, Any] | None) -> int:
    """Print how far a change was applied, and return the exit code."""
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
