"""A thin link of IP packets: two TUN devices in two name spaces, and a modem between them.

Rate, delay, loss and cuts are user space's, because not every kernel has netem. Owns both name
spaces and the thread that carries packets. What is made in `near` reaches what is made in `far` at
`FAR`; the machine's own network is not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from edgehub.clock import SystemClock
from edgehub.lab.demo.thin_link import Pacer
from tests.support.network_namespace import NetworkNamespace

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

NEAR = "10.99.0.1"
FAR = "10.99.0.2"
PACKET_BYTES_MAX = 65_536
PACKETS_A_TURN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What a link does to packets.

    Attributes:
        up_bit_s: Rate from near to far, IP headers included.
        down_bit_s: Rate back; None = the same.
        rtt_s: Both ways together, without transmission.
        loss: Share of packets that are lost behind the bottleneck, each way.
        buffer_bytes: What the modem keeps per direction before it drops.
    """

    up_bit_s: float
    down_bit_s: float | None = None
    rtt_s: float = 0.0
    loss: float = 0.0
    buffer_bytes: int = 65_536


class Direction:
    """One way over the link.

    Attributes:
        pacer: Its rate and how many bytes have passed.
        dropped: Packets that found the modem's buffer full.
        lost: Packets lost behind the bottleneck.
    """

    def __init__(self, source: int, target: int, shape: LinkShape, *, bit_s: float) -> None:
        self._source = source
        self._target = target
        self._shape = shape
        self._rng = random.Random(11)
        self.pacer = Pacer(rate_bit_s=bit_s, delay_s=shape.rtt_s / 2, clock=SystemClock())
        self.is_cut = False
        self._entered_bytes = 0
        self.dropped = 0
        self.lost = 0

    def read(self) -> None:
        """Take the packets that have come."""
        for _ in range(PACKETS_A_TURN):
            try:
                packet = os.read(self._source, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                # Router solicitations of IPv6; nobody answers.
                continue
            if self.is_cut:
                self.lost += 1
            elif self._waiting_bytes + len(packet) > self._shape.buffer_bytes:
                self.dropped += 1
            else:
                self._entered_bytes += len(packet)
                self.pacer.put(len(packet), self._deliver(packet))

    def clear(self) -> None:
        """Lose what waits."""
        self.pacer.clear()
        self._entered_bytes = self.pacer.bytes_passed

    @property
    def _waiting_bytes(self) -> int:
        return self._entered_bytes - self.pacer.bytes_passed

    def _deliver(self, packet: bytes) -> Callable[[], None]:
        def arrive() -> None:
            if self.is_cut or self._rng.random() < self._shape.loss:
                self.lost += 1
                return
            with contextlib.suppress(BlockingIOError):
                os.write(self._target, packet)

        return arrive


class TunLink:
    """See the module; a context manager.

    Attributes:
        host: Address of the peer as the hub sees it.
        up: Direction towards the peer.
        down: Direction back.
    """

    host = FAR

    def __init__(self, shape: LinkShape) -> None:
        self._near = NetworkNamespace()
        self._far = NetworkNamespace()
        self._tuns = (self._near.add_tun(NEAR, FAR), self._far.add_tun(FAR, NEAR))
        near, far = self._tuns
        down_bit_s = shape.up_bit_s if shape.down_bit_s is None else shape.down_bit_s
        self.up = Direction(near, far, shape, bit_s=shape.up_bit_s)
        self.down = Direction(far, near, shape, bit_s=down_bit_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tun link")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        for tun in self._tuns:
            os.close(tun)
        self._near.close()
        self._far.close()

    def near(self) -> AbstractContextManager[None]:
        """Make sockets where the hub is."""
        return self._near.entered()

    def far(self) -> AbstractContextManager[None]:
        """Make sockets where the peer is."""
        return self._far.entered()

    def reach(self, port: int) -> tuple[str, int]:
        """Return the address at which the hub reaches a port of the peer."""
        return self.host, port

    @property
    def bytes_passed(self) -> int:
        """Bytes of IP packets carried upward so far."""
        return self.up.pacer.bytes_passed

    def cut(self) -> None:
        """Lose everything from now on, without a word to anybody."""
        self._loop.call_soon_threadsafe(self._set_cut, True)

    def restore(self) -> None:
        """Carry packets again."""
        self._loop.call_soon_threadsafe(self._set_cut, False)

    def change_rate(self, *, up_bit_s: float, down_bit_s: float) -> None:
        """Go on at another rate."""
        self._loop.call_soon_threadsafe(self.up.pacer.change_rate, up_bit_s)
        self._loop.call_soon_threadsafe(self.down.pacer.change_rate, down_bit_s)

    def _set_cut(self, is_cut: bool) -> None:
        for direction in (self.up, self.down):
            direction.is_cut = is_cut
            if is_cut:
                direction.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        near, far = self._tuns
        self._loop.add_reader(near, self.up.read)
        self._loop.add_reader(far, self.down.read)
        self._loop.run_forever()
        self._loop.remove_reader(near)
        self._loop.remove_reader(far)


def can_build() -> bool:
    """Return whether this process may make name spaces and TUN devices."""
    try:
        probe = NetworkNamespace()
    except OSError:
        return False
    try:
        os.close(probe.add_tun(NEAR, FAR))
    except OSError:
        return False
    finally:
        probe.close()
    return True
