"""The Azure SDK at a whole hub, below a parent hub that stands for the cloud."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.hub.hub import Hub
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.settings import Settings
from tests.support.azure_client import azure_client
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KEYS = {
    name: SharedAccessKey(bytes([number] * 32)) for number, name in enumerate(("gw", "press-1"))
}


def a_parent(folder: Path) -> Hub:
    """Build the hub at the top: it writes what it gets into a file."""
    return Hub(
        Settings(
            hub_id="parent",
            data_dir=folder / "parent",
            mqtt={"port": 0, "identities_file": folder / "parent-identities", "anonymous": False},
            upstream={"type": "file", "path": folder / "archive.jsonl"},
        )
    )


def a_child(folder: Path, parent_port: int, **mqtt: Any) -> Hub:
    """Build the hub in between."""
    upstream = {
        "type": "mqtt",
        "host": "127.0.0.1",
        "port": parent_port,
        "username": "gw",
        "shared_access_key_file": folder / "gw.key",
    }
    mqtt = {"port": 0, "identities_file": folder / "child-identities", "anonymous": False, **mqtt}
    return Hub(Settings(hub_id="gw", data_dir=folder / "child", mqtt=mqtt, upstream=upstream))


async def test_a_device_below_two_hubs(tmp_path):
    """Its messages reach the top; it comes back by itself when its hub has restarted."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    for file, name, fields in (
        ("parent-identities", "gw", {"on_behalf": ("*",)}),
        ("child-identities", "press-1", {}),
    ):
        with changing(tmp_path / file) as entries:
            entries[name] = Identity(id=name, keys=(KEYS[name],), **fields)
    (tmp_path / "gw.key").write_text(KEYS["gw"].to_text())
    ports = {"tls_port": free_port(), "wss_port": free_port()}
    mqtt = {"certificate_file": certificate, "key_file": key, **ports}

    async def arrived(count: int) -> list[str]:
        archive = tmp_path / "archive.jsonl"
        async with asyncio.timeout(20):
            while True:
                lines = archive.read_text().splitlines() if archive.exists() else []
                if len(lines) >= count:
                    return lines
                await asyncio.sleep(0.05)

    async with (
        serving(a_parent(tmp_path)) as parent,
        azure_client(
            ports={"8883": ports["tls_port"], "443": ports["wss_port"]},
            websockets=True,
            authority=str(authority.certificate),
            device="press-1",
            key=KEYS["press-1"].to_text(),
        ) as device,
    ):
        async with serving(a_child(tmp_path, parent.mqtt_port, **mqtt)):
            await device.do("connect")
            await device.do("send", body='{"n": 1}')
            await arrived(1)
        async with serving(a_child(tmp_path, parent.mqtt_port, **mqtt)):
            await device.do("send", body='{"n": 2}')
            first, second = await arrived(2)
    assert "press-1" in first
    assert "press-1" in second
