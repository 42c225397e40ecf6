"""`edgehub route`: try conditions and routes, check a manifest, ask where a message goes.

What stands here works on files alone and asks no daemon; it runs the same parser, compiler and
route table that the daemon runs. The commands on the table of a running hub are in `route_table`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from edgehub.cli.message_form import MessageFormError, read_message
from edgehub.cli.route_table import COMMANDS
from edgehub.cli.route_trial import try_line
from edgehub.cli.tables import new_table, print_table
from edgehub.errors import ManifestError
from edgehub.message import DEFAULT_PRIORITY, EndpointId
from edgehub.routes import Manifest, RouteTable, load_manifest
from edgehub.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from edgehub.errors import ManifestFault
    from edgehub.message import Message
    from edgehub.routes.explain import RouteVerdict

_EXIT_CONFIG: Final = 78

_manifest_option = click.option(
    "--manifest",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Deployment manifest, JSON.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def route() -> None:
    """See and change the routes of a running hub; try routes and manifests without one.

    test, check and explain work on files; the others ask the hub.
    """


for _command in COMMANDS:
    route.add_command(_command)


@route.command()
@click.argument("file", type=click.File("rb"))
def test(file: IO[bytes]) -> int:
    """Try conditions or routes on messages.

    FILE (- = standard input) holds one JSON object a line: {"id", "condition" or "route",
    "message"}; for each, one JSON object is printed. A condition is judged as in FROM /messages/*
    WHERE <condition> INTO $upstream. Exit code 1 if a line could not be used.
    """
    all_usable = True
    for line in file:
        if line.strip():
            answer, usable = try_line(line)
            all_usable = all_usable and usable
            click.echo(json.dumps(answer))
    return 0 if all_usable else 1


@route.command()
@_manifest_option
@_json_option
@click.pass_obj
def check(obj: dict[str, Any], file: Path, as_json: bool) -> int:
    """Check a manifest: every fault and warning, with route, line, column and hint.

    Named endpoints are compared with the settings where there is a settings file. Exit code 78 if
    the hub would refuse the manifest.
    """
    try:
        manifest, _ = _load(file, obj["config"])
    except ManifestError as error:
        if as_json:
            _echo_json({"ok": False, "faults": _as_objects(error.faults), "warnings": []})
            return _EXIT_CONFIG
        raise
    warnings = manifest.warnings
    if as_json:
        _echo_json(
            {
                "ok": True,
                "routes": len(manifest.routes),
                "fingerprint": manifest.fingerprint,
                "faults": [],
                "warnings": _as_objects(warnings),
            }
        )
        return 0
    for warning in warnings:
        click.echo(f"{file}: warning: {warning}", err=True)
    click.echo(f"{file}: {len(manifest.routes)} routes, no faults")
    return 0


@route.command()
@_manifest_option
@click.option(
    "--message",
    "message_file",
    type=click.File("rb"),
    help="The message as JSON, - = standard input; absent = an empty one from a device.",
)
@_json_option
@click.pass_obj
def explain(obj: dict[str, Any], file: Path, message_file: IO[bytes] | None, as_json: bool) -> int:
    """Say where a message goes, at which priority and for how long, and why not elsewhere."""
    _, table = _load(file, obj["config"])
    verdicts = table.explain(_read_message(message_file))
    if as_json:
        _echo_json({"routes": [_verdict_object(verdict) for verdict in verdicts]})
    else:
        _print_verdicts(verdicts)
    return 0


def _load(file: Path, config: Path | None) -> tuple[Manifest, RouteTable]:
    """Read and compile a manifest as the daemon does."""
    manifest = load_manifest(file)
    endpoints: Collection[EndpointId] = {spec.route.sink.endpoint_id for spec in manifest.routes}
    hub_id = ""
    if config is not None:
        settings = load_settings(config)
        endpoints = [EndpointId(name) for name in settings.endpoints]
        hub_id = settings.hub_id or ""
    return manifest, RouteTable.compile(manifest, endpoints=endpoints, hub_id=hub_id)


def _read_message(file: IO[bytes] | None) -> Message:
    if file is None:
        return read_message({"device": "device"})
    try:
        return read_message(json.loads(file.read()))
    except (ValueError, RecursionError) as error:
        raise MessageFormError(f"the message is not JSON: {error}") from error


def _verdict_object(verdict: RouteVerdict) -> dict[str, Any]:
    return {
        "route": verdict.route,
        "endpoint": verdict.endpoint_id,
        "priority": verdict.priority,
        "ttl_s": None if verdict.ttl_ms is None else verdict.ttl_ms // 1000,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "winner": verdict.winner,
        "line": verdict.line,
        "column": verdict.column,
    }


def _print_verdicts(verdicts: Iterable[RouteVerdict]) -> None:
    table = new_table("route", "endpoint", "priority", "time to live", "outcome", "why")
    for verdict in verdicts:
        table.add_row(
            verdict.route,
            verdict.endpoint_id,
            "default" if verdict.priority == DEFAULT_PRIORITY else str(verdict.priority),
            "never ends" if verdict.ttl_ms is None else f"{verdict.ttl_ms // 1000} s",
            verdict.outcome,
            verdict.reason,
        )
    print_table(table)


def _as_objects(faults: Iterable[ManifestFault]) -> list[dict[str, Any]]:
    return [
        {
            "path": fault.path,
            "route": fault.route,
            "line": fault.line,
            "column": fault.column,
            "message": fault.message,
            "hint": fault.hint,
        }
        for fault in faults
    ]


def _echo_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))
