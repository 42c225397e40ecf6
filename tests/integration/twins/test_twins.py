"""Twins of devices and modules at a whole hub: requests of clients and operators."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import mqtt5
import pytest

from edgehub.cli.refusal import CommandError
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.request_queue import RequestKind
from edgehub.hub.devices import DevicesPart
from tests.support.broker_hub import running_hub
from tests.support.mqtt5_client import AT_MOST_ONCE, Client5
from tests.support.twin_client import OF_CLIENTS, OWN, Call, twin_client

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

ROUTES = {"twins": "FROM /twinChangeNotifications/* INTO $upstream"}
HASH = PasswordHash.of(b"secret")
SIGNED = {"password": b"secret"}
OK, DONE, BAD_REQUEST, TOO_LARGE, THROTTLED = 200, 204, 400, 413, 429
NOT_AUTHORIZED = 0x87
INVALID_FILTER = 0x8F


def identities(tmp_path: Path) -> dict[str, Any]:
    """Write identities of two devices and of a hub that speaks for one of them."""
    path = tmp_path / "identities"
    with changing(path) as entries:
        for identity_id, on_behalf in (("d1", ()), ("d2", ()), ("child", ("leaf-*",))):
            entries[identity_id] = Identity(id=identity_id, password=HASH, on_behalf=on_behalf)
    return {"port": 0, "identities_file": str(path)}


def patch_of(desired: dict[str, Any], **tags: Any) -> dict[str, Any]:
    """Return a patch as the service API takes it."""
    return {"properties": {"desired": desired}, "tags": tags}


@pytest.mark.parametrize("client_id", ["d1", "d1/m1"])
async def test_a_client_reads_and_reports(tmp_path: Path, client_id: str) -> None:
    """A report is merged, null removes, the version rises; all of it outlives a restart."""
    async with (
        running_hub(tmp_path, routes=ROUTES) as hub,
        twin_client(hub.mqtt_port, client_id) as client,
    ):
        empty = {"desired": {"$version": 1}, "reported": {"$version": 1}}
        assert await client.get() == (OK, empty, None)
        assert await client.report({"a": {"b": 1, "c": 2}, "d": 3}) == (DONE, None, 2)
        assert await client.report({"a": {"b": None}, "d": None}) == (DONE, None, 3)
        assert (await client.get()).body["reported"] == {"a": {"c": 2}, "$version": 3}
    async with (
        running_hub(tmp_path, routes=ROUTES) as hub,
        twin_client(hub.mqtt_port, client_id) as client,
    ):
        assert (await client.get()).body["reported"] == {"a": {"c": 2}, "$version": 3}


async def test_a_report_is_routed_as_a_notification(tmp_path: Path) -> None:
    """Edge Hub's form: a message of the hub that names the sender, with the patch as its body."""
    async with running_hub(tmp_path, routes=ROUTES) as hub:
        async with twin_client(hub.mqtt_port, "d1/m1") as client:
            await client.report({"a": 1})
        [row] = await hub.rows()
    assert json.loads(row["body"]) == {"a": 1}
    assert (row["device"], row["module"]) == ("gw", None)
    assert row["properties"] == {
        "iothub-message-schema": "twinChangeNotification",
        "rpSenderDeviceId": "d1",
        "rpSenderModuleId": "m1",
    }


async def test_conditions_see_what_was_reported(tmp_path: Path) -> None:
    """Schema and body of a notification can be asked for in a route."""
    routes = {
        "hot": "FROM /twinChangeNotifications/* WHERE $messageSchema = 'twinChangeNotification'"
        " AND $body.temperature > 50 INTO $upstream"
    }
    async with running_hub(tmp_path, routes=routes) as hub:
        async with twin_client(hub.mqtt_port, "d1") as client:
            for degrees in (20, 60):
                await client.report({"temperature": degrees})
        assert [json.loads(row["body"]) for row in await hub.rows()] == [{"temperature": 60}]
        assert hub.hub.status()["unrouted"] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", BAD_REQUEST),
        (b"[1]", BAD_REQUEST),
        (b'{"a.b": 1}', BAD_REQUEST),
        (json.dumps({str(n): "x" * 4096 for n in range(8)}).encode(), TOO_LARGE),
        (b" " * 200_000, TOO_LARGE),
    ],
)
async def test_a_bad_report_is_refused_and_changes_nothing(
    tmp_path: Path, body: bytes, status: int
) -> None:
    """The answer has IoT Hub's status and says what is wrong."""
    async with running_hub(tmp_path, routes=ROUTES) as hub:
        async with twin_client(hub.mqtt_port, "d1") as client:
            await client.report({"kept": 1})
            answer = await client.report(body)
            assert (answer.status, answer.body["errorCode"]) == (status, status)
            assert answer.body["message"]
            assert (await client.get()).body["reported"] == {"kept": 1, "$version": 2}
        assert len(await hub.rows()) == 1


async def test_a_client_without_room_is_throttled(tmp_path: Path) -> None:
    """All twins have one bound; an operator is warned."""
    small = {"port": 0, "twins_bytes_max": 65_536}
    async with running_hub(tmp_path, mqtt=small) as hub:
        for name in ("d1", "d2", "d3"):
            async with twin_client(hub.mqtt_port, name) as client:
                statuses = [
                    (await client.report({str(number): "x" * 4096})).status for number in range(7)
                ]
        assert statuses == [DONE] * statuses.count(DONE) + [THROTTLED] * statuses.count(THROTTLED)
        assert THROTTLED in statuses
        assert any("bytes of twins" in warning for warning in hub.hub.status()["warnings"])


async def test_an_operator_changes_what_is_desired(tmp_path: Path) -> None:
    """A connected client gets the patch with its version; an absent one reads it later."""
    async with running_hub(tmp_path) as hub:
        async with twin_client(hub.mqtt_port, "d1") as client:
            await hub.call("twin set", device_id="d1", patch=patch_of({"a": 1, "b": 2}, site="n"))
            assert await client.desired() == ("$iothub/", 2, {"a": 1, "b": 2})
            shown = await hub.call("twin set", device_id="d1", patch=patch_of({"b": None}))
            assert await client.desired() == ("$iothub/", 3, {"b": None})
        assert shown["properties"]["desired"] == {"a": 1, "$version": 3}
        assert shown["tags"] == {"site": "n"}
        await hub.call("twin set", device_id="d1", patch=patch_of({"c": 3}))
        async with twin_client(hub.mqtt_port, "d1") as client:
            document = (await client.get()).body
            assert document["desired"] == {"a": 1, "c": 3, "$version": 4}
            assert "site" not in json.dumps(document)
        listed = await hub.call("twin list")
        assert [row["client_id"] for row in listed["twins"]] == ["d1"]
        assert await hub.call("twin remove", device_id="d1") == {"client_id": "d1", "removed": True}
        assert (await hub.call("twin list"))["twins"] == []


async def test_operators_are_told_what_is_wrong(tmp_path: Path) -> None:
    """No such client, a malformed patch, a value beyond the limits: each is said."""
    async with running_hub(tmp_path) as hub:
        async with twin_client(hub.mqtt_port, "d1"):
            for arguments, said in (
                ({"device_id": "nobody", "patch": {}}, "no client nobody"),
                ({"device_id": "d1/m1", "patch": {}}, "`device_id`: 'd1/m1' is no id"),
                ({"device_id": "d1", "patch": {"desired": {}}}, "want"),
                ({"device_id": "d1", "patch": patch_of({"a b": 1})}, "' ' in a name"),
                ({"device_id": "d1", "patch": patch_of({}, big=["x" * 4000] * 3)}, "tags would"),
            ):
                with pytest.raises(CommandError, match=said):
                    await hub.call("twin set", **arguments)
        assert (await hub.call("twin list"))["twins"] == []


async def test_a_client_reaches_its_own_twin_alone(tmp_path: Path) -> None:
    """Only the identity that may speak for a client reads and changes its twin."""
    async with running_hub(tmp_path, mqtt=identities(tmp_path)) as hub:
        async with twin_client(hub.mqtt_port, "d1", **SIGNED) as client:
            for prefix in ("$edge/clients/d2/", "$edge/clients/leaf-1/", "$edge/clients/../d2/"):
                for path in ("twin/GET", "twin/PATCH/properties/reported"):
                    client.client.publish(f"{prefix}{path}/?$rid=1", b'{"stolen":1}')
                    [(_, code)] = await client.client.codes(1)
                    assert code in {NOT_AUTHORIZED, 0x90}
            assert await client.client.subscribe(*OF_CLIENTS) == [1]
            await hub.call("twin set", device_id="d2", patch=patch_of({"secret": 1}))
            # Nothing of the other's comes before this answer.
            assert (await client.report({"mine": 1})).status == DONE
        shown = await hub.call("twin show", device_id="d2")
        assert shown["properties"]["reported"] == {"$version": 1}
        assert [row["client_id"] for row in (await hub.call("twin list"))["twins"]] == ["d1", "d2"]


async def test_a_hub_asks_for_those_behind_it(tmp_path: Path) -> None:
    """On its own topics, answered and notified there; others on the listener get none of it."""
    prefix = "$edge/clients/leaf-1/m/"
    async with (
        running_hub(tmp_path, mqtt=identities(tmp_path)) as hub,
        twin_client(hub.mqtt_port, "child", filters=OF_CLIENTS, **SIGNED) as child,
        twin_client(hub.mqtt_port, "d2", **SIGNED) as other,
    ):
        # Presence of clients is on topics below the same root, and is no twin.
        assert await other.client.subscribe("$edge/#") == [1]
        while not (await other.message()).topic.startswith("$edge/clients/d2/"):
            pass
        assert (await child.report({"a": 1}, prefix)).status == DONE
        assert (await child.get(prefix)).body["reported"] == {"a": 1, "$version": 2}
        patch = patch_of({"x": 1})
        await hub.call("twin set", device_id="leaf-1", module_id="m", patch=patch)
        assert await child.desired() == (prefix, 2, {"x": 1})
        await other.client.pong()
        assert (await other.get()).body["desired"] == {"$version": 1}


@pytest.mark.parametrize(
    "topic_filter",
    ["$iothub/twin/GET/#", "$iothub/x/#", "$share/g/$iothub/twin/res/#"],
)
async def test_other_filters_are_refused(tmp_path: Path, topic_filter: str) -> None:
    """What takes nothing that is sent to clients is said to be wrong."""
    async with running_hub(tmp_path) as hub:
        client = await Client5.signed_in(hub.mqtt_port, "d1")
        assert await client.subscribe(topic_filter) == [INVALID_FILTER]
        await client.close()


async def test_subscriptions_of_a_stored_session_go_on(tmp_path: Path) -> None:
    """A client that comes back to its session need not subscribe again."""
    kept = {"clean_start": False, "session_expiry_interval": 3600}
    async with running_hub(tmp_path) as hub, twin_client(hub.mqtt_port, "d1", **kept):
        pass
    async with (
        running_hub(tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1", filters=OWN[:1], **kept) as client,
    ):
        await hub.call("twin set", device_id="d1", patch=patch_of({"a": 1}))
        assert (await client.desired()).patch == {"a": 1}
        client.client.send(mqtt5.UnsubscribePacket(9, [OWN[1]]))
        await client.client.read(mqtt5.UnsubAckPacket)
        await hub.call("twin set", device_id="d1", patch=patch_of({"a": 2}))
        assert (await client.get()).body["desired"] == {"a": 2, "$version": 3}


async def test_a_request_without_an_id_has_no_answer(tmp_path: Path) -> None:
    """It is carried out all the same, as by IoT Hub."""
    async with running_hub(tmp_path) as hub, twin_client(hub.mqtt_port, "d1") as client:
        topic = "$iothub/twin/PATCH/properties/reported/"
        client.client.publish(topic, b'{"a":1}', qos=AT_MOST_ONCE)
        assert (await client.get()).body["reported"] == {"a": 1, "$version": 2}
        client.client.publish(f"{topic}?$rid=7", b'{"a":2}')
        found = {type(await client.client.read_any()).__name__ for _ in range(2)}
        assert found == {"PubAckPacket", "PublishPacket"}


async def test_many_changes_of_many_clients_keep_their_order(tmp_path: Path) -> None:
    """Each client's answers have rising versions, and its last value is what is stored."""
    async with running_hub(tmp_path, routes=ROUTES) as hub:

        async def report(name: str) -> None:
            async with twin_client(hub.mqtt_port, name) as client:
                versions = [(await client.report({"n": n})).version for n in range(10)]
                assert versions == list(range(2, 12))

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(report(f"d{number}"))
        for number in range(5):
            shown = await hub.call("twin show", device_id=f"d{number}")
            assert shown["properties"]["reported"] == {"n": 9, "$version": 11}
        assert len(await hub.rows(limit=100)) == 50


async def test_requests_have_their_turn_in_the_queue_of_the_device(tmp_path: Path) -> None:
    """What runs for a device holds up its twin and its methods, and no others."""
    async with (
        running_hub(tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
        twin_client(hub.mqtt_port, "d2") as other,
    ):
        [devices] = [part for part in hub.hub.parts if isinstance(part, DevicesPart)]
        queue = devices.queues.of("d1")
        over = asyncio.Event()
        running = asyncio.create_task(queue.run(RequestKind.REFRESH, over.wait))
        topic = "$iothub/twin/PATCH/properties/reported/?$rid=1"
        client.client.publish(topic, b'{"a":1}', qos=AT_MOST_ONCE)
        await hub.until(lambda: queue.statistics().waiting == (RequestKind.TWIN_PATCH,))
        call = {"methodName": "reboot"}
        called = asyncio.create_task(hub.call("method invoke", device_id="d1", call=call))
        await hub.until(lambda: queue.statistics().waiting[1:] == (RequestKind.METHOD,))
        assert (await other.report({"b": 1})).status == DONE
        shown = await hub.call("twin show", device_id="d1")
        assert shown["properties"]["reported"] == {"$version": 1}
        over.set()
        await running
        found = {}
        for _ in range(2):
            message = await client.message()
            found[message.topic.split("/")[1]] = message.topic
        assert found["twin"] == "$iothub/twin/res/204/?$rid=1&$version=2"
        client.respond(Call("$iothub/", "reboot", found["methods"].rpartition("=")[2], None), 200)
        assert (await called)["status"] == 200
