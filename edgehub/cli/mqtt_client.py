"""What the commands that act as an MQTT client share: where they connect, and as whom."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiomqtt
import click
from msgspec import Struct

from edgehub.cli.arguments import stacked
from edgehub.errors import EdgeHubError
from edgehub.mqtt.client import words
from edgehub.settings import MqttEndpointSettings, load_settings
from edgehub.storage.credentials import TlsOptions, client_context, read_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class MqttClientError(EdgeHubError):
    """A server cannot be reached, or refuses what was asked of it."""


class Server(Struct, frozen=True, kw_only=True):
    """Where to connect, and as whom.

    Attributes:
        host: Name or address.
        port: TCP port.
        username: None = none.
        password: None = none.
        tls: None = not encrypted.
    """

    host: str
    port: int
    username: str | None
    password: str | None
    tls: ssl.SSLContext | None

    @property
    def place(self) -> str:
        """Host and port, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


server_options: Final = stacked(
    click.option("--host", default="127.0.0.1", show_default=True, help="Address of the hub."),
    click.option(
        "--port",
        type=click.IntRange(1, 65_535),
        help="Port of the hub; default: that of the settings.",
    ),
    click.option("--username", help="User name."),
    click.option("--password-file", type=_FILE, help="File that holds the password."),
    click.option("--tls", is_flag=True, help="Encrypt the connection."),
    click.option(
        "--ca-file", type=_FILE, help="Authorities that sign the hub's certificate, in PEM."
    ),
)
"""The options that `hub_server` takes."""


def hub_server(
    obj: dict[str, Any],
    *,
    host: str,
    port: int | None,
    username: str | None,
    password_file: Path | None,
    tls: bool,
    ca_file: Path | None,
) -> Server:
    """Return the hub that options name.

    Raises:
        ConfigError: A file cannot be read, or the settings are wrong.
        click.UsageError: The settings have no port that is known beforehand.
    """
    if port is None:
        settings = load_settings(obj["config"]).mqtt
        port = settings.tls_port if tls else settings.port
        if port == 0:
            raise click.UsageError(
                "the settings leave the port to the system: give --port (the hub's log names it)"
            )
    return Server(
        host=host,
        port=port,
        username=username,
        password=None if password_file is None else read_secret("--password-file", password_file),
        tls=client_context(TlsOptions(ca_file=ca_file)) if tls else None,
    )


def upstream_server(obj: dict[str, Any]) -> Server:
    """Return the server that `[upstream]` of the settings names.

    Raises:
        ConfigError: A file cannot be read, or the settings are wrong.
        click.UsageError: The settings have no upstream that speaks MQTT.
    """
    options = load_settings(obj["config"]).upstream
    if not isinstance(options, MqttEndpointSettings):
        raise click.UsageError("--upstream: the settings have no [upstream] of type mqtt")
    secret = options.password_file
    return Server(
        host=options.host,
        port=options.port,
        username=options.username,
        password=None if secret is None else read_secret("upstream.password_file", secret),
        tls=client_context(TlsOptions.of(options)) if options.tls else None,
    )


@asynccontextmanager
async def connected(
    server: Server, client_id: str, protocol: aiomqtt.ProtocolVersion
) -> AsyncIterator[aiomqtt.Client]:
    """Connect for as long as the context lasts.

    Raises:
        MqttClientError: The server cannot be reached, refuses the client or ends the connection.
    """
    try:
        async with aiomqtt.Client(
            server.host,
            server.port,
            identifier=client_id,
            username=server.username,
            password=server.password,
            tls_context=server.tls,
            protocol=protocol,
        ) as client:
            yield client
    except aiomqtt.MqttError as error:
        # aiomqtt's text is that of the system's error, number included.
        if isinstance(error.__context__, OSError):
            raise unreachable(server, error.__context__) from error
        raise MqttClientError(f"{server.place}, client {client_id}: {error}") from error


def unreachable(server: Server, error: OSError) -> MqttClientError:
    """Return the error for a server that no connection can be made to."""
    if isinstance(error, ssl.SSLError):
        return MqttClientError(f"{server.place}: no TLS: {words(error)}")
    hint = ""
    if isinstance(error, ConnectionRefusedError):
        hint = (
            ": start the hub there (edgehub run), or name the address on which it listens"
            " (--host, --port)"
        )
    return MqttClientError(f"no server answers at {server.place}: {words(error)}{hint}")
