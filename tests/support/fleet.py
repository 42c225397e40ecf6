"""Several hubs as processes with one Redis, and a broker at which devices have sessions."""

from __future__ import annotations

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import paho.mqtt.client as paho

from tests.support.daemon import Daemon
from tests.support.mosquitto import Mosquitto
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TAKEN_OVER = re.compile(r"Client (\S+) already connected, closing old connection")

OPENED = re.compile(r"New client connected from \S+ as dev-")


class Fleet:
    """See the module.

    Args:
        folder: For everybody.
        hubs: How many hubs.
        delay_ms: Their `processing_delay_ms`.
        upstream: Further lines of `[upstream]`.
        persistent: Redis keeps its data over a restart.
        identity: Theirs upstream.
        affinity: Further lines of `[affinity]`.
        program: What Python runs as a hub.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hubs: int = 2,
        delay_ms: int = 400,
        identity: str = "device",
        upstream: str = "",
        persistent: bool = False,
        affinity: str = "",
        program: Sequence[str] = ("-m", "edgehub"),
    ) -> None:
        self.folder = folder
        self.broker_log = folder / "broker.log"
        self.broker = Mosquitto(
            folder / "broker",
            f"log_dest file {self.broker_log}",
            "log_type all",
            "max_connections -1",
        )
        self.redis = RedisServer(folder, persistent=persistent)
        self.hubs: list[Daemon] = []
        for number in range(hubs):
            place = folder / f"hub-{number}"
            place.mkdir()
            self.hubs.append(
                Daemon(
                    place,
                    f'hub_id = "hub-{number}"\n'
                    'data_dir = "data"\n'
                    "drain_timeout_s = 3\n"
                    '[log]\nformat = "json"\n'
                    "[mqtt]\nport = 0\nclients_max = 2000\n"
                    f'[redis]\nurl = "{self.redis.url}"\n'
                    f'[affinity]\ncoordinator = "redis"\nprocessing_delay_ms = {delay_ms}\n'
                    f"{affinity}"
                    f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {self.broker.port}\n'
                    f'identity = "{identity}"\n{upstream}',
                    program=program,
                )
            )

    def start(self) -> Fleet:
        """Start everybody."""
        self.redis.start()
        self.broker.start()
        self.start_hubs()
        return self

    def start_hubs(self) -> None:
        """Start the hubs side by side; most of it is one core's work each."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(Daemon.start, self.hubs))

    def stop_hubs(self) -> list[int]:
        """Stop the hubs in an orderly way; gives their exit codes."""
        with ThreadPoolExecutor() as threads:
            return list(threads.map(Daemon.stop, self.hubs))

    @property
    def ports(self) -> list[int]:
        """Return the ports of the hubs' listeners."""
        return [hub.mqtt_port for hub in self.hubs]

    def take_overs(self) -> Counter[str]:
        """Count, by client id, the sessions that others took over, from the broker's log."""
        return Counter(TAKEN_OVER.findall(self.broker_log.read_text(errors="replace")))

    def openings(self) -> int:
        """Count the sessions of devices that were opened, from the broker's log."""
        return len(OPENED.findall(self.broker_log.read_text(errors="replace")))

    def wait_for_holders(self, names: list[str], timeout_s: float) -> dict[str, list[str]]:
        """Wait until each device's session is held by one hub; gives who holds which."""
        deadline = time.monotonic() + timeout_s
        while True:
            held = self.owners()
            if all(len(held.get(name, ())) == 1 for name in names):
                return held
            assert time.monotonic() < deadline, {
                name: held.get(name) for name in names if len(held.get(name, ())) != 1
            }

    def owners(self) -> dict[str, list[str]]:
        """Return the hubs that hold each device's session, by device."""
        held: dict[str, list[str]] = {}
        for hub in self.hubs:
            if not hub.is_running:
                continue
            after = None
            while True:
                answer = hub.call("device list", limit=1000, after=after)
                for row in answer["devices"]:
                    held.setdefault(row["device_id"], [])
                    if row["session_open"]:
                        held[row["device_id"]].append(answer["hub_id"])
                after = answer["next"]
                if after is None:
                    break
        return held

    def wait_drained(self, timeout_s: float) -> None:
        """Wait until nothing waits for upstream at any hub."""
        deadline = time.monotonic() + timeout_s
        while any(queue["depth"] for hub in self.hubs for queue in hub.call("status")["queues"]):
            assert time.monotonic() < deadline, "rows still wait"

    def close(self) -> None:
        """Leave no process behind."""
        for hub in self.hubs:
            hub.close()
        self.broker.stop()
        self.redis.stop()


class Upstream:
    """Counts what arrives at the broker, by device and frame."""

    def __init__(self, port: int) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="collector")
        self._client.on_connect = lambda client, *_: client.subscribe("devices/#", qos=1)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        device, sequence = re.findall(r"devices/([^/]+)/.*sequence=(\d+)", message.topic)[0]
        self.seen[device, int(sequence)] += 1

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()
