"""The incremental parser of requests: llhttp with a bound on its buffers.

Owns the parser of one connection and the request being read. Invariants: a request in `ready` is
complete; headers are bounded here, and bodies by the callback for each piece. Bodies of refused
requests are read and discarded.

Source: RFC 9112. llhttp is left strict: conflicting lengths, folded lines and bare line feeds, the
means of request smuggling, end the connection.
"""

from __future__ import annotations

from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import httptools
from msgspec import Struct, field

from edgehub.http1.refusal import RequestError
from edgehub.http1.rules import OLD, allow_versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.errors import EdgeHubError

# Headers of an upgrade; a request without them is an ordinary one [RFC 9110, section 7.8].
_UPGRADE_HEADERS: Final = {b"connection", b"upgrade", b"http2-settings"}


class Request(Struct, eq=False):
    """One request.

    Attributes:
        authorization: Value of its header, None = none.
        body: Bytes of the body that are kept.
        body_began: Monotonic time at which its headers were complete.
        body_bytes: Bytes of the body so far, kept or discarded.
        fetch_site: Of its headers, empty = none.
        hosts: Of its headers.
        length: Announced bytes of the body, None = chunked.
        size: Bytes of the body that are kept.
        transfer_encodings: Of its headers.
        version: Of HTTP, such as `1.1`.
        is_old: HTTP/1.0, whose connections end unless both sides say otherwise.
        origin: Of its headers, None = none.
        problem: Why it is refused, None = it is not.
        refuse_now: Whether to respond before the body is complete.
    """

    url: bytes = b""
    method: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    head_bytes: int = 0
    has_head: bool = False
    authorization: bytes | None = None
    body_began: float = 0.0
    body_bytes: int = 0
    length: int | None = 0
    transfer_encodings: list[bytes] = field(default_factory=list)
    hosts: list[bytes] = field(default_factory=list)
    origin: str | None = None
    fetch_site: str = ""
    version: str = ""
    expects_continue: bool = False
    keep_alive: bool = False
    is_old: bool = False
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    problem: EdgeHubError | None = None
    refuse_now: bool = False

    def refuse(self, problem: EdgeHubError) -> None:
        """Record why it is refused; the first reason counts."""
        if self.problem is None:
            self.problem = problem
            self.body.clear()

    def read_headers(self) -> None:
        """Record the headers that decide how the request is read."""
        for raw_name, value in self.headers:
            name = raw_name.lower()
            if name == b"content-length":
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.length = None
                self.transfer_encodings.append(value)
            elif name == b"host":
                self.hosts.append(value)
            elif name == b"origin":
                self.origin = value.decode("latin-1").strip()
            elif name == b"sec-fetch-site":
                self.fetch_site = value.decode("latin-1").strip()
            elif name == b"authorization":
                self.authorization = value
            elif name == b"expect":
                self.expects_continue = value.lower() == b"100-continue" and not self.is_old


R = TypeVar("R", bound=Request)


class RequestParser(Generic[R]):
    """The parser of one connection.

    Args:
        new_request: Makes a request that is about to be read.
        header_bytes_max: Request line and headers.
        on_head: Called with a request whose headers are complete; may refuse it.
        on_piece: Called for a piece of a body before it is kept; may refuse the request.

    Attributes:
        ready: Complete requests, oldest first.
        reading: The incomplete request, None = between two.
    """

    __slots__ = (
        "_header_bytes_max",
        "_moved",
        "_new_request",
        "_on_head",
        "_on_piece",
        "_parser",
        "_quiet_bytes",
        "_upgrading",
        "reading",
        "ready",
    )

    def __init__(
        self,
        new_request: Callable[[], R],
        *,
        header_bytes_max: int,
        on_head: Callable[[R], None],
        on_piece: Callable[[R, int], None],
    ) -> None:
        self._new_request = new_request
        self._header_bytes_max = header_bytes_max
        self._on_head = on_head
        self._on_piece = on_piece
        self._parser = self._new_parser()
        self._moved = False
        self._quiet_bytes = 0
        self._upgrading = False
        self.ready: deque[R] = deque()
        self.reading: R | None = None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes.

        Raises:
            RequestError: They are not HTTP/1, or the headers are too large; the connection has to
                be closed.
        """
        self._moved = False
        waiting = deque((data,))
        while waiting:
            rest = self._feed(waiting.popleft())
            if rest is not None:
                waiting.extendleft((rest, self._without_upgrade()))
        # No callback counts a header, trailer or chunk line that never ends.
        self._quiet_bytes = 0 if self._moved else self._quiet_bytes + len(data)
        if self._quiet_bytes > self._header_bytes_max:
            raise self._headers_too_large()

    def _feed(self, data: bytes) -> bytes | None:
        """Parse; returns the bytes after a request with an upgrade, None = there was none."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            # Only the bound on headers raises inside a callback.
            if not isinstance(error.__context__, RequestError):
                raise
            raise error.__context__ from None
        except httptools.HttpParserError as error:
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"not a request of HTTP/1.1: {error}"
            ) from None
        return None

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._moved = True
        self.reading = self._new_request()

    def on_url(self, url: bytes) -> None:
        """Append a part of the request target."""
        request = self._request()
        request.url += url
        self._count(request, len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header; trailers are counted and ignored."""
        request = self._request()
        self._count(request, len(name) + len(value) + 4)
        if not request.has_head:
            request.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Read the headers of a request, and call `on_head`."""
        self._moved = True
        request = self._request()
        parser = self._parser
        request.method = parser.get_method()
        if parser.should_upgrade():
            self._upgrading = True
            return
        request.keep_alive = parser.should_keep_alive()
        request.version = parser.get_http_version()
        request.is_old = request.version == OLD
        request.has_head = True
        request.read_headers()
        self._on_head(request)

    def on_body(self, piece: bytes) -> None:
        """Append a piece of the body, unless the request is refused."""
        self._moved = True
        request = self._request()
        request.body_bytes += len(piece)
        if request.problem is None:
            self._on_piece(request, len(piece))
        if request.problem is None:
            request.body += piece
            request.size += len(piece)

    def on_message_complete(self) -> None:
        """Append the request to those that are complete."""
        if not self._upgrading:
            self._moved = True
            self.ready.append(self._request())
            self.reading = None

    def _request(self) -> R:
        assert self.reading is not None
        return self.reading

    def _count(self, request: R, size: int) -> None:
        request.head_bytes += size
        if request.head_bytes > self._header_bytes_max:
            raise self._headers_too_large()

    def _headers_too_large(self) -> RequestError:
        return RequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"request line and headers have at most {self._header_bytes_max} bytes",
        )

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        allow_versions(parser)
        return parser

    def _without_upgrade(self) -> bytes:
        """Return the headers of the current request without those of an upgrade."""
        # llhttp stops at an upgrade and reads no body. Clients that offer HTTP/2 with each POST,
        # such as Java's, expect a server without it to ignore the offer.
        request = self._request()
        self._upgrading = False
        self._parser = self._new_parser()
        if request.method == b"CONNECT":
            raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, "this is no proxy")
        kept = [header for header in request.headers if header[0].lower() not in _UPGRADE_HEADERS]
        lines = [request.method + b" " + request.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in kept]
        return b"\r\n".join(lines) + b"\r\n\r\n"
