"""One upstream connection through aiomqtt; no other file knows the inside of aiomqtt and paho.

aiomqtt (2.5.1 on paho-mqtt 2.2) keeps the session: CONNECT, keep-alive, subscriptions, incoming
messages, DISCONNECT. What is reached into, and why:

- `Client._client`: paho's client. aiomqtt has no argument for manual acknowledgement, and its own
  queue of incoming messages would acknowledge before anybody has taken a message.
- `paho._create_socket`: returns a `Channel` around a socket that was connected here without
  blocking; paho would connect in a thread that cannot be cancelled, and read byte by byte.
- `paho._mid_generate`: packet ids of our PUBLISHes must not collide with those of paho's
  SUBSCRIBEs. The PUBLISHes themselves are written straight to the channel: `await publish` costs
  about 48 us a message, paho's own `publish` about 25, a written packet 2.
- `paho._loop_rc_handle`, `paho._sock_close`: the ways to end a connection at once, with and
  without telling aiomqtt.
- `Client._client_connect`, `_on_disconnect`, `_disconnected`: see `_Client`.

Invariant: when `connect` is left, by whatever way, the socket is closed and no callback comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from edgehub.endpoints.mqtt_channel import Channel
from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage

UNSENT_IN_KERNEL_MAX: Final = 16_384
"""Unsent bytes that the kernel takes; the rest waits in the channel, where it costs no wake-up."""

DISCONNECT_TIMEOUT_S: Final = 1.0
SUBSCRIBE_TIMEOUT_S: Final = 10.0

# MQTT 5 reason codes, to which paho translates those of 3.1.1.
_REFUSED_FOR_GOOD: Final = {133, 134, 135}
_BAD_CLIENT_ID: Final = 133
_FAILURE: Final = 0x80


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
class TlsOptions:
    """How the peer proves itself, and how this hub does.

    Attributes:
        ca_file: Certificates that are trusted, None = the system's.
        certificate_file: Client certificate, None = none.
        key_file: Its key.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message from the peer that waits for its acknowledgement."""

    topic: str
    body: bytes
    mid: int
    qos: int


class Connection:
    """An established session."""

    __slots__ = ("_channel", "_client", "_paho")

    def __init__(self, client: aiomqtt.Client, channel: Channel) -> None:
        self._client = client
        self._paho = _paho_of(client)
        self._channel = channel

    def next_mid(self) -> int:
        """Give the next packet id, 1 to 65 535, from the row that paho counts."""
        return self._paho._mid_generate()  # noqa: SLF001 - see the module

    def write(self, data: bytes) -> None:
        """Write whole packets."""
        self._channel.write(data)

    def unsent_bytes(self) -> int:
        """Give the bytes that have not left this machine."""
        return self._channel.unsent_bytes()

    @property
    def unsent_at_close(self) -> int | None:
        """Bytes that had not left when the peer closed; None = it did not close."""
        return self._channel.unsent_at_close

    def acknowledge(self, message: Incoming) -> None:
        """Send the PUBACK of a message of this connection; nothing once it is closed."""
        if self._channel.is_open:
            self._paho.ack(message.mid, message.qos)

    async def subscribe(self, filters: Iterable[str]) -> list[str]:
        """Subscribe with QoS 1; gives the filters that the peer refused."""
        wanted = list(filters)
        try:
            granted = await self._client.subscribe(
                [(topic, 1) for topic in wanted], timeout=SUBSCRIBE_TIMEOUT_S
            )
        except aiomqtt.MqttError as error:
            raise LinkError(f"subscribe: {error}", parked=False) from error
        codes = [code.value if isinstance(code, ReasonCode) else code for code in granted]
        return [topic for topic, code in zip(wanted, codes, strict=True) if code >= _FAILURE]

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe."""
        try:
            await self._client.unsubscribe(list(filters), timeout=SUBSCRIBE_TIMEOUT_S)
        except aiomqtt.MqttError as error:
            raise LinkError(f"unsubscribe: {error}", parked=False) from error

    def abort(self, reason: str) -> None:
        """End the connection at once; `wait_closed` gives the reason."""
        self._channel.end_reason = reason
        self._paho._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)  # noqa: SLF001 - see the module

    async def wait_closed(self) -> str:
        """Wait for the end of the connection; gives the reason."""
        try:
            async for _ in self._client.messages:
                # Incoming messages go to `on_message` instead of aiomqtt's queue.
                raise AssertionError
        except aiomqtt.MqttError as error:
            cause = error.__cause__ or error
            return self._channel.end_reason or str(cause)
        raise AssertionError


@contextlib.asynccontextmanager
async def connect(
    options: LinkOptions,
    *,
    on_pubacks: Callable[[list[int]], None],
    on_message: Callable[[Incoming], None],
) -> AsyncIterator[Connection]:
    """Connect, and close again at the end of the block.

    Args:
        options: See `LinkOptions`.
        on_pubacks: Gets the packet ids of confirmed PUBLISHes.
        on_message: Gets incoming messages; each is acknowledged by `Connection.acknowledge`.

    Raises:
        LinkError: If there is no connection.
    """
    password = await _password(options)
    sock = await _open_socket(options)
    channel = Channel(sock, asyncio.get_running_loop(), on_pubacks)
    try:
        client = _client(options, password, channel)
        paho = _paho_of(client)
        _take_over_messages(paho, on_message)
        try:
            client.start()
            async with client:
                client.timeout = DISCONNECT_TIMEOUT_S
                yield Connection(client, channel)
        except aiomqtt.MqttError as error:
            raise _refused(error, channel) from error
        finally:
            paho._sock_close()  # noqa: SLF001 - see the module
    finally:
        channel.close()


class _Client(aiomqtt.Client):
    """aiomqtt's client on a socket that is connected already; used for one connection."""

    def start(self) -> None:
        """Send CONNECT: aiomqtt would do it in a thread, which is of no use without blocking."""
        # The end may come when nobody waits for it, which asyncio would complain about.
        self._disconnected.add_done_callback(lambda end: end.cancelled() or end.exception())
        super()._client_connect()

    async def __aenter__(self) -> Self:
        end = self._disconnected
        await super().__aenter__()
        # aiomqtt puts a new future here if the peer closed right behind its CONNACK, and waits for
        # the end of a connection that is gone already.
        self._disconnected = end
        return self

    def _client_connect(self) -> None:
        """Do nothing: `start` has done it."""

    def _on_disconnect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: Any,
        reason_code: Any,
        properties: Any = None,
    ) -> None:
        # aiomqtt ignores an end before CONNACK and lets the connect time out instead.
        if not self._connected.done():
            self._connected.set_exception(aiomqtt.MqttError("closed before CONNACK"))
            return
        super()._on_disconnect(client, userdata, flags, reason_code, properties)


def _client(options: LinkOptions, password: str | None, channel: Channel) -> _Client:
    client = _Client(
        options.host,
        options.port,
        username=options.username,
        password=password,
        identifier=options.client_id,
        clean_session=options.clean_session,
        keepalive=options.keep_alive_s,
        timeout=options.connect_timeout_s,
    )
    paho = _paho_of(client)
    # Two log calls a packet, payload lengths and topics in them: nothing for production.
    paho.disable_logger()
    paho.manual_ack_set(True)
    paho._create_socket = lambda: channel  # type: ignore[method-assign,assignment,return-value]  # noqa: SLF001 - see the module
    loop = asyncio.get_running_loop()

    # The channel takes every packet whole and owns the descriptor's writer; paho only has to be
    # called once for what it has queued.
    def write_soon(*_: object) -> None:
        loop.call_soon(paho.loop_write)

    paho.on_socket_register_write = write_soon
    paho.on_socket_unregister_write = lambda *_: None
    return client


def _take_over_messages(paho: PahoClient, on_message: Callable[[Incoming], None]) -> None:
    loop = asyncio.get_running_loop()

    def take(_client: PahoClient, _userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            # Nobody can handle it, and without PUBACK it would come for ever.
            paho.ack(message.mid, message.qos)
            return
        incoming = Incoming(
            topic=topic, body=bytes(message.payload), mid=message.mid, qos=message.qos
        )
        # Not from inside paho's read, which would take an error of ours for one of the link.
        loop.call_soon(on_message, incoming)

    paho.on_message = take


async def _password(options: LinkOptions) -> str | None:
    file = options.password_file
    if file is None:
        return None
    try:
        text = await asyncio.to_thread(file.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LinkError(f"password file {file}: {_words(error)}", parked=True) from error
    return text.split("\n", 1)[0].rstrip("\r")


async def _open_socket(options: LinkOptions) -> socket.socket:
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            if options.tls is None:
                return await _tcp(options)
            context = await asyncio.to_thread(_tls_context, options.tls)
            return await _tls(await _tcp(options), context, options.host)
    except ssl.SSLCertVerificationError as error:
        raise LinkError(f"certificate of the peer: {error.verify_message}", parked=True) from error
    except OSError as error:
        # TimeoutError is one, as are all of TLS and of name resolution.
        text = "connect timed out" if isinstance(error, TimeoutError) else _words(error)
        raise LinkError(text, parked=False) from error


def _tls_context(options: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file)
    except OSError as error:
        files = [options.ca_file, options.certificate_file, options.key_file]
        named = ", ".join(str(file) for file in files if file is not None)
        raise LinkError(f"TLS files ({named}): {_words(error)}", parked=True) from error
    return context


async def _tcp(options: LinkOptions) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    last: OSError = OSError("no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            _set_options(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last


def _set_options(sock: socket.socket) -> None:
    # Packets are written whole and in batches; waiting for more would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Bounds what waits unsent in the kernel. The send buffer itself is left to the kernel: what it
    # holds beyond this is under way and bounded by the pump's window, while a small fixed buffer
    # would cap every link with a long round trip.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_MAX)


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
                await _ready(wrapped.fileno(), loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _ready(wrapped.fileno(), loop.add_writer, loop.remove_writer)
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


async def _ready(descriptor: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    event = asyncio.Event()
    add(descriptor, event.set)
    try:
        await event.wait()
    finally:
        remove(descriptor)


def _refused(error: aiomqtt.MqttError, channel: Channel) -> LinkError:
    code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
    if isinstance(code, ReasonCode):
        parked = code.value in _REFUSED_FOR_GOOD
        hint = " (set client_id to the user's id)" if code.value == _BAD_CLIENT_ID else ""
        return LinkError(f"refused: {code.getName()}{hint}", parked=parked)
    return LinkError(channel.end_reason or str(error), parked=False)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        # asyncio puts the address into the text, and the address is in the settings already.
        return os.strerror(error.errno) if error.errno else str(error)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _paho_of(client: aiomqtt.Client) -> PahoClient:
    return client._client  # noqa: SLF001 - see the module
