"""The daemon on an existing broker: killed, started anew, with the mapper behind it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest

from tests.support.broker_hub import write_manifest
from tests.support.mosquitto import Mosquitto
from tests.support.subscriber import Subscriber, subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

KILLS = 2
MESSAGES = 2000
DEVICES = 500
FAIL_SYNC = Path(__file__).parents[1] / "support" / "fail_sync.c"


def broker_section(broker: Mosquitto, **more: Any) -> str:
    """Write `[broker]`."""
    lines = ["[broker]", 'host = "127.0.0.1"', f"port = {broker.port}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return "\n".join(lines) + "\n"


async def publish_all(port: int, messages: list[tuple[str, bytes, bool]]) -> None:
    """Publish with QoS 1, up to 100 at once."""
    room = asyncio.Semaphore(100)

    async def publish(client: aiomqtt.Client, topic: str, body: bytes, *, retain: bool) -> None:
        async with room:
            await client.publish(topic, body, qos=1, retain=retain)

    async with aiomqtt.Client("127.0.0.1", port) as client:
        client.pending_calls_threshold = 1000
        async with asyncio.TaskGroup() as group:
            for topic, body, retain in messages:
                group.create_task(publish(client, topic, body, retain=retain))


async def until(daemon: Daemon, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the daemon's status is so."""
    await asyncio.to_thread(daemon.wait_until, lambda: condition(daemon.call("status")), 20)


async def test_a_killed_hub_loses_nothing(
    make_daemon: Callable[..., Daemon], broker: Mosquitto, tmp_path: Path
) -> None:
    """E-03's kind: SIGKILL with messages on their way; what the broker was told is there."""
    manifest = write_manifest(tmp_path, {"all": 'FROM /mqtt/# INTO Endpoint("archive")'})
    archive = tmp_path / "archive.jsonl"
    endpoint = f'[endpoints.archive]\ntype = "file"\npath = "{archive}"\n'
    daemon = make_daemon(
        top=f'manifest = "{manifest}"', extra=f"{broker_section(broker)}\n{endpoint}"
    )
    await asyncio.to_thread(daemon.start)
    await until(daemon, lambda status: bool(status["broker"]["subscriptions"]))
    per_round = MESSAGES // KILLS
    for kill in range(KILLS):
        numbers = range(kill * per_round, (kill + 1) * per_round)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                publish_all(broker.port, [(f"site/{n % 7}", b"%d" % n, False) for n in numbers])
            )
            # In the middle of it: as soon as some of them are acknowledged.
            await until(daemon, lambda status: status["broker"]["acknowledged_total"] > 50)
            daemon.kill()
        await asyncio.to_thread(daemon.start)

    def arrived() -> set[str]:
        text = archive.read_text("utf-8") if archive.exists() else ""
        return {json.loads(line)["body"] for line in text.splitlines() if line.endswith("}")}

    await asyncio.to_thread(daemon.wait_until, lambda: len(arrived()) >= MESSAGES, 20)
    assert arrived() == {str(number) for number in range(MESSAGES)}
    assert await asyncio.to_thread(daemon.stop) == 0


def bodies_of(daemon: Daemon) -> list[str]:
    """Return the bodies of all rows for the upstream."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["offset"] if found else 0
        page = daemon.call("queue peek", queue="upstream", limit=1000, after=after, payload=True)
        if not page["rows"]:
            return [row["body"] for row in found]
        found += page["rows"]


@pytest.mark.soak
async def test_a_hub_of_a_group_is_killed(
    make_daemon: Callable[..., Daemon], broker: Mosquitto, tmp_path: Path
) -> None:
    """Its share waits for it at the broker; nothing is lost, and the other hub goes on."""
    manifest = write_manifest(tmp_path, {"all": "FROM /mqtt/# INTO $upstream"})
    daemons = [
        make_daemon(
            top=f'hub_id = "{name}"\nmanifest = "{manifest}"',
            extra=broker_section(broker, share_group="hubs"),
        )
        for name in ("one", "two")
    ]
    for daemon in daemons:
        await asyncio.to_thread(daemon.start)
        await until(daemon, lambda status: bool(status["broker"]["subscriptions"]))
    messages = [(f"site/{number % 7}", b"%d" % number, False) for number in range(MESSAGES)]
    async with asyncio.TaskGroup() as group:
        group.create_task(publish_all(broker.port, messages))
        await until(daemons[0], lambda status: status["broker"]["acknowledged_total"] > 50)
        daemons[0].kill()
    await asyncio.to_thread(daemons[0].start)

    def stored() -> list[str]:
        return [body for daemon in daemons for body in bodies_of(daemon)]

    await asyncio.to_thread(daemons[0].wait_until, lambda: len(set(stored())) == MESSAGES, 20)
    # A window of what was on its way may be there twice, all in the hub that was killed.
    assert len(stored()) - MESSAGES <= 1000
    assert all(len(d.call("queue list")["queues"]) for d in daemons)


async def test_a_disk_that_fails_acknowledges_nothing_to_the_broker(
    make_daemon: Callable[..., Daemon], broker: Mosquitto, tmp_path: Path
) -> None:
    """What cannot be stored stays at the broker's door; then it is stored, and once only."""
    shim, flag = tmp_path / "fail_sync.so", tmp_path / "fail"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", shim, FAIL_SYNC, "-ldl"]
    await asyncio.to_thread(subprocess.run, command, check=True)
    manifest = write_manifest(tmp_path, {"all": "FROM /mqtt/# INTO $upstream"})
    daemon = make_daemon(top=f'manifest = "{manifest}"', extra=broker_section(broker))
    daemon.env |= {"LD_PRELOAD": str(shim), "FAIL_SYNC": str(flag)}
    await asyncio.to_thread(daemon.start)
    await until(daemon, lambda status: bool(status["broker"]["subscriptions"]))
    shown = await asyncio.to_thread(daemon.edgehub, "status")
    assert "broker: up; 1 subscription, 0 taken\n" in shown.stdout
    flag.touch()
    await publish_all(broker.port, [("a", b"%d" % number, False) for number in range(100)])
    await until(daemon, lambda status: status["broker"]["waiting"] == 100)
    await until(daemon, lambda status: status["store"]["failing"] is not None)
    assert daemon.call("status")["broker"]["acknowledged_total"] == 0
    flag.unlink()
    await until(daemon, lambda status: status["broker"]["acknowledged_total"] == 100)
    queue = daemon.call("queue peek", queue="upstream", limit=200, payload=True)
    assert [row["body"] for row in queue["rows"]] == [str(number) for number in range(100)]
    assert await asyncio.to_thread(daemon.stop) == 0


def registrations(rng: random.Random) -> list[tuple[str, bytes, bool]]:
    """Make a tree of three levels with a twin value each, in any order."""
    found = []
    for number in range(DEVICES):
        topic = f"te/device/d{number}//"
        body: dict[str, object] = {"@type": "child-device", "@id": f"x{number}"}
        if number >= 10:
            body["@parent"] = f"device/d{number // 10}//"
        found.append((topic, json.dumps(body).encode(), True))
        found.append((f"{topic}/twin/place", json.dumps({"n": number}).encode(), True))
    rng.shuffle(found)
    return found


def created(cloud: Subscriber) -> list[str]:
    """Return the external ids of the create lines, in order."""
    return [body.decode().split(",")[1] for body in cloud.bodies if body.startswith(b"101,")]


def updates(cloud: Subscriber) -> list[str]:
    """Return the external ids of the twin updates, in order."""
    start = "inventory/managedObjects/update/"
    return [
        topic.removeprefix(start)
        for topic, body in cloud.arrivals
        if topic.startswith(start) and b"place" in body
    ]


async def test_retained_registrations_come_again_at_a_restart(
    make_daemon: Callable[..., Daemon], broker: Mosquitto, tmp_path: Path
) -> None:
    """E-01, E-03, E-05: 500 with twins in random order: all once, parents first, under 5 s."""
    everything = registrations(random.Random(8))
    names = {f"x{number}" for number in range(DEVICES)}
    with Mosquitto(tmp_path / "cloud") as platform:
        await publish_all(broker.port, everything)
        upstream = (
            f'[upstream]\ntype = "cumulocity"\nhost = "127.0.0.1"\nport = {platform.port}\n'
            "tls = false\n"
        )
        # Without a session at the broker each start has everything sent again.
        daemon = make_daemon(extra=upstream + broker_section(broker, session_expiry_s=0))
        async with subscriber(platform.port) as cloud:
            await asyncio.to_thread(daemon.start)
            began = time.monotonic()
            await until(daemon, lambda status: status["entities"]["entities"] > DEVICES)
            registered_s = time.monotonic() - began
            async with asyncio.timeout(20):
                while len(updates(cloud)) < DEVICES:
                    await cloud.wait(len(cloud.arrivals) + 1)
            assert registered_s < 5
            order = created(cloud)
            assert sorted(order) == sorted(names)
            place = {name: index for index, name in enumerate(order)}
            assert all(place[f"x{n // 10}"] < place[f"x{n}"] for n in range(10, DEVICES))
            assert sorted(updates(cloud)) == sorted(names)
            # What is confirmed but not yet off the disk may come twice after a kill.
            await until(daemon, lambda status: not any(q["depth"] for q in status["queues"]))
            daemon.kill()
            await asyncio.to_thread(daemon.start)
            await until(
                daemon, lambda status: status["broker"]["acknowledged_total"] >= 2 * DEVICES
            )
            await publish_all(broker.port, [("te/device/d499///m/", b'{"t": 1}', False)])
            async with asyncio.timeout(10):
                while not any(b'"x499"' in body for body in cloud.bodies):
                    await cloud.wait(len(cloud.arrivals) + 1)
            assert sorted(created(cloud)) == sorted(names)
            assert sorted(updates(cloud)) == sorted(names)
            debt = daemon.call("status")["entities"]
            assert (debt["held"], debt["entities"]) == (0, DEVICES + 1)
        assert await asyncio.to_thread(daemon.stop) == 0
