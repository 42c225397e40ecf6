"""`edgehub route`, the commands on the routing table: list, show, add, remove, enable, drift.

Asks the daemon, which holds the table or its copy; the others of the group are in `route`.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import click

from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.output import EXIT_FAILED, end_as_json, json_option, print_line, wants_json
from edgehub.cli.table_answer import (
    applied_code,
    print_applied,
    print_warnings,
    revision_option,
    tenant_option,
    wait_option,
)
from edgehub.cli.tables import print_table
from edgehub.telemetry.plural import counted

_MEMBERS: Final = (
    ("priority", "priority"),
    ("timeToLiveSecs", "time to live"),
    ("Recency", "recency"),
    ("order", "order"),
    ("maxAttempts", "attempts at most"),
    ("maxAgeSecs", "age at most"),
    ("description", "description"),
)


def _shown(member: str, value: object) -> str:
    """Return a member as text; seconds with their unit, and what 0 of them means."""
    if member.endswith("Secs"):
        zero = "global" if member == "timeToLiveSecs" else "never"
        return f"{value} s" if value else zero
    return value if isinstance(value, str) else json.dumps(value)


@click.command("list")
@tenant_option
@json_option
@click.pass_obj
def list_routes(obj: dict[str, Any], tenant: str | None) -> int:
    """List the routes of the table, with what they do on this hub."""
    document = ask_hub(obj, "route list", tenant=tenant)
    routes = list(document["routes"])
    while (after := document.get("next")) is not None:
        document = ask_hub(obj, "route list", tenant=tenant, after=after)
        routes += document["routes"]
    end_as_json({**document, "routes": routes})
    rows = (
        (
            route["id"],
            _state(route),
            str(route.get("priority", "default")),
            _shown("timeToLiveSecs", route.get("timeToLiveSecs")),
            route["file"] or route["origin"],
            str(route["revision"] or "-"),
            route.get("route", "cannot be read"),
        )
        for route in routes
    )
    columns = ("id", "state", "priority", "time to live", "from", "revision", "route")
    print_table(columns, rows, empty="the table has no routes")
    return 0


@click.command()
@click.argument("route_id", metavar="ID")
@tenant_option
@json_option
@click.pass_obj
def show(obj: dict[str, Any], route_id: str, tenant: str | None) -> int:
    """Show one route: what it is, where it comes from, what it does on this hub."""
    route = answer_of(obj, "route show", id=route_id, tenant=tenant)
    print_line(f"{route['id']}: {_state(route)}")
    print_line(f"  route: {route.get('route', 'cannot be read')}")
    for member, title in _MEMBERS:
        if member in route:
            print_line(f"  {title}: {_shown(member, route[member])}")
    print_line(f"  from: {route['file'] or route['origin']}")
    if route["revision"]:
        print_line(f"  revision: {route['revision']}, of {route['modified']}")
    if route["shared_with"]:
        print_line(f"  the same as: {', '.join(route['shared_with'])}")
    for hub in route["instances"]:
        print_line(f"  on {hub['hub_id']} ({hub['instance']}): {_state(hub)}")
    return 0


@click.command()
@click.argument("text", metavar="ROUTE", required=False)
@click.option(
    "--file",
    "file",
    type=click.File("rb"),
    help="Take the route from a file instead, a JSON text or object as in a manifest; - = stdin.",
)
@click.option("--id", "route_id", help="Id of the route; default: the hash of its content.")
@click.option(
    "--priority", type=click.IntRange(0, 9), help="0 is the best; default: after all others."
)
@click.option(
    "--ttl",
    "ttl_s",
    type=click.IntRange(min=1),
    help="Time to live in seconds; default: the global one.",
)
@click.option("--description", help="Text for operators.")
@click.option("--disabled", is_flag=True, help="Store it without running it.")
@revision_option
@wait_option
@tenant_option
@json_option
@click.pass_obj
def add(  # noqa: PLR0913 - one argument for each option
    obj: dict[str, Any],
    *,
    text: str | None,
    file: IO[bytes] | None,
    route_id: str | None,
    priority: int | None,
    ttl_s: int | None,
    description: str | None,
    disabled: bool,
    if_match: list[int] | None,
    wait: bool,
    tenant: str | None,
) -> int:
    """Add a route to the table, or change the one that has the id.

    Exit code 78 if the route is wrong.

    \b
    Example:
        edgehub route add --id alarms --priority 0 \\
            'FROM /messages/* WHERE as_number(celsius) > 90 INTO $upstream'
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    options = {
        "priority": priority,
        "timeToLiveSecs": ttl_s,
        "description": description,
        "enabled": False if disabled else None,
    }
    body = _body(text, file, options)
    if route_id is None and if_match is not None:
        raise click.UsageError("--if-revision is for one route: name it with --id")
    if route_id is None:
        written = ask_hub(obj, "route add", body=body, wait=wait, tenant=tenant)
    else:
        how: dict[str, Any] = {"if_match": if_match, "wait": wait, "tenant": tenant}
        written = ask_hub(obj, "route put", id=route_id, body=body, **how)
    code = _print_written(written)
    if written["created"] and written["route"]["id"] == written["route"]["hash"]:
        print_line("its id is the hash of its content; name it with --id", err=True)
    return code


@click.command()
@click.argument("route_id", metavar="ID")
@revision_option
@wait_option
@tenant_option
@json_option
@click.pass_obj
def remove(obj: dict[str, Any], /, route_id: str, **options: Any) -> int:
    """Remove a route; rows that it stored keep what they were stored with."""
    written = ask_hub(obj, "route remove", id=route_id, **options)
    if not wants_json() and not written["changed"]:
        print_line(f"edgehub: there is no route {route_id!r}; nothing was removed", err=True)
        return EXIT_FAILED
    return _print_written(written)


def _switch(name: str, text: str) -> click.Command:
    """Make the command that lets a route run, or keeps it from that."""

    @click.command(name, help=text)
    @click.argument("route_id", metavar="ID")
    @revision_option
    @wait_option
    @tenant_option
    @json_option
    @click.pass_obj
    def switch(obj: dict[str, Any], /, route_id: str, **options: Any) -> int:
        written = ask_hub(obj, f"route {name}", id=route_id, **options)
        return _print_written(written)

    return switch


enable: Final = _switch("enable", "Let a route of the table run.")
disable: Final = _switch("disable", "Keep a route in the table without running it.")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only report; repair nothing.")
@json_option
@click.pass_obj
def drift(obj: dict[str, Any], dry_run: bool) -> int:
    """Compare this hub's table with the storage now, and put right what differs.

    Exit code 1 if something differed, or was put back into the storage since the last time, so that
    a script notices.
    """
    report = ask_hub(obj, "route drift", repair=not dry_run)
    found = [name for name in ("missing", "extra", "changed") if report[name]]
    code = EXIT_FAILED if found or report["restored"] else 0
    end_as_json(report, code)
    print_line(f"{counted(report['compared'], 'route')} compared at revision {report['revision']}")
    if report["restored"]:
        print_line(f"  put back {report['restored']} rows that the storage had lost")
    for name in found:
        print_line(f"  {name}: {', '.join(report[name])}")
    done = f"{report['repaired']} put right" if not dry_run else "nothing was put right"
    print_line(done if found else "no drift")
    return code


@click.command()
@json_option
@click.pass_obj
def instances(obj: dict[str, Any]) -> int:
    """List the hubs that share the table, and how far each has applied it."""
    document = answer_of(obj, "route instances")
    rows = (
        (
            hub["hub_id"] + (" (this one)" if hub["own"] else ""),
            hub["instance"],
            str(hub["revision"]),
            (hub["stale"] or "current")
            + (f", {counted(hub['failed'], 'route')} failed" if hub["failed"] else ""),
        )
        for hub in document["instances"]
    )
    print_table(("hub", "instance", "revision", "state"), rows, empty="no hub shares the table")
    return 0


COMMANDS: Final = (list_routes, show, add, remove, enable, disable, drift, instances)


def _body(text: str | None, file: IO[bytes] | None, options: dict[str, Any]) -> Any:
    if (text is None) == (file is None):
        raise click.UsageError("give the route as an argument, or a --file: one of them")
    given = {name: value for name, value in options.items() if value is not None}
    body: Any = text
    if file is not None:
        try:
            body = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"{file.name} is not JSON: {error}") from error
    if not given:
        return body
    return {**(body if isinstance(body, dict) else {"route": body}), **given}


def _state(route: dict[str, Any]) -> str:
    state: str = route["state"]
    return f"{state}: {route['reason']}" if route["reason"] else state


def _print_written(written: dict[str, Any]) -> int:
    end_as_json(written, applied_code(written["applied"]))
    view = written["route"]
    if view is None:
        print_line(f"removed, revision {written['revision']}")
    elif not written["changed"]:
        print_line(f"{view['id']}: unchanged, {_state(view)}")
    else:
        word = "added" if written["created"] else "changed"
        print_line(f"{view['id']}: {word}, revision {view['revision']}, {_state(view)}")
    print_warnings(written["warnings"])
    return print_applied(written["applied"])
