"""Batches from a hub to its parent, to a broker, and to a peer that closes over one message."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest

from edgehub.clock import SystemClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.hub.hub import Hub
from edgehub.message import FailureKind
from edgehub.settings import Settings
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.serving import serving
from tests.support.subscriber import subscriber
from tests.support.uplink import batched_rows, uplink

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "batch-format.md"
ROWS = 300


def _settings(folder: Path, hub_id: str, sink: str, **more: Any) -> Settings:
    folder.mkdir()
    manifest = folder / "manifest.json"
    routes = {"all": {"route": f"FROM /messages/* INTO {sink}"}}
    manifest.write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": routes,
                "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
            }
        ),
        "utf-8",
    )
    return Settings(hub_id=hub_id, data_dir=folder / "data", manifest=manifest, **more)


def _reader() -> Callable[[bytes], list[dict[str, Any]]]:
    """Return the function that the documentation shows to those who receive batches."""
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["records"]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - status documents have no event
            await asyncio.sleep(0.02)


async def test_a_parent_hub_takes_the_batches_of_its_child_apart(tmp_path: Path) -> None:
    """Every message arrives once, in order per device, as it would have come one by one."""
    password = tmp_path / "password"
    password.write_text("secret\n", "utf-8")
    with changing(tmp_path / "identities") as identities:
        identities["child"] = Identity(
            id="child", password=PasswordHash.of(b"secret"), on_behalf=("press-*",)
        )
    archive = tmp_path / "archive.jsonl"
    parent_settings = _settings(
        tmp_path / "parent",
        "parent",
        'Endpoint("archive")',
        mqtt={"port": 0, "identities_file": tmp_path / "identities"},
        endpoints={"archive": {"type": "file", "path": archive}},
    )
    async with serving(Hub(parent_settings, clock=SystemClock())) as parent:
        child_settings = _settings(
            tmp_path / "child",
            "gw",
            "$upstream",
            mqtt={"port": 0},
            upstream={
                "type": "mqtt",
                "host": "127.0.0.1",
                "port": parent.mqtt_port,
                "username": "child",
                "password_file": password,
                "batch": "zstd",
                "batch_linger_ms": 50,
            },
        )
        async with serving(Hub(child_settings, clock=SystemClock())) as child:
            for name in ("press-1", "press-2"):
                async with aiomqtt.Client("127.0.0.1", child.mqtt_port, identifier=name) as device:
                    for number in range(ROWS // 2):
                        topic = f"devices/{name}/messages/events/n={number}&%24.ct=text%2Fplain"
                        await device.publish(topic, b"\xff" if number == 7 else b"%d" % number, 1)
            await _until(lambda: _settled(child))
            received = parent.status()["mqtt"]["received_total"]
        await _until(lambda: archive.exists() and archive.read_bytes().count(b"\n") >= ROWS)
    lines = [json.loads(line) for line in archive.read_bytes().splitlines()]
    assert received < ROWS / 2
    for name in ("press-1", "press-2"):
        mine = [line for line in lines if line["device"] == name]
        assert [line["properties"]["n"] for line in mine] == [str(n) for n in range(ROWS // 2)]
        assert mine[8]["body"] == "8"
        assert mine[7]["body_base64"] == "/w=="


def _settled(hub: Hub) -> bool:
    return all(queue["depth"] == 0 for queue in hub.status()["queues"])


async def test_any_receiver_reads_them_with_a_few_lines(tmp_path: Path) -> None:
    """A broker in between: what the documentation shows gives the records, one copy each."""
    with Mosquitto(tmp_path) as broker:
        payloads = batched_rows(rows_max=40)
        async with subscriber(broker.port) as peer, uplink(broker.port, payloads=payloads) as up:
            up.queue().put(*(a_row(number, body=b"%d" % number) for number in range(ROWS)))
            await up.until(lambda: len(up.queue().confirmed) == ROWS)
            await up.until(lambda: len(_received(peer.bodies)) >= ROWS)
    assert _received(peer.bodies) == [str(number) for number in range(ROWS)]
    assert len(peer.bodies) < ROWS / 5
    assert all("batch%2Bjsonl" in topic for topic, *_ in peer.arrivals)


async def test_plain_batches_are_read_by_the_same_lines() -> None:
    """Without compression the same function serves."""
    packer = batched_rows()
    rows = [a_row(number, body=b"%d" % number) for number in range(3)]
    ((_, _, packed, _),) = packer.pack(rows, lambda _row, _result: None)
    read = _reader()(packed)
    assert [record["body"] for record in read] == ["0", "1", "2"]
    assert [record["id"] for record in read] == ["m0", "m1", "m2"]


async def test_a_peer_that_closes_over_one_message_loses_no_other(tmp_path: Path) -> None:
    """P-10 with batches: a packet too large for Mosquitto ends alone, all others arrive."""
    large = 17
    with Mosquitto(tmp_path, "max_packet_size 2000") as broker:
        payloads = batched_rows()
        async with subscriber(broker.port) as peer, uplink(broker.port, payloads=payloads) as up:
            queue = up.queue()
            rows = [a_row(number, body=_noise(number, 60)) for number in range(40)]
            rows[large] = a_row(large, body=_noise(large, 4000))
            queue.put(*rows)

            def is_over() -> bool:
                up.pump.retry_now()  # back-off is tried elsewhere
                return len(queue.confirmed) + len(queue.dead) >= len(rows)

            await up.until(is_over, 30)
            bodies = [row.message.body.decode() for row in rows if row.offset != large]
            await up.until(lambda: set(bodies) <= set(_received(peer.bodies)))
    assert [(offset, kind) for offset, kind, _ in queue.dead] == [(large, FailureKind.REJECTED)]
    # For the first time each arrives in its place; some come twice.
    assert list(dict.fromkeys(_received(peer.bodies))) == bodies


def _received(payloads: list[bytes]) -> list[str]:
    read = _reader()
    return [record["body"] for payload in payloads for record in read(payload)]


def _noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size).hex().encode()
