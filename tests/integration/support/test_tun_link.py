"""The packet link of the tests: rate, delay, loss and cuts are what was asked for."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.tun_link import LinkShape, TunLink, can_build

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not can_build(), reason="may not make name spaces and TUN devices"),
]

DATAGRAM_BYTES = 500
HEADER_BYTES = 28


@contextlib.contextmanager
def _datagrams(link: TunLink) -> Iterator[tuple[socket.socket, socket.socket]]:
    with link.far():
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        far.bind((link.host, 0))
    with link.near():
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        near.connect(far.getsockname())
    far.settimeout(3)
    near.settimeout(3)
    with near, far:
        yield near, far


def test_packets_pass_at_the_rate_after_half_the_round_trip() -> None:
    """Twenty datagrams at 256 kbit/s, headers included, and 300 ms of delay."""
    rate = 256_000 / 8
    with (
        TunLink(LinkShape(up_bit_s=256_000, rtt_s=0.6)) as link,
        _datagrams(link) as (near, far),
    ):
        began = time.monotonic()
        for _ in range(20):
            near.send(b"x" * DATAGRAM_BYTES)
        far.recv(1000)
        first = time.monotonic() - began
        for _ in range(19):
            far.recv(1000)
        last = time.monotonic() - began
    one_s = (DATAGRAM_BYTES + HEADER_BYTES) / rate
    assert first == pytest.approx(0.3 + one_s, abs=0.08)
    assert last - first == pytest.approx(19 * one_s, abs=0.08)


def test_a_cut_loses_packets_in_silence_and_a_full_modem_drops_them() -> None:
    """What is sent meanwhile never arrives; a buffer for two datagrams keeps two."""
    shape = LinkShape(up_bit_s=64_000, buffer_bytes=2 * (DATAGRAM_BYTES + HEADER_BYTES))
    with TunLink(shape) as link, _datagrams(link) as (near, far):
        for _ in range(10):
            near.send(b"x" * DATAGRAM_BYTES)
        assert [len(far.recv(1000)) for _ in range(2)] == [DATAGRAM_BYTES] * 2
        far.settimeout(0.3)
        with pytest.raises(TimeoutError):
            far.recv(1000)
        link.cut()
        far.settimeout(0.3)
        # The thread of the link takes the word before it takes the packet, or the cut loses it.
        near.send(b"lost")
        with pytest.raises(TimeoutError):
            far.recv(1000)
        link.restore()
        far.settimeout(3)
        near.send(b"found")
        assert far.recv(1000) == b"found"


def test_nothing_of_it_is_seen_outside() -> None:
    """The machine's own network has no device of the link's, and its own sockets do not use it."""
    with TunLink(LinkShape(up_bit_s=64_000)) as link:
        assert "link0" not in [name for _, name in socket.if_nameindex()]
        with link.near():
            assert "link0" in [name for _, name in socket.if_nameindex()]
        assert "link0" not in [name for _, name in socket.if_nameindex()]
