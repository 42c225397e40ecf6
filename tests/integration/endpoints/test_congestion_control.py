"""Short requests, thin and long ways: another congestion control than BBR, if there is a choice."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgehub.endpoints.congestion import avoid_bbr, avoid_bbr_on_thin_path
from tests.support.thin_path import ProxyPath, thin_path
from tests.support.tun_link import LinkShape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@contextlib.contextmanager
def _connected() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        yield client


def _control(sock: socket.socket) -> str:
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.partition(b"\0")[0].decode()


def test_bbr_is_left_for_another_one() -> None:
    """A connection that the system would give BBR gets cubic or reno."""
    _needs_bbr()
    with _connected() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        avoid_bbr(client)
        assert _control(client) in {"cubic", "reno"}


def _needs_bbr() -> None:
    allowed = ALLOWED.read_text("ascii").split()
    if "bbr" not in allowed or not {"cubic", "reno"} & set(allowed):
        pytest.skip(f"this kernel allows {allowed}")


def test_bbr_is_left_on_a_thin_and_long_way() -> None:
    """64 kbit/s and 300 ms: once that shows, the window of the pump is the only one that counts."""
    _needs_bbr()
    with thin_path(LinkShape(up_bit_s=64_000, rtt_s=0.3)) as path:
        if isinstance(path, ProxyPath):
            pytest.skip("a proxy's connections end in this machine")
        with path.far():
            server = socket.create_server((path.host, 0))
        with path.near(), server, socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            peer, _ = server.accept()
            with peer:
                for _ in range(3):
                    client.sendall(bytes(3000))
                    peer.recv(3000, socket.MSG_WAITALL)
                    peer.sendall(b"got it")
                    client.recv(6, socket.MSG_WAITALL)
            avoid_bbr_on_thin_path(client)
            assert _control(client) in {"cubic", "reno"}


def test_bbr_stays_on_a_short_way() -> None:
    """In a local network it does no harm, and on a wide way that loses packets it is better."""
    _needs_bbr()
    with _connected() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        avoid_bbr_on_thin_path(client)
        assert _control(client) == "bbr"


def test_others_stay() -> None:
    """What does not look back at its own rate is left as the system chose it."""
    with _connected() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        avoid_bbr(client)
        avoid_bbr_on_thin_path(client)
        assert _control(client) == "reno"


def test_other_sockets_are_left_alone() -> None:
    """A socket that is not TCP's is no fault."""
    near, far = socket.socketpair()
    with near, far:
        avoid_bbr(near)
        avoid_bbr_on_thin_path(near)
