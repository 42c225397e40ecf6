"""One connection to an HTTP peer: a request out, its answer in.

Owns the transport and the parser of answers. Invariants: one request at a time, so that rows keep
their order at the peer; what an answer may take in memory is bounded; a request fails at the latest
when its connection is lost.

Why no client library: none reports how many bytes of a request have not left this machine, and the
pump needs that to bound the wait of an alarm.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct, field

from edgehub.endpoints.congestion import avoid_bbr
from edgehub.errors import ConfigError, EdgeHubError
from edgehub.mqtt.tcp import connect_tcp, unsent_in_kernel
from edgehub.storage.credentials import TlsOptions, client_context, read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ANSWER_BYTES_MAX: Final = 2**20
UNSENT_IN_KERNEL_MAX: Final = 16_384

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_FIRST_FINAL: Final = 200


class HttpLinkError(EdgeHubError):
    """There is no connection, or it ended before an answer.

    Attributes:
        reason: For status and logs.
        parked: An operator must change something before it can work.
        stale: The peer ended an idle connection at the moment when it was used again.
    """

    def __init__(self, reason: str, *, parked: bool = False, stale: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parked = parked
        self.stale = stale


class HttpLinkOptions(Struct, frozen=True, kw_only=True):
    """The peer, and how to sign in.

    Attributes:
        url: `http://` or `https://`, checked before.
        headers: Further request headers.
        token_file: File whose first line is a bearer token; read at each connect.
        username: For HTTP Basic, None = none.
        password_file: File whose first line is its password; read at each connect.
        tls: For `https://`.
        user_agent: Name and version of this program.
        connect_timeout_s: For name, TCP and TLS together.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    tls: TlsOptions = field(default_factory=TlsOptions)
    user_agent: str = "edgehub"
    connect_timeout_s: float = 10.0


class Answer(Struct):
    """The peer's answer to one request.

    Attributes:
        headers: By name in lower case; of doubled ones the last.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpLink(asyncio.Protocol):
    """One connection to an HTTP peer.

    Args:
        head: Request line and headers of all requests, with the last line end.
    """

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._waiter: asyncio.Future[Answer] | None = None
        self.received_bytes = 0
        """Of the present answer so far."""
        self._answers_total = 0
        self._end_reason = ""
        self._complete = False

    @property
    def is_open(self) -> bool:
        """Return whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours and the kernel's."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        sock = transport.get_extra_info("socket")
        return transport.get_write_buffer_size() + unsent_in_kernel(sock)

    async def request(self, body: bytes, headers: str = "") -> Answer:
        """Send a request and wait for its answer; see `HttpSlot.request`.

        Raises:
            HttpLinkError: If the connection ends first.
        """
        assert self._waiter is None, "one request at a time"
        if self._transport is None:
            raise HttpLinkError(self._end_reason or "closed by the peer", stale=True)
        self.received_bytes = 0
        self._complete = False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.writelines(
            (self._head, f"{headers}Content-Length: {len(body)}\r\n\r\n".encode("ascii"), body)
        )
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def abort(self, reason: str) -> None:
        """Close the connection at once; a running request fails with `reason`."""
        self._end_reason = self._end_reason or reason
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the options of the socket."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bounds the unsent bytes in the kernel; those in flight are bounded by the window.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_MAX)
        avoid_bbr(sock)

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer."""
        self.received_bytes += len(data)
        if self._waiter is None or self._waiter.done():
            self.abort("the peer sent data without a request")
        elif self.received_bytes > ANSWER_BYTES_MAX:
            self.abort(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        else:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                self.abort(f"the peer does not speak HTTP/1.1: {error}")

    def eof_received(self) -> bool:
        """End an answer that announced no length: the peer has closed its side."""
        headers = self._answer.headers
        has_length = "content-length" in headers or "transfer-encoding" in headers
        if self._complete and not has_length:
            self._finish(keep=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the running request, if there is one."""
        self._transport = None
        stale = not self._end_reason and self._answers_total > 0 and not self.received_bytes
        reason = self._end_reason or (_words(exc) if exc is not None else "closed by the peer")
        self._end_reason = reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(HttpLinkError(reason, stale=stale))

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Start an answer."""
        self._answer = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header."""
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Record the status."""
        self._answer.status = self._parser.get_status_code()
        self._complete = self._answer.status >= _FIRST_FINAL

    def on_body(self, piece: bytes) -> None:
        """Append a part of the body."""
        self._answer.body += piece

    def on_message_complete(self) -> None:
        """Return the answer to the caller; one below 200 announces another."""
        if self._answer.status >= _FIRST_FINAL:
            self._finish(keep=self._parser.should_keep_alive())

    def _finish(self, *, keep: bool) -> None:
        self._answers_total += 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._answer)
        # An answer before the end of its request leaves a rest that the peer will not read.
        if self._transport is not None and (not keep or self._transport.get_write_buffer_size()):
            self._end_reason = "the peer ended the connection after an answer"
            self._transport.abort()


async def open_link(options: HttpLinkOptions) -> HttpLink:
    """Connect.

    Raises:
        HttpLinkError: If there is no connection.
    """
    address = urlsplit(options.url)
    assert address.hostname is not None
    port = address.port or _DEFAULT_PORTS[address.scheme]
    loop = asyncio.get_running_loop()
    try:
        head = await asyncio.to_thread(_request_head, options)
        async with asyncio.timeout(options.connect_timeout_s):
            context = None
            if address.scheme == "https":
                context = await asyncio.to_thread(client_context, options.tls)
                context.set_alpn_protocols(["http/1.1"])
            _, link = await loop.create_connection(
                lambda: HttpLink(head),
                sock=await connect_tcp(address.hostname, port),
                ssl=context,
                server_hostname=None if context is None else address.hostname,
            )
    except ConfigError as error:
        raise HttpLinkError(str(error), parked=True) from error
    except ssl.SSLCertVerificationError as error:
        raise HttpLinkError(
            f"certificate of the peer: {error.verify_message}", parked=True
        ) from error
    except OSError as error:
        # TimeoutError is one, as are all of TLS and of name resolution.
        raise HttpLinkError(
            "connect timed out" if isinstance(error, TimeoutError) else _words(error)
        ) from error
    return link


def _request_head(options: HttpLinkOptions) -> bytes:
    address = urlsplit(options.url)
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {address.netloc}",
        f"User-Agent: {options.user_agent}",
        "Content-Type: application/json",
        "Accept: application/json",
        *(f"{name}: {value}" for name, value in options.headers.items()),
    ]
    if options.token_file is not None:
        lines.append(f"Authorization: Bearer {read_secret('token_file', options.token_file)}")
    elif options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{read_secret('password_file', options.password_file)}".encode()
        lines.append(f"Authorization: Basic {base64.b64encode(pair).decode('ascii')}")
    return "\r\n".join([*lines, ""]).encode()


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        # asyncio puts the address into the text, and the address is in the settings already.
        return os.strerror(error.errno) if error.errno else str(error)
    return str(error)
