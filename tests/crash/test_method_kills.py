"""Hubs and devices are killed at random moments while a parent calls methods of devices."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.daemon import DaemonUnreachableError
from edgehub.cli.refusal import CommandError
from tests.support.device_process import DeviceProcess
from tests.support.kills import DEVICES, parent_and_child

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemon import Daemon

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
CALLS, KILLS = (500, 60) if SOAK else (80, 6)
PAUSE_S = (0.05, 0.6)
PACE_S = 0.03


def _call_all(
    parent: Daemon,
    rng: random.Random,
    answered: dict[str, list[int]],
    unanswered: Counter[str],
    killed: threading.Event,
) -> None:
    """Call until enough have an answer; one without may or may not be carried out."""
    for number in itertools.count():
        if sum(map(len, answered.values())) >= CALLS and killed.is_set():
            return
        device_id = rng.choice(DEVICES)
        call = {
            "methodName": "echo",
            "payload": number,
            "connectTimeoutInSeconds": 2,
            "responseTimeoutInSeconds": 5,
        }
        try:
            answer = parent.call("method invoke", device_id=device_id, call=call)
        except CommandError as error:
            unanswered[str(error)[:40]] += 1
            continue
        except (DaemonUnreachableError, OSError, ValueError):
            unanswered["the parent was killed"] += 1
            time.sleep(0.02)
            continue
        if answer["status"] in {404, 504}:
            unanswered[f"by the child: {answer['payload']['message']}"[:40]] += 1
            time.sleep(PACE_S)
            continue
        assert answer == {"status": 200, "payload": [device_id, number]}
        answered[device_id].append(number)
        time.sleep(PACE_S)  # so that kills come while calls are under way


@pytest.mark.crash
@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 150)
@pytest.mark.parametrize("seed", [1])
def test_a_call_is_carried_out_once_by_its_device_or_not_at_all(tmp_path: Path, seed: int) -> None:
    """Each answer is that of its own call, and calls reach a device in their order."""
    rng = random.Random(seed)
    parent, child = parent_and_child(tmp_path)
    devices = {name: DeviceProcess(name, child.mqtt_port, tmp_path).start() for name in DEVICES}
    answered: dict[str, list[int]] = defaultdict(list)
    unanswered: Counter[str] = Counter()
    killed = threading.Event()
    caller = threading.Thread(
        target=_call_all, args=(parent, random.Random(seed), answered, unanswered, killed)
    )
    try:
        caller.start()
        for _ in range(KILLS):
            caller.join(rng.uniform(*PAUSE_S))
            assert caller.is_alive()
            victim = rng.choice([parent, child, *devices.values()])
            victim.kill()
            victim.start()
        killed.set()
        caller.join()
        for daemon in (parent, child):
            daemon.wait_until(
                lambda daemon=daemon: daemon.call("status")["methods"]["open"] == 0, 30
            )
    finally:
        killed.set()
        for device in devices.values():
            device.kill()
        for daemon in (child, parent):
            daemon.close()
    for name, device in devices.items():
        carried_out = device.taken("call")
        assert carried_out == sorted(set(carried_out)), unanswered
        assert set(answered[name]) <= set(carried_out)
    answers = sum(map(len, answered.values()))
    print(f"{KILLS} kills, {answers} answers, {dict(unanswered)}")
