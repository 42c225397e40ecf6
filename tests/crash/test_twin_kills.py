"""Hubs are killed while twins change: nothing acknowledged is lost, and both ends converge."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.twins.document import merged
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.twin_client import OWN, twin_client

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.support.twin_client import TwinClient

pytestmark = pytest.mark.crash

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
PATCHES = 1_000 if SOAK else 120
KILLS = 60 if SOAK else 6
DEVICE = "leaf-1"
DONE = 204


class Family:
    """A parent and a child as processes."""

    def __init__(self, folder: Path) -> None:
        parent_port, child_port = free_port(), free_port()
        for name in ("parent", "child"):
            (folder / name).mkdir()
        with changing(folder / "parent" / "identities") as entries:
            password = PasswordHash.of(b"secret")
            entries["child"] = Identity(id="child", password=password, on_behalf=("leaf-*",))
        secret = folder / "child" / "password"
        secret.write_text("secret")
        secret.chmod(0o600)
        self.parent = Daemon(
            folder / "parent",
            f"""
            hub_id = "parent"
            data_dir = "data"
            [mqtt]
            port = {parent_port}
            identities_file = "identities"
            """,
        )
        self.child = Daemon(
            folder / "child",
            f"""
            hub_id = "child"
            data_dir = "data"
            [mqtt]
            port = {child_port}
            [upstream]
            type = "mqtt"
            host = "127.0.0.1"
            port = {parent_port}
            username = "child"
            password_file = "password"
            twins = true
            """,
        )
        self.child_runs = asyncio.Event()

    async def start(self, daemon: Daemon) -> None:
        """Start a hub."""
        await asyncio.to_thread(daemon.start)
        if daemon is self.child:
            self.child_runs.set()

    async def kill(self, daemon: Daemon) -> None:
        """Kill a hub, without a word."""
        if daemon is self.child:
            self.child_runs.clear()
        await asyncio.to_thread(daemon.kill)

    def section(self, daemon: Daemon, name: str) -> dict[str, Any]:
        """Return a section of the device's twin, without its version."""
        shown = daemon.call("twin show", device_id=DEVICE)
        section = dict(shown["properties"][name])
        del section["$version"]
        return section


def device(family: Family) -> AbstractAsyncContextManager[TwinClient]:
    """Connect the device, which listens to answers alone."""
    return twin_client(family.child.mqtt_port, DEVICE, filters=OWN[:1])


async def report_all(family: Family, patches: list[dict[str, Any]]) -> dict[str, Any]:
    """Report each patch until it is acknowledged; returns what they come to."""
    model: dict[str, Any] = {}
    left = list(patches)
    while left:
        await family.child_runs.wait()
        try:
            async with asyncio.timeout(10), device(family) as client:
                while left:
                    answer = await client.report(left[0])
                    if answer.status == DONE:
                        model = merged(model, left.pop(0))
        except (OSError, EOFError):
            continue  # it was killed
    return model


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
async def test_reports_survive_kills_of_both_hubs(tmp_path: Path, seed: int) -> None:
    """The child has exactly what was acknowledged, and the parent the same in the end."""
    rng = random.Random(seed)
    family = Family(tmp_path)
    await family.start(family.parent)
    await family.start(family.child)
    try:
        reporting = asyncio.create_task(report_all(family, patches_of(rng)))
        for kill in range(KILLS):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            victim = rng.choice([family.parent, family.child])
            await family.kill(victim)
            await family.start(victim)
            desired = {"properties": {"desired": {f"d{kill % 3}": kill}}}
            await asyncio.to_thread(family.parent.call, "twin set", device_id=DEVICE, patch=desired)
        model = await reporting
        assert family.section(family.child, "reported") == model
        wanted = {f"d{kill % 3}": kill for kill in range(KILLS)}
        assert family.section(family.parent, "desired") == wanted
        async with asyncio.timeout(60), device(family) as client:
            document: dict[str, Any] = {}
            while document.get("desired") != {**wanted, "$version": 1 + KILLS}:
                document = (await client.get()).body
            while await asyncio.to_thread(family.section, family.parent, "reported") != model:
                await client.get()
    finally:
        family.child.close()
        family.parent.close()
