"""`edgehub affinity`: which gateway would speak for a device, and when.

Works on files alone and asks no daemon; it runs the objects that the daemon runs, with clock,
network and storage replaced.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import click

from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import json_option_of, print_json_line, print_line, wants_json
from edgehub.lab.simulation.form import WHOLE_MAX, ScenarioError, scenarios_of
from edgehub.lab.simulation.run import simulate as run_simulation
from edgehub.telemetry.log import configure

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.group(cls=CommandGroup)
def affinity() -> None:
    """Try how gateways share a device, without a running hub."""


@affinity.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--delay-ms",
    "delays_ms",
    type=click.IntRange(0, WHOLE_MAX),
    multiple=True,
    help="Wait of a gateway that lost the device, instead of the scenario's; may be given again.",
)
@json_option_of("Print one JSON object a line.")
def simulate(file: IO[bytes], delays_ms: tuple[int, ...]) -> int:
    """Show what becomes of the events of scenarios.

    FILE (- = standard input) holds a scenario, a list of them, an object with `scenarios`, or one a
    line. Each is run once, or once per --delay-ms. Members of a scenario that are not known are
    named on standard error. Exit code 1 if one could not be used.
    """
    configure(level="error", fmt="auto")
    all_usable = True
    for place, form in _scenarios(file):
        for delay_ms in delays_ms or (None,):
            try:
                outcome = run_simulation(form, delay_ms=delay_ms)
            except ScenarioError as error:
                all_usable = False
                _complain(place, form, error)
                break
            for member in outcome["ignored"]:
                print_line(f"edgehub: {place}: ignored: {member}", err=True)
            if wants_json():
                print_json_line(outcome)
            else:
                _print(place, form, outcome)
    return 0 if all_usable else 1


def _scenarios(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    name = getattr(file, "name", "-")
    for number, form in enumerate(_forms(file, name), start=1):
        id_ = form.get("id") if isinstance(form, dict) else None
        yield f"{name}: {id_ or f'scenario {number}'}", form


def _forms(file: IO[bytes], name: str) -> list[Any]:
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name}: not UTF-8: {error}") from error
    try:
        return scenarios_of(json.loads(text))
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ScenarioError(f"{name}: nested too deeply") from error
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            forms = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise ScenarioError(f"{name}: not JSON: {error}") from error
        if not forms:
            raise ScenarioError(f"{name}: is empty") from error
        return forms


def _complain(place: str, form: Any, error: ScenarioError) -> None:
    print_line(f"edgehub: {place}: {error}", err=True)
    if wants_json():
        id_ = form.get("id") if isinstance(form, dict) else None
        print_json_line({"id": id_, "error": str(error)})


def _print(place: str, form: dict[str, Any], outcome: dict[str, Any]) -> None:
    title = form.get("title")
    print_line(f"{place}{f': {title}' if title else ''} (delay {outcome['delay_ms']} ms)")
    lines = [
        (frame["t_ms"], _frame_text(word, frame, form["events"][frame["event"]]))
        for word in ("uplinks", "joins", "downlinks")
        for frame in outcome[word]
    ]
    lines += [
        (entry["t_ms"], f"{entry['gateway']}: connection {entry['action']}{_device(entry)}")
        for entry in outcome["connection_log"]
    ]
    lines += [
        (notice["t_ms"], f"notice to {notice['to']}{'' if notice['delivered'] else ': not heard'}")
        for notice in outcome["notifications"]
    ]
    for t_ms, text in sorted(lines, key=lambda line: line[0]):
        print_line(f"  {t_ms:>9} ms  {text}")
    for name, state in outcome["final"]["gateways"].items():
        print_line(f"  at the end   {name}: {_state_text(state)}")


def _frame_text(word: str, frame: dict[str, Any], event: dict[str, Any]) -> str:
    what = {
        "uplinks": f"frame {event.get('f_cnt')}",
        "joins": f"join {event.get('dev_nonce')}",
        "downlinks": "class C downlink",
    }[word]
    text = f"{frame['gateway']}: {what} {frame['result']}"
    if frame.get("reason"):
        text += f" ({frame['reason']})"
    if frame.get("elected_at_ms") is not None:
        was_refused = frame["result"] in {"dropped", "rejected"} or frame.get("marked_duplicate")
        text += f", {'refused' if was_refused else 'elected'} at {frame['elected_at_ms']} ms"
    return text


def _device(entry: dict[str, Any]) -> str:
    return f" for {entry['device']}" if "device" in entry else ""


def _state_text(state: dict[str, Any]) -> str:
    if state.get("down"):
        return "down"
    if "ownership" in state:
        return f"{state['ownership']}, connection {state['connection']}"
    return "; ".join(f"{device} {_state_text(value)}" for device, value in state.items())
