"""Twins and methods of the Azure IoT device SDK as it is, also after a restart of the hub."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.mqtt.shared_access import SharedAccessKey
from tests.support.azure_client import azure_client
from tests.support.broker_hub import running_hub
from tests.support.certificates import Authority
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KEY = SharedAccessKey(bytes(range(32)))


@pytest.mark.parametrize("credential", ["key", "certificate"])
@pytest.mark.parametrize(
    ("module_id", "websockets"), [(None, False), ("cam", True)], ids=["device", "module-websocket"]
)
async def test_twin_and_method(
    tmp_path: Path, module_id: str | None, websockets: bool, credential: str
) -> None:
    """It reads, reports, is notified and answers, and goes on with the hub after its restart."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    client_id = "press-1" if module_id is None else f"press-1/{module_id}"
    keys = (KEY,) if credential == "key" else ()
    with changing(tmp_path / "identities") as entries:
        entries[client_id] = Identity(id=client_id, keys=keys)
    mqtt = {
        "port": 0,
        "tls_port": free_port(),
        "wss_port": free_port(),
        "certificate_file": str(certificate),
        "key_file": str(key),
        "client_ca_file": str(authority.certificate),
        "identities_file": str(tmp_path / "identities"),
    }
    own: dict[str, str] = {"key": KEY.to_text()}
    if credential == "certificate":
        signed = authority.client(client_id)
        own = {"certificate": str(signed[0]), "certificate_key": str(signed[1])}
    whose = {"device_id": "press-1", "module_id": module_id}
    async with azure_client(
        ports={"8883": mqtt["tls_port"], "443": mqtt["wss_port"]},
        websockets=websockets,
        authority=str(authority.certificate),
        device="press-1",
        module=module_id,
        **own,
    ) as client:
        async with running_hub(tmp_path, mqtt=mqtt) as hub:
            await client.do("connect")
            twin = (await client.do("twin"))["twin"]
            assert twin == {"desired": {"$version": 1}, "reported": {"$version": 1}}
            await client.do("report", patch={"a": {"b": 1}, "gone": None})
            await client.do("follow")
            patch = {"properties": {"desired": {"x": 1}}}
            await hub.call("twin set", **whose, patch=patch)
            assert (await client.received("desired"))["desired"] == {"x": 1, "$version": 2}
            call = {"methodName": "reboot", "payload": {"in_s": 3}}
            task = asyncio.create_task(hub.call("method invoke", **whose, call=call))
            called = await client.received("called")
            assert (called["called"], called["payload"]) == ("reboot", {"in_s": 3})
            assert await task == {"status": 200, "payload": {"echo": {"in_s": 3}}}
        async with running_hub(tmp_path, mqtt=mqtt) as hub:
            twin = (await client.do("twin"))["twin"]
            assert twin["reported"] == {"a": {"b": 1}, "$version": 2}
            await hub.call("twin set", **whose, patch={"properties": {"desired": {"x": 2}}})
            assert (await client.received("desired"))["desired"] == {"x": 2, "$version": 3}
