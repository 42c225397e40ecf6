"""`edgehub send`: publish a message as a device does.

MQTT 5 is tried first, since a hub can refuse a message in it alone. The client is the hub's own:
aiomqtt does not pass on the reason code of an acknowledgement.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click

from edgehub.cli.arguments import checked, named_values, sender_id
from edgehub.cli.mqtt_client import MqttClientError, Server, hub_server, server_options, unreachable
from edgehub.cli.output import print_line
from edgehub.clock import SystemClock
from edgehub.mqtt.client import ANSWER_TIMEOUT_S, Client, ClientOptions, LinkError
from edgehub.mqtt.fields import STRING_BYTES_MAX
from edgehub.mqtt.packets import LEVEL_5, publish
from edgehub.mqtt.reasons import ReasonCode, code_name
from edgehub.mqtt.tcp import connect_tcp

if TYPE_CHECKING:
    from edgehub.mqtt.client_packets import RefusedPublish

_LEVEL_3_1_1: Final = 4
_PACKET_ID: Final = 1


@click.command()
@click.argument("sender", metavar="DEVICE", callback=checked(sender_id))
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

    BODY is its content; absent or - = standard input. A message that the hub refuses, or that no
    route takes, ends with exit code 1 and the reason. "taken" instead of "acknowledged" means that
    the server speaks MQTT 3.1.1 only, which acknowledges what it drops too.

    \b
    Example:
      edgehub send pump-7 '{"bar": 9.1}' --property kind=alarm
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    if topic is not None and properties:
        raise click.UsageError(
            "--topic and --property: properties go with the topic of the device alone"
        )
    topic = topic or _device_topic(sender, properties)
    if any(wildcard in topic for wildcard in "+#"):
        raise click.BadParameter("a topic has no wildcards", param_hint="--topic")
    content = sys.stdin.buffer.read() if body in {None, "-"} else str(body).encode()
    if len(topic.encode()) > STRING_BYTES_MAX:
        raise click.UsageError(
            f"the topic with its properties has more than {STRING_BYTES_MAX} bytes"
        )
    server = hub_server(obj, **options)
    print_line(f"{asyncio.run(_send(server, sender, topic, content, qos))}: {topic}")


def _device_topic(sender: str, properties: dict[str, str]) -> str:
    device, _, module = sender.partition("/")
    where = f"devices/{device}/modules/{module}" if module else f"devices/{device}"
    return f"{where}/messages/events/{urlencode(properties, quote_via=quote)}"


async def _send(server: Server, sender: str, topic: str, content: bytes, qos: int) -> str:
    """Publish a message; returns what the server has done with it.

    Raises:
        MqttClientError: The server cannot be reached, or refuses the client or the message.
    """
    try:
        sending = await _signed_in(server, sender)
        return await sending.publish(topic, content, qos)
    except LinkError as error:
        raise MqttClientError(f"{server.place}, client {sender}: {error.reason}") from error


async def _signed_in(server: Server, sender: str) -> _Sending:
    sending = _Sending(server, sender, LEVEL_5)
    try:
        await sending.open(server)
    except LinkError as error:
        # It may speak MQTT 3.1.1 only, and close over anything else.
        if error.parked or not error.connect_refused:
            raise
        sending = _Sending(server, sender, _LEVEL_3_1_1)
        await sending.open(server)
    return sending


class _Sending:
    """A connection that sends one message."""

    def __init__(self, server: Server, sender: str, level: int) -> None:
        self._level = level
        self._outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        options = ClientOptions(
            client_id=sender,
            level=level,
            username=server.username,
            password=server.password,
            clean_session=True,
        )
        self._client = Client(
            options,
            clock=SystemClock(),
            on_confirmed=lambda _: self._settle("acknowledged" if level == LEVEL_5 else "taken"),
            on_messages=lambda _: None,
            on_unmatched=lambda _: self._fail(
                f"{code_name(ReasonCode.NO_MATCHING_SUBSCRIBERS)}: it takes and drops the message"
            ),
            on_refused=self._refused,
            on_closed=self._fail,
        )

    async def open(self, server: Server) -> None:
        """Sign in.

        Raises:
            LinkError: The server refuses the client, or does not answer.
            MqttClientError: The server cannot be reached.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                sock = await connect_tcp(server.host, server.port)
                await self._client.open(sock, tls=server.tls, host=server.host)
        except TimeoutError as error:
            raise LinkError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise unreachable(server, error) from error

    async def publish(self, topic: str, content: bytes, qos: int) -> str:
        """Send the message, wait for its acknowledgement if there is one, and disconnect."""
        properties = b"\0" if self._level == LEVEL_5 else b""
        packet_id = _PACKET_ID if qos else 0
        self._client.write(
            publish(topic.encode(), content, packet_id, qos=qos, properties=properties)
        )
        try:
            if not qos:
                return "sent"
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._outcome
        except TimeoutError as error:
            raise LinkError(
                f"no acknowledgement within {ANSWER_TIMEOUT_S:g} s; the hub's log may say why"
            ) from error
        finally:
            await self._client.close()

    def _settle(self, outcome: str) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _fail(self, reason: str) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(LinkError(reason))
            self._outcome.exception()  # with QoS 0 no one waits for it

    def _refused(self, refused: list[RefusedPublish]) -> None:
        code, text = refused[0].code, refused[0].reason
        self._fail(f"refused: {code_name(code)} ({code:#04x})" + (f": {text}" if text else ""))
