"""`edgehub status`: is it running, is it delivering?"""

from __future__ import annotations

from typing import Any

import click

from edgehub.cli.daemon import ask_hub
from edgehub.cli.output import end_as_json, json_option_of, print_line
from edgehub.cli.queue import queue_table
from edgehub.cli.tables import span
from edgehub.telemetry.plural import counted


@click.command()
@json_option_of("Print the whole status as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing; the exit code has the result.")
@click.pass_obj
def status(obj: dict[str, Any], quiet: bool) -> int:
    """Show what the running hub does; exit code 4 if no hub is running."""
    document = ask_hub(obj, "status")
    if quiet:
        return 0 if document["phase"] == "running" and not document["stalled"] else 1
    end_as_json(document)
    degraded = ", degraded" if document["degraded"] else ""
    print_line(f"{document['hub_id']}: {document['phase']}{degraded}, {document['summary']}")
    print_line(f"  durable: {'yes' if document['store']['durable'] else 'no'}")
    print_line(f"  clock: {_clock_text(document['store']['clock'])}")
    for warning in document["warnings"]:
        print_line(f"  warning: {warning}")
    for endpoint in document["endpoints"]:
        print_line(f"  endpoint {_endpoint_text(endpoint)}")
    if document["broker"]["enabled"]:
        print_line(f"  broker: {_broker_text(document['broker'])}")
    if document["entities"]["enabled"]:
        print_line(f"  entities: {_entities_text(document['entities'])}")
    queue_table(document)
    return 0


def _clock_text(clock: dict[str, Any]) -> str:
    text = "trusted"
    if not clock["trusted"]:
        text = f"not trusted, {clock['reason']} (queues work; nothing is exported)"
    if abs(clock["correction_s"]) >= 1:
        text += f", times since the start corrected by {clock['correction_s']:+.0f} s"
    if clock["off_s"]:
        text += f", {clock['off_s']:.0f} s without power counted"
    return f"{text}, messages are ageing" if clock["ageing"] else text


def _broker_text(broker: dict[str, Any]) -> str:
    text = str(broker["state"])
    if broker["reason"]:
        text += f", {broker['reason']}"
    if broker["retry_in_s"] is not None:
        text += f", next try in {broker['retry_in_s']:.0f} s"
    text += f"; {counted(len(broker['subscriptions']), 'subscription')}"
    text += f", {broker['acknowledged_total']} taken"
    if broker["waiting"]:
        text += f", {broker['waiting']} not on disk yet"
    if broker["unpublished"]:
        text += f"; {counted(broker['unpublished'], 'local message')} to be published"
    return text


def _entities_text(entities: dict[str, Any]) -> str:
    pending = entities["pending"]
    text = f"{entities['entities']} registered"
    if pending["messages"]:
        held = counted(pending["messages"], "message")
        text += f"; {held} held for {pending['entities_total']} that are not"
    if entities["errors_total"]:
        unusable = counted(entities["errors_total"], "message")
        text += f"; {unusable} could not be used (edgehub listen {entities['errors_topic']})"
    if entities["creations_under_way"]:
        creations = counted(entities["creations_under_way"], "creation")
        text += f"; {creations} to be confirmed by the cloud"
    if entities["creations_refused"]:
        text += f"; {entities['creations_refused']} refused by the cloud"
    return text


def _endpoint_text(endpoint: dict[str, Any]) -> str:
    text = f"{endpoint['id']}: {endpoint['state']}"
    if endpoint["mqtt_version"] is not None:
        text += f", MQTT {endpoint['mqtt_version']}"
    if endpoint["reason"]:
        text += f", {endpoint['reason']}"
    if endpoint["backoff_remaining_s"] is not None:
        what = "next window" if endpoint["state"] == "closed" else "next try"
        text += f", {what} in {span(endpoint['backoff_remaining_s'])}"
    if endpoint["rate_bytes_s_max"] is not None:
        text += f", capped at {endpoint['rate_bytes_s_max']:.0f} bytes/s"
    if endpoint["drain_eta_seconds"]:
        text += f", nothing waiting in {endpoint['drain_eta_seconds']:.0f} s"
    return text
