"""`edgehub lora`: LoRaWAN devices of the running hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgehub.cli.consent import ask, dry_run_option, yes_option
from edgehub.cli.daemon import ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import json_option, print_json, print_line
from edgehub.cli.tables import new_table, print_table
from edgehub.lora.device import DeviceClass, MacVersion
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from typing import TextIO

_LIMIT = click.option("--limit", type=click.IntRange(1, 1000), default=100, help="At most (100).")
_FIGURES = ("joins", "up", "down")
_DEV_EUI = click.argument("dev_eui", metavar="DEVEUI")


@click.group(cls=CommandGroup)
def lora() -> None:
    """Register LoRaWAN devices, and show what becomes of them."""


@lora.group(cls=CommandGroup)
def device() -> None:
    """Register, show and remove LoRaWAN devices."""


@device.command()
@_DEV_EUI
@click.option("--name", help="What people call it.")
@click.option("--mac-version", type=click.Choice(list(MacVersion)), help="Its LoRaWAN (1.0.3).")
@click.option(
    "--device-class", type=click.Choice(list(DeviceClass)), help="C = always listens (A)."
)
@click.option("--join-eui", help="JoinEUI of its joins; absent = any.")
@click.option("--app-key", help="Root key of a device that joins, 32 hex digits.")
@click.option("--nwk-key", help="Second root key of a device of 1.1.")
@click.option("--dev-addr", help="Address of a device that does not join, 8 hex digits.")
@click.option("--nwk-s-key", help="Its network session key.")
@click.option("--app-s-key", help="Its application session key.")
@click.option("--f-nwk-s-int-key", help="In place of --nwk-s-key for a device of 1.1.")
@click.option("--s-nwk-s-int-key", help="Likewise.")
@click.option("--nwk-s-enc-key", help="Likewise.")
@click.option("--strict-counters", is_flag=True, help="It never starts again with counter 0.")
@click.option("--replace", is_flag=True, help="Change a device that is registered.")
@json_option
@click.pass_obj
def add(obj: dict[str, Any], /, as_json: bool, **given: Any) -> None:
    """Register a device.

    One that joins (OTAA) has --app-key, one with a session for good (ABP) has --dev-addr,
    --nwk-s-key and --app-s-key. Other users see keys on the command line while it runs; `edgehub
    lora device import -` takes them from standard input.
    """
    arguments = {name: value for name, value in given.items() if value not in (None, False)}
    answer = ask_hub(obj, "lora device add", **arguments)
    if as_json:
        print_json(answer)
    else:
        print_line(f"registered: {answer['dev_eui']}")


@device.command("list")
@_LIMIT
@click.option("--after", default="", help="Begin behind this DevEUI.")
@json_option
@click.pass_obj
def list_devices(obj: dict[str, Any], limit: int, after: str, as_json: bool) -> None:
    """List registered devices, by their DevEUIs."""
    answer = ask_hub(obj, "lora device list", limit=limit, after=after or None)
    if as_json:
        print_json(answer)
        return
    table = new_table(
        "DevEUI", "name", "version", "class", "by", "DevAddr", *_FIGURES, right=_FIGURES
    )
    for row in answer["devices"]:
        table.add_row(
            row["dev_eui"],
            row["name"] or "-",
            row["mac_version"],
            row["device_class"],
            row["activation"],
            row["dev_addr"] or "-",
            str(row["joins"]),
            str(row["f_cnt_up"]),
            str(row["f_cnt_down"]),
        )
    print_table(table)
    if answer["next"]:
        print_line(f"more with --after {answer['next']}", err=True)


@device.command()
@_DEV_EUI
@click.option("--keys", is_flag=True, help="Show its keys too.")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], dev_eui: str, keys: bool, as_json: bool) -> None:
    """Show a device and its session."""
    answer = ask_hub(obj, "lora device show", dev_eui=dev_eui, keys=keys)
    if as_json:
        print_json(answer)
        return
    shown = answer.pop("keys", {})
    for key, value in {**answer, **shown}.items():
        print_line(f"{key}: {'-' if value in (None, '') else value}")


@device.command()
@_DEV_EUI
@yes_option
@json_option
@click.pass_obj
def remove(obj: dict[str, Any], dev_eui: str, yes: bool, as_json: bool) -> int:
    """Remove a device with its keys and session. Exit code 1 if it is not registered."""
    question = f"Remove {dev_eui} with its keys and session?"
    ask(question, yes=yes, look_first=f"`edgehub lora device show {dev_eui}`")
    answer = ask_hub(obj, "lora device remove", dev_eui=dev_eui)
    if as_json:
        print_json(answer)
    elif answer["removed"]:
        print_line(f"removed: {answer['dev_eui']}")
    else:
        print_line(f"edgehub: there is no LoRaWAN device {answer['dev_eui']}", err=True)
    return 0 if answer["removed"] else 1


@device.command("forget-nonces")
@_DEV_EUI
@yes_option
@json_option
@click.pass_obj
def forget_nonces(obj: dict[str, Any], dev_eui: str, yes: bool, as_json: bool) -> None:
    """Forget which DevNonces a device has used.

    For a device that begins with the same ones again, after a change of its firmware for example.
    Until it has joined, a recorded join request of it can be played back.
    """
    question = f"Forget the DevNonces of {dev_eui}?"
    ask(question, yes=yes, look_first=f"`edgehub lora device show {dev_eui}`")
    answer = ask_hub(obj, "lora device forget-nonces", dev_eui=dev_eui)
    if as_json:
        print_json(answer)
    else:
        print_line(f"forgotten: {counted(answer['forgotten'], 'nonce')} of {answer['dev_eui']}")


@device.command("import")
@click.argument("source", metavar="FILE", type=click.File(encoding="utf-8"))
@click.option("--replace", is_flag=True, help="Change devices that are registered; else they stay.")
@dry_run_option
@json_option
@click.pass_obj
def import_devices(
    obj: dict[str, Any], source: TextIO, replace: bool, dry_run: bool, as_json: bool
) -> None:
    """Register the devices of a list; `-` reads standard input.

    The list is CSV with a heading, or JSON as The Things Stack or ChirpStack have it. If any device
    of it is wrong, none is registered.
    """
    try:
        devices = source.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source.name} is no text in UTF-8: {error.reason}") from error
    answer = ask_hub(obj, "lora device import", devices=devices, replace=replace, dry_run=dry_run)
    if as_json:
        print_json(answer)
        return
    word = "would be registered" if dry_run else "registered"
    print_line(
        f"{word}: {counted(answer['added'], 'device')}, {answer['changed']} changed, "
        f"{answer['skipped']} skipped"
    )
