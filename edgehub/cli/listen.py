"""`edgehub listen`: subscribe, and print the messages that come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import aiomqtt
import click

from edgehub.cli.arguments import checked, each
from edgehub.cli.mqtt_client import (
    MqttClientError,
    connected,
    hub_server,
    server_options,
    upstream_server,
)
from edgehub.cli.output import json_option_of, print_json_line, print_line, wants_json
from edgehub.message import body_members
from edgehub.mqtt.topic_filter import filter_fault

if TYPE_CHECKING:
    from edgehub.cli.mqtt_client import Server

_VERSIONS: Final = {
    "3.1.1": aiomqtt.ProtocolVersion.V311,
    "5": aiomqtt.ProtocolVersion.V5,
}
_REFUSED: Final = 0x80
"""The least reason code of a SUBACK that refuses a filter."""


def _filter(value: str) -> None:
    if fault := filter_fault(value):
        raise ValueError(fault)


@click.command()
@click.argument(
    "filters", metavar="FILTER...", nargs=-1, required=True, callback=checked(each(_filter))
)
@click.option(
    "--as",
    "client_id",
    metavar="DEVICE",
    help="Client id, such as that of a device; default: a random one.",
)
@click.option(
    "--upstream", is_flag=True, help="Listen at the broker of [upstream] in the settings."
)
@click.option("--count", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--qos", type=click.IntRange(0, 2), default=1, show_default=True, help="Highest QoS.")
@click.option(
    "--mqtt",
    "version",
    type=click.Choice([*_VERSIONS]),
    default="3.1.1",
    show_default=True,
    help="Version of MQTT; 5 shows user properties.",
)
@json_option_of("Print one JSON object a line.")
@server_options
@click.pass_obj
def listen(
    obj: dict[str, Any],
    /,
    *,
    filters: tuple[str, ...],
    client_id: str | None,
    upstream: bool,
    count: int | None,
    qos: int,
    version: str,
    **options: Any,
) -> None:
    """Print messages that a hub, or its upstream broker, delivers for FILTER... until Ctrl-C.

    A hub delivers messages for devices and modules to the client with their id (--as), and
    messages of the local topic space to all clients that may subscribe.

    \b
    Local topics; what is sent to a device; what the upstream broker gets:
      edgehub listen 'te/#'
      edgehub listen --as pump-7 'devices/pump-7/messages/devicebound/#'
      edgehub listen --upstream 'devices/#'
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    server = upstream_server(obj) if upstream else hub_server(obj, **options)
    name = client_id or f"edgehub-listen-{secrets.token_hex(4)}"
    work = _print_messages(server, name, filters, count, qos, version)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work)


async def _print_messages(
    server: Server,
    client_id: str,
    filters: tuple[str, ...],
    count: int | None,
    qos: int,
    version: str,
) -> None:
    async with connected(server, client_id, _VERSIONS[version]) as client:
        for topic_filter in filters:
            codes = await client.subscribe(topic_filter, qos=qos)
            if any((code if isinstance(code, int) else code.value) >= _REFUSED for code in codes):
                raise MqttClientError(f"{client_id} may not subscribe to {topic_filter}")
        print_line(f"listening at {server.host}:{server.port} as {client_id}", err=True)
        printed = 0
        async for message in client.messages:
            if wants_json():
                print_json_line(_document(message))
            else:
                print_line(f"{message.topic.value} {_text(message)}")
            printed += 1
            if printed == count:
                return


def _content(message: aiomqtt.Message) -> bytes:
    assert isinstance(message.payload, bytes), "what comes is bytes"
    return message.payload


def _text(message: aiomqtt.Message) -> str:
    content = _content(message)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"base64 {base64.b64encode(content).decode()}"


def _document(message: aiomqtt.Message) -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": message.topic.value,
        "qos": message.qos,
        "retain": message.retain,
    }
    if message.properties is not None:
        pairs = getattr(message.properties, "UserProperty", [])
        document["user_properties"] = [list(pair) for pair in pairs]
    return document | body_members(_content(message))
