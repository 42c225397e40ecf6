"""`edgehub journal`: how far it is, and out with it to where reports are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from edgehub.cli.daemon import call
from edgehub.cli.tables import counted
from edgehub.journal.delivery import deliver, open_target
from edgehub.settings import load_settings

_TRUST: Final = 'let NTP set it, or say clock.trust = "always" if it is right'


@click.group()
def journal() -> None:
    """Look at the journal of the running hub, and export it."""


@journal.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def status(obj: dict[str, Any], as_json: bool) -> int:
    """Show how far the journal is, what it holds and where it went; exit code 1 if it fails."""
    document = call(load_settings(obj["config"]).control_path, "journal status")
    failed = int(document.get("failing") is not None)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return failed
    if not document["enabled"]:
        click.echo("this hub keeps no journal (journal.enabled = false)")
        return 0
    click.echo(f"folder: {document['folder']}")
    click.echo(
        f"segments: {document['segments']}, {counted(document['segment_bytes'], 'byte')},"
        f" {document['not_exported']} not exported"
    )
    click.echo(f"growing: {document['growing'] or 'none'}")
    click.echo(
        f"behind: {document['journal_lag_seconds']:.0f} s,"
        f" {counted(document['waiting_bytes'], 'byte')}"
    )
    if not document["clock"]["trusted"]:
        reason = document["clock"]["reason"]
        click.echo(f"not exported: the clock is not trusted, {reason}; {_TRUST}")
    if document["held_segments"]:
        click.echo(
            f"held until the clock is trusted: {counted(document['held_segments'], 'segment')},"
            f" {counted(document['held_bytes'], 'byte')}"
        )
    for target in document["targets"]:
        click.echo(f"exported to: {target}")
    if document["dropped_not_exported"]:
        dropped = counted(document["dropped_not_exported"], "segment")
        click.echo(f"deleted before any export: {dropped}")
    if failed:
        click.echo(f"failing: {document['failing']}", err=True)
    return failed


@journal.command()
@click.argument("target", metavar="DIR|URL")
@click.option("--close", is_flag=True, help="Close the growing segment first, so that it goes too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def export(obj: dict[str, Any], target: str, close: bool, as_json: bool) -> None:
    """Copy each closed segment to DIR|URL that is not there yet, and list the dates it touches.

    A target gets each segment once; an export that was cut off is repeated with the same names and
    bytes. URLs are those of fsspec, such as s3://bucket/journal, with its extra and their driver.
    """
    socket = load_settings(obj["config"]).control_path
    name = target if "://" in target else str(Path(target).absolute())
    place = open_target(name)
    manifests: list[dict[str, Any]] = []
    while True:
        plan = call(socket, "journal plan", target=name, close=close and not manifests)
        if not plan["segments"]:
            break
        manifests.append(deliver(Path(plan["folder"]), plan["hub_id"], plan["segments"], place))
        call(socket, "journal exported", target=name)
    segments = [segment for manifest in manifests for segment in manifest["segments"]]
    dates = sorted({date for manifest in manifests for date in manifest["dates"]})
    if as_json:
        document = {
            "target": name,
            "dates": dates,
            "segments": segments,
            "manifests": [manifest["path"] for manifest in manifests],
            "held_segments": plan["held_segments"],
        }
        click.echo(json.dumps(document, indent=2))
    elif segments:
        lines = sum(segment["lines"] for segment in segments)
        told = f"{counted(len(segments), 'segment')}, {counted(lines, 'line')}"
        click.echo(f"{told} to {name}: {', '.join(dates)}")
    else:
        click.echo(f"nothing new for {name}")
    if plan["held_segments"]:
        held = counted(plan["held_segments"], "segment")
        verb = "is" if plan["held_segments"] == 1 else "are"
        reason = plan["clock"]["reason"] or "not trusted until now"
        click.echo(
            f"{held} {verb} held until the clock is trusted ({reason}): {_TRUST}", err=as_json
        )
