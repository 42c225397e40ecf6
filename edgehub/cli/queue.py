"""`edgehub queue`: what waits, where and since when."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from edgehub.cli.daemon import call
from edgehub.cli.tables import new_table, print_table
from edgehub.settings import load_settings

_FIGURES: Final = ("waiting", "bytes", "oldest", "sent", "expired", "dead")


@click.group()
def queue() -> None:
    """Look into the queues of the running hub."""


@queue.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_obj
def list_queues(obj: dict[str, Any], as_json: bool) -> None:
    """List all queues, best priority first per endpoint."""
    queues = call(load_settings(obj["config"]).control_path, "queue list")
    if as_json:
        click.echo(json.dumps(queues, indent=2))
    else:
        queue_table(queues)


def queue_table(queues: list[dict[str, Any]]) -> None:
    """Print queues as a table; `queues` as the daemon gives them."""
    if not queues:
        click.echo("no queues yet: no message has been stored")
        return
    table = new_table("queue", *_FIGURES, "state", right=_FIGURES)
    for entry in queues:
        age = entry["oldest_age_s"]
        table.add_row(
            entry["id"],
            str(entry["depth"]),
            str(entry["bytes"]),
            "-" if age is None else f"{age:.0f} s",
            str(entry["sent"]),
            str(entry["expired"]),
            str(entry["dead_lettered"]),
            "orphaned" if entry["orphaned"] else entry["state"],
        )
    print_table(table)
