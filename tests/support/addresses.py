"""A host name with two addresses: the first swallows what is sent to it, the second one works."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "localhost"
SILENT_NAME = "silent.test"


class _Resolver:
    """Resolves `NAME` to both addresses, and never answers for `SILENT_NAME`."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host == SILENT_NAME:
            await asyncio.Event().wait()
        if host != NAME:
            return await super().getaddrinfo(host, port, **options)  # type: ignore[misc]
        tcp = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [
            (socket.AF_INET6, *tcp, ("::1", port, 0, 0)),
            (socket.AF_INET, *tcp, ("127.0.0.1", port)),
        ]


class StockLoop(_Resolver, asyncio.SelectorEventLoop):
    """The loop of the standard library."""


class FastLoop(_Resolver, uvloop.Loop):
    """The loop of the daemon."""


LOOPS = [StockLoop, FastLoop]


def link_local_addresses() -> list[str]:
    """Return the link-local addresses of this machine, with their interfaces."""
    lines = [line.split() for line in Path("/proc/net/if_inet6").read_text("ascii").splitlines()]
    return [
        f"{ipaddress.IPv6Address(int(line[0], 16))}%{line[5]}"
        for line in lines
        if line[0].startswith("fe80")
    ]


@contextlib.contextmanager
def black_hole(port: int | None = None) -> Iterator[int]:
    """Listen on ::1 with a full backlog, so that the kernel drops every SYN; yields the port."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket(socket.AF_INET6))
        server.bind(("::1", port or free_port()))
        server.listen(0)
        for _ in range(4):
            client = held.enter_context(socket.socket(socket.AF_INET6))
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]
