"""A manifest from above: desired properties of the gateway's own twin, at a whole hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_hub import running_hub, write_manifest
from tests.support.twin_client import twin_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

GOOD = {
    "schemaVersion": "1.1",
    "routes": {"alarms": {"route": "FROM /messages/* INTO $upstream", "priority": 1}},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 60},
}
OTHER = {**GOOD, "routes": {"bulk": "FROM /messages/* INTO $upstream"}}
BAD = {
    **GOOD,
    "routes": {
        "right": "FROM /messages/* INTO $upstream",
        "wrong": "FROM /messages/* WHERE level > 5 INTO $upstream",
        "nowhere": 'FROM /messages/* INTO Endpoint("archive")',
    },
}


async def desire(hub: BrokerHub, manifest: Any) -> None:
    """Set the manifest in the twin of the hub, None = remove it."""
    patch = {"properties": {"desired": {"edgeHub": None}}}
    await hub.call("twin set", device_id="gw", patch=patch)
    if manifest is not None:
        patch = {"properties": {"desired": {"edgeHub": manifest}}}
        await hub.call("twin set", device_id="gw", patch=patch)


async def routes(hub: BrokerHub) -> list[str]:
    """Return the names of the routes in force."""
    return [route["name"] for route in (await hub.call("manifest show"))["routes"]]


async def reported(hub: BrokerHub, version: int) -> dict[str, Any]:
    """Return what the hub reports, once it is about a version."""
    found: dict[str, Any] = {}
    while found.get("lastDesiredVersion") != version:
        shown = await hub.call("twin show", device_id="gw")
        found = shown["properties"]["reported"].get("edgeHub", {})
    return found


async def version(hub: BrokerHub) -> int:
    """Return the version of the desired properties."""
    shown = await hub.call("twin show", device_id="gw")
    return int(shown["properties"]["desired"]["$version"])


async def test_a_manifest_is_applied_and_outlives_a_restart(tmp_path: Path) -> None:
    """Routes, priorities and times to live change; without a manifest the hub's own is back."""
    none = {"manifest": None}
    async with running_hub(tmp_path, **none) as hub:
        assert await routes(hub) == ["upstream"]
        await desire(hub, GOOD)
        assert (await reported(hub, await version(hub)))["lastDesiredStatus"]["code"] == 200
        assert await routes(hub) == ["alarms"]
    async with running_hub(tmp_path, **none) as hub:
        assert await routes(hub) == ["alarms"]
        status = hub.hub.status()["upstream_manifest"]
        assert status == {
            "source": "twin of gw",
            "desired": True,
            "applied_version": 3,
            "refused": None,
        }
        async with twin_client(hub.mqtt_port, "d1") as client:
            client.client.publish("devices/d1/messages/events/", b"x")
            await client.client.codes(1)
        assert hub.depth("upstream_Pri1") == 1
        await desire(hub, OTHER)
        await reported(hub, await version(hub))
        assert await routes(hub) == ["bulk"]
        await desire(hub, None)
        await reported(hub, await version(hub))
        assert await routes(hub) == ["upstream"]
    async with running_hub(tmp_path, **none) as hub:
        assert await routes(hub) == ["upstream"]


async def test_a_bad_manifest_changes_nothing(tmp_path: Path) -> None:
    """Every fault is reported with route and place; the last good one is in force, also later."""
    none = {"manifest": None}
    async with running_hub(tmp_path, **none) as hub:
        await desire(hub, GOOD)
        await reported(hub, await version(hub))
        patch = {"properties": {"desired": {"edgeHub": BAD}}}
        await hub.call("twin set", device_id="gw", patch=patch)
        found = await reported(hub, await version(hub))
        assert found["lastDesiredStatus"]["code"] == 400
        assert {fault["route"] for fault in found["faults"]} == {"wrong", "nowhere"}
        [wrong] = [fault for fault in found["faults"] if fault["route"] == "wrong"]
        assert (wrong["line"], wrong["column"]) == (1, 30)
        assert await routes(hub) == ["alarms"]
        assert any("is refused" in warning for warning in hub.hub.status()["warnings"])
    async with running_hub(tmp_path, **none) as hub:
        assert await routes(hub) == ["alarms"]
        await reported(hub, await version(hub))
        assert await routes(hub) == ["alarms"]


async def test_a_file_of_the_settings_is_not_overruled(tmp_path: Path) -> None:
    """The twin's manifest is refused with the reason, and its file stays in force."""
    file = {"mine": "FROM /messages/* INTO $upstream"}
    async with running_hub(tmp_path, routes=file) as hub:
        await desire(hub, GOOD)
        found = await reported(hub, await version(hub))
        assert found["lastDesiredStatus"]["code"] == 400
        assert str(write_manifest(tmp_path, file)) in found["lastDesiredStatus"]["description"]
        assert await routes(hub) == ["mine"]
        await desire(hub, None)
        assert (await reported(hub, await version(hub)))["lastDesiredStatus"]["code"] == 200
