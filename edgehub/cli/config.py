"""`edgehub config`: check, show, describe and reload the configuration.

`validate` is the code of the start, so what it accepts starts, as far as settings and
files show. All but `reload` and `show --running` work on files alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgehub.cli.daemon import ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import EXIT_CONFIG, end_as_json, json_option, print_json, print_line
from edgehub.errors import ConfigError, fault_text
from edgehub.hub_id import stored_hub_id
from edgehub.routes.catch_all import missing_warnings
from edgehub.settings import load_settings
from edgehub.settings.configuration import (
    fault_documents,
    read_configuration,
    read_settings,
    read_table,
)
from edgehub.settings.effective import effective_document
from edgehub.settings.example import settings_example
from edgehub.settings.origin import SettingsSource
from edgehub.settings.schema import settings_schema
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from edgehub.settings import Settings
    from edgehub.settings.origin import LoadedSettings


@click.group(cls=CommandGroup)
def config() -> None:
    """Check, show, describe and reload the settings."""


@config.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@json_option
@click.pass_obj
def validate(obj: dict[str, Any], file: Path | None) -> int:
    """Check settings, manifest, identities, topics and files, as the start does.

    FILE is a settings file; absent = the one that --config names before the command, as in
    `edgehub --config FILE config validate`, or that `edgehub run` would read. Exit code 78 if the
    hub would not start with it.
    """
    chosen = file or obj["config"]
    name = "the defaults" if chosen is None else str(chosen)
    try:
        loaded = read_settings(SettingsSource(chosen))
        configuration = read_configuration(loaded, hub_id=known_hub_id(loaded.settings) or "")
    except ConfigError as error:
        document = {"ok": False, "faults": fault_documents(error), "warnings": []}
        end_as_json(document, EXIT_CONFIG)
        raise
    missing = missing_warnings(configuration.manifest)
    warnings = [*map(str, missing), *configuration.all_warnings]
    end_as_json({"ok": True, "faults": [], "warnings": warnings})
    for fault in (*configuration.manifest.warnings, *missing):
        print_line(f"{configuration.manifest.file}: warning: {fault}", err=True)
    for warning in configuration.warnings:
        print_line(f"{name}: warning: {warning}", err=True)
    routes = counted(len(configuration.manifest.routes), "route")
    print_line(f"{name}: no faults; {routes} from {configuration.manifest.file}")
    return 0


@config.command()
@click.option("--running", is_flag=True, help="Show the settings of the running hub.")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], running: bool) -> int:
    """Show every setting in force and where it comes from, secrets blanked out."""
    if running:
        document = ask_hub(obj, "config show")
    else:
        document = _from_files(SettingsSource(obj["config"]).read())
    end_as_json(document)
    _print_effective(document)
    return 0


@config.command()
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of the settings file, for editors."""
    print_json(settings_schema())


@config.command()
def example() -> None:
    """Print a commented settings file with every setting and its default."""
    for line in settings_example().splitlines():
        print_line(line)


@config.command("reload")
@json_option
@click.pass_obj
def reload_(obj: dict[str, Any]) -> int:
    """Make the hub read settings, manifest and identities again, as SIGHUP does.

    Applied whole or not at all; says what became of it. Exit code 78 if it was refused.
    """
    try:
        load_settings(obj["config"])  # what is wrong is said before the daemon is asked
    except ConfigError as error:
        _print_outcome({"faults": fault_documents(error)})
        return EXIT_CONFIG
    outcome = ask_hub(obj, "config reload")
    code = EXIT_CONFIG if outcome["outcome"] == "refused" else 0
    end_as_json(outcome, code)
    _print_outcome(outcome)
    return code


def known_hub_id(settings: Settings) -> str | None:
    """Return the hub's name as far as files know it; None = it is made at the first start."""
    return settings.hub_id or stored_hub_id(settings.data_dir)


def _from_files(loaded: LoadedSettings) -> dict[str, Any]:
    hub_id = known_hub_id(loaded.settings)
    manifest = None
    try:
        manifest = read_table(loaded.settings, hub_id=hub_id or "").manifest
    except ConfigError as error:
        print_line(f"edgehub: {error}", err=True)
    return effective_document(loaded, manifest=manifest, hub_id=hub_id, running=False)


def _print_effective(document: dict[str, Any]) -> None:
    lines = [
        (key, _text(entry["value"]), f"{entry['origin']} {entry['place']}".strip())
        for key, entry in document["settings"].items()
    ]
    if document["settings"]["hub_id"]["value"] is None:
        made = document["derived"]["hub_id"]
        where = "at the first start" if made is None else "at the first start, kept in data_dir"
        lines[0] = ("hub_id", _text(made), f"made {where}")
    derived = {key: value for key, value in document["derived"].items() if key != "hub_id"}
    lines += [(key, _text(value), "follows") for key, value in derived.items()]
    # Never folded, so that grep finds a key with its value.
    key_width = max(len(key) for key, _, _ in lines)
    value_width = max(len(value) for _, value, _ in lines)
    for key, value, origin in lines:
        print_line(f"{key:<{key_width}}  {value:<{value_width}}  {origin}")


def print_faults(faults: list[dict[str, Any]]) -> None:
    """Print faults as the daemon gives them, one a line, on stderr."""
    for fault in faults:
        text = fault_text(
            fault["key"], fault["line"], fault["column"], fault["reason"], fault["hint"]
        )
        print_line(f"edgehub: {text}", err=True)


def _print_outcome(outcome: dict[str, Any]) -> None:
    print_faults(outcome["faults"])
    if outcome["faults"]:
        print_line("edgehub: refused; what was in force stays in force", err=True)
        return
    unchanged = outcome["outcome"] == "unchanged"
    # A reload does this always, and a backlog that leaves after it is no surprise then.
    tried = "; links that are down were tried again" if unchanged else ""
    print_line(f"{outcome['outcome']}{tried}")
    if outcome["applied"]:
        print_line(f"  settings: {', '.join(outcome['applied'])}")
    if outcome["manifest_changed"]:
        print_line(f"  manifest: {counted(outcome['routes'], 'route')} in force")
    for what in ("identities", "tokens", "certificate"):
        if outcome[f"{what}_changed"]:
            print_line(f"  {what}: read again")
    if outcome["files_changed"]:
        print_line(f"  files with new content: {', '.join(outcome['files_changed'])}")
    for what, endpoints in outcome["endpoints"].items():
        if endpoints:
            print_line(f"  endpoints {what}: {', '.join(endpoints)}")
    notes = [("warning", warning) for warning in outcome["warnings"]]
    notes += [
        ("needs a restart", f"{entry['key']} = {_text(entry['wanted'])}")
        for entry in outcome["needs_restart"]
    ]
    for what, note in notes:
        print_line(f"  {what}: {note}")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
