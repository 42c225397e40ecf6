"""`edgehub twin`: what is desired of devices and modules, and what they report."""

from __future__ import annotations

from typing import Any

import click

from edgehub.cli.arguments import checked, client_argument, client_arguments, json_value
from edgehub.cli.consent import ask, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, json_option, print_json, print_outcome
from edgehub.cli.paging import after_option, limit_option, print_next
from edgehub.cli.tables import print_table

_VERSIONS = ("desired", "reported")


@click.group(cls=CommandGroup)
def twin() -> None:
    """Show and change twins of devices and modules.

    A twin holds what is desired of a client, what it reports, and tags that it never sees.
    """


@twin.command("list")
@limit_option
@after_option("client")
@json_option
@click.pass_obj
def list_twins(obj: dict[str, Any], limit: int, after: str) -> None:
    """List devices and modules that have a twin, with the versions of its sections."""
    answer = answer_of(obj, "twin list", limit=limit, after=after or None)
    print_table(
        ("client", *_VERSIONS),
        (
            (row["client_id"], str(row["desired_version"]), str(row["reported_version"]))
            for row in answer["twins"]
        ),
        right=_VERSIONS,
        empty="no client has a twin",
    )
    print_next(answer)


@twin.command()
@client_argument
@click.pass_obj
def show(obj: dict[str, Any], client_id: str) -> None:
    """Show a twin as JSON, in the form of Azure IoT Hub."""
    print_json(ask_hub(obj, "twin show", **client_arguments(client_id)))


@twin.command("set")
@client_argument
@click.option(
    "--desired",
    callback=checked(json_value),
    help="Desired properties to merge; null removes one.",
    metavar="JSON",
)
@click.option(
    "--tags", callback=checked(json_value), help="Tags to merge; null removes one.", metavar="JSON"
)
@click.pass_obj
def set_twin(
    obj: dict[str, Any],
    client_id: str,
    desired: Any,
    tags: Any,
) -> None:
    """Change desired properties or tags, and show the twin.

    A client that is connected is notified of desired properties, an absent one reads them later.
    """
    if desired is None and tags is None:
        raise click.UsageError("give --desired, --tags or both")
    patch: dict[str, Any] = {} if tags is None else {"tags": tags}
    if desired is not None:
        patch["properties"] = {"desired": desired}
    print_json(ask_hub(obj, "twin set", **client_arguments(client_id), patch=patch))


@twin.command()
@client_argument
@yes_option
@json_option
@click.pass_obj
def remove(obj: dict[str, Any], client_id: str, yes: bool) -> int:
    """Remove a twin; its client begins with an empty one. Exit code 1 if there is none."""
    question = f"Remove the twin of {client_id}?"
    ask(question, yes=yes, look_first=f"`edgehub twin show {client_id}`")
    answer = ask_hub(obj, "twin remove", **client_arguments(client_id))
    end_as_json(answer, 0 if answer["removed"] else 1)
    done = f"removed: the twin of {client_id}"
    return print_outcome(done, f"{client_id} has no twin", is_done=answer["removed"])
