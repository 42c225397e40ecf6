"""Twins and methods of devices behind a child hub, with a parent hub as the cloud."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.clock import SystemClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.broker_hub import running_hub
from tests.support.ports import free_port
from tests.support.twin_client import twin_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

OK, DONE = 200, 204


class TrustedClock(SystemClock):
    """The clock of a machine that is synchronised, whether or not this one is."""

    def synchronized(self) -> bool:
        """Return that it is."""
        return True


class Family:
    """A parent hub and a child hub; each can be stopped and started again."""

    def __init__(self, folder: Path, child: str = "child") -> None:
        self._folder = folder
        self._port = free_port()
        identities = folder / "identities"
        with changing(identities) as entries:
            for name in (child, "other"):
                entries[name] = Identity(
                    id=name, password=PasswordHash.of(b"secret"), on_behalf=("leaf-*",)
                )
        self._identities = str(identities)
        password = folder / "password"
        password.write_text("secret")
        password.chmod(0o600)
        self._upstream = {
            "type": "mqtt",
            "host": "127.0.0.1",
            "port": self._port,
            "username": child,
            "password_file": str(password),
            "twins": True,
        }

    @contextlib.asynccontextmanager
    async def parent(self) -> AsyncIterator[BrokerHub]:
        """Run the parent."""
        mqtt = {"port": self._port, "identities_file": self._identities}
        folder = self._folder / "parent"
        async with running_hub(folder, hub_id="parent", mqtt=mqtt, clock=TrustedClock()) as hub:
            yield hub

    @contextlib.asynccontextmanager
    async def child(
        self, name: str = "child", *, linked: bool = True, **more: Any
    ) -> AsyncIterator[BrokerHub]:
        """Run the child, or another one, and wait until it is linked to the parent."""
        (self._folder / name).mkdir(exist_ok=True)
        upstream = self._upstream if name == "child" else {**self._upstream, "username": name}
        more |= {"upstream": upstream, "clock": TrustedClock()}
        async with running_hub(self._folder / name, hub_id=name, **more) as hub:
            if linked:
                await hub.until(lambda: twins(hub)["synchronised"])
            yield hub


def twins(hub: BrokerHub) -> dict[str, Any]:
    """Return what a hub says of its twins."""
    return dict(hub.hub.status()["twins"])


@pytest.fixture
def family(tmp_path: Path) -> Family:
    """Return a parent and a child that do not run yet."""
    (tmp_path / "parent").mkdir()
    return Family(tmp_path)


async def reported(hub: BrokerHub, device_id: str) -> dict[str, Any]:
    """Return the reported properties of a twin without the version."""
    shown = await hub.call("twin show", device_id=device_id)
    section = dict(shown["properties"]["reported"])
    del section["$version"]
    return section


async def desire(hub: BrokerHub, device_id: str, desired: dict[str, Any]) -> None:
    """Change what is desired of a device."""
    await hub.call("twin set", device_id=device_id, patch={"properties": {"desired": desired}})


async def test_reports_go_up_and_desired_properties_come_down(family: Family) -> None:
    """While both are linked, each change is seen at the other end."""
    async with (
        family.parent() as parent,
        family.child() as child,
        twin_client(child.mqtt_port, "leaf-1") as client,
    ):
        assert (await client.report({"a": {"b": 1}})).status == DONE
        await child.until(lambda: not twins(child)["unsent"])
        assert await reported(parent, "leaf-1") == {"a": {"b": 1}}
        await desire(parent, "leaf-1", {"x": 1})
        assert await client.desired() == ("$iothub/", 2, {"x": 1})
        with pytest.raises(CommandError, match="set at the peer upstream"):
            await desire(child, "leaf-1", {"x": 2})
        await desire(parent, "leaf-1", {"x": None})
        assert await client.desired() == ("$iothub/", 3, {"x": None})


async def test_a_link_that_was_down_is_caught_up_with(family: Family) -> None:
    """Reports are merged and kept, desired properties read again; both outlive a restart."""
    async with family.parent() as parent:
        async with family.child() as child, twin_client(child.mqtt_port, "leaf-1") as client:
            await client.report({"a": 1, "gone": 1})
            await child.until(lambda: not twins(child)["unsent"])
        await desire(parent, "leaf-1", {"x": 1})
    async with (
        family.child(linked=False) as child,
        twin_client(child.mqtt_port, "leaf-1") as client,
    ):
        assert (await client.get()).body["desired"] == {"$version": 1}
        for number in range(5):
            await client.report({"a": number, "gone": None, "list": [number]})
        assert twins(child)["unsent"] == 1
    async with family.parent() as parent:
        await desire(parent, "leaf-1", {"y": 2})
        async with family.child() as child:
            await child.until(lambda: not twins(child)["unsent"])
            assert await reported(parent, "leaf-1") == {"a": 4, "list": [4]}
            async with twin_client(child.mqtt_port, "leaf-1") as client:
                assert (await client.get()).body["desired"] == {"x": 1, "y": 2, "$version": 3}


async def test_the_parent_is_asked_when_a_client_reads(family: Family) -> None:
    """A twin that the child has never seen is that of the parent."""
    async with family.parent() as parent:
        async with twin_client(parent.mqtt_port, "leaf-2") as client:
            await client.report({"from": "there"})
        await desire(parent, "leaf-2", {"x": 1})
        async with family.child() as child, twin_client(child.mqtt_port, "leaf-2") as client:
            document = (await client.get()).body
            assert document["desired"] == {"x": 1, "$version": 2}
            assert document["reported"]["from"] == "there"


async def test_a_missed_version_is_read_in_full(family: Family) -> None:
    """A change whose predecessor did not arrive is not applied on top of a gap."""
    async with (
        family.parent() as parent,
        family.child() as child,
        twin_client(child.mqtt_port, "leaf-1") as client,
    ):
        await client.get()
        await desire(parent, "leaf-1", {"x": 1})
        assert (await client.desired()).version == 2
    async with family.child(linked=False), family.parent() as parent:
        pass
    async with family.parent() as parent:
        await desire(parent, "leaf-1", {"y": 1})
        async with family.child() as child, twin_client(child.mqtt_port, "leaf-1") as client:
            await desire(parent, "leaf-1", {"z": 1})
            merged: dict[str, Any] = {}
            while merged.get("version") != 4:
                change = await client.desired()
                merged |= {**change.patch, "version": change.version}
            assert merged == {"y": 1, "z": 1, "version": 4}


async def test_a_device_that_moves_between_hubs_is_one_twin(tmp_path: Path) -> None:
    """What it reported at the other hub is there when it is back, though nothing was desired."""
    (tmp_path / "parent").mkdir()
    family = Family(tmp_path)
    async with (
        family.parent() as parent,
        family.child() as first,
        family.child("other") as second,
    ):
        for number, hub in enumerate((first, second, first, second, first)):
            async with twin_client(hub.mqtt_port, "leaf-1") as client:
                body = (await client.get()).body
                assert body["reported"].get("n", -1) == number - 1
                await client.report({"n": number})
                await hub.until(lambda hub=hub: not twins(hub)["unsent"])
        assert await reported(parent, "leaf-1") == {"n": 4}


async def test_a_device_that_moves_during_an_outage_is_one_twin(family: Family) -> None:
    """What it reported straight to the parent is there when its hub is back."""
    async with family.parent() as parent:
        async with family.child() as child, twin_client(child.mqtt_port, "leaf-1") as client:
            await client.report({"a": 1})
            await child.until(lambda: not twins(child)["unsent"])
        async with twin_client(parent.mqtt_port, "leaf-1") as client:
            await client.report({"a": 2, "b": 2})
        async with family.child() as child, twin_client(child.mqtt_port, "leaf-1") as client:
            assert (await client.get()).body["reported"] == {"a": 2, "b": 2, "$version": 3}


@pytest.mark.parametrize("moves_on", [True, False])
async def test_what_a_device_reported_last_stays(family: Family, *, moves_on: bool) -> None:
    """A report that waited at a hub without uplink replaces older ones of a property alone."""

    async def report(hub: BrokerHub, patch: dict[str, Any]) -> None:
        async with twin_client(hub.mqtt_port, "leaf-1") as client:
            assert (await client.report(patch)).status == DONE

    async with family.parent() as parent:
        async with family.child() as child:
            await report(child, {"a": 1, "b": 1})
            await child.until(lambda: not twins(child)["unsent"])
        if not moves_on:
            await report(parent, {"a": 3})
    async with family.child(linked=False) as child:
        await report(child, {"a": 2, "b": 2})
    async with family.parent() as parent:
        if moves_on:
            await report(parent, {"a": 3})
        async with family.child() as child:
            await child.until(lambda: not twins(child)["unsent"])
            last = {"a": 3 if moves_on else 2, "b": 2}
            assert await reported(parent, "leaf-1") == last
            assert await reported(child, "leaf-1") == last


async def test_devices_may_have_sessions_of_their_own_at_a_parent(tmp_path: Path) -> None:
    """Twins and methods go over them as over the one of a hub."""
    for name in ("parent", "child"):
        (tmp_path / name).mkdir()
    async with running_hub(tmp_path / "parent", hub_id="parent") as parent:
        upstream = {
            "type": "mqtt",
            "host": "127.0.0.1",
            "port": parent.mqtt_port,
            "identity": "device",
            "twins": True,
        }
        async with (
            running_hub(tmp_path / "child", hub_id="child", upstream=upstream) as child,
            twin_client(child.mqtt_port, "leaf-1") as client,
        ):
            await child.until(lambda: twins(child)["synchronised"])
            assert (await client.report({"a": 1})).status == DONE
            await child.until(lambda: not twins(child)["unsent"])
            assert await reported(parent, "leaf-1") == {"a": 1}
            await desire(parent, "leaf-1", {"x": 1})
            assert await client.desired() == ("$iothub/", 2, {"x": 1})
            call = {"methodName": "reboot", "connectTimeoutInSeconds": 10}
            task = asyncio.create_task(parent.call("method invoke", device_id="leaf-1", call=call))
            client.respond(await client.call(), 200)
            assert (await task)["status"] == OK


async def test_a_client_of_another_name_stays_with_its_hub(family: Family) -> None:
    """What the child may not speak for is served by it, and never reaches the parent."""
    async with (
        family.parent() as parent,
        family.child() as child,
        twin_client(child.mqtt_port, "other-1") as client,
    ):
        assert (await client.report({"a": 1})).status == DONE
        assert (await client.get()).body["reported"] == {"a": 1, "$version": 2}
        listed = await parent.call("twin list")
        assert "other-1" not in str(listed)


async def test_methods_are_called_through_the_child(family: Family) -> None:
    """The answer comes back to the caller; without one the problem is that of a call there."""
    call = {"methodName": "reboot", "payload": {"in_s": 1}}

    def calling(parent: BrokerHub, device_id: str) -> asyncio.Task[Any]:
        return asyncio.create_task(parent.call("method invoke", device_id=device_id, call=call))

    async with family.parent() as parent, family.child() as child:
        async with twin_client(child.mqtt_port, "leaf-1") as client:
            task = calling(parent, "leaf-1")
            received = await client.call()
            assert (received.name, received.payload) == ("reboot", {"in_s": 1})
            client.respond(received, 202, ["yes"])
            assert await task == {"status": 202, "payload": ["yes"]}
            task = calling(parent, "leaf-1")
            client.respond(await client.call(), 404, "no such method")
            assert await task == {"status": 404, "payload": "no such method"}
            task = calling(parent, "leaf-1")
            await client.call()
        with pytest.raises(CommandError, match="leaf-1 disconnected") as caught:
            await task
        assert caught.value.problem["status"] == 504
        with pytest.raises(CommandError, match="leaf-9 is not connected") as caught:
            await calling(parent, "leaf-9")
        assert caught.value.problem["status"] == 404


async def test_the_child_has_a_twin_of_its_own(family: Family) -> None:
    """Under its own id, which it needs no pattern for."""
    async with family.parent() as parent, family.child() as child:
        await desire(parent, "child", {"x": 1})
        async with twin_client(child.mqtt_port, "leaf-1") as client:
            await client.get()
        await child.until(lambda: twins(child)["count"] >= 1)
        shown = await child.call("twin show", device_id="child")
        assert shown["properties"]["desired"] == {"x": 1, "$version": 2}


@pytest.mark.parametrize("child_id", ["child", "child/$edgeHub"])
async def test_the_parent_sets_the_manifest_of_the_child(tmp_path: Path, child_id: str) -> None:
    """It comes down in the child's own twin, and the outcome goes up in it."""
    (tmp_path / "parent").mkdir()
    family = Family(tmp_path, child_id)
    routes = {"fine": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream"}
    store = {"timeToLiveSecs": 60}
    manifest = {"schemaVersion": "1.1", "routes": routes, "storeAndForwardConfiguration": store}
    device_id, _, module_id = child_id.partition("/")
    whose = {"device_id": device_id, "module_id": module_id or None}
    desired = manifest if module_id else {"edgeHub": manifest}
    async with family.parent() as parent, family.child(manifest=None) as child:
        await parent.call("twin set", **whose, patch={"properties": {"desired": desired}})
        found: dict[str, Any] = {}
        while "lastDesiredStatus" not in found:
            shown = await parent.call("twin show", **whose)
            section = shown["properties"]["reported"]
            found = section if module_id else section.get("edgeHub", {})
        assert found["lastDesiredStatus"] == {"code": 200, "description": ""}
        assert found["lastDesiredVersion"] == 2
        in_force = (await child.call("manifest show"))["routes"]
        assert [route["name"] for route in in_force] == ["fine"]
