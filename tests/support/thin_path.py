"""A thin link between a hub and a peer: of IP packets where that is allowed, else of TCP bytes.

Both have the same face: `far` makes sockets where the peer is, `near` where the hub is, and
`reach` says how the hub reaches a port of the peer. The proxy loses no packets, and a cut of it
resets connections, while packets are lost in silence.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.support.link_thread import LinkThread
from tests.support.tun_link import TunLink, can_build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.tun_link import LinkShape


class ProxyPath:
    """A TCP proxy with the manners of a thin link, for those who may not make name spaces."""

    host = "127.0.0.1"

    def __init__(self, shape: LinkShape) -> None:
        self._shape = shape
        self._link: LinkThread | None = None
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def near(self) -> Iterator[None]:
        """Make sockets where the hub is."""
        yield

    @contextlib.contextmanager
    def far(self) -> Iterator[None]:
        """Make sockets where the peer is."""
        yield

    def reach(self, port: int) -> tuple[str, int]:
        """Return the address at which the hub reaches a port of the peer."""
        shape = self._shape
        link = LinkThread(
            port, bit_s=shape.up_bit_s, down_bit_s=shape.down_bit_s, delay_s=shape.rtt_s / 2
        )
        self._link = self._stack.enter_context(link)
        return self.host, link.port

    @property
    def bytes_passed(self) -> int:
        """Bytes carried upward so far."""
        return 0 if self._link is None else self._link.bytes_passed

    def cut(self) -> None:
        """End all connections and refuse new ones."""
        assert self._link is not None
        self._link.cut()

    def restore(self) -> None:
        """Let connections through again."""
        assert self._link is not None
        self._link.restore()

    def change_rate(self, *, up_bit_s: float, down_bit_s: float) -> None:
        """Go on at another rate."""
        assert self._link is not None
        self._link.change_rate(up_bit_s=up_bit_s, down_bit_s=down_bit_s)

    def close(self) -> None:
        """End it."""
        self._stack.close()


ThinPath = TunLink | ProxyPath


@contextlib.contextmanager
def thin_path(shape: LinkShape) -> Iterator[ThinPath]:
    """Return a thin link for the length of the block."""
    if can_build():
        with TunLink(shape) as link:
            yield link
        return
    with contextlib.closing(ProxyPath(shape)) as proxy:
        yield proxy
