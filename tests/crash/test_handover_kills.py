"""Hubs and a device are killed while messages go by way of one hub to a device of another."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.daemon import DaemonUnreachableError
from edgehub.cli.refusal import CommandError
from edgehub.device_bound.mailbox import IN_FLIGHT_MAX
from tests.support.daemon import Daemon
from tests.support.device_process import DeviceProcess
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
MESSAGES, KILLS = (1000, 60) if SOAK else (100, 4)
PAUSE_S = (0.05, 0.6)
PACE_S = 0.03
DEVICE = "d-0"


def _hub(folder: Path, name: str, redis: RedisServer) -> Daemon:
    (folder / name).mkdir()
    text = f"""
        hub_id = "{name}"
        data_dir = "data"
        [mqtt]
        port = {free_port()}
        [redis]
        url = "{redis.url}"
        [affinity]
        coordinator = "redis"
    """
    return Daemon(folder / name, text).start()


def _send_all(hub: Daemon, acknowledged: list[int]) -> None:
    """Send messages one after another; those without an answer may or may not be stored."""
    number = 0
    while number < MESSAGES:
        try:
            hub.call("device send", device_id=DEVICE, body=str(number))
        except CommandError:
            time.sleep(0.02)  # as many wait as may
            continue
        except (DaemonUnreachableError, OSError, ValueError):
            number += 1
            time.sleep(0.02)  # it is being started again
            continue
        acknowledged.append(number)
        number += 1
        time.sleep(PACE_S)


def _waiting(daemon: Daemon) -> int:
    return int(daemon.call("status")["device_bound"]["waiting"])


@pytest.mark.crash
@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 150)
def test_nothing_acknowledged_is_lost_between_hubs(tmp_path: Path) -> None:
    """The device gets all that another hub acknowledged, in order, few twice."""
    rng = random.Random(1)
    redis = RedisServer(tmp_path).start()
    here, there = (_hub(tmp_path, name, redis) for name in ("here", "there"))
    # A numbered message makes this hub the owner.
    port = str(there.mqtt_port)
    sent = there.edgehub("send", DEVICE, "x", "--port", port, "--property", "sequence=1")
    assert sent.returncode == 0, sent.stderr
    device = DeviceProcess(DEVICE, there.mqtt_port, tmp_path).start()
    acknowledged: list[int] = []
    sender = threading.Thread(target=_send_all, args=(here, acknowledged))
    try:
        sender.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(*PAUSE_S))
            victim = rng.choice([here, there, device])
            victim.kill()
            victim.start()
        sender.join()
        for hub in (here, there):
            hub.wait_until(lambda hub=hub: _waiting(hub) == 0, 60)
        sent = here.edgehub("device", "send", DEVICE, str(MESSAGES))
        assert f"it goes on to hub there, which speaks for {DEVICE}" in sent.stdout
        released = there.edgehub("device", "release", DEVICE)
        assert (released.returncode, released.stdout) == (0, f"released: {DEVICE}\n")
        again = there.edgehub("device", "release", DEVICE)
        assert (again.returncode, "does not speak for" in again.stderr) == (1, True)
        for hub in (here, there):
            hub.wait_until(lambda hub=hub: _waiting(hub) == 0, 60)
    finally:
        device.kill()
        for hub in (here, there):
            hub.close()
        redis.stop()
    taken = device.taken("message")
    first = list(dict.fromkeys(taken))
    assert first[-1] == MESSAGES
    assert set(acknowledged) - set(first) == set()
    assert first == sorted(first)
    assert len(taken) - len(first) <= IN_FLIGHT_MAX * KILLS
