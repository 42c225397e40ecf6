"""What a hostile client costs its neighbours: their speed beside it, over their speed alone."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import mqtt5

from tests.bench.tools import a_hub, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPIC = "devices/hostile/messages/events/"
MESSAGES = 80_000
WARM_UP_S = 1.0
AT_LEAST_ONCE = mqtt5.QoS.AT_LEAST_ONCE


def neighbours(folder: Path) -> dict[str, float]:
    """Ten clients with 50 in flight, alone and beside one client of each kind."""
    figures = {}
    alone = _neighbours_speed(folder, None)[0]
    for kind in (
        flood_qos_0,
        flood_qos_1,
        flood_refused,
        flood_local_topics,
        flood_own_subscription,
        flood_subscriptions,
        send_rubbish,
        stay_half_open,
    ):
        speed, rss_mb = _neighbours_speed(folder, kind)
        figures[f"neighbours_{kind.__name__}_ratio"] = speed / alone
        figures[f"neighbours_{kind.__name__}_rss_mb"] = rss_mb
    return figures


def _neighbours_speed(
    folder: Path, kind: Callable[[int, threading.Event], None] | None
) -> tuple[float, float]:
    with a_hub(folder) as hub, _hostile(kind, hub.mqtt_port):
        load = publish(hub.mqtt_port, MESSAGES, connections=10, window=50)
        return load["msgs_s"], hub.rss_mb()


@contextmanager
def _hostile(kind: Callable[[int, threading.Event], None] | None, port: int) -> Iterator[None]:
    if kind is None:
        yield
        return
    stop = threading.Event()

    def run() -> None:
        with suppress(OSError):
            kind(port, stop)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(WARM_UP_S)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _signed_in(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(1)
    client.sendall(mqtt5.ConnectPacket("hostile", clean_start=True).write())
    client.recv(1000)
    return client


def _send(client: socket.socket, data: bytes, stop: threading.Event) -> None:
    rest = memoryview(data)
    while rest and not stop.is_set():
        with suppress(TimeoutError):
            rest = rest[client.send(rest) :]


def _flood(client: socket.socket, data: bytes, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(TimeoutError):
            client.sendall(data)


def flood_qos_0(port: int, stop: threading.Event) -> None:
    """QoS 0 as fast as it is taken, with properties that are all different."""
    packets = [
        mqtt5.PublishPacket(TOPIC, b"x" * 200, user_properties=[("n", str(n))]) for n in range(1000)
    ]
    with _signed_in(port) as client:
        _flood(client, b"".join(packet.write() for packet in packets), stop)


def flood_qos_1(port: int, stop: threading.Event) -> None:
    """As many messages in flight as the hub allows."""
    message = mqtt5.PublishPacket(TOPIC, b"x" * 200, qos=AT_LEAST_ONCE, packet_id=1).write()
    with _signed_in(port) as client:
        client.sendall(message * 1000)
        while not stop.is_set():
            with suppress(TimeoutError):
                client.sendall(message * (len(client.recv(65_536)) // 4))


def flood_refused(port: int, stop: threading.Event) -> None:
    """Messages to a topic that is none, whose answers are not read."""
    message = mqtt5.PublishPacket("x", b"", qos=AT_LEAST_ONCE, packet_id=1).write()
    with _signed_in(port) as client:
        _flood(client, message * 1000, stop)


def flood_local_topics(port: int, stop: threading.Event) -> None:
    """Retained local messages on topics that are all different, many of them deep."""
    with _signed_in(port) as client:
        for number in itertools.count():
            if stop.is_set():
                return
            topics = [f"te/{number}/{n}" + "/x" * (n % 60) for n in range(500)]
            packets = [mqtt5.PublishPacket(topic, b"x", retain=True) for topic in topics]
            _send(client, b"".join(packet.write() for packet in packets), stop)


def flood_own_subscription(port: int, stop: threading.Event) -> None:
    """Local messages that come back to a client that does not read them."""
    wanted = [mqtt5.TopicFilter(f"te/{'+/' * n}#", max_qos=AT_LEAST_ONCE) for n in range(50)]
    message = mqtt5.PublishPacket("te" + "/x" * 50, b"x" * 200).write()
    with _signed_in(port) as client:
        client.sendall(mqtt5.SubscribePacket(1, wanted).write())
        _flood(client, message * 1000, stop)


def flood_subscriptions(port: int, stop: threading.Event) -> None:
    """Subscriptions that ask for all of thousands of retained messages, again and again."""
    packets = [mqtt5.PublishPacket(f"te/{n}/y", b"x", retain=True) for n in range(10_000)]
    ask = mqtt5.SubscribePacket(1, [mqtt5.TopicFilter(f"te/{'+/' * n}x") for n in range(50)])
    with _signed_in(port) as client:
        _send(client, b"".join(packet.write() for packet in packets), stop)
        data = ask.write()
        while not stop.is_set():
            with suppress(TimeoutError):
                client.sendall(data)
                client.recv(65_536)


def send_rubbish(port: int, stop: threading.Event) -> None:
    """Sign in, send bytes without a meaning, come again."""
    while not stop.is_set():
        with _signed_in(port) as client, suppress(OSError):
            client.sendall(os.urandom(200))
            while client.recv(4096):
                pass


def stay_half_open(port: int, stop: threading.Event) -> None:
    """Hundreds of connections that stop in the middle of their CONNECT."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(800)]
    for client in clients:
        client.sendall(mqtt5.ConnectPacket("hostile").write()[:9])
    stop.wait()
    for client in clients:
        client.close()
