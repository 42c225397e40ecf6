"""`edgehub device`: which devices the running hub speaks for, since when and why."""

from __future__ import annotations

from typing import Any, Final

import click

from edgehub.cli.consent import ask, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.device_messages import messages, purge, send_to_device
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import json_option, print_line, print_members, print_outcome
from edgehub.cli.paging import after_option, limit_option, print_next
from edgehub.cli.tables import print_table
from edgehub.devices.source import Deduplication
from edgehub.telemetry.plural import counted

_NOT_RECORDED: Final = (
    "devices are not recorded, since there is no election: this hub speaks for all that send to it"
    ' (set coordinator = "in-process" or "redis" in [affinity] and restart it)'
)


@click.group(cls=CommandGroup)
def device() -> None:
    """Look at devices of the running hub, send them messages, and set how each is treated."""


for _command in (send_to_device, messages, purge):
    device.add_command(_command)


@device.command("list")
@limit_option
@after_option("device")
@json_option
@click.pass_obj
def list_devices(obj: dict[str, Any], limit: int, after: str) -> None:
    """List devices that were heard or judged here, by their ids."""
    answer = answer_of(obj, "device list", limit=limit, after=after or None)
    print_table(
        ("device", "this hub is", "session", "epoch", "waiting", "silent"),
        (
            (
                row["device_id"],
                row["ownership"],
                "open" if row["session_open"] else "-",
                str(row["epoch"]),
                str(row["waiting"]),
                "-" if row["silent_s"] is None else f"{row['silent_s']:.0f} s",
            )
            for row in answer["devices"]
        ),
        right=("epoch", "waiting", "silent"),
        empty=_NOT_RECORDED if answer["coordinator"] == "off" else "no device was heard",
    )
    print_next(answer)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], device_id: str) -> None:
    """Show one device: settings, session, queue, connection, and its last changes of owner."""
    answer = answer_of(obj, "device show", device_id=device_id)
    ledger = answer.pop("ledger")
    for key, value in answer.items():
        if isinstance(value, dict):
            print_members(value, f"{key}.")
        else:
            print_members({key: value})
    _print_ledger(ledger)


@device.command()
@click.argument("device_id", metavar="[DEVICE]", required=False)
@limit_option
@json_option
@click.pass_obj
def ledger(obj: dict[str, Any], device_id: str | None, limit: int) -> None:
    """Show who owned what when: each change that this hub saw, and its cause.

    A change is a steal when this hub took the device from another one. A ping-pong is a device that
    came back after it was lost.
    """
    answer = answer_of(obj, "device ledger", device_id=device_id, limit=limit)
    _print_ledger(answer["entries"])
    for word, counts in (("hour", answer["last_hour"]), ("day", answer["last_day"])):
        print_line(
            f"last {word}: {counts['taken']} taken, {counts['lost']} lost, "
            f"{counted(counts['ping_pongs'], 'ping-pong')}, "
            f"{counted(counts['sessions_taken_over'], 'session')} taken over"
        )


@device.command("set")
@click.argument("device_id", metavar="DEVICE")
@click.option(
    "--deduplication",
    type=click.Choice([each.value for each in Deduplication]),
    help="What happens to a copy that a hub received too late.",
)
@click.option("--gateway-id", help="The only hub that may speak for it; empty = any.")
@click.option(
    "--keep-alive-s",
    type=click.IntRange(0, 86_400),
    help="Idle time after which its session upstream is closed; 0 = never, else at least 60.",
)
@json_option
@click.pass_obj
def set_device(
    obj: dict[str, Any],
    device_id: str,
    deduplication: str | None,
    gateway_id: str | None,
    keep_alive_s: int | None,
) -> None:
    """Set how a device is treated; what is not given stays."""
    arguments: dict[str, Any] = {"device_id": device_id}
    if deduplication is not None:
        arguments["deduplication"] = deduplication
    if gateway_id is not None:
        arguments["gateway_id"] = gateway_id or None
    if keep_alive_s is not None:
        arguments["keep_alive_s"] = keep_alive_s
    answer = answer_of(obj, "device set", **arguments)
    print_members(answer)


@device.command()
@click.argument("device_id", metavar="DEVICE")
@yes_option
@click.pass_obj
def forget(obj: dict[str, Any], device_id: str, yes: bool) -> int:
    """Forget settings and counters of a device; it is treated as one that was never heard."""
    question = f"Forget settings and counters of {device_id}?"
    ask(question, yes=yes, look_first=f"`edgehub device show {device_id}`")
    answer = ask_hub(obj, "device forget", device_id=device_id)
    otherwise = f"the registry has no device {device_id}"
    return print_outcome(f"forgotten: {device_id}", otherwise, is_done=answer["forgotten"])


@device.command()
@click.argument("device_id", metavar="DEVICE")
@click.pass_obj
def release(obj: dict[str, Any], device_id: str) -> int:
    """Stop speaking for a device, so that the next hub that receives its messages does.

    Its session upstream is closed. If no other hub hears it, this one takes it again.
    """
    answer = ask_hub(obj, "device release", device_id=device_id)
    otherwise = f"this hub does not speak for {device_id}"
    return print_outcome(f"released: {device_id}", otherwise, is_done=answer["released"])


def _print_ledger(entries: list[dict[str, Any]]) -> None:
    print_table(
        ("time", "device", "was", "is", "cause", "other hub", "epoch"),
        (
            (
                entry["time"],
                entry["device_id"],
                entry["former"],
                entry["ownership"],
                entry["cause"] + (" (steal)" if entry["steal"] else ""),
                entry["other"] or "-",
                str(entry["epoch"]),
            )
            for entry in entries
        ),
        right=("epoch",),
        empty="no change of owner was seen",
    )
