"""`edgehub journal`: how far it is, what it says, and its export to where reports are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct, field

from edgehub.cli.arguments import checked, duration_s
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup, hint
from edgehub.cli.output import (
    EXIT_FAILED,
    end_as_json,
    json_option,
    print_json,
    print_line,
    wants_json,
)
from edgehub.cli.tables import print_table
from edgehub.cli.why import WAITED_TEXTS, queue_text
from edgehub.journal.delivery import ExportError, deliver, is_inside, open_target
from edgehub.journal.lines import EVENTS
from edgehub.telemetry.plural import counted

EXIT_NOT_YET: Final = 75
"""What sysexits.h calls a temporary failure."""

CLOSINGS_MAX: Final = 12
"""Some seconds each, for a hub whose events have piled up."""

_LINE_FIGURES: Final = ("messages", "waited")
_LINE_TEXTS: Final = ("device", "reason", "id")

_REWRITTEN: Final = "being written again with right times, now that the clock is trusted"
_TRUST: Final = 'let NTP set it, or say clock.trust = "always" if it is right'


@click.group(cls=CommandGroup)
def journal() -> None:
    """Look at the journal of the running hub, and export it."""


@journal.command()
@json_option
@click.pass_obj
def status(obj: dict[str, Any]) -> int:
    """Show how far the journal is, what it holds and where it went; exit code 1 if it fails."""
    document = ask_hub(obj, "journal status")
    failed = int(document.get("failing") is not None)
    end_as_json(document, failed)
    if not document["enabled"]:
        print_line("this hub keeps no journal (journal.enabled = false)")
        return 0
    print_line(f"folder: {document['folder']}")
    print_line(
        f"segments: {document['segments']}, {counted(document['segment_bytes'], 'byte')},"
        f" {document['not_exported']} not exported"
    )
    print_line(f"growing: {document['growing'] or 'none'}")
    print_line(
        f"behind: {document['journal_lag_seconds']:.0f} s,"
        f" {counted(document['waiting_bytes'], 'byte')}"
    )
    if not document["clock"]["trusted"]:
        reason = document["clock"]["reason"]
        print_line(f"not exported: the clock is not trusted, {reason}; {_TRUST}")
    if document["held_segments"]:
        why = _REWRITTEN if document["clock"]["trusted"] else "held until the clock is trusted"
        print_line(
            f"{why}: {counted(document['held_segments'], 'segment')},"
            f" {counted(document['held_bytes'], 'byte')}"
        )
    for target in document["targets"]:
        print_line(f"exported to: {target}")
    if document["dropped_not_exported"]:
        dropped = counted(document["dropped_not_exported"], "segment")
        print_line(f"deleted before any export: {dropped}")
    if failed:
        print_line(f"failing: {document['failing']}", err=True)
    return failed


def _event(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value not in EVENTS:
        raise click.BadParameter(f"there is no event {value!r}. {hint(value, EVENTS)}")
    return value


@journal.command()
@click.option(
    "--event",
    metavar="EVENT",
    callback=_event,
    help="Only this event, such as expired, dropped or refused.",
)
@click.option(
    "--queue",
    "queue_name",
    metavar="QUEUE",
    help="Only lines of this queue, such as upstream_Pri3.",
)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="DURATION",
    callback=checked(duration_s),
    help="Only lines that are not older, such as 90s, 10min, 1h, 2d.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of lines at most, the newest.",
)
@json_option
@click.pass_obj
def show(
    obj: dict[str, Any],
    event: str | None,
    queue_name: str | None,
    since: int,
    limit: int,
) -> None:
    """Show what became of messages: the newest lines of the journal that fit, oldest first.

    \b
    Example:
      edgehub journal show --event expired --since 1h
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    document = answer_of(
        obj, "journal show", event=event, queue=queue_name, since_s=since, limit=limit
    )
    lines, found = document["lines"], document["found"]
    print_table(
        ("time", "event", "queue", *_LINE_FIGURES, *_LINE_TEXTS),
        (_line_cells(line) for line in lines),
        right=_LINE_FIGURES,
        empty="no line of the journal fits",
    )
    if len(lines) < found:
        print_line(f"the newest {len(lines)} of {counted(found, 'line')}", err=True)
    if document["unread_segments"]:
        unread = counted(document["unread_segments"], "segment")
        print_line(f"lines are missing: {unread} cut short, damaged or removed", err=True)
    elif not document["complete"]:
        print_line("older lines were not looked at, it takes too long: narrow --since", err=True)


def _line_cells(line: dict[str, Any]) -> list[str]:
    waited_ms = line.get("waited_ms")
    target = queue_text(line, "to_")
    words = (
        target and f"to {target}",
        line.get("edge"),
        line.get("state"),
        line.get("reason"),
        _expired_text(line),
    )
    return [
        line["time"],
        line["event"],
        line.get("queue", ""),
        "" if line["event"] == "link" else str(line.get("rows", line.get("count", 1))),
        "" if waited_ms is None else f"{waited_ms / 1000:.1f} s",
        line.get("device", ""),
        " ".join([word for word in words if word]),
        line.get("message", ""),
    ]


def _expired_text(line: dict[str, Any]) -> str:
    """Return what a row that has expired waited for longest, empty = it is not said."""
    if line["event"] != "expired" or not line.get("waited_ms"):
        return ""
    part = max(WAITED_TEXTS, key=lambda name: line.get(f"{name}_ms", 0))
    return f"{line[f'{part}_ms'] / 1000:.1f} s {WAITED_TEXTS[part]}"


@journal.command()
@click.argument("target", metavar="DIR|URL")
@click.option(
    "--close", is_flag=True, help="Close the growing segment first, so that it is exported too."
)
@json_option
@click.pass_obj
def export(obj: dict[str, Any], target: str, close: bool) -> int:
    """Copy each closed segment to DIR|URL that is not there yet, and list the dates it touches.

    A target gets each segment once; an export that was cut off is repeated with the same names and
    bytes. URLs are those of fsspec, such as s3://bucket/journal, with its extra and their driver.

    Exit code 1: some segment could not go, the others did. Exit code 75: all that has a date went,
    but lines are held until the clock is trusted, or are being written again because it has
    become so, and a report made now would miss them.
    """
    if not target.strip():
        raise click.BadParameter("is empty; give a folder or a URL", param_hint="DIR|URL")
    name = target if "://" in target else str(Path(target).resolve())
    exported = _export(obj, name, close=close)
    plan = exported.plan
    segments = [segment for manifest in exported.manifests for segment in manifest["segments"]]
    dates = sorted({date for manifest in exported.manifests for date in manifest["dates"]})
    if wants_json():
        document = {
            "target": name,
            "dates": dates,
            "segments": segments,
            "manifests": [manifest["path"] for manifest in exported.manifests],
            "problems": exported.problems,
            "complete": exported.complete,
            "held_segments": plan["held_segments"],
        }
        print_json(document)
    elif segments:
        lines = sum(segment["lines"] for segment in segments)
        exported_text = f"{counted(len(segments), 'segment')}, {counted(lines, 'line')}"
        print_line(f"{exported_text} to {name}: {', '.join(dates)}")
    else:
        growing = (
            ": 1 segment is growing, and --close exports it too" if plan.get("growing") else ""
        )
        print_line(f"nothing new for {name}{growing}")
    return _print_missing(exported)


class _Exported(Struct):
    """What an export has done, with the hub's last word on what there is.

    Attributes:
        manifests: Of the parts that it came in.
        problems: What could not go, and why.
        complete: All events had their lines when the growing segment was closed.
        plan: The last answer of the hub.
    """

    manifests: list[dict[str, Any]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    plan: dict[str, Any] = field(default_factory=dict)


def _export(obj: dict[str, Any], name: str, *, close: bool) -> _Exported:
    """Carry out what the hub plans until there is no more."""
    place = open_target(name)
    done = _Exported()
    closings = CLOSINGS_MAX if close else 0
    while True:
        done.plan = ask_hub(obj, "journal plan", target=name, close=closings > 0)
        if closings > 0:
            # A hub that was not restarted after an upgrade may not say.
            done.complete = done.plan.get("complete", True)
            closings = 0 if done.complete else closings - 1
        paths = [path for path in done.plan["segments"] if path not in done.problems]
        folder = Path(done.plan["folder"])
        if is_inside(place, folder):
            # Its segments would be there already, and count as exported.
            raise ExportError(f"{name} is in the journal's own folder; give another one")
        if paths:
            delivery = deliver(folder, done.plan["hub_id"], paths, place)
            done.problems |= delivery.problems
            if delivery.manifest is not None:
                done.manifests.append(delivery.manifest)
            ask_hub(obj, "journal exported", target=name, segments=delivery.done)
        elif not closings:
            return done


def _print_missing(exported: _Exported) -> int:
    """Print what was not exported and why, and return the exit code."""
    plan = exported.plan
    for problem in exported.problems.values():
        print_line(f"edgehub: {problem}", err=True)
    if not exported.complete:
        print_line("the last events have no lines yet, they come too fast: export again", err=True)
    if plan["held_segments"]:
        held = counted(plan["held_segments"], "segment")
        verb = "is" if plan["held_segments"] == 1 else "are"
        if plan["clock"]["trusted"]:
            print_line(f"{held} {verb} {_REWRITTEN}: export again in some seconds", err=True)
        else:
            reason = plan["clock"]["reason"]
            held_text = f"held until the clock is trusted ({reason}): {_TRUST}"
            print_line(f"{held} {verb} {held_text}", err=True)
    if exported.problems:
        return EXIT_FAILED
    return EXIT_NOT_YET if plan["held_segments"] or not exported.complete else 0
