"""Connections to Redis as the hub makes all of its connections.

redis-py connects by itself, to one address after the other, and has no argument for a socket that
is connected already. So these pass it the address that answers, at each connect. Invariant: over
TLS the server proves the name of the settings, not that address.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's own

from edgehub.errors import ConfigError
from edgehub.mqtt.tcp import reachable_host
from edgehub.storage.credentials import TlsOptions, client_context


class RedisTcpConnection(Connection):
    """A connection without TLS."""

    def __init__(self, *, host: str, **arguments: Any) -> None:
        super().__init__(host=host, **arguments)
        self._configured_host = host

    async def connect(self) -> None:
        """Connect, where it is not connected."""
        if not self.is_connected:
            self.host = await reachable_host(self._configured_host, int(self.port))
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py's own


class RedisTlsConnection(SSLConnection):
    """A connection with TLS, whose files are read at each connect."""

    def __init__(self, *, host: str, tls: TlsOptions, **arguments: Any) -> None:
        super().__init__(host=host, **arguments)
        self._configured_host = host
        self._tls = tls

    async def connect(self) -> None:
        """Connect, where it is not connected."""
        if not self.is_connected:
            context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
            context.name = self._configured_host
            try:
                self.ssl_context.context = await asyncio.to_thread(
                    client_context, self._tls, context
                )
            except ConfigError as error:
                raise ConnectionError(str(error)) from error
            self.host = await reachable_host(self._configured_host, int(self.port))
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py's own


class _NamedContext(ssl.SSLContext):
    """Settings of TLS for a peer with a name, by whatever address it is reached.

    Attributes:
        name: What the peer has to prove, and what it is asked for.
    """

    name: str

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return super().wrap_bio(*arguments, **{**options, "server_hostname": self.name})
