"""A scripted HTTP peer: records requests, answers, delays, goes silent or cuts, as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    Script = Callable[[list[dict[str, Any]]], "Reply | None"]


class Reply:
    """One answer; `closes` ends the connection after it, without saying so beforehand."""

    def __init__(
        self, status: int = 204, body: bytes = b"", *, closes: bool = False, **headers: str
    ) -> None:
        self.status = status
        self.body = body
        self.closes = closes
        self.headers = headers

    def data(self) -> bytes:
        """Return the bytes on the wire."""
        lines = [f"HTTP/1.1 {self.status} Reason", f"Content-Length: {len(self.body)}"]
        if self.status == 204:
            del lines[1]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


def results(entries: dict[str, int], *, reason: str | None = None) -> Reply:
    """Answer with a status for each of some ids."""
    listed = [
        {"id": name, "status": status, **({} if reason is None else {"reason": reason})}
        for name, status in entries.items()
    ]
    return Reply(200, json.dumps({"results": listed}).encode(), Content_Type="application/json")


class HttpPeer:
    """One listening peer.

    Attributes:
        script: Gives the answer to a request's records; None = cut the connection.
        heads: Request lines and headers, in lower case, in order of arrival.
        batches: Records by request.
        silent: Whether requests get no answer at all.
        may_read: Cleared, bodies are left on the wire.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or (lambda _records: Reply())
        self.heads: list[dict[str, str]] = []
        self.batches: list[list[dict[str, Any]]] = []
        self.silent = False
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.connects = 0
        self.port = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    @property
    def ids(self) -> list[list[str]]:
        """Message ids by request."""
        return [[record["id"] for record in batch] for batch in self.batches]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on this record holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def cut(self) -> None:
        """Close all connections at once."""
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self.connects += 1
        self.writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._one(reader, writer):
                pass
        self.writers.discard(writer)
        writer.close()
        self._changed.set()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        head = {"": lines[0]}
        for line in lines[1:-2]:
            name, value = line.split(": ", 1)
            head[name.lower()] = value
        self.heads.append(head)
        self._changed.set()
        await self.may_read.wait()
        body = await reader.readexactly(int(head["content-length"]))
        if head.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        records = json.loads(body)
        self.batches.append(records)
        self._changed.set()
        if self.silent:
            return True
        reply = self.script(records)
        if reply is None:
            return False
        writer.write(reply.data())
        await writer.drain()
        return not reply.closes


@contextlib.asynccontextmanager
async def http_peer(
    script: Script | None = None, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpPeer]:
    """Listen on loopback for the length of the block."""
    peer = HttpPeer(script)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", port, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        peer.cut()
        await server.wait_closed()
        await peer.until(lambda: not peer.writers)
