"""`edgehub method`: calls of direct methods of devices and modules."""

from __future__ import annotations

from typing import Any, Final

import click

from edgehub.cli.arguments import checked, client_argument, client_arguments, json_value
from edgehub.cli.daemon import TIMEOUT_S, ask_hub
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import print_json

_SUCCESS: Final = range(200, 300)


@click.group(cls=CommandGroup)
def method() -> None:
    """Call methods of connected devices and modules."""


@method.command()
@client_argument
@click.argument("name", metavar="METHOD")
@click.option(
    "--payload", callback=checked(json_value), metavar="JSON", help="Payload of the call."
)
@click.option(
    "--response-timeout",
    type=click.FloatRange(5, 300),
    default=30,
    help="Longest wait for the answer, in seconds; default: 30.",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(0, 300),
    default=0,
    help="Longest wait for the device to connect, in seconds; default: 0.",
)
@click.pass_obj
def invoke(
    obj: dict[str, Any],
    client_id: str,
    name: str,
    payload: Any,
    response_timeout: float,
    connect_timeout: float,
) -> int:
    """Call a method and show the answer as JSON.

    Exit code 1 if there is none, or its status is not from 200 to 299.
    """
    document = {
        "methodName": name,
        "payload": payload,
        "responseTimeoutInSeconds": response_timeout,
        "connectTimeoutInSeconds": connect_timeout,
    }
    answer = ask_hub(
        obj,
        "method invoke",
        response_timeout + connect_timeout + TIMEOUT_S,
        **client_arguments(client_id),
        call=document,
    )
    print_json(answer)
    return 0 if answer["status"] in _SUCCESS else 1
