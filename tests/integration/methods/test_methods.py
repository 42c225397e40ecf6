"""Direct methods at a whole hub: calls of operators, answers of devices, modules and hubs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.broker_hub import running_hub
from tests.support.twin_client import OF_CLIENTS, twin_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

HASH = PasswordHash.of(b"secret")
SIGNED = {"password": b"secret"}


def calling(hub: BrokerHub, device_id: str, name: str = "reboot", **given: Any) -> Any:
    """Begin a call of a method."""
    module_id = given.pop("module_id", None)
    call = {"methodName": name, **given}
    return asyncio.create_task(
        hub.call("method invoke", device_id=device_id, module_id=module_id, call=call)
    )


@pytest.mark.parametrize("module_id", [None, "m1"])
async def test_a_method_is_called_and_answers(tmp_path: Path, module_id: str | None) -> None:
    """Name and payload reach the client, its status and payload the caller."""
    client_id = "d1" if module_id is None else f"d1/{module_id}"
    async with running_hub(tmp_path) as hub, twin_client(hub.mqtt_port, client_id) as client:
        task = calling(hub, "d1", payload={"in_s": 5}, module_id=module_id)
        call = await client.call()
        assert (call.prefix, call.name, call.payload) == ("$iothub/", "reboot", {"in_s": 5})
        client.respond(call, 207, {"done": True})
        assert await task == {"status": 207, "payload": {"done": True}}
        assert hub.hub.status()["methods"] == {"open": 0, "calls_total": 1, "failed_total": 0}


async def test_a_client_that_is_not_connected_is_not_found(tmp_path: Path) -> None:
    """Without a connect time-out at once, else after it; one that connects in time is called."""
    async with running_hub(tmp_path) as hub:
        with pytest.raises(CommandError, match="not connected") as caught:
            await calling(hub, "d1")
        assert caught.value.problem["status"] == 404
        task = calling(hub, "d1", connectTimeoutInSeconds=60)
        async with twin_client(hub.mqtt_port, "d2"), twin_client(hub.mqtt_port, "d1") as client:
            client.respond(await client.call(), 200)
            assert (await task)["status"] == 200
        with pytest.raises(CommandError, match="not connected"):
            await calling(hub, "d1", connectTimeoutInSeconds=0.1)


async def test_a_client_that_leaves_does_not_answer(tmp_path: Path) -> None:
    """The caller knows at once, and that the call may have been carried out."""
    async with running_hub(tmp_path) as hub:
        async with twin_client(hub.mqtt_port, "d1") as client:
            task = calling(hub, "d1")
            await client.call()
        with pytest.raises(CommandError, match="disconnected") as caught:
            await task
    assert caught.value.problem["status"] == 504


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ([], "object"),
        ({}, "methodName"),
        ({"methodName": "a/b"}, "methodName"),
        ({"methodName": "x" * 101}, "methodName"),
        ({"methodName": "a", "name": "b"}, "'name' is none of"),
        ({"methodName": "a", "responseTimeoutInSeconds": 4}, "from 5 to 300"),
        ({"methodName": "a", "connectTimeoutInSeconds": True}, "from 0 to 300"),
        ({"methodName": "a", "payload": "x" * 131_071}, "128 KiB"),
    ],
)
async def test_a_call_that_breaks_a_limit_is_refused(tmp_path: Path, call: Any, said: str) -> None:
    """The limits are those of IoT Hub; nothing is sent."""
    async with running_hub(tmp_path) as hub, twin_client(hub.mqtt_port, "d1") as client:
        with pytest.raises(CommandError, match=said):
            await hub.call("method invoke", device_id="d1", call=call)
        assert (await client.get()).status == 200


async def test_only_the_called_client_answers(tmp_path: Path) -> None:
    """An answer of another client, or with another id, is none."""
    async with (
        running_hub(tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
        twin_client(hub.mqtt_port, "d2") as other,
    ):
        task = calling(hub, "d1")
        call = await client.call()
        other.respond(call, 200, "forged")
        await other.get()
        client.respond(call._replace(request_id="nothing"), 200, "late")
        client.respond(call, "no-number")
        with pytest.raises(CommandError, match="no-number"):
            await task


async def test_a_hub_is_called_for_those_behind_it(tmp_path: Path) -> None:
    """The hub that spoke for a client last is first; one that does not know it is passed over."""
    path = tmp_path / "identities"
    with changing(path) as entries:
        for name in ("north", "south"):
            entries[name] = Identity(id=name, password=HASH, on_behalf=("leaf-*",))
        entries["other"] = Identity(id="other", password=HASH, on_behalf=("x-*",))
    mqtt = {"port": 0, "identities_file": str(path)}
    prefix = "$edge/clients/leaf-1/"
    async with (
        running_hub(tmp_path, mqtt=mqtt) as hub,
        twin_client(hub.mqtt_port, "other", filters=OF_CLIENTS, **SIGNED) as other,
        twin_client(hub.mqtt_port, "north", filters=OF_CLIENTS, **SIGNED) as north,
        twin_client(hub.mqtt_port, "south", filters=OF_CLIENTS, **SIGNED) as south,
    ):
        task = calling(hub, "leaf-1")
        north.respond(await north.call(), 404)
        call = await south.call()
        assert call.prefix == prefix
        other.respond(call, 200, "forged")
        south.respond(call, 200, "here")
        assert await task == {"status": 200, "payload": "here"}
        await south.get(prefix)
        task = calling(hub, "leaf-1")
        south.respond(await south.call(), 201)
        assert (await task)["status"] == 201
        task = calling(hub, "leaf-1")
        for each in (south, north):
            each.respond(await each.call(), 404, {"message": "not here"})
        assert await task == {"status": 404, "payload": {"message": "not here"}}
