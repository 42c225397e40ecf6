"""`edgehub device send`, `messages`, `purge`: messages to devices and modules."""

from __future__ import annotations

import base64
import sys
from typing import Any, Final

import click

from edgehub.cli.arguments import checked, duration_s, named_values
from edgehub.cli.consent import ask, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.output import json_option, print_line
from edgehub.cli.tables import print_table
from edgehub.telemetry.plural import counted

_ACKS: Final = ("none", "positive", "negative", "full")
_MODULE: Final = click.option("--module", "-m", help="A module of the device.")


@click.command("send")
@click.argument("device_id", metavar="DEVICE")
@click.argument("body", required=False)
@_MODULE
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=checked(named_values),
    help="A property of the message; may be repeated.",
)
@click.option(
    "--priority", type=click.IntRange(0, 9), help="0 is the best; default: after all others."
)
@click.option(
    "--ttl",
    metavar="DURATION",
    callback=checked(duration_s),
    help="Time to live, such as 10min; at most 48h.",
)
@click.option("--id", "message_id", help="Message id; default: made by the hub.")
@click.option("--correlation-id", help="Correlation id, for the device.")
@click.option("--content-type", help="Type of the body, such as application/json.")
@click.option("--ack", type=click.Choice(_ACKS), help="Outcomes of which the hub sends feedback.")
@json_option
@click.pass_obj
def send_to_device(
    obj: dict[str, Any],
    /,
    *,
    device_id: str,
    body: str | None,
    module: str | None,
    properties: dict[str, str],
    ttl: int | None,
    **options: Any,
) -> None:
    """Send a message to DEVICE; the hub stores it until the device has acknowledged it.

    BODY is its content; absent or - = standard input.

    \b
    Example:
      edgehub device send pump-7 '{"open": true}' --priority 0 --ttl 10min
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    content = sys.stdin.buffer.read() if body in {None, "-"} else str(body).encode()
    given = {"module_id": module, "ttl_s": ttl, "properties": properties or None, **options}
    answer = answer_of(
        obj,
        "device send",
        device_id=device_id,
        body_base64=base64.b64encode(content).decode(),
        **{name: value for name, value in given.items() if value is not None},
    )
    waiting = counted(answer["waiting"], "message")
    print_line(f"stored: {answer['message_id']}, until {answer['expires']} ({waiting} for it now)")
    if answer["owner"] is not None:
        print_line(f"it goes on to hub {answer['owner']}, which speaks for {device_id}")


@click.command("messages")
@click.argument("device_id", metavar="DEVICE")
@_MODULE
@json_option
@click.pass_obj
def messages(obj: dict[str, Any], device_id: str, module: str | None) -> None:
    """List messages that wait for DEVICE, the next one first, and dead letters."""
    answer = answer_of(obj, "device messages", device_id=device_id, module_id=module)
    print_table(
        ("id", "priority", "from", "stored", "expires", "deliveries", "bytes", "state"),
        (
            (
                each["message_id"],
                "-" if each["priority"] is None else str(each["priority"]),
                each["origin"],
                each["enqueued"],
                each["expires"],
                str(each["deliveries"]),
                str(each["size"]),
                each["dead"] or ("in flight" if each["in_flight"] else "waits"),
            )
            for each in (*answer["waiting"], *answer["dead_letters"])
        ),
        right=("priority", "deliveries", "bytes"),
        empty=f"no message waits for {device_id}",
    )
    if answer["owner"] is not None:
        print_line(f"hub {answer['owner']} speaks for {device_id} and has its messages", err=True)


@click.command("purge")
@click.argument("device_id", metavar="DEVICE")
@_MODULE
@click.option("--id", "message_id", help="Only the message with this id.")
@click.option("--dead", is_flag=True, help="Dead letters instead of messages that wait.")
@yes_option
@click.pass_obj
def purge(
    obj: dict[str, Any],
    device_id: str,
    module: str | None,
    message_id: str | None,
    dead: bool,
    yes: bool,
) -> None:
    """Remove messages to DEVICE that are not in flight."""
    what = "dead letters" if dead else "messages"
    ask(
        f"Remove {what} to {device_id}?",
        yes=yes,
        look_first=f"`edgehub device messages {device_id}`",
    )
    answer = ask_hub(
        obj,
        "device purge",
        device_id=device_id,
        module_id=module,
        message_id=message_id,
        dead=dead,
    )
    print_line(f"removed: {counted(answer['purged'], 'message')}")
