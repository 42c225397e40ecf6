"""What a hub has acknowledged over its ends: orderly ones under load, crashes, a torn log."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.devices import Collector, Device
from tests.support.http_collector import HttpDevice
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
STOPS = 20 if SOAK else 1
MANIFEST = {
    "schemaVersion": "1.3",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "status": {"route": "FROM /messages/* WHERE kind = 'status' INTO $upstream", "priority": 2},
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


def with_manifest(daemon: Daemon) -> Daemon:
    """Return the hub its routes."""
    (daemon.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    return daemon


def point_upstream(daemon: Daemon, old: int, new: int) -> None:
    """Have the settings name another port for the upstream."""
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace(f"port = {old}\n", f"port = {new}\n"), "utf-8")


class Senders:
    """A device and a web client that send without a pause, whatever the hub does."""

    def __init__(self, device: Device, http_port: int) -> None:
        self.device = device
        self.posted: set[tuple[str, str, int]] = set()
        self.progress = threading.Condition()
        self._port = http_port
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._publish, self._post)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def acked(self) -> set[tuple[str, str, int]]:
        """Return what the hub has answered for."""
        return {(self.device.device_id, *key) for key in self.device.acked} | self.posted

    def wait_posted(self, more: int) -> None:
        """Wait until so many more posts were answered."""
        with self.progress:
            wanted = len(self.posted) + more
            assert self.progress.wait_for(lambda: len(self.posted) >= wanted, 15)

    def _publish(self) -> None:
        number = 0
        while not self._ended.is_set():
            if self.device.wait_in_flight_below(50, 1):
                self.device.publish("status", number)
                number += 1

    def _post(self) -> None:
        number = 0
        while not self._ended.is_set():
            with self._connection() as connection:
                while not self._ended.is_set():
                    number += 1
                    body = f"web-1|alarm|{number}|"
                    headers = {"iothub-app-kind": "alarm"}
                    if connection.post("web-1", body, headers=headers)[0] == 204:
                        with self.progress:
                            self.posted.add(("web-1", "alarm", number))
                            self.progress.notify_all()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[HttpDevice]:
        connection = HttpDevice(self._port)
        with contextlib.suppress(OSError, http.client.HTTPException):
            yield connection
        connection.close()
        self._ended.wait(0.05)


@pytest.mark.scaled
@pytest.mark.timeout(60 + 20 * STOPS)
def test_a_stop_under_load_loses_nothing(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """R-05: what arrives and what is still queued are all that was acknowledged, and come once."""
    port = free_port()
    make = make_daemon(
        upstream=broker.port, extra=f"[http]\nport = {port}", top='manifest = "m.json"'
    )
    daemon = with_manifest(make).start()
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    with Senders(device, port) as senders:
        for _ in range(STOPS):
            senders.wait_posted(100)
            assert daemon.stop() == 0
            daemon.start()
        senders.wait_posted(20)
    assert device.wait_in_flight_below(1, 15)
    assert len(device.acked) > 100
    assert collector.wait_for(senders.acked, 20) == set()
    assert daemon.stop() == 0
    device.close()
    collector.close()
    ids = [arrival.message_id for arrival in collector.arrivals]
    assert len(ids) == len(set(ids))


@pytest.mark.timeout(60)
def test_a_torn_log_and_a_wrong_checkpoint_are_mended_at_the_start(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """R-08, R-09: the last row at most is lost, the rest arrives, and nothing waits for more."""
    nobody = free_port()
    daemon = with_manifest(make_daemon(upstream=nobody, top='manifest = "m.json"')).start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(20):
        device.publish("status", number)
        assert device.wait_in_flight_below(1, 10)
    device.close()
    daemon.kill()
    log = daemon.folder / "data" / "queue.db-wal"
    os.truncate(log, log.stat().st_size - 37)
    daemon.start()
    (queue,) = daemon.call("queue list")["queues"]
    assert queue["depth"] in {19, 20}
    assert daemon.call("status")["warnings"] == []
    assert daemon.stop() == 0

    file = sqlite3.connect(daemon.folder / "data" / "queue.db")
    file.execute("UPDATE queue SET checkpoint = checkpoint + 2000")
    file.commit()
    file.close()
    point_upstream(daemon, nobody, broker.port)
    collector = Collector(broker.port)
    daemon.start()
    assert daemon.call("status")["store"]["checkpoint_repaired_total"] == 1
    device = Device("press-1", daemon.mqtt_port)
    for number in range(20, 25):
        device.publish("status", number)
    kept = [*range(queue["depth"]), *range(20, 25)]
    wanted = {("press-1", "status", number) for number in kept}
    assert collector.wait_for(wanted, 15) == set()
    assert daemon.stop() == 0
    device.close()
    collector.close()
    assert [arrival.number for arrival in collector.arrivals] == kept


@pytest.mark.timeout(60)
def test_memory_only_is_asked_for_and_said(make_daemon: Callable[..., Daemon]) -> None:
    """R-04: `durable: no` in the status, and nothing is there after a stop, on disk neither."""
    daemon = with_manifest(
        make_daemon(extra="[store]\ndurable = false", top='manifest = "m.json"')
    ).start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(12):
        device.publish("status", number)
    assert device.wait_in_flight_below(1, 10)
    status = daemon.call("status")
    assert (status["store"]["durable"], status["store"]["rows"]) == (False, 12)
    assert status["degraded"]
    assert any(warning.startswith("durable: no") for warning in status["warnings"])
    device.close()
    assert daemon.stop() == 0
    assert (daemon.folder / "data" / "queue.db").stat().st_size == 0
