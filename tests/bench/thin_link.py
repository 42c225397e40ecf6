"""Alarms behind bulk on a link of 64 kbit/s: how long each program makes them wait.

The bulk is enough to fill the link for longer than the alarms take. The last row is the bare way of
an alarm over the idle link, which no program can beat.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench import peers
from tests.bench.tools import Receiver, a_mosquitto, publish
from tests.support.link_thread import LinkThread
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BIT_S: Final = 64_000
BULK: Final = 600
ALARMS: Final = 20
ALARM_RATE: Final = 2
TIMEOUT_S: Final = 90
ROUTES: Final = {
    "alarms": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
    "rest": "FROM /messages/* INTO $upstream",
}
ALARM: Final[Mapping[str, Any]] = {
    "client": "alarm",
    "topic": "devices/alarm/messages/events/kind=alarm",
    "window": ALARMS,
    "rate": ALARM_RATE,
}
TITLES: Final = {
    "hub": "**edgehub**, alarms at priority 0",
    "bridge": "Mosquitto bridge",
    "rabbitmq": "RabbitMQ, classic queue with `x-max-priority`, prefetch 10, AMQP",
    "bare": "idle link, nothing in between",
}

PUSHED: Final[Mapping[str, Callable[[Path, int], peers.Programs] | None]] = {
    "hub": partial(peers.hub, routes=ROUTES),
    "bridge": peers.bridge,
    "bare": None,
}


def _pushed(
    folder: Path, setup: Callable[[Path, int], peers.Programs] | None, *, bulk: int, alarms: int
) -> tuple[float, float]:
    """Return median and greatest wait of alarms through a program that sends to a broker."""
    folder.mkdir()
    with a_mosquitto(folder) as broker, LinkThread(broker.port, bit_s=BIT_S) as link:
        seen = Receiver(
            "subscribe", broker.port, alarms, topic="devices/alarm/#", timeout=TIMEOUT_S
        )
        running = None
        try:
            port = link.port
            if setup is not None:
                (folder / "program").mkdir()
                running = peers.Running(folder / "program", setup(folder / "program", port), ())
                running.start()
                port = running.port
                publish(port, bulk, connections=10, window=20)
            publish(port, alarms, timeout=TIMEOUT_S, **ALARM)
            arrived = seen.result()
        finally:
            seen.close()
            if running is not None:
                running.kill()
    return arrived["p50_ms"], arrived["max_ms"]


def _rabbitmq(folder: Path, *, bulk: int, alarms: int) -> tuple[float, float]:
    """Do the same with a consumer of AMQP behind the link, as MQTT has no priorities there."""
    folder.mkdir()
    amqp = free_port()
    running = peers.Running(folder, peers.rabbitmq(folder, 0, amqp_port=amqp), ())
    try:
        running.start()
        with LinkThread(amqp, bit_s=BIT_S) as link:
            done = subprocess.run(
                [
                    peers.ENVIRONMENT / "python",
                    Path(__file__).with_name("amqp_race.py"),
                    *map(str, (amqp, link.port, bulk, alarms, ALARM_RATE)),
                ],
                stdout=subprocess.PIPE,
                check=True,
                timeout=2 * TIMEOUT_S,
            )
    finally:
        running.kill()
    figures = json.loads(done.stdout)
    return figures["p50_ms"], figures["max_ms"]


def _no_client() -> str | None:
    return None if (peers.ENVIRONMENT / "python").exists() else peers.FROM_PYPI


def race(folder: Path, *, name: str, bulk: int = BULK, alarms: int = ALARMS) -> dict[str, float]:
    """Return the waits of alarms in one of the programs, nothing where it is not installed."""
    if name == "rabbitmq":
        missing = peers.PEERS[name].missing() or _no_client()
        if missing is not None:
            print(f"  left out: {TITLES[name]} ({missing})", file=sys.stderr)
            return {}
        waits = _rabbitmq(folder / name, bulk=bulk, alarms=alarms)
    else:
        waits = _pushed(folder / name, PUSHED[name], bulk=bulk, alarms=alarms)
    return {
        f"thin_link_{name}_{figure}_ms": value
        for figure, value in zip(("p50", "max"), waits, strict=True)
    }


def table(medians: Mapping[str, float]) -> str:
    """Return the Markdown table of what was measured."""
    lines = [
        f"| {BIT_S // 1000} kbit/s behind {BULK} messages of 200 bytes | alarm, median | longest |",
        "|---|---|---|",
    ]
    for name, title in TITLES.items():
        waits = [medians.get(f"thin_link_{name}_{figure}_ms") for figure in ("p50", "max")]
        cells = ["-" if wait is None else f"{wait / 1000:.2f} s" for wait in waits]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


CASES: Final[Mapping[str, Callable[[Path], dict[str, float]]]] = {
    f"thin-link-{name}": partial(race, name=name) for name in TITLES
}
