"""`edgehub lora`: LoRaWAN stations and devices of the running hub."""

from __future__ import annotations

import asyncio
import base64
import random
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from edgehub.cli.arguments import checked, json_value, stacked
from edgehub.cli.consent import ask, dry_run_option, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, json_option, print_line, print_members, print_outcome
from edgehub.cli.paging import after_option, limit_option, print_next
from edgehub.cli.tables import print_table, span
from edgehub.clock import SystemClock
from edgehub.decoders.limits import DECODE_DOWNLINK, DECODE_UPLINK, ENCODE_DOWNLINK
from edgehub.decoders.scripts import DecoderError, call_once, read_script
from edgehub.errors import extra_hint
from edgehub.lora.airtime import lora_airtime
from edgehub.lora.device import DeviceClass, MacVersion, parse_device
from edgehub.lora.identifiers import parse_station_id
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from typing import TextIO

    from edgehub.lora.decode import FrameKeys

_FIGURES = ("joins", "up", "down")
_SESSION_KEYS = (
    {"nwk_s_key", "app_s_key"},
    {"f_nwk_s_int_key", "s_nwk_s_int_key", "nwk_s_enc_key", "app_s_key"},
)
_DEV_EUI = click.argument("dev_eui", metavar="DEVEUI")
_KEYS_OF_1_1 = stacked(
    click.option("--f-nwk-s-int-key", help="FNwkSIntKey, for LoRaWAN 1.1 instead of --nwk-s-key."),
    click.option("--s-nwk-s-int-key", help="SNwkSIntKey, for LoRaWAN 1.1."),
    click.option("--nwk-s-enc-key", help="NwkSEncKey, for LoRaWAN 1.1."),
)


@click.group(cls=CommandGroup)
def lora() -> None:
    """Register LoRaWAN devices, and show them and their stations."""


@lora.group(cls=CommandGroup)
def device() -> None:
    """Register, show and remove LoRaWAN devices."""


@device.command()
@_DEV_EUI
@click.option("--name", help="Display name.")
@click.option(
    "--mac-version",
    type=click.Choice([*map(str, MacVersion)]),
    help="Version of LoRaWAN; default: 1.0.3.",
)
@click.option(
    "--device-class",
    type=click.Choice([*map(str, DeviceClass)]),
    help="Class; a device of class C always listens. Default: A.",
)
@click.option("--join-eui", help="JoinEUI of its joins; default: any.")
@click.option("--app-key", help="Root key of a device that joins, 32 hex digits.")
@click.option("--nwk-key", help="Second root key of a device of 1.1.")
@click.option("--dev-addr", help="Address of a device that does not join, 8 hex digits.")
@click.option("--nwk-s-key", help="Network session key (NwkSKey) of a device that does not join.")
@click.option(
    "--app-s-key", help="Application session key (AppSKey) of a device that does not join."
)
@_KEYS_OF_1_1
@click.option(
    "--decoder",
    metavar="NAME",
    help="Decode payloads by NAME.js of lora.decoder_folder.",
)
@click.option(
    "--strict-counters",
    is_flag=True,
    help="Refuse a counter that starts again, of a device that does not join.",
)
@click.option("--replace", is_flag=True, help="Change a device that is registered.")
@json_option
@click.pass_obj
def add(obj: dict[str, Any], /, **given: Any) -> None:
    """Register a device.

    One that joins (OTAA) has --app-key, one with a session for good (ABP) has --dev-addr,
    --nwk-s-key and --app-s-key. Other users see keys on the command line while it runs; `edgehub
    lora device import -` takes them from standard input.
    """
    arguments = {name: value for name, value in given.items() if value not in (None, False)}
    answer = answer_of(obj, "lora device add", **arguments)
    print_line(f"registered: {answer['dev_eui']}")


@device.command("list")
@limit_option
@after_option("DevEUI")
@json_option
@click.pass_obj
def list_devices(obj: dict[str, Any], limit: int, after: str) -> None:
    """List registered devices, by their DevEUIs."""
    answer = answer_of(obj, "lora device list", limit=limit, after=after or None)
    print_table(
        ("DevEUI", "name", "version", "class", "activation", "DevAddr", *_FIGURES),
        (
            (
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
            for row in answer["devices"]
        ),
        right=_FIGURES,
        empty="no LoRaWAN device is registered",
    )
    print_next(answer)


@device.command()
@_DEV_EUI
@click.option("--keys", is_flag=True, help="Show keys too.")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], dev_eui: str, keys: bool) -> None:
    """Show a device and its session."""
    answer = answer_of(obj, "lora device show", dev_eui=dev_eui, keys=keys)
    print_members({**answer, **answer.pop("keys", {})})


@device.command()
@_DEV_EUI
@yes_option
@json_option
@click.pass_obj
def remove(obj: dict[str, Any], dev_eui: str, yes: bool) -> int:
    """Remove a device with its keys and session. Exit code 1 if it is not registered."""
    question = f"Remove {dev_eui} with its keys and session?"
    ask(question, yes=yes, look_first=f"`edgehub lora device show {dev_eui}`")
    answer = ask_hub(obj, "lora device remove", dev_eui=dev_eui)
    end_as_json(answer, 0 if answer["removed"] else 1)
    name, is_done = answer["dev_eui"], answer["removed"]
    return print_outcome(f"removed: {name}", f"there is no LoRaWAN device {name}", is_done=is_done)


@device.command("forget-nonces")
@_DEV_EUI
@yes_option
@json_option
@click.pass_obj
def forget_nonces(obj: dict[str, Any], dev_eui: str, yes: bool) -> None:
    """Forget which DevNonces a device has used.

    For a device that begins with the same ones again, as after a change of its firmware.
    Until it has joined, a recorded join request of it can be played back.
    """
    question = f"Forget the DevNonces of {dev_eui}?"
    ask(question, yes=yes, look_first=f"`edgehub lora device show {dev_eui}`")
    answer = answer_of(obj, "lora device forget-nonces", dev_eui=dev_eui)
    print_line(f"forgotten: {counted(answer['forgotten'], 'nonce')} of {answer['dev_eui']}")


@device.command("ask")
@_DEV_EUI
@click.argument("request")
@click.argument("values", metavar="[NAME=NUMBER]...", nargs=-1)
@json_option
@click.pass_obj
def ask_device(obj: dict[str, Any], dev_eui: str, request: str, values: tuple[str, ...]) -> None:
    """Ask a device by the MAC command REQUEST, such as DevStatusReq.

    It is sent with each answer to the device until the device has answered, and forgotten when the
    hub stops. `edgehub lora device answers` shows what came back.
    """
    members = {}
    for text in values:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise click.UsageError(f"`{text}`: want NAME=NUMBER, such as delay=5")
        members[name] = int(number)
    answer = ask_hub(obj, "lora device ask", dev_eui=dev_eui, request=request, values=members)
    _print_answers(answer)


@device.command()
@_DEV_EUI
@json_option
@click.pass_obj
def answers(obj: dict[str, Any], dev_eui: str) -> None:
    """Show what a device was asked by MAC commands and what it has answered."""
    _print_answers(ask_hub(obj, "lora device answers", dev_eui=dev_eui))


def _print_answers(answer: dict[str, Any]) -> None:
    end_as_json(answer)
    for name in answer["waiting"]:
        print_line(f"{name}: waits")
    for name, values in answer["answers"].items():
        members = ", ".join(f"{member} {value}" for member, value in values.items())
        print_line(f"{name}: {members or 'done'}")
    if not answer["waiting"] and not answer["answers"]:
        print_line("nothing was asked in this session")


@device.command("import")
@click.argument("source", metavar="FILE", type=click.File(encoding="utf-8"))
@click.option("--replace", is_flag=True, help="Change devices that are registered; else they stay.")
@dry_run_option
@json_option
@click.pass_obj
def import_devices(obj: dict[str, Any], source: TextIO, replace: bool, dry_run: bool) -> None:
    """Register the devices of a list; `-` reads standard input.

    The list is CSV with a heading, or JSON as The Things Stack or ChirpStack have it. If any device
    of it is wrong, none is registered.
    """
    try:
        devices = source.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source.name} is no text in UTF-8: {error.reason}") from error
    answer = answer_of(obj, "lora device import", devices=devices, replace=replace, dry_run=dry_run)
    word = "would be registered" if dry_run else "registered"
    print_line(
        f"{word}: {counted(answer['added'], 'device')}, {answer['changed']} changed, "
        f"{answer['skipped']} skipped"
    )


@lora.group(cls=CommandGroup)
def station() -> None:
    """Show LoRaWAN stations."""


@station.command("list")
@json_option
@click.pass_obj
def list_stations(obj: dict[str, Any]) -> None:
    """List stations that may connect, and what they have sent since the hub's start."""
    answer = answer_of(obj, "lora station list")
    figures = ("frames", "refused", "loops", "downlinks")
    print_table(
        ("station", "state", "for", "address", "version", "may", *figures),
        (
            (
                row["station"],
                "connected" if row["connected"] else "absent",
                span(row["for_s"]),
                row["address"] or "-",
                row["version"] or "-",
                _rights(row),
                *(str(row[name]) for name in figures),
            )
            for row in answer["stations"]
        ),
        right=figures,
        empty="no station may connect",
    )


def _rights(row: dict[str, Any]) -> str:
    if row["transmits"]:
        return "all" if row["takes_joins"] else "no joins"
    return "listen" if row["takes_joins"] else "listen, no joins"


@lora.command()
@click.argument("frame", metavar="FRAME")
@click.option("--app-key", help="Root key, for join frames; for LoRaWAN 1.1 the NwkKey.")
@click.option("--nwk-s-key", help="Network session key (NwkSKey), for data frames.")
@click.option("--app-s-key", help="Application session key (AppSKey), for data frames.")
@_KEYS_OF_1_1
@click.option(
    "--f-cnt",
    type=click.IntRange(0, 2**32 - 1),
    help="Full frame counter; default: found by the MIC.",
)
@click.option(
    "--tx-dr",
    type=click.IntRange(0, 15),
    default=0,
    show_default=True,
    help="Data rate of an uplink of LoRaWAN 1.1.",
)
@click.option("--sf", type=click.IntRange(7, 12), help="Spreading factor; shows the time on air.")
@click.option(
    "--bw",
    type=click.Choice(["125", "250", "500"]),
    default="125",
    show_default=True,
    help="Bandwidth in kHz.",
)
@click.option(
    "--tx-ch",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    help="Channel of an uplink of LoRaWAN 1.1.",
)
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Script that decodes the payload.",
)
@json_option
def decode(frame: str, **given: Any) -> int:
    """Describe a FRAME, hex digits or Base64; needs no hub.

    Without keys what is not encrypted is shown. Exit code 1 if the MIC is wrong, or the payload
    is not decoded.
    """
    _need_extra()
    from edgehub.lora.decode import decode_frame  # noqa: PLC0415 - needs the extra `lora`

    phy_payload = _frame_bytes(frame)
    try:
        document = decode_frame(phy_payload, _frame_keys(given))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if given["decoder"] is not None:
        document |= _decoded(document, given["decoder"])
    if given["sf"] is not None:
        airtime = lora_airtime(len(phy_payload), sf=given["sf"], bw_khz=int(given["bw"]))
        document["airtime_ms"] = round(airtime.ms, 3)
    code = 1 if document.get("mic_ok") is False or "decode_error" in document else 0
    end_as_json(document, code)
    commands = [
        " ".join([each["name"], *(f"{name}={value}" for name, value in each["values"].items())])
        for each in document.get("commands", ())
    ]
    print_members(document | ({"commands": commands} if commands else {}))
    return code


@lora.command()
@click.argument("data", metavar="DATA", callback=checked(json_value))
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Script that encodes it.",
)
@click.option("--port", type=click.IntRange(1, 223), help="Port that is asked for.")
@json_option
def encode(data: Any, decoder: Path, port: int | None) -> int:
    """Encode DATA, a JSON object for a device, by its decoder; needs no hub.

    Exit code 1 if it is not encoded.
    """
    if not isinstance(data, dict):
        raise click.UsageError("DATA: want a JSON object")
    _need_decoders()
    given = {"data": data} if port is None else {"data": data, "fPort": port}
    try:
        encoded = call_once(read_script(decoder), ENCODE_DOWNLINK, given)
        document = {
            "f_port": encoded["fPort"] or port,
            "payload": bytes(encoded["bytes"]).hex(),
            "warnings": encoded["warnings"],
        }
    except DecoderError as error:
        document = {"encode_error": str(error)}
    code = 1 if "encode_error" in document else 0
    end_as_json(document, code)
    print_members(document)
    return code


@lora.command()
@click.argument("stations", metavar="STATION...", nargs=-1)
@click.option(
    "--devices",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    help="Number of devices.",
)
@click.option(
    "--seed", default="", help="Seed of keys and timing; the same seed makes the same devices."
)
@click.option(
    "--list", "lists", is_flag=True, help="Print the devices for `lora device import -`, and end."
)
@click.option(
    "--seconds", type=float, default=60.0, show_default=True, help="How long devices send data."
)
@click.option(
    "--joins",
    "joins_per_s",
    type=click.FloatRange(0.1, 1000),
    default=3.0,
    show_default=True,
    help="Joins per second.",
)
@click.option(
    "--uplinks",
    "uplinks_per_s",
    type=click.FloatRange(0.1, 10_000),
    default=5.0,
    show_default=True,
    help="Uplinks per second.",
)
@click.option(
    "--confirmed",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Share of uplinks that are confirmed.",
)
@click.option(
    "--shared",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Share of uplinks that two stations hear.",
)
@click.option(
    "--token", envvar="EDGEHUB_STATION_TOKEN", help="Value of the header `Authorization`."
)
@json_option
def simulate(stations: tuple[str, ...], lists: bool, devices: int, seed: str, **given: Any) -> int:
    """Play stations and devices against running hubs.

    Each STATION is `ws://HOST:PORT/ID`, with an id that its hub lets in. The devices join, send for
    a while, and repeat what is not acknowledged. Exit code 1 if one could not join or a confirmed
    frame was not acknowledged.
    """
    _need_extra()
    from edgehub.lab.radio.simulation import (  # noqa: PLC0415 - needs the extra `lora`
        RadioOptions,
        RadioSimulation,
        device_table,
    )

    if lists:
        for line in device_table(devices, seed).splitlines():
            print_line(line)
        return 0
    if not stations:
        raise click.UsageError("want a station, such as ws://127.0.0.1:8887/B827EBFFFE123456")
    found = [_station_place(text) for text in stations]
    options = RadioOptions(
        hubs=[hub for hub, _ in found],
        stations=[station_id for _, station_id in found],
        devices=devices,
        seed=seed,
        **given,
    )
    rng = random.Random(seed)  # noqa: S311 - which device sends when
    try:
        result = asyncio.run(RadioSimulation(options, rng).run())
    except OSError as error:
        raise click.ClickException(f"no hub takes the stations: {error}") from error
    document = to_builtins(result)
    end_as_json(document)
    print_members(document)
    is_whole = result.joined == devices and result.acknowledged == result.confirmed
    return 0 if is_whole else 1


def _decoded(document: dict[str, Any], file: Path) -> dict[str, Any]:
    """Decode the payload of a described frame, as the hub does for a device with a decoder."""
    _need_decoders()
    f_port, payload = document.get("f_port"), document.get("payload")
    if not f_port or payload is None:
        raise click.UsageError("--decoder: the frame has no decrypted payload (see --app-s-key)")
    given = {"bytes": list(bytes.fromhex(payload)), "fPort": f_port}
    function = DECODE_DOWNLINK
    if document["m_type"].endswith("up"):
        function = DECODE_UPLINK
        given["recvTime"] = SystemClock().wall_ms()
    try:
        decoded = call_once(read_script(file), function, given)
    except DecoderError as error:
        return {"decode_error": str(error)}
    warnings = decoded["warnings"]
    return {"decoded_payload": decoded["data"]} | (
        {"decoded_payload_warnings": warnings} if warnings else {}
    )


def _need_decoders() -> None:
    if find_spec("dukpy") is None:
        raise click.UsageError(f"this installation has no dukpy; {extra_hint('lora-js')}")


def _need_extra() -> None:
    if find_spec("cryptography") is None:
        raise click.UsageError(f"this installation has no cryptography; {extra_hint('lora')}")


def _station_place(text: str) -> tuple[str, int]:
    hub, _, name = text.rpartition("/")
    if not hub.startswith(("ws://", "wss://")):
        raise click.UsageError(f"{text}: want ws://HOST:PORT/ID")
    try:
        return hub, parse_station_id(name)
    except ValueError as error:
        raise click.UsageError(f"{text}: {error}") from error


def _frame_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise click.UsageError("FRAME is neither hex digits nor Base64") from error


def _frame_keys(given: dict[str, Any]) -> FrameKeys:
    from edgehub.lora.decode import FrameKeys  # noqa: PLC0415 - needs the extra `lora`
    from edgehub.lora.session import UplinkRate  # noqa: PLC0415 - likewise

    keys = {name: value for name, value in given.items() if name.endswith("_key") and value}
    root_key = keys.pop("app_key", None)
    session = None
    if keys:
        if keys.keys() not in _SESSION_KEYS:
            raise click.UsageError(
                "a data frame wants --nwk-s-key and --app-s-key; of LoRaWAN 1.1 --app-s-key, "
                "--f-nwk-s-int-key, --s-nwk-s-int-key and --nwk-s-enc-key"
            )
        is_1_1 = "nwk_s_key" not in keys
        about = {"dev_eui": "0" * 16, "dev_addr": "0" * 8, "mac_version": "1.1" if is_1_1 else None}
        session = parse_device({**about, **keys}).session
    if root_key is not None:
        root_key = parse_device({"dev_eui": "0" * 16, "app_key": root_key}).profile.app_key
    return FrameKeys(
        root_key=None if root_key is None else bytes.fromhex(root_key),
        session=session,
        f_cnt=given["f_cnt"],
        rate=UplinkRate(given["tx_dr"], given["tx_ch"]),
    )
