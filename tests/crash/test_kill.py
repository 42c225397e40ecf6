"""The daemon is killed at random moments under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.store import Store, StoreOptions
from tests.support.daemon import Daemon
from tests.support.devices import Collector, Device, key_of
from tests.support.http_collector import HttpCollector
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port
from tests.support.stores import dead_letters_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.devices import Key

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
KILLS = 200 if SOAK else 4
ACKNOWLEDGED = 40_000 if SOAK else 400
DEVICES = 5
IN_FLIGHT_MAX = 500
IN_FLIGHT_OF_DEVICE = 40

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "bulk": {"route": "FROM /messages/* WHERE kind = 'bulk' INTO $upstream", "priority": 7},
        "kept": "FROM /messages/* WHERE kind = 'kept' INTO Endpoint('unreachable')",
        "refused": "FROM /messages/* WHERE kind = 'refused' INTO Endpoint('strict')",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


KINDS = {"alarm": 0.1, "kept": 0.05, "refused": 0.002}
"""Shares of the messages; the others are `bulk`."""


def _config(port: int, upstream_port: int, strict_port: int) -> str:
    return f"""
        data_dir = "data"
        manifest = "manifest.json"
        [mqtt]
        port = {port}
        [upstream]
        type = "mqtt"
        host = "127.0.0.1"
        port = {upstream_port}
        in_flight_max = {IN_FLIGHT_MAX}
        [endpoints.unreachable]
        type = "mqtt"
        host = "127.0.0.1"
        port = {free_port()}
        [endpoints.strict]
        type = "http"
        url = "http://127.0.0.1:{strict_port}/in"
        [log]
        format = "json"
    """


def _publish_until(device: Device, stop: threading.Event, rng: random.Random) -> None:
    counts: dict[str, int] = defaultdict(int)
    while not stop.is_set():
        if not device.wait_in_flight_below(IN_FLIGHT_OF_DEVICE, 1.0):
            continue
        kind = rng.choices([*KINDS, "bulk"], [*KINDS.values(), 1 - sum(KINDS.values())])[0]
        device.publish(kind, counts[kind])
        counts[kind] += 1


def _assert_fifo(keys: Iterable[Key]) -> None:
    # Invariant 4: the first delivery of each message keeps the order of its sender and queue.
    last: dict[tuple[str, str], int] = {}
    seen: set[Key] = set()
    for device_id, kind, number in keys:
        if (device_id, kind, number) in seen:
            continue
        seen.add((device_id, kind, number))
        assert number > last.get((device_id, kind), -1), (device_id, kind, number)
        last[device_id, kind] = number


async def _stored(path: Path) -> tuple[list[Key], list[Key]]:
    """Read what waits, in order, and the dead letters, as the next start would."""
    store = await Store.open(path, clock=SystemClock(), options=StoreOptions())
    try:
        assert store.damage is None
        waiting: list[Key] = []
        for queue in store.queues.all():
            while rows := await queue.read_batch(512, 2**20):
                waiting += [key_of(row.message.body) for row in rows]
        letters = [key_of(letter.message.body) for letter in await dead_letters_of(store)]
    finally:
        await store.close()
    return waiting, letters


def _waiting_for_strict(daemon: Daemon) -> int:
    queues = daemon.call("status")["queues"]
    return sum(queue["depth"] for queue in queues if queue["endpoint"] == "strict")


def _killed(folder: Path, seed: int) -> tuple[set[Key], Collector]:
    """Run devices and kills; returns what was acknowledged, and who took what was delivered."""
    rng = random.Random(seed)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
    with Mosquitto(folder / "broker") as broker, HttpCollector(lambda _arrival: 422) as strict:
        daemon = Daemon(folder, _config(free_port(), broker.port, strict.port)).start()
        collector = Collector(broker.port)
        devices = [Device(f"dev{i}", daemon.mqtt_port) for i in range(DEVICES)]
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=_publish_until, args=(device, stop, random.Random(rng.random()))
            )
            for device in devices
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in range(KILLS):
                stop.wait(rng.uniform(0.3, 1.5))
                daemon.kill()
                daemon.start()
            while sum(len(device.acked) for device in devices) < ACKNOWLEDGED:
                assert not stop.wait(0.1)
            stop.set()
            for thread in threads:
                thread.join()
            for device in devices:
                assert device.wait_in_flight_below(1, 30), f"seed {seed}: no PUBACK"
            acked = {(d.device_id, *key) for d in devices for key in d.acked}
            missing = collector.wait_for({key for key in acked if key[1] in {"alarm", "bulk"}}, 60)
            assert not missing, f"seed {seed}: {len(missing)} acknowledged messages lost"
            daemon.wait_until(lambda: not _waiting_for_strict(daemon), 60)
            assert daemon.stop() == 0
        finally:
            stop.set()
            for client in (*devices, collector):
                client.close()
            daemon.close()
    return acked, collector


@pytest.mark.crash
@pytest.mark.scaled
@pytest.mark.timeout(60 + KILLS * 8)
def test_every_acknowledged_message_survives_kills(tmp_path: Path) -> None:
    """Kill -9 under load: what was acknowledged arrived, waits in order or is a dead letter.

    Duplicates are what was in flight at a kill.
    """
    seed = int(os.environ.get("EDGEHUB_SEED", "0")) or random.SystemRandom().randrange(10**9)
    acked, collector = _killed(tmp_path, seed)
    assert len(acked) >= ACKNOWLEDGED
    waiting, letters = asyncio.run(_stored(tmp_path / "data" / "queue.db"))
    lost = acked - collector.seen - {*waiting, *letters}
    assert not lost, f"seed {seed}: {len(lost)} acknowledged messages lost"
    assert {key[1] for key in waiting} == {"kept"}
    assert {key[1] for key in letters} == {"refused"}
    _assert_fifo((each.device_id, each.kind, each.number) for each in collector.arrivals)
    _assert_fifo(waiting)
    # A device sends again what it got no PUBACK for.
    twice = len(waiting) + len(letters) - len({*waiting, *letters})
    assert twice <= KILLS * DEVICES * IN_FLIGHT_OF_DEVICE, f"seed {seed}"
    copies: dict[str, int] = defaultdict(int)
    for arrival in collector.arrivals:
        copies[arrival.message_id] += 1
    duplicates = sum(count - 1 for count in copies.values())
    print(
        f"{len(acked)} acknowledged, {KILLS} kills, {len(collector.seen)} delivered with"
        f" {duplicates} duplicates, {len(waiting)} waiting, {len(letters)} dead letters"
    )
    # One window, plus what was confirmed in the last 50 ms at up to 10 000 a second.
    assert duplicates <= KILLS * (IN_FLIGHT_MAX + 500), f"seed {seed}"
