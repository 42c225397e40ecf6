"""`edgehub entity`: what the hub makes of the messages of entities.

Works on files alone and asks no daemon; it runs the mapper that the daemon runs.
"""

from __future__ import annotations

import json
from typing import IO, Any

import click

from edgehub.entities.faults import MappingError
from edgehub.entities.replay import replay as run_replay


@click.group()
def entity() -> None:
    """Try registrations and data of entities, without a running hub."""


@entity.command()
@click.argument("file", type=click.File("rb"))
def replay(file: IO[bytes]) -> int:
    """Show what the mapper would send for given messages.

    FILE (- = standard input) holds one JSON object a line: {"id", "config", "input"}; each message
    of the input has topic, payload, retain and at_ms. For each line {"id", "output"} is printed.
    Topics $ctl/restart, $ctl/stop, $ctl/start and $ctl/wait steer the daemon and its clock.
    `config.observe` lists the topic filters of what is shown; absent = c8y/#. Exit code 1 if a line
    could not be used.
    """
    all_usable = True
    for line in file:
        if line.strip():
            answer = _answer(line)
            all_usable = all_usable and "error" not in answer
            click.echo(json.dumps(answer, ensure_ascii=False))
    return 0 if all_usable else 1


def _answer(line: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": None}
    try:
        form = json.loads(line)
        answer["id"] = form.get("id") if isinstance(form, dict) else None
        answer["output"] = run_replay(form)
    except (ValueError, RecursionError) as error:
        answer["error"] = f"not JSON: {error}"
    except MappingError as error:
        answer["error"] = str(error)
    return answer
