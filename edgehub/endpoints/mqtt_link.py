"""The link to an MQTT server: how to connect, and the connection that results.

Owns no state. Invariant: a connection that is returned is signed in; after an error nothing is left
open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from edgehub.errors import ConfigError
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.azure import is_azure
from edgehub.mqtt.client import Client, ClientOptions, LinkError, words
from edgehub.mqtt.packets import LEVEL_3_1_1, LEVEL_5
from edgehub.mqtt.reasons import ReasonCode, code_name
from edgehub.mqtt.shared_access import resource_of
from edgehub.mqtt.tcp import connect_tcp
from edgehub.storage.credentials import client_context, read_access_key, read_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import NotRequired, Unpack

    from edgehub.clock import Clock
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_packets import RefusedPublish
    from edgehub.storage.credentials import TlsOptions

UNSENT_IN_KERNEL_MAX: Final = 16_384
"""Unsent bytes in the kernel; the rest waits in the process, where it costs no wake-up."""


class SharedAccess(Struct, frozen=True, kw_only=True):
    """Signatures in place of a password, each made for one connection.

    Attributes:
        file: File whose first line is the symmetric key; read at each connect.
        setting: Setting that names it, for errors.
        lasts_s: How long a signature holds.
    """

    file: Path
    setting: str
    lasts_s: int


class LinkOptions(ClientOptions, frozen=True, kw_only=True):
    """The peer, and how to sign in.

    Attributes:
        host: Name or address.
        port: TCP port.
        password_file: File whose first line is the password; read at each connect.
        file_setting: Setting that names the file, for errors.
        shared_access: Signs in with signatures, None = with the password, or nothing.
        tls: None = plain TCP.
        connect_timeout_s: For name and TCP together, and again for TLS and CONNACK.
    """

    host: str
    port: int
    password_file: Path | None = None
    file_setting: str = "password_file"
    shared_access: SharedAccess | None = None
    tls: TlsOptions | None = None
    connect_timeout_s: float = 10.0


def first_level(mqtt: str, host: str) -> int:
    """Return the protocol level to begin with: of `auto`, `5` or `3.1.1` in the settings."""
    if mqtt == "3.1.1" or (mqtt == "auto" and is_azure(host)):
        return LEVEL_3_1_1
    return LEVEL_5


class VersionChoice:
    """Which version of MQTT to connect with: a fixed one, or 5 unless the peer refuses it.

    A CONNECT of MQTT 5 that the peer refuses, or closes over, is followed by one of 3.1.1 at once.
    Which version it takes is remembered until `forget`; that it takes none is not.

    Args:
        level: Protocol level to begin with.
        falls_back: Whether 3.1.1 may follow.

    Attributes:
        level: Protocol level of the next CONNECT.
    """

    def __init__(self, level: int, *, falls_back: bool) -> None:
        self._first = self.level = level
        self._falls_back = falls_back
        self._is_known = False

    def connected(self) -> None:
        """Record that the peer takes this version."""
        self._is_known = True

    def failed(self, error: LinkError) -> bool:
        """Record a failed attempt; return whether the next one is to follow at once."""
        if self._is_known or not self._falls_back:
            return False
        # Wrong credentials do not depend on the version.
        falls_back = self.level == LEVEL_5 and error.connect_refused and not error.parked
        self.level = LEVEL_3_1_1 if falls_back else self._first
        return falls_back

    def forget(self) -> None:
        """Start with the first version again at the next connect."""
        self.level = self._first
        self._is_known = False


class Callbacks(TypedDict):
    """The callbacks of a connection; see `Client`."""

    clock: Clock
    on_confirmed: Callable[[list[int]], None]
    on_messages: Callable[[list[IncomingPublish]], None]
    on_refused: NotRequired[Callable[[list[RefusedPublish]], None]]
    on_closed: NotRequired[Callable[[str], None]]


@contextlib.asynccontextmanager
async def connect(options: LinkOptions, **callbacks: Unpack[Callbacks]) -> AsyncIterator[Client]:
    """Connect, and close again at the end of the block.

    Raises:
        LinkError: If there is no connection.
    """
    client = await open_client(options, **callbacks)
    try:
        yield client
    finally:
        await client.close()


async def open_client(options: LinkOptions, **callbacks: Unpack[Callbacks]) -> Client:
    """Connect and sign in.

    Raises:
        LinkError: If there is no connection, or the peer's certificate is not trusted.
    """
    try:
        context = None
        if options.password_file or options.shared_access or options.tls:
            now_s = callbacks["clock"].wall_ms() // 1000
            password, context = await asyncio.to_thread(_read_files, options, now_s)
            options = replace(options, password=password)
        client = Client(options, **callbacks)
        async with asyncio.timeout(options.connect_timeout_s):
            sock = await _tcp(options)
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await client.open(sock, tls=context, host=options.host)
        except TimeoutError as error:
            raise LinkError(
                f"CONNECT timed out: no answer within {options.connect_timeout_s:g} s"
            ) from error
    except ConfigError as error:
        raise LinkError(str(error), parked=True) from error
    except ssl.SSLCertVerificationError as error:
        raise LinkError(f"certificate of the peer: {error.verify_message}", parked=True) from error
    except OSError as error:
        # TimeoutError is one, as are all of TLS and of name resolution.
        raise LinkError(
            "connect timed out" if isinstance(error, TimeoutError) else words(error)
        ) from error
    return client


def _read_files(options: LinkOptions, now_s: int) -> tuple[str | None, ssl.SSLContext | None]:
    file, tls = options.password_file, options.tls
    password = None if file is None else read_secret(options.file_setting, file)
    access = options.shared_access
    if access is not None:
        resource = resource_of(options.client_id, options.username, options.host)
        key = read_access_key(access.setting, access.file)
        password = key.token(resource, now_s + access.lasts_s)
    return password, None if tls is None else client_context(tls)


_KINDS: Final[dict[int, FailureKind]] = {
    ReasonCode.UNSPECIFIED_ERROR: FailureKind.TRANSIENT,
    ReasonCode.NOT_AUTHORIZED: FailureKind.NOT_AUTHORIZED,
    ReasonCode.PACKET_IDENTIFIER_IN_USE: FailureKind.TRANSIENT,
    ReasonCode.PACKET_TOO_LARGE: FailureKind.TOO_LARGE,
    ReasonCode.QUOTA_EXCEEDED: FailureKind.TRANSIENT,
}


def refusal(refused: RefusedPublish) -> SendResult:
    """Return what a PUBACK that refuses means for a row; from codes not named here it is final."""
    kind = _KINDS.get(refused.code, FailureKind.REJECTED)
    said = f": {refused.reason}" if refused.reason else ""
    return SendResult(kind, f"refused: {code_name(refused.code)}{said}")


async def _tcp(options: LinkOptions) -> socket.socket:
    sock = await connect_tcp(options.host, options.port)
    # Packets are written whole and in batches; a delay for more would gain nothing.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Bounds the unsent bytes in the kernel. The send buffer itself is left to the kernel: bytes
    # beyond this are in flight and bounded by the pump's window, while a small fixed buffer would
    # slow down every link with a long round trip.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_MAX)
    return sock
