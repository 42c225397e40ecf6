"""Hubs and a device are killed while twins change: nothing is lost, and both ends converge."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.twins.document import merged
from tests.support.device_process import DeviceProcess
from tests.support.kills import DEVICES, parent_and_child
from tests.support.twin_client import OWN, twin_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.crash

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
PATCHES = 1_000 if SOAK else 120
KILLS = 60 if SOAK else 6
DEVICE = DEVICES[0]


def section(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return a section of the device's twin, without its version."""
    shown = daemon.call("twin show", device_id=DEVICE)
    found = dict(shown["properties"][name])
    del found["$version"]
    return found


def patches_of(rng: random.Random) -> list[dict[str, Any]]:
    """Draw patches that add, change and remove members, some inside of others."""
    found = []
    for number in range(PATCHES):
        member = f"m{rng.randrange(12)}"
        value = rng.choice([number, None, {"in": number, f"x{number % 3}": None}, [number]])
        found.append({"last": number, member: value})
    return found


@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("seed", [1])
async def test_reports_survive_kills_of_hubs_and_device(tmp_path: Path, seed: int) -> None:
    """The child has exactly what was acknowledged, and the parent the same in the end."""
    rng = random.Random(seed)
    patches = patches_of(rng)
    parent, child = await asyncio.to_thread(parent_and_child, tmp_path)
    device = DeviceProcess(DEVICE, child.mqtt_port, tmp_path, patches).start()
    try:
        for kill in range(KILLS):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            victim = rng.choice([parent, child, device])
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)
            desired = {"properties": {"desired": {f"d{kill % 3}": kill}}}
            await asyncio.to_thread(parent.call, "twin set", device_id=DEVICE, patch=desired)
        async with asyncio.timeout(300):
            while len(device.taken("patch")) < PATCHES:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        device.kill()
        assert device.taken("patch") == list(range(PATCHES))
        model: dict[str, Any] = {}
        for patch in patches:
            model = merged(model, patch)
        assert section(child, "reported") == model
        wanted = {f"d{kill % 3}": kill for kill in range(KILLS)}
        assert section(parent, "desired") == wanted
        own = twin_client(child.mqtt_port, DEVICE, filters=OWN[:1])
        async with asyncio.timeout(60), own as client:
            document: dict[str, Any] = {}
            while document.get("desired") != {**wanted, "$version": 1 + KILLS}:
                document = (await client.get()).body
            while await asyncio.to_thread(section, parent, "reported") != model:
                await client.get()
    finally:
        device.kill()
        child.close()
        parent.close()
