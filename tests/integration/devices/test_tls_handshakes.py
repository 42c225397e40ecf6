"""The bound on TLS handshakes that are under way, on the loop that hubs run on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import pytest
import uvloop

from edgehub.devices import handshakes
from edgehub.devices.server_tls import RenewableTls
from tests.support.certificates import Authority

pytestmark = pytest.mark.integration

BOUND = 5


@pytest.fixture(scope="module", name="authority")
def fixture_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority of the server."""
    return Authority(tmp_path_factory.mktemp("tls"))


class Mute:
    """A client that connects and says nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connected(cls, port: int) -> Mute:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def is_refused(self) -> bool:
        """Return whether the server closes at once."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.2):
                return await self._reader.read(1) == b""
        return False

    def leave(self) -> None:
        """Go."""
        self._writer.transport.abort()


async def _greeted(port: int, trusted: ssl.SSLContext) -> bool:
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusted, server_hostname="localhost"
            )
            greeting = await reader.read(2)
    except (OSError, ssl.SSLError):
        return False
    writer.transport.abort()
    return greeting == b"hi"


async def _bound(context: handshakes.ServerContext, trusted: ssl.SSLContext) -> list[Any]:
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi")
        await writer.drain()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    # Those that come and go, or stay and have shaken hands, take nobody's place.
    for _ in range(3 * BOUND):
        assert await _greeted(port, trusted)
    stay = [
        await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        for _ in range(2 * BOUND)
    ]
    assert context.refused_total == 0
    mute = [await Mute.connected(port) for _ in range(BOUND)]
    assert [await each.is_refused() for each in mute] == [False] * BOUND
    late = [await Mute.connected(port) for _ in range(3)]
    assert [await each.is_refused() for each in late] == [True] * 3
    assert not await _greeted(port, trusted)
    assert context.refused_total == 4
    for each in mute[:2]:
        each.leave()
    # The server has to hear of it first.
    tries = [await _greeted(port, trusted) for _ in range(20)]
    assert tries[-1]
    for _, writer in stay:
        writer.transport.abort()
    for each in mute[2:] + late:
        each.leave()
    server.close()
    await server.wait_closed()
    return faults


def test_a_handshake_too_many_is_refused_before_it_begins(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent clients take no more than the bound; what is over, well or not, makes room again."""
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", BOUND)
    files = authority.server()
    tls = RenewableTls("mqtt", *files)
    trusted = ssl.create_default_context(cafile=authority.certificate)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(2):
            runner.run(tls.read())
        assert tls.context is not None
        assert runner.run(_bound(tls.context, trusted)) == []
