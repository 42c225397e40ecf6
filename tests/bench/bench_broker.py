"""`te/` messages from a site's broker, through the mapper, to the platform's broker, one JSON line.

Run as `python -m tests.bench.bench_broker --rate 5000 --seconds 20`. Two Mosquittos and a daemon:
measurements of a hundred registered devices come with QoS 1 over the broker head, are stored, and
leave by the `cumulocity` endpoint. `behind` is what the hub has not acknowledged, each second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgehub.clock import SystemClock
from edgehub.endpoints.mqtt_link import LinkOptions, connect
from edgehub.mqtt.packets import publish
from tests.support.daemon import Daemon
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.mqtt.client import Client

DEVICES = 100
WAIT_S = 120
STEP_S = 0.005
LOG_LINES = 50


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settings(site: Mosquitto, cloud: Mosquitto) -> str:
    """Write the hub's settings."""
    return (
        f'data_dir = "data"\n[mqtt]\nport = {free_port()}\n'
        f'[upstream]\ntype = "cumulocity"\nhost = "127.0.0.1"\nport = {cloud.port}\ntls = false\n'
        f'[broker]\nhost = "127.0.0.1"\nport = {site.port}\n[log]\nformat = "json"\n'
    )


async def send(connection: Client, daemon: Daemon, rate: int, total: int) -> dict[str, Any]:
    """Send at a rate; gives when the last one was acknowledged here, and how far it was behind."""
    start = time.monotonic()
    sent, behind, look_at = 0, [], start + 1
    while sent < total:
        due = min(total, int((time.monotonic() - start) * rate))
        packets = [
            publish(
                b"te/device/d%d///m/" % (number % DEVICES),
                b'{"temperature":%d.5,"pressure":1013,"count":%d}' % (number % 90, number),
                connection.next_packet_id(()),
            )
            for number in range(sent, due)
        ]
        connection.write(b"".join(packets))
        sent = due
        await asyncio.sleep(STEP_S)
        if time.monotonic() > look_at:
            look_at += 1
            behind.append(sent - await asyncio.to_thread(acknowledged, daemon))
    await until(daemon, lambda: acknowledged(daemon) >= total)
    return {"seconds": round(time.monotonic() - start, 2), "behind": behind}


def acknowledged(daemon: Daemon) -> int:
    """Count the measurements that the hub has acknowledged to the broker."""
    return int(daemon.call("status")["broker"]["acknowledged_total"]) - DEVICES


async def until(daemon: Daemon, condition: Callable[[], bool]) -> None:
    """Wait until the daemon is so far."""
    await asyncio.to_thread(daemon.wait_until, condition, WAIT_S)


def complain(daemon: Daemon) -> None:
    """Show what the daemon said last, which is all that tells why a run failed."""
    files = sorted(path.name for path in daemon.folder.iterdir())
    print(f"running: {daemon.is_running}, folder: {files}", file=sys.stderr)
    print(*map(json.dumps, daemon.log[-LOG_LINES:]), sep="\n", file=sys.stderr)


async def measure(rate: int, seconds: int) -> dict[str, Any]:
    """Run once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Mosquitto(folder / "site") as site, Mosquitto(folder / "cloud") as cloud:
            daemon = await asyncio.to_thread(Daemon(folder, settings(site, cloud)).start)
            try:
                return await _measure(daemon, site, rate, rate * seconds)
            except BaseException:
                complain(daemon)
                raise
            finally:
                daemon.close()


async def _measure(daemon: Daemon, site: Mosquitto, rate: int, total: int) -> dict[str, Any]:
    link = LinkOptions(host="127.0.0.1", port=site.port, client_id="load", clean_session=True)
    await until(daemon, lambda: bool(daemon.call("status")["broker"]["subscriptions"]))
    pid = int(daemon.call("status")["pid"])
    async with connect(
        link,
        clock=SystemClock(),
        on_confirmed=lambda _ids: None,
        on_messages=lambda _messages: None,
    ) as connection:
        for number in range(DEVICES):
            topic = b"te/device/d%d//" % number
            connection.write(
                publish(topic, b'{"@type":"child-device"}', connection.next_packet_id(()))
            )
        await until(daemon, lambda: acknowledged(daemon) >= 0)
        before = cpu_s(pid)
        figures = await send(connection, daemon, rate, total)
        used = cpu_s(pid) - before
    await until(
        daemon, lambda: not any(queue["depth"] for queue in daemon.call("queue list")["queues"])
    )
    return {
        "bench": "broker",
        "rate": rate,
        **figures,
        "acknowledged_per_s": round(total / figures["seconds"]),
        "cpu_us_per_message": round(used / total * 1e6, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="te/ messages from a broker to the platform")
    parser.add_argument("--rate", type=int, default=5000, help="messages per second")
    parser.add_argument("--seconds", type=int, default=20)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.rate, given.seconds))))


if __name__ == "__main__":
    main()
