"""A client that publishes on local topics as fast as its window allows, or at a given rate."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tests.support.mqtt_wire import connect, field, packet

if TYPE_CHECKING:
    from collections.abc import Iterable

_PUBLISH_QOS1 = 0x32
_PUBACK_BYTES = 4
_CHUNK = 50


def publish_all(
    port: int,
    messages: Iterable[tuple[str, bytes]],
    *,
    client_id: str = "load",
    window: int = 500,
    rate: float | None = None,
    retain: bool = False,
) -> tuple[int, float]:
    """Publish with QoS 1 and wait for every PUBACK.

    Args:
        port: Of the listener on loopback.
        messages: Topics and payloads.
        client_id: Who publishes.
        window: Messages without PUBACK at most.
        rate: Messages a second, None = as fast as it goes.
        retain: Whether they stay.

    Returns:
        How many were acknowledged, and the seconds that it took.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(connect(client_id))
        _read(link, 4)
        sent = acknowledged = rest = 0
        chunk: list[bytes] = []
        began = time.perf_counter()
        for topic, payload in messages:
            sent += 1
            packet_id = (sent % 60_000 + 1).to_bytes(2, "big")
            chunk.append(packet(_PUBLISH_QOS1 + retain, field(topic) + packet_id + payload))
            if len(chunk) < _CHUNK:
                continue
            link.sendall(b"".join(chunk))
            chunk.clear()
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.perf_counter()))
            while sent - acknowledged > window:
                rest += len(_some(link))
                acknowledged, rest = acknowledged + rest // _PUBACK_BYTES, rest % _PUBACK_BYTES
        link.sendall(b"".join(chunk))
        while acknowledged < sent:
            rest += len(_some(link))
            acknowledged, rest = acknowledged + rest // _PUBACK_BYTES, rest % _PUBACK_BYTES
        return acknowledged, time.perf_counter() - began


def _some(link: socket.socket) -> bytes:
    data = link.recv(65_536)
    assert data, "the hub closed the connection"
    return data


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += _some(link)
    return data
