"""`edgehub queue dead`: messages that were given up, with the reason; requeue or purge them."""

from __future__ import annotations

from typing import Any, Final

import click

from edgehub.cli.arguments import stacked
from edgehub.cli.consent import ask, dry_run_option, yes_option
from edgehub.cli.daemon import answer_of, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import json_option, print_json, print_line, print_members, wants_json
from edgehub.cli.tables import print_table
from edgehub.telemetry.plural import counted

_FIGURES: Final = ("number", "body", "tries")
_OF_QUEUE: Final = frozenset({"endpoint", "priority"})
"""Members of a letter that the name of its queue says too."""
_AT_ONCE: Final = 200
"""What the daemon takes in one call."""
_PAGE: Final = 1000


_CHOICE: Final = stacked(
    click.argument("numbers", metavar="[NUMBER]...", type=click.IntRange(1), nargs=-1),
    click.option("--all", "every", is_flag=True, help="All dead letters."),
    click.option("--queue", "queue_name", help="All dead letters of this queue."),
    dry_run_option,
    yes_option,
    json_option,
)
"""The options that choose dead letters; they are the arguments of `_release`."""


@click.group(cls=CommandGroup)
def dead() -> None:
    """Look at dead letters: messages that the peer refused for good, or too often."""


@dead.command("list")
@click.option("--queue", "queue_name", help="Only dead letters of this queue.")
@click.option(
    "--limit",
    type=click.IntRange(1, _PAGE),
    default=100,
    show_default=True,
    help="Number of dead letters at most.",
)
@click.option("--after", type=click.IntRange(0), default=0, help="Begin after this number.")
@json_option
@click.pass_obj
def list_letters(obj: dict[str, Any], queue_name: str | None, limit: int, after: int) -> None:
    """List dead letters, oldest first, a page at a time."""
    document = answer_of(
        obj,
        "dead list",
        queue=queue_name,
        limit=limit,
        after=after,
    )
    print_table(
        (*_FIGURES[:1], "queue", *_FIGURES[1:], "since", "device", "reason", "id"),
        (
            (
                str(letter["dead_letter"]),
                letter["queue"],
                f"{letter['body_bytes']} B",
                str(letter["attempts"]),
                letter["dead"],
                letter["device"],
                f"{letter['kind']}: {letter['reason']}",
                letter["id"],
            )
            for letter in document["dead_letters"]
        ),
        right=_FIGURES,
        empty="no dead letters" + (f" of {queue_name}" if queue_name else ""),
    )
    if document["next"] is not None:
        print_line(f"more: --after {document['next']} ({document['total']} in all)", err=True)


@dead.command()
@click.argument("number", type=click.IntRange(1))
@click.option("--payload", is_flag=True, help="Show the body and the values of properties.")
@json_option
@click.pass_obj
def show(obj: dict[str, Any], number: int, payload: bool) -> None:
    """Show the dead letter of a NUMBER; no body and no values unless asked for."""
    letter = answer_of(obj, "dead show", dead_letter=number, payload=payload)
    print_members({name: value for name, value in letter.items() if name not in _OF_QUEUE})


@dead.command()
@_CHOICE
@click.pass_obj
def requeue(obj: dict[str, Any], /, **chosen: Any) -> None:
    """Put dead letters back into their queues, where they are tried again.

    Each goes to its old place; its time to live goes on where it stood when it was given up.
    """
    _release(obj, "dead requeue", **chosen)


@dead.command()
@_CHOICE
@click.pass_obj
def purge(obj: dict[str, Any], /, **chosen: Any) -> None:
    """Delete dead letters; they cannot be brought back."""
    _release(obj, "dead purge", **chosen)


def _release(
    obj: dict[str, Any],
    command: str,
    *,
    numbers: tuple[int, ...],
    every: bool,
    queue_name: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    if sum([bool(numbers), every, queue_name is not None]) != 1:
        raise click.UsageError(
            "want numbers, or --queue, or --all (edgehub queue dead list shows what there is)"
        )
    chosen = list(numbers) or _numbers(obj, queue_name)
    back = command == "dead requeue"
    verb = "requeue" if back else "delete"
    rows = len(chosen)
    if not dry_run:
        if chosen:
            ask(f"{verb} {counted(rows, 'dead letter')}?", yes=yes)
        rows = 0
        for start in range(0, len(chosen), _AT_ONCE):
            part = chosen[start : start + _AT_ONCE]
            rows += ask_hub(obj, command, dead_letters=part)["rows"]
    missing = len(chosen) - rows
    if wants_json():
        print_json({"rows": rows, "missing": missing, "dry_run": dry_run})
    else:
        done = f"would {verb}" if dry_run else f"{verb}d"
        print_line(f"{done} {counted(rows, 'dead letter')}")
    if missing and numbers:
        were = "was" if missing == 1 else "were"
        raise click.ClickException(f"{missing} of them {were} not there (any more)")


def _numbers(obj: dict[str, Any], queue_name: str | None) -> list[int]:
    """Return the numbers of all letters that there are now, or of those of one queue."""
    numbers: list[int] = []
    after: int | None = 0
    while after is not None:
        page = ask_hub(obj, "dead list", queue=queue_name, limit=_PAGE, after=after)
        numbers += [letter["dead_letter"] for letter in page["dead_letters"]]
        after = page["next"]
    return numbers
