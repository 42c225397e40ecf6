"""`edgehub send`: publish a message as a device does."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import aiomqtt
import click

from edgehub.cli.credentials import checked
from edgehub.cli.mqtt_client import connected, hub_server, server_options
from edgehub.cli.named_values import named_values
from edgehub.cli.output import print_line
from edgehub.devices.ids import ID_RULE, split_sender

if TYPE_CHECKING:
    from edgehub.cli.mqtt_client import Server


def _sender(value: str) -> str:
    if split_sender(value) is None:
        msg = f"{value!r} is not <device> or <device>/<module>, each {ID_RULE}"
        raise ValueError(msg)
    return value


@click.command()
@click.argument("sender", metavar="DEVICE", callback=checked(_sender))
@click.argument("body", required=False)
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=checked(named_values),
    help="A property of the message, for conditions of routes; may be repeated.",
)
@click.option("--topic", help="Publish on this topic, such as a local one, instead of DEVICE's.")
@click.option(
    "--qos",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="1 and 2 wait until the hub has acknowledged the message, 0 does not.",
)
@server_options
@click.pass_obj
def send(
    obj: dict[str, Any],
    /,
    *,
    sender: str,
    body: str | None,
    properties: dict[str, str],
    topic: str | None,
    qos: int,
    **options: Any,
) -> None:
    """Send a message to a hub as DEVICE, which is <device> or <device>/<module>.

    BODY is its content; absent or - = standard input. A hub acknowledges and drops what comes on a
    topic that it does not take; `edgehub status` names the newest such topic.

    \b
    Example:
      edgehub send pump-7 '{"bar": 9.1}' --property kind=alarm
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    if topic is not None and properties:
        msg = "--topic and --property: properties go with the topic of the device alone"
        raise click.UsageError(msg)
    topic = topic or _device_topic(sender, properties)
    if any(wildcard in topic for wildcard in "+#"):
        raise click.BadParameter("a topic has no wildcards", param_hint="--topic")
    content = sys.stdin.buffer.read() if body in {None, "-"} else str(body).encode()
    server = hub_server(obj, **options)
    asyncio.run(_publish(server, sender, topic, content, qos))
    print_line(f"{'sent' if qos == 0 else 'acknowledged'}: {topic}")


def _device_topic(sender: str, properties: dict[str, str]) -> str:
    device, _, module = sender.partition("/")
    where = f"devices/{device}/modules/{module}" if module else f"devices/{device}"
    return f"{where}/messages/events/{urlencode(properties, quote_via=quote)}"


async def _publish(server: Server, sender: str, topic: str, content: bytes, qos: int) -> None:
    async with connected(server, sender, aiomqtt.ProtocolVersion.V311) as client:
        await client.publish(topic, content, qos=qos)
