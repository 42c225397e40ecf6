"""Hubs and devices are killed at random moments while messages go down a chain of two hubs."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.daemon import DaemonUnreachableError
from edgehub.cli.refusal import CommandError
from edgehub.device_bound.mailbox import IN_FLIGHT_MAX
from tests.support.device_process import DeviceProcess
from tests.support.kills import DEVICES, parent_and_child

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemon import Daemon

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
MESSAGES, KILLS = (1000, 60) if SOAK else (150, 6)
PAUSE_S = (0.05, 0.6)
PACE_S = 0.04


def _send_all(parent: Daemon, rng: random.Random, acknowledged: dict[str, list[int]]) -> None:
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
        acknowledged[device_id].append(number)
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
    parent, child = parent_and_child(tmp_path)
    devices = {name: DeviceProcess(name, child.mqtt_port, tmp_path).start() for name in DEVICES}
    acknowledged: dict[str, list[int]] = defaultdict(list)
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
            if victim in devices:
                devices[victim].kill()
                devices[victim].start()
                continue
            # While devices are absent, a hub has something to lose.
            for device in devices.values():
                device.kill()
            time.sleep(rng.uniform(*PAUSE_S))
            daemon = parent if victim == "parent" else child
            daemon.kill()
            daemon.start()
            for device in devices.values():
                device.start()
        for daemon in (parent, child):
            daemon.wait_until(lambda daemon=daemon: _waiting(daemon) == 0, 30)
    finally:
        for device in devices.values():
            device.kill()
        for daemon in (child, parent):
            daemon.close()
    for name, device in devices.items():
        taken = device.taken("message")
        first = list(dict.fromkeys(taken))
        assert set(acknowledged[name]) - set(first) == set()
        assert first == sorted(first)
        others = {body for other in DEVICES if other != name for body in acknowledged[other]}
        assert others.isdisjoint(first)
        assert len(taken) - len(first) <= IN_FLIGHT_MAX * sum(kills.values()), kills
