"""An HTTP head on loopback with a scripted router, and a client that writes what a test says."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from edgehub.clock import Clock, SystemClock
from edgehub.devices.identities import Identities, read_identity_list
from edgehub.heads.http.context import HttpContext
from edgehub.heads.http.head import HttpHead
from edgehub.methods.methods import Methods
from edgehub.mqtt.hub_path import HubPath
from edgehub.settings import HttpSettings
from tests.support.scripted_router import ScriptedRouter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from edgehub.devices.handshakes import ServerContext
    from edgehub.methods.methods import MethodWay

EVENTS = "/devices/press-1/messages/events?api-version=2020-03-13"
STORE_ID = "posttothehub"
BATCH = "application/vnd.microsoft.iothub.json"


class Bench:
    """A running head and its neighbours."""

    def __init__(self, head: HttpHead, router: ScriptedRouter, identities: Identities) -> None:
        self.head = head
        self.router = router
        self.identities = identities
        self.port = head.addresses[0][1]
        self._clients: list[HttpClient] = []

    async def connect(self) -> HttpClient:
        """Open a connection; it is closed with the head."""
        client = HttpClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the head has come to a state that nothing announces; each turn paces it."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0)

    def close(self) -> None:
        """Close what clients left open."""
        for client in self._clients:
            client.writer.transport.abort()


class Answer:
    """One response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def problem(self) -> Any:
        """The problem document."""
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)


class HttpClient:
    """One connection, byte by byte if need be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def post(
        self, body: bytes = b"x", *, path: str = EVENTS, method: str = "POST", **headers: str
    ) -> Answer:
        """Send a request and read its answer; `_` in names of headers stands for `-`."""
        self.send(request(body, path=path, method=method, **headers))
        return await self.answer()

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)

    async def answer(self) -> Answer:
        """Read one response."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {}
            for line in head[1:-2]:
                name, value = line.split(": ", 1)
                headers[name.lower()] = value
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)

    async def ended(self) -> bytes:
        """Wait until the head closes; gives what was left to read."""
        async with asyncio.timeout(10):
            return await self.reader.read()

    def close(self) -> None:
        """Close."""
        self.writer.close()


def request(
    body: bytes = b"x", *, path: str = EVENTS, method: str = "POST", **headers: str
) -> bytes:
    """Build a request; `_` in names of headers stands for `-`."""
    fields = {"Host": "localhost", "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def basic(identity_id: str, password: str) -> str:
    """Return the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{identity_id}:{password}".encode()).decode()


async def no_owner(_device_id: str) -> None:
    """Return that no other hub owns a device."""


class NoWays:
    """Ways to no client."""

    def ways(self, _client_id: str) -> list[MethodWay]:
        """Return none."""
        return []

    def call(self, *_arguments: object) -> None:
        """Fail: there is no way to call by."""
        raise AssertionError


@asynccontextmanager
async def running(
    *,
    clock: Clock | None = None,
    identities_file: Path | None = None,
    tls: ServerContext | None = None,
    **options: object,
) -> AsyncIterator[Bench]:
    """Run a head on a free loopback port; keywords are settings of `[http]`."""
    router = ScriptedRouter()
    clock = clock or SystemClock()
    identities = Identities(lambda: clock.wall_ms() / 1000)
    identities.apply(read_identity_list(identities_file))
    context = HttpContext(
        HttpSettings(**{"port": 0, **options}),
        clock=clock,
        submit=router.submit,
        refused=router.refused,
        identities=identities,
        hub_path=HubPath(STORE_ID),
        methods=Methods(NoWays(), clock, no_owner),
    )
    head = HttpHead(context, tls)
    await head.open()
    bench = Bench(head, router, identities)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(head.run())
        try:
            yield bench
        finally:
            bench.close()
            await head.close()
            task.cancel()
            identities.close()
