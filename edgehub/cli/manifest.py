"""`edgehub manifest`: the routes in force, and what another manifest would change.

Asks the daemon, which alone knows its queues and how fast they fill.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.config import print_faults
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import EXIT_CONFIG, end_as_json, json_option, print_line
from edgehub.cli.table_answer import applied_code, print_applied, print_warnings, wait_option
from edgehub.cli.tables import print_table
from edgehub.errors import ConfigError
from edgehub.message import DEFAULT_PRIORITY
from edgehub.routes.manifest import load_manifest
from edgehub.settings import load_settings
from edgehub.settings.configuration import compile_table, endpoint_names
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group(cls=CommandGroup)
def manifest() -> None:
    """Show the manifest in force, compare another one with it, or apply one to a shared table."""


@manifest.command()
@json_option
@click.pass_obj
def show(obj: dict[str, Any]) -> int:
    """Show the routes in force."""
    document = answer_of(obj, "manifest show")
    print_line(
        f"{document['file']}: schema {document['schema_version']}, "
        f"global time to live {_ttl(document['global_ttl_s'])}"
    )
    print_table(
        ("route", "queue", "priority", "time to live", "text"),
        [
            (
                route["name"],
                route["queue"],
                _class(route["priority"]),
                _ttl(route["ttl_s"]),
                route["route"],
            )
            for route in document["routes"]
        ],
    )
    for warning in document["warnings"]:
        print_line(f"  warning: {warning}")
    return 0


@manifest.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@click.pass_obj
def diff(obj: dict[str, Any], file: Path) -> int:
    """Return what FILE would change: routes, classes, stored rows, queues, space on disk.

    Nothing is changed. Exit code 78 if the hub would refuse the manifest.
    """
    document = ask_hub(obj, "manifest diff", text=_read(file), file=str(file))
    hint = ""
    if document["faults"] and _fits_file(obj["config"], file):
        hint = (
            f"that is not in the settings in force; {obj['config']} has it:"
            " `edgehub config reload` first"
        )
    code = EXIT_CONFIG if document["faults"] else 0
    end_as_json({**document, "hint": hint}, code)
    if document["faults"]:
        print_faults(document["faults"])
        if hint:
            print_line(f"edgehub: {hint}", err=True)
    else:
        _print_difference(document)
    return code


@manifest.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--if-revision",
    "expected",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if the table still has this revision, as `route list --json` prints it.",
)
@wait_option
@json_option
@click.pass_obj
def apply(obj: dict[str, Any], *, file: Path, expected: int | None, wait: bool) -> int:
    """Write the routes of FILE into the table that several hubs share.

    Whole or not at all. Routes of an earlier manifest that FILE no longer has are removed; those
    that came over the API stay. A single hub reads its manifest at start and reload instead. Exit
    code 78 if the manifest is wrong, 1 if the table has another revision than the one given.
    """
    applied = ask_hub(
        obj,
        "manifest apply",
        text=_read(file),
        file=str(file),
        expected_revision=expected,
        wait=wait,
    )
    end_as_json(applied, applied_code(applied["applied"]))
    for name in ("added", "updated", "removed"):
        if applied[name]:
            print_line(f"{name}: {', '.join(applied[name])}")
    print_line(f"{applied['unchanged']} unchanged, revision {applied['revision']}")
    print_warnings(applied["warnings"])
    return print_applied(applied["applied"])


def _fits_file(config: Path | None, file: Path) -> bool:
    """Return whether a manifest has no faults by the settings file, as the next reload reads it."""
    if config is None:
        return False
    try:
        settings = load_settings(config)
        manifest = load_manifest(file, endpoints=endpoint_names(settings))
        compile_table(manifest, settings, hub_id="")
    except ConfigError:
        return False
    return True


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), f"cannot read the manifest: {error}") from error


def _print_difference(document: dict[str, Any]) -> None:
    before, after = document["in_force"], document["new"]
    print_line(f"in force: {before['file']}, {counted(before['routes'], 'route')}")
    print_line(f"new:      {after['file']}, {counted(after['routes'], 'route')}")
    if document["same"]:
        print_line("the same routes; applying it changes nothing")
        return
    _print_routes(document["routes"])
    for change in document["class_changes"]:
        print_line(
            f"class of {change['route']}: {_class(change['before'])} -> "
            f"{_class(change['after'])}; {_rows(change['rows_in_old_queue'], 'stay')} in "
            f"{change['old_queue']}, new ones go to {change['new_queue']}"
        )
    for kept in document["snapshots"]:
        print_line(
            f"{kept['queue']}: {_rows(kept['rows'], 'keep')} the priority and time to live of their"
            f" arrival ({', '.join(kept['routes'])})"
        )
    _print_queues(document["queues"])
    _print_disk(document)
    for warning in document["warnings"]:
        print_line(f"warning: {warning}")


def _rows(rows: int, verb: str) -> str:
    return f"1 row {verb}s" if rows == 1 else f"{rows} rows {verb}"


def _print_routes(routes: dict[str, Any]) -> None:
    for sign, kind in (("+", "added"), ("-", "removed")):
        for route in routes[kind]:
            print_line(f"{sign} {route['name']}: {route['route']} -> {route['queue']}")
    for route in routes["changed"]:
        for part, change in route["changes"].items():
            old, new = _part_text(part, change["before"]), _part_text(part, change["after"])
            print_line(f"~ {route['name']}: {_PARTS[part][0]}: {old} -> {new}")


def _part_text(part: str, value: Any) -> str:
    # Of all parts, only a time to live means something where there is none.
    return "none" if value is None and part != "ttl_s" else _PARTS[part][1](value)


def _print_queues(queues: list[dict[str, Any]]) -> None:
    print_table(
        ("queue", "will be", "rows", "bytes", "fills with", "time to live", "needs at most"),
        [
            (
                queue["id"],
                queue["fate"],
                str(queue["rows"]),
                str(queue["bytes"]),
                _rate(queue),
                _ttl(queue["ttl_s"]) if _is_filled(queue) else "-",
                "-" if queue["need_bytes"] is None else _size(queue["need_bytes"]),
            )
            for queue in queues
        ],
    )


def _print_disk(document: dict[str, Any]) -> None:
    disk = document["disk"]
    if disk["measured_s"] is None:
        print_line("space: not measured yet; ask again in a few seconds of traffic")
    elif disk["fits"] is None:
        print_line("space: cannot be judged yet, no message has come by these routes")
    else:
        print_line(f"space: {_space_text(disk)} (rates of the last {disk['measured_s']:.0f} s)")
    exceeded = [
        *disk["exceeds"],
        *(each for queue in document["queues"] for each in queue["exceeds"]),
    ]
    for each in exceeded:
        whose = "" if each["queue"] is None else f" of {each['queue']}"
        write = _size if "rows" not in each["cap"] else "{:.0f}".format
        need, limit = write(each["need"]), write(each["limit"])
        print_line(f"DOES NOT FIT: {each['cap']}{whose}: needs {need} of {limit}")
    if disk["unmeasured_routes"]:
        names = ", ".join(disk["unmeasured_routes"])
        print_line(f"not in these figures, since never measured: {names}")


def _space_text(disk: dict[str, Any]) -> str:
    cap = "" if disk["cap_bytes"] is None else f", of {_size(disk['cap_bytes'])} that rows may take"
    room = (
        f"{_size(disk['free_bytes'])} free on the disk, of which {_size(disk['floor_bytes'])} stay"
        f" free, in addition to {_size(disk['stored_bytes'])} stored{cap}"
    )
    if disk["endless"]:
        return f"rows without time to live grow without end; {room}"
    fits = ": fits" if disk["fits"] else ""
    return f"with nothing leaving, up to {_size(disk['need_bytes'])}; {room}{fits}"


def _is_filled(queue: dict[str, Any]) -> bool:
    return bool(queue["routes_after"] or queue["older_rows_of"])


def _rate(queue: dict[str, Any]) -> str:
    rate, word = queue["rate_bytes_s"], queue["rate_is"]
    if queue["older_rows_of"] and not queue["routes_after"]:
        return f"older rows of {', '.join(queue['older_rows_of'])}"
    if rate is None or not queue["routes_after"]:
        return word if queue["routes_after"] else "-"
    figure = f"{_size(rate)}/s"
    return figure if word == "measured" else f"{figure}, {word}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:  # noqa: PLR2004 - the step between the units
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _class(priority: int) -> str:
    return "default" if priority == DEFAULT_PRIORITY else str(priority)


def _ttl(seconds: int | None) -> str:
    return "never ends" if seconds is None else f"{seconds} s"


_PARTS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "source": ("source", str),
    "condition": ("condition", str),
    "sink": ("sink", str),
    "priority": ("priority", _class),
    "ttl_s": ("time to live", _ttl),
    "recency_s": ("recency", "{} s".format),
    "recency_fallback": ("fallback priority", _class),
    "order": ("order", str),
    "max_attempts": ("attempts at most", str),
    "max_age_s": ("age at most", "{} s".format),
}
"""Parts of a route that may differ: in words, and how their values are written."""
