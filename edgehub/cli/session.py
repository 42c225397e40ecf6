"""`edgehub session`: MQTT clients of the running hub, and what it keeps for absent ones."""

from __future__ import annotations

from typing import Any

import click

from edgehub.cli.consent import ask, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, json_option, print_outcome
from edgehub.cli.paging import after_option, limit_option, print_next
from edgehub.cli.tables import print_table, span
from edgehub.telemetry.plural import counted

_FIGURES = ("subscriptions", "waiting", "bytes")


@click.group(cls=CommandGroup)
def session() -> None:
    """Show and end sessions of MQTT clients."""


@session.command("list")
@limit_option
@after_option("client")
@json_option
@click.pass_obj
def list_sessions(obj: dict[str, Any], limit: int, after: str) -> None:
    """List clients that are connected or have a stored session, by their ids."""
    answer = answer_of(obj, "session list", limit=limit, after=after or None)
    print_table(
        ("client", "identity", "client is", "session", *_FIGURES),
        (
            (
                row["client_id"],
                "anonymous" if row["anonymous"] else "yes",
                "connected" if row["connected"] else f"absent for {span(row['absent_s'])}",
                _kept(row),
                str(row["subscriptions"]),
                str(row["waiting"]),
                str(row["waiting_bytes"]),
            )
            for row in answer["sessions"]
        ),
        right=_FIGURES,
        empty="no client is connected or has a stored session",
    )
    print_next(answer)


@session.command()
@click.argument("client_id", metavar="CLIENT-ID")
@yes_option
@json_option
@click.pass_obj
def end(obj: dict[str, Any], client_id: str, yes: bool) -> int:
    """End a session: its subscriptions and what waits for its client are dropped.

    A client that is connected is closed, and may connect again. Exit code 1 if there is no session.
    """
    question = f"End the session of {client_id} and drop what waits for it?"
    ask(question, yes=yes, look_first="`edgehub session list`")
    answer = ask_hub(obj, "session end", client_id=client_id)
    end_as_json(answer, 0 if answer["ended"] else 1)
    done = f"ended: {client_id}, {counted(answer['dropped'], 'message')} dropped"
    return print_outcome(done, f"no session of {client_id}", is_done=answer["ended"])


def _kept(row: dict[str, Any]) -> str:
    if not row["stored"]:
        return "ends with the connection"
    if row["expiry_s"] is None:
        return "stored"
    return f"stored for {span(row['expiry_s'])}"
