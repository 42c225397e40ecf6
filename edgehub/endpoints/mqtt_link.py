"""The way to an MQTT peer: whom to connect to, the socket that leads there, what the peer said.

Owns no state. Invariant: a socket that `open_socket` gives is connected, non-blocking and, with
TLS, through its handshake; on any other way out nothing is left open.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgehub.errors import ConfigError, EdgeHubError
from edgehub.mqtt.fields import REMAINING_LENGTH_MAX
from edgehub.mqtt.tcp import connect_tcp, ready
from edgehub.storage.credentials import client_context

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.storage.credentials import TlsOptions

UNSENT_IN_KERNEL_MAX: Final = 16_384
"""Unsent bytes that the kernel takes; the rest waits in the channel, where it costs no wake-up."""


class LinkError(EdgeHubError):
    """The connection cannot be made.

    Attributes:
        reason: For status and logs.
        parked: A person must change something before it can work.
    """

    def __init__(self, reason: str, *, parked: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parked = parked


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Whom to connect to, and as whom.

    Attributes:
        host: Name or address.
        port: TCP port.
        client_id: MQTT client id.
        username: User name, None = none.
        password_file: File whose first line is the password; read at each connect.
        tls: None = plain TCP.
        clean_session: False keeps subscriptions and device-bound messages at the peer.
        keep_alive_s: A silent peer is noticed after twice this time.
        connect_timeout_s: For name, TCP and TLS together, and again for CONNACK.
        level: Protocol level, 4 = MQTT 3.1.1, 5 = MQTT 5.
        session_expiry_s: MQTT 5: how long the peer keeps a session that is not clean.
        receive_maximum: MQTT 5: messages without PUBACK that the peer may send.
        incoming_bytes_max: Packets from the peer that are larger lose their body.
    """

    host: str
    port: int
    client_id: str
    username: str | None = None
    password_file: Path | None = None
    tls: TlsOptions | None = None
    clean_session: bool = False
    keep_alive_s: int = 60
    connect_timeout_s: float = 10.0
    level: int = 4
    session_expiry_s: int = 0xFFFF_FFFF
    receive_maximum: int = 65_535
    incoming_bytes_max: int = REMAINING_LENGTH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What the peer's CONNACK said.

    Attributes:
        session_present: The peer has kept the session.
        receive_maximum: Messages without PUBACK that it takes.
        packet_bytes_max: Largest packet that it takes, None = it does not say.
        retains: It keeps retained messages.
        shares: It knows shared subscriptions.
        identifies: It knows subscription identifiers.
    """

    session_present: bool = False
    receive_maximum: int = 65_535
    packet_bytes_max: int | None = None
    retains: bool = True
    shares: bool = True
    identifies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A subscription of MQTT 5, with QoS 1.

    Attributes:
        filter: Topic filter, with `$share/<group>/` where it is shared.
        number: Subscription identifier, None = none.
        no_local: The client's own messages do not come back; not for shared ones.
    """

    filter: str
    number: int | None = None
    no_local: bool = False


async def open_socket(options: LinkOptions) -> socket.socket:
    """Connect.

    Raises:
        LinkError: If there is no way, or the peer's certificate is not trusted.
    """
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            if options.tls is None:
                return await _tcp(options)
            context = await asyncio.to_thread(client_context, options.tls)
            return await _tls(await _tcp(options), context, options.host)
    except ConfigError as error:
        raise LinkError(str(error), parked=True) from error
    except ssl.SSLCertVerificationError as error:
        raise LinkError(f"certificate of the peer: {error.verify_message}", parked=True) from error
    except OSError as error:
        # TimeoutError is one, as are all of TLS and of name resolution.
        text = "connect timed out" if isinstance(error, TimeoutError) else words(error)
        raise LinkError(text, parked=False) from error


async def _tcp(options: LinkOptions) -> socket.socket:
    sock = await connect_tcp(options.host, options.port)
    # Packets are written whole and in batches; waiting for more would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Bounds what waits unsent in the kernel. The send buffer itself is left to the kernel: what it
    # holds beyond this is under way and bounded by the pump's window, while a small fixed buffer
    # would cap every link with a long round trip.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_MAX)
    return sock


async def _tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        wrapped = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await ready(wrapped.fileno(), loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await ready(wrapped.fileno(), loop.add_writer, loop.remove_writer)
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


def words(error: Exception) -> str:
    """Say what a failure of the way was."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        # asyncio puts the address into the text, and the address is in the settings already.
        return os.strerror(error.errno) if error.errno else str(error)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
