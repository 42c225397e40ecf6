"""The sockets of the workload API.

Owns a folder: `workload.sock`, which every user may open, and for each module without a user of its
own `modules/<module>/workload.sock`, whose folder is for its container. Invariants: only the hub's
user sees `modules`, so that a module gets there by what is mounted for it; folders stay when a hub
restarts, so that what is mounted stays valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import httptools
import orjson
from msgspec import Struct

from edgehub.clock import Clock, Timer
from edgehub.errors import StartupError
from edgehub.heads.workload.api import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.heads.workload.api import WorkloadApi

NAME: Final = "workload.sock"
CONNECTIONS_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 65_536
SILENCE_MAX_S: Final = 30.0
_BACKLOG: Final = 64
_PEER: Final = struct.Struct("3i")
"""Process, user and group of the peer (SO_PEERCRED)."""


class WorkloadStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot.

    Attributes:
        sockets: Sockets that are open.
        connections: Connections that are open.
        signed_total: Signatures made.
        refused_total: Requests refused.
    """

    sockets: int
    connections: int
    signed_total: int
    refused_total: int


class WorkloadServer:
    """Serves the workload API.

    Args:
        folder: Where the sockets go.
        api: Answers requests.
        clock: For the time limit of connections.

    Attributes:
        connections: Those that are open.
    """

    def __init__(self, folder: Path, api: WorkloadApi, clock: Clock) -> None:
        self._folder = folder
        self.api = api
        self.clock = clock
        self.connections: set[WorkloadConnection] = set()
        # By module, None = the shared one.
        self._servers: dict[str | None, asyncio.Server] = {}

    async def open(self) -> None:
        """Open the shared socket and those of the modules.

        Raises:
            StartupError: If one cannot be had.
        """
        try:
            await asyncio.to_thread(self._prepare)
            await self._listen(None)
            await self.follow()
        except OSError as error:
            raise StartupError(
                f"cannot open sockets of the workload API in {self._folder}:"
                f" {error.strerror or error}"
                " (set workload.folder to a short path that this user may write)"
            ) from error

    async def follow(self) -> None:
        """Open sockets of modules that are new, and close those of modules that were removed.

        Raises:
            OSError: If one cannot be had.
        """
        wanted = self.api.own_sockets()
        for module in [each for each in self._servers if each is not None and each not in wanted]:
            await self._close(module)
        for module in wanted - self._servers.keys():
            await self._listen(module)

    async def close(self) -> None:
        """Stop answering, and remove the sockets."""
        for module in list(self._servers):
            await self._close(module)
        for connection in list(self.connections):
            connection.close()

    def statistics(self) -> WorkloadStatistics:
        """Return the counts of this moment."""
        return WorkloadStatistics(
            sockets=len(self._servers),
            connections=len(self.connections),
            signed_total=self.api.signed_total,
            refused_total=self.api.refused_total,
        )

    def _path(self, module: str | None) -> Path:
        return self._folder / NAME if module is None else self._modules / module / NAME

    @property
    def _modules(self) -> Path:
        return self._folder / "modules"

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o711)
        self._modules.mkdir(exist_ok=True)
        self._modules.chmod(0o700)

    async def _listen(self, module: str | None) -> None:
        listening = await asyncio.to_thread(_bind, self._path(module))
        self._servers[module] = await asyncio.get_running_loop().create_unix_server(
            lambda: WorkloadConnection(self, module), sock=listening, backlog=_BACKLOG
        )

    async def _close(self, module: str | None) -> None:
        self._servers.pop(module).close()
        await asyncio.to_thread(self._path(module).unlink, missing_ok=True)


class WorkloadConnection(asyncio.Protocol):
    """One connection; requests are answered in the order in which they come."""

    def __init__(self, server: WorkloadServer, module: str | None) -> None:
        self._server = server
        self._module = module
        self._parser = httptools.HttpRequestParser(self)
        self._target = self._body = b""
        self._received = 0
        self._timer = Timer(server.clock, self.close)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out who it is."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        if len(self._server.connections) > CONNECTIONS_MAX:
            self.close()
            return
        sock = transport.get_extra_info("socket")
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self._caller = Caller(module=self._module, uid=_PEER.unpack(peer)[1])
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Parse and answer."""
        self._received += len(data)
        if self._received > REQUEST_BYTES_MAX:
            self._write(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"message": "too large"}, close=True)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._write(HTTPStatus.BAD_REQUEST, {"message": "not a request of HTTP"}, close=True)

    def pause_writing(self) -> None:
        """Close: no client needs so many answers that it does not read."""
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        del exc
        self._server.connections.discard(self)
        self._timer.cancel()

    def close(self) -> None:
        """Close it at once."""
        self._transport.abort()

    # Called by the parser.

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._target += url

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer, and wait for the next request."""
        target, body = self._target.decode("latin-1"), self._body
        self._target = self._body = b""
        self._received = 0
        if self._transport.is_closing():
            return
        method = self._parser.get_method().decode("latin-1")
        status, document = self._server.api.answer(method, target, body, self._caller)
        self._write(status, document, close=not self._parser.should_keep_alive())
        self._wait()

    # Parts.

    def _wait(self) -> None:
        self._timer.restart(SILENCE_MAX_S)

    def _write(self, status: HTTPStatus, document: object, *, close: bool) -> None:
        body = orjson.dumps(document)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n" + ("Connection: close\r\n" if close else "") + "\r\n"
        )
        self._transport.write(head.encode() + body)
        if close:
            self._transport.close()


def _bind(path: Path) -> socket.socket:
    """Bind a socket in a folder of its own, where the one of an earlier process may lie."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as undo:
        undo.callback(listening.close)
        listening.bind(str(path))
        # Who may open it is the folder's business, or of the user of the peer.
        path.chmod(0o666)
        listening.setblocking(False)
        undo.pop_all()
    return listening
