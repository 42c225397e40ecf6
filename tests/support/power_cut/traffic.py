"""A recorded daemon with real clients: which messages it acknowledged, and where each must be."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.endpoints.json_lines import JsonLinesFile
from edgehub.hub_id import load_hub_id
from edgehub.message import UPSTREAM, EndpointId, Priority
from edgehub.store import Store, StoreOptions
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.ports import free_port
from tests.support.power_cut.records import Kind, Marks, recording

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.power_cut.records import Record

BRIEF_S = 3
AWAY = EndpointId("away")
QUEUES = {
    "alarm": ((UPSTREAM, Priority(0)), (AWAY, Priority(0))),
    "bulk": ((UPSTREAM, Priority(7)),),
    "brief": ((AWAY, Priority(3)),),
}
"""Where a kind waits; $upstream is a file, and nobody answers for `away`."""
SHARES = ("alarm", "bulk", "bulk", "bulk", "brief")

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "copy": {
            "route": "FROM /messages/* WHERE kind = 'alarm' INTO Endpoint(\"away\")",
            "priority": 0,
        },
        "bulk": {"route": "FROM /messages/* WHERE kind = 'bulk' INTO $upstream", "priority": 7},
        "brief": {
            "route": "FROM /messages/* WHERE kind = 'brief' INTO Endpoint(\"away\")",
            "priority": 3,
            "timeToLiveSecs": BRIEF_S,
        },
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}

Copy = tuple[str, str, int]
"""Device, kind, number."""


def record_daemon(
    disk: Path, shim: Path, log: Path, rng: random.Random, *, seconds: float, devices: int = 4
) -> None:
    """Let a daemon serve some devices for a while, with all it does to `disk` recorded."""
    (disk / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
    daemon = Daemon(disk, _config(), env=recording(shim, disk, log)).start()
    marks = Marks(log)
    clients = [MarkedDevice(f"dev{n}", daemon.mqtt_port, marks) for n in range(devices)]
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_publish_until, args=(client, until, rng.randbytes(8)))
        for client in clients
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            assert client.wait_in_flight_below(1, 30)
        assert daemon.stop() == 0
    finally:
        for client in clients:
            client.close()
        daemon.close()
        marks.close()


def _config() -> str:
    return f"""
        data_dir = "site/data"
        manifest = "manifest.json"
        [mqtt]
        port = 0
        [upstream]
        type = "file"
        path = "out/there/lines.jsonl"
        rotate_bytes = 400000
        [endpoints.away]
        type = "mqtt"
        host = "127.0.0.1"
        port = {free_port()}
        [log]
        format = "json"
    """


class MarkedDevice(Device):
    """A device that marks what it sends and what was acknowledged."""

    def __init__(self, device_id: str, port: int, marks: Marks) -> None:
        super().__init__(device_id, port)
        self.acked = _MarkedSet(device_id, marks)


class _MarkedSet(set[tuple[str, int]]):
    def __init__(self, device_id: str, marks: Marks) -> None:
        super().__init__()
        self._device_id = device_id
        self._marks = marks

    def add(self, key: tuple[str, int]) -> None:
        self._marks.add("acked", self._device_id, *key)
        super().add(key)


def _publish_until(device: MarkedDevice, until: float, seed: bytes) -> None:
    rng = random.Random(seed)
    number = 0
    while time.monotonic() < until:
        if device.wait_in_flight_below(40, 1.0):
            number += 1
            device.publish(rng.choice(SHARES), number, size=rng.choice([60, 300, 5000]))


class Acknowledged:
    """What was acknowledged so far, and whether an image has it all."""

    def __init__(self, hub_id: str) -> None:
        self._hub_id = hub_id
        self._acked: dict[Copy, int] = {}
        self._now_ns = 0

    @property
    def count(self) -> int:
        """Messages acknowledged."""
        return len(self._acked)

    def play(self, records: Iterable[Record]) -> None:
        """Record the marks among these records, and of the time."""
        for record in records:
            self._now_ns = record.time_ns
            if record.kind is Kind.MARK:
                _, device, kind, number = record.words
                self._acked[device, kind, int(number)] = record.time_ns

    async def broken_by(self, folder: Path) -> list[str]:
        """Recover an image's store and file, and list what is wrong with them."""
        data_dir = folder / "site" / "data"
        if self._acked and load_hub_id(data_dir, None) != self._hub_id:
            return ["the hub has another name"]
        lines, faults = _read_lines(folder / "out" / "there" / "lines.jsonl")
        store = await Store.open(
            data_dir / "queue.db",
            # Of long before the run: nothing expires while the image is read.
            clock=ManualClock(boot_id="the next one"),
            options=StoreOptions(),
        )
        try:
            rows = await _read_rows(store)
        finally:
            await store.close()
        for place, copies in [*rows.items(), ("lines", lines)]:
            last: dict[tuple[str, str], int] = defaultdict(int)
            for device, kind, number in copies:
                if number <= last[device, kind]:
                    faults.append(f"{place}: {device} {number} after {last[device, kind]}")
                last[device, kind] = number
        missing = [
            (queue, copy)
            for copy, acked_ns in self._acked.items()
            for queue in QUEUES[copy[1]]
            if copy not in rows[queue]
            and not (queue[0] == UPSTREAM and copy in lines)
            and not (copy[1] == "brief" and self._now_ns - acked_ns > (BRIEF_S - 1) * 1e9)
        ]
        if missing:
            faults.append(f"lost: {len(missing)} of {len(self._acked)}, {missing[:3]}")
        return faults


def _read_lines(path: Path) -> tuple[dict[Copy, None], list[str]]:
    file = JsonLinesFile(path)
    file.open()
    file.close()
    lines: dict[Copy, None] = {}
    for part in [*sorted(path.parent.glob("lines-*.jsonl")), path]:
        for number, line in enumerate(part.read_bytes().splitlines(), 1):
            try:
                lines[_copy(json.loads(line)["body"])] = None
            except ValueError:
                return lines, [f"line {number} of {part.name} is broken: {line[:60]!r}"]
    return lines, []


async def _read_rows(store: Store) -> dict[tuple[EndpointId, Priority], dict[Copy, None]]:
    rows: dict[tuple[EndpointId, Priority], dict[Copy, None]] = defaultdict(dict)
    for queue in store.queues.all():
        found = rows[queue.endpoint_id, queue.priority]
        while batch := await queue.read_batch(4096, 1 << 30):
            for row in batch:
                found[_copy(row.message.body.decode())] = None
    return rows


def _copy(body: str) -> Copy:
    device, kind, number, _ = body.split("|", 3)
    return device, kind, int(number)
