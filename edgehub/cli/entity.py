"""`edgehub entity`: who is behind the running hub, and what the mapper makes of messages.

`replay` works on files alone and asks no daemon; it runs the mapper that the daemon runs.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import click

from edgehub.cli.consent import ask, yes_option
from edgehub.cli.daemon import answer_of
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import json_option, print_json_line, print_line, print_members
from edgehub.cli.tables import print_table
from edgehub.entities.faults import MappingError
from edgehub.entities.replay import replay as run_replay
from edgehub.telemetry.plural import counted

_TYPES: Final = ("device", "child-device", "service")
_FIGURES: Final = ("messages", "bytes", "oldest", "evicted")


@click.group(cls=CommandGroup)
def entity() -> None:
    """Show and change the entities behind the running hub; try what the mapper makes of messages.

    TOPIC-ID is four segments, such as device/boiler3//; slashes at the end may be left out.
    """


@entity.command("list")
@click.option("--root", metavar="TOPIC-ID", help="Only this entity and all below it.")
@click.option("--parent", metavar="TOPIC-ID", help="Only the children of this entity.")
@click.option("--type", "type_", type=click.Choice(_TYPES), help="Only entities of this type.")
@json_option
@click.pass_obj
def list_entities(
    obj: dict[str, Any], root: str | None, parent: str | None, type_: str | None
) -> None:
    """List registered entities, the gateway first."""
    document = answer_of(obj, "entity list", root=root, parent=parent, type=type_)
    print_table(
        ("topic id", "type", "id", "parent", "name", "announced"),
        (
            (
                each["@topic-id"],
                each["@type"] + (" (automatic)" if each["auto_registered"] else ""),
                each["@id"],
                each["@parent"] or "",
                each["name"],
                "yes" if each["announced"] else "no, refused",
            )
            for each in document["entities"]
        ),
        empty="no such entity is registered",
    )


@entity.command()
@click.argument("topic_id", metavar="TOPIC-ID")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], topic_id: str) -> None:
    """Show one entity with its twin values and what is right below it."""
    document = answer_of(obj, "entity show", topic_id=topic_id)
    twin, children = document.pop("twin"), document.pop("children")
    print_members({key: value for key, value in document.items() if value is not None})
    for key, value in twin.items():
        print_line(f"twin {key}: {json.dumps(value, ensure_ascii=False)}")
    for child in children:
        print_line(f"below: {child}")


@entity.command()
@click.argument("topic_id", metavar="TOPIC-ID")
@click.option(
    "--type",
    "type_",
    type=click.Choice(_TYPES),
    default="child-device",
    show_default=True,
    help="Type of the entity.",
)
@click.option("--id", "external_id", help="Id at the cloud; default: derived from TOPIC-ID.")
@click.option(
    "--parent", metavar="TOPIC-ID", help="Parent; default: the gateway, or the device of a service."
)
@click.option("--health", metavar="TOPIC-ID", help="Service whose health stands for it.")
@click.option("--name", help="Display name.")
@click.option("--cloud-type", help="Type at the cloud.")
@json_option
@click.pass_obj
def register(
    obj: dict[str, Any],
    topic_id: str,
    type_: str,
    external_id: str | None,
    parent: str | None,
    health: str | None,
    name: str | None,
    cloud_type: str | None,
) -> None:
    """Register an entity, or change its registration."""
    members = {
        "@type": type_,
        "@id": external_id,
        "@parent": parent,
        "@health": health,
        "name": name,
        "type": cloud_type,
    }
    document = {key: value for key, value in members.items() if value is not None}
    answer = answer_of(obj, "entity register", topic_id=topic_id, document=document)
    if answer["outcome"] == "pending":
        print_line(f"{answer['@topic-id']}: pending, waits for {answer['waits_for']}")
    else:
        found = answer["entity"]
        print_line(f"{found['@topic-id']}: {answer['outcome']}, {found['@id']} at the cloud")
        if "warning" in answer:
            print_line(answer["warning"], err=True)


@entity.command()
@click.argument("topic_id", metavar="TOPIC-ID")
@yes_option
@json_option
@click.pass_obj
def remove(obj: dict[str, Any], topic_id: str, yes: bool) -> None:
    """Forget an entity and all below it, and clear what is retained of them.

    The cloud is not notified: what it has stays there.
    """
    question = f"Forget {topic_id} and all below it?"
    ask(question, yes=yes, look_first=f"`edgehub entity show {topic_id}`")
    answer = answer_of(obj, "entity remove", topic_id=topic_id)
    for removed in answer["removed"]:
        print_line(f"removed {removed}")


@entity.command()
@json_option
@click.pass_obj
def pending(obj: dict[str, Any]) -> None:
    """Show the entities that send without being registered, most bytes first."""
    document = answer_of(obj, "entity pending")
    print_table(
        ("topic id", "waits for", *_FIGURES, "clients"),
        (
            (
                pending["@topic-id"],
                pending["waits_for"] or "its registration",
                str(pending["messages"]),
                str(pending["bytes"]),
                f"{pending['oldest_age_s']} s",
                str(pending["evicted"]),
                ", ".join(pending["clients"]),
            )
            for pending in document["entities"]
        ),
        right=_FIGURES,
        empty="every entity that sends is registered",
    )
    print_line(
        f"{counted(document['messages'], 'message')} held for"
        f" {counted(document['entities_total'], 'entity', 'entities')},"
        f" {counted(document['bytes'], 'byte')};"
        f" {document['evicted_total']} evicted, {document['expired_total']} expired"
    )


@entity.command()
@click.argument("file", type=click.File("rb"))
def replay(file: IO[bytes]) -> int:
    """Show what the mapper would send for given messages.

    FILE (- = standard input) holds one JSON object a line: {"id", "config", "input"}; each message
    of the input has topic, payload, retain and at_ms. For each line {"id", "output"} is printed.
    Topics $ctl/restart, $ctl/stop, $ctl/start and $ctl/wait steer the daemon and its clock.
    `config.observe` lists the topic filters of what is shown; absent = c8y/#. Exit code 1 if a line
    could not be used: {"id", "line", "error"} says which, and why.
    """
    all_usable = True
    for number, line in enumerate(file, 1):
        if line.strip():
            answer = _answer(line, number)
            all_usable = all_usable and "error" not in answer
            print_json_line(answer)
    return 0 if all_usable else 1


def _answer(line: bytes, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": None}
    try:
        form = json.loads(line)
        answer["id"] = form.get("id") if isinstance(form, dict) else None
        answer["output"] = run_replay(form)
    except (ValueError, RecursionError) as error:
        answer |= {"line": number, "error": f"not JSON: {error}"}
    except MappingError as error:
        answer |= {"line": number, "error": str(error)}
    return answer
