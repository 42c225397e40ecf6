"""A day without a link: what twins have become on both sides meets over it, at a counted price."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.broker_hub import running_hub
from tests.support.link_thread import LinkThread
from tests.support.ports import free_port
from tests.support.twin_client import OF_CLIENTS, twin_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = [pytest.mark.integration, pytest.mark.scaled]

DEVICES, REPORTS = (500, 24) if os.environ.get("EDGEHUB_SOAK") else (20, 3)
"""Devices with a twin, and how often each reports during the outage."""

TIMEOUT_S = 30 + DEVICES / 2
UP_BYTES_MAX = 300
DOWN_BYTES_MAX = 250
"""A twin over the link, acknowledgements and the like included."""

HASH = PasswordHash.of(b"secret")


def settings_of(folder: Path, listener: int, upstream: int | None) -> dict[str, Any]:
    """Return settings of a hub at which another one speaks for its devices."""
    folder.mkdir()
    with changing(folder / "identities") as entries:
        for name in ("child", "site"):
            entries[name] = Identity(id=name, password=HASH, on_behalf=("leaf-*",))
    password = folder / "password"
    password.write_text("secret")
    password.chmod(0o600)
    found: dict[str, Any] = {
        "mqtt": {"port": listener, "identities_file": str(folder / "identities")}
    }
    if upstream is not None:
        found["upstream"] = {
            "type": "mqtt",
            "host": "127.0.0.1",
            "port": upstream,
            "username": "child",
            "password_file": str(password),
            "twins": True,
        }
    return found


async def report_all(hub: BrokerHub, turns: range) -> None:
    """Let every device report, in every turn another value."""
    async with twin_client(
        hub.mqtt_port, "site", filters=OF_CLIENTS, username="site", password=b"secret"
    ) as site:
        for turn in turns:
            for number in range(DEVICES):
                patch = {"firmware": "1.4.2", "state": {"hours": turn, "load": number}}
                result = await site.report(patch, f"$edge/clients/leaf-{number}/")
                assert result.status == 204


async def section(hub: BrokerHub, number: int, name: str) -> dict[str, Any]:
    """Return a section of the twin of a device."""
    shown = await hub.call("twin show", device_id=f"leaf-{number}")
    return dict(shown["properties"][name])


def unsent(hub: BrokerHub) -> int:
    """Count the twins of which the parent does not have all."""
    return int(hub.hub.status()["twins"]["unsent"])


@pytest.mark.timeout(600)
async def test_twins_meet_after_an_outage(tmp_path: Path) -> None:
    """However often each was reported, one request a twin and way; its bytes are bounded."""
    port = free_port()
    with LinkThread(port) as link:
        above = settings_of(tmp_path / "parent", port, None)
        below = settings_of(tmp_path / "child", 0, link.port)
        async with (
            running_hub(tmp_path / "parent", hub_id="parent", **above) as parent,
            running_hub(tmp_path / "child", hub_id="child", **below) as child,
        ):
            await report_all(child, range(1))
            await child.until(lambda: not unsent(child), TIMEOUT_S)
            link.cut()
            await child.until(lambda: not child.hub.status()["twins"]["synchronised"])
            await report_all(child, range(1, 1 + REPORTS))
            for number in range(0, DEVICES, 2):
                patch = {"properties": {"desired": {"interval_s": number}}}
                await parent.call("twin set", device_id=f"leaf-{number}", patch=patch)
            assert unsent(child) == DEVICES

            up, down = link.bytes_passed, link.link.down.bytes_passed
            began = asyncio.get_running_loop().time()
            link.restore()
            await child.until(lambda: not unsent(child), TIMEOUT_S)
            took_s = asyncio.get_running_loop().time() - began
            up = (link.bytes_passed - up) // DEVICES
            down = (link.link.down.bytes_passed - down) // DEVICES
            print(f"\n{DEVICES} twins: {up} bytes up, {down} down each, {took_s:.1f} s")
            for number in range(DEVICES):
                assert (await section(parent, number, "reported"))["state"] == {
                    "hours": REPORTS,
                    "load": number,
                }
                desired = await section(child, number, "desired")
                assert desired.get("interval_s") == (number if number % 2 == 0 else None)
            assert 0 < up < UP_BYTES_MAX
            assert 0 < down < DOWN_BYTES_MAX
