"""Network name spaces of the test's own: sockets made inside one never touch the machine's network.

Owns nothing but descriptors; a name space ends with its last descriptor, process and socket, so
a test that dies leaves nothing behind. Needs root, or the right to administer networks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkNamespace:
    """One name space with its loopback up."""

    def __init__(self) -> None:
        here = os.open(_OWN, os.O_RDONLY)
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            self._descriptor = os.open(_OWN, os.O_RDONLY)
            _ip("link", "set", "lo", "up")
        finally:
            _check(_libc.setns(here, CLONE_NEWNET))
            os.close(here)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make the sockets, threads and processes of the block in here; for this thread only."""
        here = os.open(_OWN, os.O_RDONLY)
        _check(_libc.setns(self._descriptor, CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(here, CLONE_NEWNET))
            os.close(here)

    def add_tun(self, address: str, peer: str) -> int:
        """Add a point-to-point device; gives the descriptor that its packets pass through."""
        with self.entered():
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            try:
                fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"link0", IFF_TUN | IFF_NO_PI))
                _ip("addr", "add", address, "peer", peer, "dev", "link0")
                _ip("link", "set", "link0", "up")
            except BaseException:
                os.close(tun)
                raise
        return tun

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
