"""`edgehub route`: try conditions and routes, check a manifest, ask where a message goes.

What stands here works on files and runs the same parser, compiler and route table that the daemon
runs; `explain` asks the daemon, if one runs and no file is named. The commands on the table of a
running hub are in `route_table`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from msgspec import to_builtins

from edgehub.cli.config import known_hub_id
from edgehub.cli.daemon import ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import EXIT_CONFIG, end_as_json, json_option, print_json_line, print_line
from edgehub.cli.route_table import COMMANDS
from edgehub.cli.route_trial import try_line
from edgehub.cli.tables import print_table
from edgehub.errors import DaemonUnreachableError, ManifestError
from edgehub.message import DEFAULT_PRIORITY
from edgehub.routes.catch_all import missing_warnings
from edgehub.routes.explain import RouteOutcome, explain_routing
from edgehub.routes.manifest import load_manifest
from edgehub.routes.message_form import MessageFormError, read_message
from edgehub.routes.table import RouteTable
from edgehub.settings import load_settings
from edgehub.settings.configuration import compile_table, endpoint_names, read_table
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from edgehub.message import EndpointId
    from edgehub.routes.spec import Manifest


_MANIFEST: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=CommandGroup)
def route() -> None:
    """Show and change the routes of a running hub; try routes and manifests without one.

    test and check work on files, explain on either; the others ask the hub.
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
            print_json_line(answer)
    return 0 if all_usable else 1


@route.command()
@click.argument("file", required=False, type=_MANIFEST)
@click.option("--manifest", "option", type=_MANIFEST, help="The same as FILE.")
@json_option
@click.pass_obj
def check(obj: dict[str, Any], file: Path | None, option: Path | None) -> int:
    """Check a manifest: every fault and warning, with route, line, column and hint.

    FILE is a deployment manifest, JSON; absent = the one that the settings name, or the built-in
    one. Named endpoints are compared with the settings where there is a settings file. Exit code 78
    if the hub would refuse the manifest.
    """
    if file is not None and option is not None:
        raise click.UsageError("FILE and --manifest: one or the other")
    file = file or option
    try:
        manifest = (
            _table_of_settings(obj).manifest if file is None else _load(file, obj["config"])[0]
        )
    except ManifestError as error:
        document = {"ok": False, "faults": list(map(to_builtins, error.faults)), "warnings": []}
        end_as_json(document, EXIT_CONFIG)
        raise
    warnings = (*manifest.warnings, *missing_warnings(manifest))
    document = {
        "ok": True,
        "routes": len(manifest.routes),
        "fingerprint": manifest.fingerprint,
        "faults": [],
        "warnings": list(map(to_builtins, warnings)),
    }
    end_as_json(document)
    for warning in warnings:
        print_line(f"{manifest.file}: warning: {warning}", err=True)
    print_line(f"{manifest.file}: {counted(len(manifest.routes), 'route')}, no faults")
    return 0


@route.command()
@click.option("--manifest", "file", type=_MANIFEST, help="Use the routes of this manifest instead.")
@click.option(
    "--message",
    "message_file",
    type=click.File("rb"),
    help="The message as JSON, - = standard input; default: an empty one from a device.",
)
@json_option
@click.pass_obj
def explain(obj: dict[str, Any], file: Path | None, message_file: IO[bytes] | None) -> int:
    """Explain where a message goes, at which priority and for how long, and why not elsewhere.

    By the routes of the running hub; where no hub runs, by the manifest of the
    settings, or the built-in one.
    """
    form = _read_form(message_file)
    if file is None:
        document = _explained(obj, form)
    else:
        _, table = _load(file, obj["config"])
        document = _explanation("file", table, form)
    end_as_json(document)
    if file is None:
        who = "the running hub" if document["of"] == "hub" else "no hub runs; by"
        print_line(f"{who}: {document['manifest']}", err=True)
    _print_verdicts(document["routes"])
    return 0


def _explained(obj: dict[str, Any], form: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask_hub(obj, "route explain", message=form)
    except DaemonUnreachableError:
        return _explanation("settings", _table_of_settings(obj), form)
    return answer


def _table_of_settings(obj: dict[str, Any]) -> RouteTable:
    settings = load_settings(obj["config"])
    return read_table(settings, hub_id=known_hub_id(settings) or "")


def _explanation(of: str, table: RouteTable, form: Any) -> dict[str, Any]:
    verdicts = to_builtins(explain_routing(table, read_message(form)))
    return {"of": of, "manifest": table.manifest.file, "routes": verdicts}


def _load(file: Path, config: Path | None) -> tuple[Manifest, RouteTable]:
    """Read and compile a manifest as the daemon does."""
    if config is None:
        manifest = load_manifest(file)
        named: Collection[EndpointId] = {spec.route.sink.endpoint_id for spec in manifest.routes}
        return manifest, RouteTable.compile(manifest, endpoints=named)
    settings = load_settings(config)
    manifest = load_manifest(file, endpoints=endpoint_names(settings))
    table = compile_table(manifest, settings, hub_id=known_hub_id(settings) or "")
    return table.manifest, table


def _read_form(file: IO[bytes] | None) -> Any:
    """Read a message, and check its form."""
    if file is None:
        return {"device": "device"}
    try:
        form = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise MessageFormError(f"the message is not JSON: {error}") from error
    read_message(form)
    return form


def _print_verdicts(verdicts: Iterable[dict[str, Any]]) -> None:
    rows = [
        (
            verdict["route"],
            verdict["endpoint"],
            "default" if verdict["priority"] == DEFAULT_PRIORITY else str(verdict["priority"]),
            "never ends" if verdict["ttl_s"] is None else f"{verdict['ttl_s']} s",
            "routed" if verdict["outcome"] == RouteOutcome.ROUTED else "not routed",
            verdict["reason"],
        )
        for verdict in verdicts
    ]
    columns = ("route", "endpoint", "priority", "time to live", "outcome", "why")
    print_table(columns, rows, empty="there are no routes")
    if not any(outcome == "routed" for *_, outcome, _ in rows):
        print_line("No route takes this message: it is acknowledged and dropped.")
