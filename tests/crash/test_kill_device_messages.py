"""Hubs and devices are killed at random moments while messages go down a chain of two hubs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest

from edgehub.cli.daemon import DaemonUnreachableError
from edgehub.cli.refusal import CommandError
from edgehub.device_bound.mailbox import IN_FLIGHT_MAX
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.daemon import Daemon
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
MESSAGES, KILLS = (1000, 60) if SOAK else (150, 6)
DEVICES = ("d-0", "d-1")
PAUSE_S = (0.05, 0.6)
PACE_S = 0.04


class Listener:
    """A device that listens, and connects again whenever its connection ends."""

    def __init__(self, device_id: str, port: int) -> None:
        self.bodies: list[str] = []
        self._topic = f"devices/{device_id}/messages/devicebound/"
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=device_id, clean_session=True
        )
        self._client.reconnect_delay_set(0.4, 0.8)
        self._client.on_connect = self._connected
        self._client.on_message = self._took
        self._client.connect_async("127.0.0.1", port)
        self._client.loop_start()

    def cut(self) -> None:
        """End its connection as a power cut of the device does."""
        found = self._client.socket()
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, client, *_) -> None:
        client.subscribe(self._topic + "#", qos=1)

    def _took(self, _client, _data, message) -> None:
        assert message.topic.startswith(self._topic)
        self.bodies.append(message.payload.decode())


def _daemons(folder: Path) -> tuple[Daemon, Daemon]:
    ports = {name: free_port() for name in ("parent", "child")}
    (folder / "password").write_text("secret\n")
    with changing(folder / "identities") as entries:
        entries["child"] = Identity(
            id="child", password=PasswordHash.of(b"secret"), on_behalf=("d-*",)
        )
    found = []
    for name, upstream in (("parent", ""), ("child", "parent")):
        (folder / name).mkdir()
        text = f"""
            hub_id = "{name}"
            data_dir = "data"
            [mqtt]
            port = {ports[name]}
        """
        if upstream:
            text += f"""
            [upstream]
            type = "mqtt"
            host = "127.0.0.1"
            port = {ports[upstream]}
            username = "{name}"
            password_file = "{folder / "password"}"
            """
        else:
            text += f"""
            identities_file = "{folder / "identities"}"
            """
        found.append(Daemon(folder / name, text).start())
    return found[0], found[1]


def _send_all(parent: Daemon, rng: random.Random, acknowledged: dict[str, list[str]]) -> None:
    """Send messages one after another; those without an answer may or may not be stored."""
    number = 0
    while number < MESSAGES:
        device_id = rng.choice(DEVICES)
        try:
            parent.call("device send", device_id=device_id, body=str(number))
        except CommandError:
            time.sleep(0.02)  # as many wait as may; the device has to get some first
            continue
        except (DaemonUnreachableError, OSError, ValueError):
            number += 1
            time.sleep(0.02)  # it is being started again
            continue
        acknowledged[device_id].append(str(number))
        number += 1
        time.sleep(PACE_S)  # so that kills come while messages are under way


def _waiting(daemon: Daemon) -> int:
    return int(daemon.call("status")["device_bound"]["waiting"])


@pytest.mark.crash
@pytest.mark.scaled
@pytest.mark.timeout(600 if SOAK else 150)
@pytest.mark.parametrize("seed", [1])
def test_nothing_acknowledged_is_lost_on_the_way_down(tmp_path: Path, seed: int) -> None:
    """Each device gets its own messages, all that were acknowledged, in order, few twice."""
    rng = random.Random(seed)
    parent, child = _daemons(tmp_path)
    listeners = {name: Listener(name, child.mqtt_port) for name in DEVICES}
    acknowledged: dict[str, list[str]] = defaultdict(list)
    kills: Counter[str] = Counter()
    sender = threading.Thread(target=_send_all, args=(parent, random.Random(seed), acknowledged))
    try:
        sender.start()
        while sum(kills.values()) < KILLS or sender.is_alive():
            sender.join(rng.uniform(*PAUSE_S))
            if sum(kills.values()) >= KILLS:
                continue
            victim = rng.choice(("parent", "child", *DEVICES))
            kills[victim] += 1
            if victim in listeners:
                listeners[victim].cut()
            else:
                # While devices are absent, a hub has something to lose.
                for listener in listeners.values():
                    listener.cut()
                time.sleep(rng.uniform(*PAUSE_S))
                daemon = parent if victim == "parent" else child
                daemon.kill()
                daemon.start()
        for daemon in (parent, child):
            daemon.wait_until(lambda daemon=daemon: _waiting(daemon) == 0, 30)
    finally:
        for each in listeners.values():
            each.close()
        for daemon in (child, parent):
            daemon.close()
    for name, listener in listeners.items():
        first = list(dict.fromkeys(listener.bodies))
        missing = set(acknowledged[name]) - set(first)
        assert missing == set()
        assert [int(body) for body in first] == sorted(int(body) for body in first)
        others = {body for other in DEVICES if other != name for body in acknowledged[other]}
        assert others.isdisjoint(first)
        again = len(listener.bodies) - len(first)
        assert again <= IN_FLIGHT_MAX * sum(kills.values()), kills
