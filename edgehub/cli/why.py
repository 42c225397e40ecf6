"""`edgehub why`: where a message is, what it waits for, and when it will leave."""

from __future__ import annotations

from typing import Any, Final

import click

from edgehub.cli.daemon import ask_hub
from edgehub.cli.output import end_as_json, json_option, print_line
from edgehub.cli.queue import sender
from edgehub.cli.tables import span
from edgehub.telemetry.plural import counted

_SENT_STATES: Final = frozenset({"in_flight", "leaving"})
"""States of rows that have been sent: no other row goes before them any more."""
_LEAVES_TEXTS: Final = {
    "never": "not while more comes in for its queue and better ones than the link takes",
    "unserved": "once an upstream is named",
    "unknown": "at a time that cannot be said yet, nothing was measured",
}
_OFFLINE_TEXTS: Final = {
    "closed": "in the next connection window of its endpoint",
    "parked": "once what parks its endpoint is corrected",
    "draining": "after the next start, the hub is stopping",
}

WAITED_TEXTS: Final = {
    "offline": "without link",
    "behind": "behind better priorities",
    "retry": "after refusals",
    "rate": "for the link's rate",
}
"""By part of the time that a row waited, see docs/reference/journal-format.md."""

_LEFT_HINT: Final = (
    "a sender's own id is found only while it waits or is a dead letter; what has left is"
    " found by the hub's id, which receivers see"
)


@click.command()
@click.argument("message_id", metavar="MESSAGE-ID")
@json_option
@click.pass_obj
def why(obj: dict[str, Any], message_id: str) -> int:
    """Explain where a message is and why it is there.

    MESSAGE-ID is the hub's, as receivers and `edgehub queue peek` see it, and is found at once; or
    the one that the sender gave ($.mid), which is searched for among the oldest 500 000
    messages. Exit code 1 if nothing is known of it.
    """
    document = ask_hub(obj, "why", id=message_id)
    end_as_json(document, 1 if document["state"] == "unknown" else 0)
    _print(document)
    return 1 if document["state"] == "unknown" else 0


def _print(document: dict[str, Any]) -> None:
    print_line(f"{document['message'] or document['asked']}: {document['state']}")
    if document["state"] == "unknown" and document["by"] == "sender":
        print_line(_LEFT_HINT, err=True)
    if not document["complete"]:
        print_line(
            f"no more than {counted(document['looked_at_rows'], 'message')} looked at", err=True
        )
    for copy in document["copies"]:
        _print_copy(copy)
    more = document["copies_total"] - len(document["copies"])
    if more:
        print_line(f"and {counted(more, 'more message')} with that id")
    for letter in document["dead_letters"]:
        print_line(
            f"dead letter {letter['dead_letter']} of {letter['queue']} since {letter['dead']}:"
            f" {letter['kind']}: {letter['reason']}"
        )
    journal = document["journal"]
    if journal is None:
        return
    for event in journal["events"]:
        print_line(f"  {event['time']} {_event_text(event)}")
    if not journal["complete"] and not document["copies"]:
        print_line("what was before that is not in the journal's segments that were looked at")


def _print_copy(copy: dict[str, Any]) -> None:
    print_line(f"in {copy['queue']}: {copy['state']}, offset {copy['offset']}, from {sender(copy)}")
    if copy["orphaned"]:
        print_line("  orphaned: no settings or route name its endpoint any more")
    elif copy["endpoint_state"] is not None:
        reason = f", {copy['endpoint_reason']}" if copy["endpoint_reason"] else ""
        print_line(f"  endpoint: {copy['endpoint_state']}{reason}")
    print_line(f"  routes: {', '.join(copy['routes'])}")
    ttl = "never expires" if copy["ttl_s"] is None else f"{copy['ttl_s']:.0f} s"
    left = "" if copy["ttl_s"] is None else f", expires in {copy['expires_in_s']:.0f} s"
    print_line(f"  time to live: {ttl} ({copy['ttl_from']}){left}")
    print_line(f"  waiting for {copy['age_s']:.1f} s so far{_waited_text(copy['waited'])}")
    if copy["attempts"]:
        print_line(f"  refused {counted(copy['attempts'], 'time')}")
    if copy["suspected"] is not None:
        for line in suspicion_texts(copy["suspected"]):
            print_line(f"  {line}")
    elif copy["narrow_rows"]:
        print_line(
            "  its endpoint sends one message at a time,"
            f" {counted(copy['narrow_rows'], 'message')} more: the peer has closed the connection"
            " over one of them"
        )
    passed = copy["overtaken_by"]
    if passed is not None and (passed["rows"] or passed["complete"]):
        queues = ", ".join(f"{rows} of {name}" for name, rows in passed["queues"].items())
        least = "" if passed["complete"] else "at least "
        print_line(
            f"  overtaken by {least}{counted(passed['rows'], 'message')}"
            + (f": {queues}" if queues else "")
        )
    _print_forecast(copy)


def _print_forecast(copy: dict[str, Any]) -> None:
    if copy["state"] not in _SENT_STATES:
        before = copy["before"]
        print_line(f"  before it in its queue: {_amount(before)}")
        for each in before["better"]:
            print_line(f"  goes first: {_amount(each)} of {each['queue']}")
    if copy["leaves"] is not None:
        print_line(f"  leaves {leaves_text(copy)}")


def suspicion_texts(suspected: dict[str, Any]) -> list[str]:
    """Write what speaks against a row that the peer may refuse, and what comes next."""
    closes, alone, left = suspected["closes"], suspected["alone"], suspected["closes_left"]
    counts = (
        "suspected: the peer has refused it, or closed the connection with it first of those in"
        f" flight, {counted(closes, 'time')}, {counted(alone, 'time')} with nothing else in flight"
    )
    end = (
        "a dead letter, as the peer takes others without it"
        if suspected["cleared"]
        else "kept out of the connection"
    )
    match suspected["next"]:
        case "in_company":
            text = f"sent again with others; after {counted(left, 'more such close')} alone"
        case "held":
            text = (
                f"its sender is kept back for a while; after {counted(left, 'more refusal')} {end}"
            )
        case "alone":
            text = f"sent alone; after {counted(left, 'more refusal')} {end}"
        case _:
            text = (
                "not sent for a minute, or until a connection without it confirms another message"
            )
            quiet_s = suspected["quiet_left_s"]
            text += (
                " or lasts with nothing else to send"
                if quiet_s is None
                else f" or lasts for {quiet_s:.0f} s more with nothing else to send"
            )
            text += "; then sent once more, alone"
    return [counts, f"next: {text}"]


def leaves_text(copy: dict[str, Any]) -> str:
    """Write when a row will leave, or what has to happen first."""
    state = copy["leaves"]["state"]
    if state == "drains":
        return f"in about {copy['leaves']['seconds']:.0f} s"
    if state == "offline" and copy["next_window_in_s"] is not None:
        text = f"{_OFFLINE_TEXTS['closed']}, in {span(copy['next_window_in_s'])}"
        return f"{text}, but expires before it" if copy["expires_before_window"] else text
    if state == "offline":
        return _OFFLINE_TEXTS.get(copy["endpoint_state"], "once its endpoint is connected again")
    if state == "unserved" and copy["orphaned"]:
        return "by itself never: name its endpoint again, or edgehub queue move"
    return _LEAVES_TEXTS[state]


def _amount(figures: dict[str, Any]) -> str:
    return f"{counted(figures['rows'], 'message')} ({counted(figures['bytes'], 'byte')})"


def _waited_text(waited: dict[str, float] | None) -> str:
    if waited is None:
        return ""
    named = [(waited[f"{part}_s"], text) for part, text in WAITED_TEXTS.items()]
    parts = [f"{seconds:.1f} s {text}" for seconds, text in named if seconds >= 0.05]  # noqa: PLR2004 - what rounds to 0.1
    return f": {', '.join(parts)}" if parts else ""


def queue_text(line: dict[str, Any], prefix: str = "") -> str:
    """Write the queue in a line of the journal, or the one with `to_`; empty = it has none."""
    name: str = line.get(f"{prefix}endpoint", "")
    priority = line.get(f"{prefix}priority")
    return name if priority is None else f"{name}_Pri{priority}"


def _event_text(event: dict[str, Any]) -> str:
    text = f"{event['event']} {queue_text(event)}"
    if target := queue_text(event, "to_"):
        text += f" to {target}"
    if "ttl_from" in event:
        text += f", time to live {event['ttl_ms'] / 1000:.0f} s ({event['ttl_from']})"
    if "reason" in event:
        text += f" ({event['reason']})"
    if "waited_ms" in event:
        text += f", waited {event['waited_ms'] / 1000:.1f} s"
    return text
