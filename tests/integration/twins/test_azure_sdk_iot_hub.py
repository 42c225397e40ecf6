"""The Azure SDK as it is with an IoT Hub behind its hub, or behind two of them."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.mqtt.shared_access import SharedAccessKey
from tests.support.azure_client import AzureClient, azure_client
from tests.support.broker_hub import running_hub
from tests.support.certificates import Authority
from tests.support.iot_hub import DESIRED, METHODS, IotHub, iot_hub, server_tls
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ROUTES = {"all": "FROM /messages/* INTO $upstream"}
CHILD_KEY = SharedAccessKey(bytes(range(32)))


async def press_1_works(azure: IotHub, device: AzureClient, turn: int) -> None:
    """Use all that a device has of the cloud: a message each way, twin and method."""
    press = azure.clients["press-1"]
    message = {"body": f"up {turn}", "properties": {"kind": "alarm"}}
    while "failed" in await device.attempt("send", **message):
        pass  # it has not connected again by itself yet
    await azure.until(lambda: azure.events)
    event = azure.events.pop()
    assert (event.sender, event.body) == ("press-1", f"up {turn}".encode())
    assert event.properties["kind"] == "alarm"

    await device.do("report", patch={"turn": turn, "gone": None})
    await azure.until(lambda: press.reported == {"turn": turn})

    await azure.until(lambda: azure.listens("press-1", DESIRED))
    azure.desire("press-1", {"x": turn})
    patch: dict[str, Any] = {}
    while patch.get("$version") != press.desired_version:
        patch |= (await device.received("desired"))["desired"]
    assert patch["x"] == turn
    twin = (await device.do("twin"))["twin"]
    assert twin["desired"] == press.document()["desired"]

    await azure.until(lambda: azure.listens("press-1", METHODS))
    call = asyncio.create_task(azure.invoke("press-1", "reboot", {"turn": turn}))
    called = await device.received("called")
    assert (called["called"], called["payload"]) == ("reboot", {"turn": turn})
    assert await call == (200, {"echo": {"turn": turn}})

    mid = azure.send("press-1", f"down {turn}".encode(), kind="open")
    received = await device.received()
    while received["received"] == f"down {turn - 1}":
        # Its PUBACK was under way when the hub stopped.
        received = await device.received()
    assert (received["received"], received["properties"]["kind"]) == (f"down {turn}", "open")
    await azure.until(lambda: mid in azure.completed)


async def begin(device: AzureClient) -> None:
    """Connect a device, and take all that comes down."""
    await device.do("connect")
    await device.do("listen")
    await device.do("follow")


def sdk(folder: Path, authority: Authority, port: int) -> Any:
    """Return the SDK as the device `press-1`, with the key that the IoT Hub knows."""
    return azure_client(
        ports={"8883": port},
        websockets=False,
        authority=str(authority.certificate),
        device="press-1",
        key=(folder / "press-1.key").read_text(),
    )


async def test_the_double_is_one_for_the_sdk(tmp_path: Path) -> None:
    """Without a hub in between: the SDK finds all that it uses of an IoT Hub."""
    authority = Authority(tmp_path)
    tls = server_tls(*authority.server(), authority.certificate)
    async with iot_hub(tls=tls) as azure:
        azure.enrol(tmp_path, "press-1")
        async with sdk(tmp_path, authority, azure.port) as device:
            await begin(device)
            await press_1_works(azure, device, 1)
            azure.cut()
            await press_1_works(azure, device, 2)
    assert azure.faults == []


class Site:
    """The hub of the device, and maybe one between it and the IoT Hub."""

    def __init__(self, folder: Path, azure: IotHub, authority: Authority, hubs: int) -> None:
        self.port = free_port()
        self._azure = azure
        self._hubs = hubs
        self._folder = folder
        azure.enrol(folder, "gw", "press-1")
        key = SharedAccessKey.parse((folder / "press-1.key").read_text())
        certificate, private = authority.server()
        with changing(folder / "identities") as entries:
            entries["press-1"] = Identity(id="press-1", keys=(key,))
        with changing(folder / "parent-identities") as entries:
            entries["child"] = Identity(id="child", keys=(CHILD_KEY,), on_behalf=("press-*",))
        (folder / "child.key").write_text(CHILD_KEY.to_text())
        self._mqtt = {
            "port": 0,
            "tls_port": self.port,
            "certificate_file": str(certificate),
            "key_file": str(private),
            "identities_file": str(folder / "identities"),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hubs for the length of the block."""
        link = self._azure.upstream(self._folder, sessions=True)
        async with AsyncExitStack() as stack:
            mqtt = self._mqtt
            if self._hubs > 1:
                port = free_port()
                mqtt = {"port": port, "identities_file": str(self._folder / "parent-identities")}
            top = running_hub(
                self._folder / "top", hub_id="gw", upstream=link, routes=ROUTES, mqtt=mqtt
            )
            await stack.enter_async_context(top)
            if self._hubs > 1:
                upstream = {
                    "type": "mqtt",
                    "host": "127.0.0.1",
                    "port": mqtt["port"],
                    "username": "child",
                    "shared_access_key_file": str(self._folder / "child.key"),
                    "twins": True,
                }
                child = running_hub(
                    self._folder / "child",
                    hub_id="child",
                    upstream=upstream,
                    routes=ROUTES,
                    mqtt=self._mqtt,
                )
                await stack.enter_async_context(child)
            yield


@pytest.mark.parametrize("hubs", [1, 2])
async def test_a_device_has_the_whole_cloud_behind_its_hub(tmp_path: Path, hubs: int) -> None:
    """Also after a restart of the hubs; what was reported in between is in the cloud then."""
    authority = Authority(tmp_path)
    async with iot_hub() as azure:
        site = Site(tmp_path, azure, authority, hubs)
        async with sdk(tmp_path, authority, site.port) as device:
            async with site.running():
                await begin(device)
                await press_1_works(azure, device, 1)
            azure.desire("press-1", {"meanwhile": json.dumps(hubs)})
            async with site.running():
                await press_1_works(azure, device, 2)
    assert azure.faults == []
