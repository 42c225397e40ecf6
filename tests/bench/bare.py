"""What the event loop alone can do: a server that answers packets and does nothing else.

`python -m tests.bench.bare` listens on a free port of loopback and prints it; CONNECT is answered
with CONNACK, each PUBLISH of QoS 1 with PUBACK, as soon as they are read.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import click
import uvloop

from edgehub.mqtt.fields import read_variable

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONNECT: Final = 1
_PUBLISH: Final = 3
_CONNACK: Final = b"\x20\x02\x00\x00"
_PUBACK: Final = b"\x40\x02"


class BareServer(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer the packets that are complete."""
        assert self._transport is not None
        data, at, answers = self._rest + data, 0, []
        while at + 2 <= len(data):
            length, start = read_variable(data, at + 1, len(data))
            stop = start + length
            if length < 0 or stop > len(data):
                break
            if data[at] >> 4 == _PUBLISH:
                id_at = start + 2 + (data[start] << 8 | data[start + 1])
                answers.append(_PUBACK + data[id_at : id_at + 2])
            elif data[at] >> 4 == _CONNECT:
                answers.append(_CONNACK)
            at = stop
        self._rest = data[at:]
        if answers:
            self._transport.write(b"".join(answers))


@contextmanager
def a_bare_server() -> Iterator[int]:
    """Run the server in a process of its own; yields its port."""
    command = [sys.executable, "-m", "tests.bench.bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(BareServer, "127.0.0.1", 0)
    click.echo(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
