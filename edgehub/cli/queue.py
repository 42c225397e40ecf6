"""`edgehub queue`: what waits, where and since when; and what is to become of it."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from edgehub.cli.consent import ask, dry_run_option, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.dead import dead
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, json_option, print_line
from edgehub.cli.tables import print_table
from edgehub.message import DEFAULT_PRIORITY
from edgehub.telemetry.plural import counted

_FIGURES: Final = (
    "waiting",
    "bytes",
    "oldest",
    "expires in",
    "served",
    "empty in",
    "sent",
    "expired",
    "dropped",
    "dead letters",
)
_PRIORITIES: Final = {**{str(number): number for number in range(10)}, "default": DEFAULT_PRIORITY}
_ROW_FIGURES: Final = ("offset", "age", "expires in", "body", "tries")


@click.group(cls=CommandGroup)
def queue() -> None:
    """Look into the queues of the running hub, and purge or move them."""


queue.add_command(dead)


@queue.command("list")
@json_option
@click.pass_obj
def list_queues(obj: dict[str, Any]) -> None:
    """List all queues, best priority first per endpoint."""
    document = answer_of(obj, "queue list")
    queue_table(document)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option(
    "--priority",
    type=click.Choice([*_PRIORITIES]),
    help="Only the queue of this priority, where QUEUE names an endpoint.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of messages at most.",
)
@click.option("--after", type=click.IntRange(0), default=0, help="Begin after this offset.")
@click.option("--payload", is_flag=True, help="Show bodies and the values of properties.")
@json_option
@click.pass_obj
def peek(
    obj: dict[str, Any],
    *,
    name: str,
    priority: str | None,
    limit: int,
    after: int,
    payload: bool,
) -> None:
    """Show the oldest messages of QUEUE; neither bodies nor values of properties unless asked for.

    QUEUE is a queue such as upstream_Pri3, or an endpoint such as upstream: then all its queues are
    shown, best priority first. The answer ends after about 1 MiB; go on with --after and the last
    offset shown, in one queue: with upstream_Pri3 --after 17, or upstream --priority default
    --after 17.
    """
    document = answer_of(
        obj,
        "queue peek",
        queue=name,
        priority=None if priority is None else _PRIORITIES[priority],
        limit=limit,
        after=after,
        payload=payload,
    )
    rows = document["rows"]
    behind = f" behind {after}" if after else ""
    print_table(
        ("queue", *_ROW_FIGURES, "state", "device", "routes", "properties", "id"),
        (
            (
                row["queue"],
                str(row["offset"]),
                _seconds(row["age_s"]),
                "never" if row["expires_in_s"] is None else _seconds(row["expires_in_s"]),
                f"{row['body_bytes']} B",
                str(row["attempts"] + row["closes"]),
                row["state"],
                sender(row),
                ", ".join(row["routes"]),
                properties(row),
                row["id"],
            )
            for row in rows
        ),
        right=_ROW_FIGURES,
        empty=f"{document['queue']}: nothing waits{behind}",
    )
    if payload:
        for row in rows:
            print_line(f"{row['offset']}: {body(row)}")


@queue.command()
@click.argument("name", metavar="QUEUE")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def purge(obj: dict[str, Any], name: str, dry_run: bool, yes: bool) -> None:
    """Remove all messages that wait in QUEUE now, for good.

    Of one queue only: upstream is the queue of the default priority, not the whole endpoint.
    Messages that come during that stay, and those in flight, which are counted.
    """
    _take_out(obj, "queue purge", {"queue": name}, dry_run=dry_run, yes=yes)


@queue.command()
@click.argument("name", metavar="FROM")
@click.argument("to", metavar="TO")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def move(obj: dict[str, Any], name: str, to: str, dry_run: bool, yes: bool) -> None:
    """Move all messages that wait in queue FROM now to queue TO, such as upstream_Pri7 or upstream.

    Of one queue only, as with purge. They keep their place by offset, their time of arrival and
    their time to live. TO must be of an endpoint that is served; FROM may be orphaned. Messages in
    flight stay, and are counted.
    """
    arguments = {"queue": name, "to": to}
    _take_out(obj, "queue move", arguments, dry_run=dry_run, yes=yes)


def _take_out(
    obj: dict[str, Any],
    command: str,
    arguments: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Purge or move, call by call: each works for about half a second."""
    total = ask_hub(obj, command, dry_run=True, **arguments)
    where = f"from {total['queue']}" + (f" to {total['to']}" if total["to"] else "")
    verb = "move" if total["to"] else "remove"
    done = total
    for other, rows in total["other_queues"].items():
        print_line(f"not touched: {counted(rows, 'message')} in {other}", err=True)
    if not dry_run:
        if total["rows"]:
            beyond = f", beyond its limit of {caps}" if (caps := _caps(total)) else ""
            ask(f"{verb} {counted(total['rows'], 'message')} {where}{beyond}?", yes=yes)
        total |= {"rows": 0, "bytes": 0, "in_flight": 0}
        at: int | None = 0
        while at is not None:
            done = ask_hub(obj, command, through=total["through"], from_offset=at, **arguments)
            at = done["next_offset"]
            for figure in ("rows", "bytes", "in_flight"):
                total[figure] += done[figure]
    total["exceeds"] = done["exceeds"]
    result = {key: total[key] for key in ("queue", "to", "rows", "bytes", "in_flight", "exceeds")}
    end_as_json(result | {"dry_run": dry_run})
    would = f"would {verb}" if dry_run else f"{verb}d"
    print_line(f"{would} {counted(total['rows'], 'message')} {where}")
    if total["in_flight"]:
        verb = "stays" if total["in_flight"] == 1 else "stay"
        print_line(
            f"{counted(total['in_flight'], 'message')} {verb}, in flight or kept out since the peer"
            " may have closed over it (edgehub queue peek shows which); kept out rows wait again"
            " within a minute",
            err=True,
        )
    if caps := _caps(total):
        text = (
            f"beyond the limit of {caps} of {total['to']}: the next message for it finds that limit"
        )
        print_line(f"{text} reached, so what `store.overflow` says happens then", err=True)


def _caps(total: dict[str, Any]) -> str:
    return " and ".join(total["exceeds"])


def queue_table(document: dict[str, Any]) -> None:
    """Print the queues of a document, and since when they count, as a table."""
    print_table(
        ("queue", *_FIGURES, "state"),
        (
            (
                entry["id"],
                str(entry["depth"]),
                str(entry["bytes"]),
                _seconds(entry["oldest_age_s"]),
                _seconds(entry["oldest_expires_in_s"]),
                "-" if entry["unserved_s"] is None else f"{entry['unserved_s']:.0f} s ago",
                drain_text(entry["drain"]),
                str(entry["sent"]),
                str(entry["expired"]),
                str(entry["dropped"]),
                str(entry["dead_lettered"]),
                "orphaned" if entry["orphaned"] else entry["state"],
            )
            for entry in document["queues"]
        ),
        right=_FIGURES,
        empty="no queues yet: no message has been stored",
    )
    started = document["started"][:16].replace("T", " ")
    print_line(f"counts since {started} UTC, when the hub started")


def drain_text(drain: dict[str, Any]) -> str:
    """Write when a queue will be empty."""
    match drain["state"]:
        case "empty":
            return "-"
        case "drains":
            return _seconds(drain["seconds"])
        case "unknown":
            return "?"
        case state:
            return str(state)


def sender(row: dict[str, Any]) -> str:
    """Write who sent a message."""
    device: str = row["device"]
    return device if row["module"] is None else f"{device}/{row['module']}"


def properties(row: dict[str, Any]) -> str:
    """Write the properties of a message, with values where the daemon gave them."""
    found = row["properties"]
    if isinstance(found, dict):
        found = [f"{name}={value}" for name, value in found.items()]
    return ", ".join(found)


def body(row: dict[str, Any]) -> str:
    """Write the body of a message on one line."""
    if "body" in row:
        return json.dumps(row["body"], ensure_ascii=False)
    return f"base64 {row['body_base64']}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
