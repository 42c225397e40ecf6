"""A whole hub below Azure IoT Hub: its own session, and one for each device."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.endpoints.device_session import LASTED_S
from tests.support.broker_hub import running_hub
from tests.support.certificates import Authority
from tests.support.iot_hub import DESIRED, METHODS, NAME, IotHub, iot_hub, server_tls
from tests.support.quick_clock import QuickClock
from tests.support.twin_client import twin_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

OK, DONE = 200, 204


@pytest.fixture
async def azure(tmp_path: Path) -> AsyncIterator[IotHub]:
    """Return an IoT Hub with the gateway and two devices; keys are in files of their names."""
    async with iot_hub() as hub:
        hub.enrol(tmp_path, "gw", "d1", "d2")
        yield hub
        assert hub.faults == []


@asynccontextmanager
async def with_sessions(azure: IotHub, folder: Path, **more: Any) -> AsyncIterator[BrokerHub]:
    """Run a hub at which each device has its own session."""
    link = azure.upstream(folder, sessions=True)
    routes = {"all": "FROM /messages/* INTO $upstream"}
    async with running_hub(folder, upstream=link, routes=routes, **more) as hub:
        await hub.until(lambda: twins(hub)["synchronised"])
        yield hub


def twins(hub: BrokerHub) -> dict[str, Any]:
    """Return what a hub says of its twins."""
    return dict(hub.hub.status()["twins"])


async def test_the_twin_of_a_device_goes_over_its_own_session(
    tmp_path: Path, azure: IotHub
) -> None:
    """It is read and reported there, changes come down, and only the cloud says what is desired."""
    azure.desire("d1", {"x": 1})
    async with (
        with_sessions(azure, tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
    ):
        assert await client.desired() == ("$iothub/", 2, {"x": 1})
        assert (await client.get()).body["desired"] == {"x": 1, "$version": 2}
        assert (await client.report({"a": {"b": 1}})).status == DONE
        await azure.until(lambda: azure.clients["d1"].reported == {"a": {"b": 1}})
        azure.desire("d1", {"x": 2})
        assert await client.desired() == ("$iothub/", 3, {"x": 2})
        patch = {"properties": {"desired": {"x": 3}}}
        with pytest.raises(CommandError, match="set at the peer upstream"):
            await hub.call("twin set", device_id="d1", patch=patch)
        await hub.until(lambda: not twins(hub)["unsent"])
    assert azure.clients["d2"].connects == 0


async def test_reports_wait_for_the_link_and_desired_properties_for_the_device(
    tmp_path: Path, azure: IotHub
) -> None:
    """Merged into one patch while the link is down; its session is opened for it alone."""
    async with with_sessions(azure, tmp_path) as hub, twin_client(hub.mqtt_port, "d1") as d1:
        await d1.report({"a": 1})
        await azure.until(lambda: azure.clients["d1"].reported == {"a": 1})
    azure.clients["d1"].requests.clear()
    async with running_hub(tmp_path, upstream=None) as hub, twin_client(hub.mqtt_port, "d1") as d1:
        for number in range(5):
            await d1.report({"a": number, "list": [number]})
    azure.desire("d1", {"x": 1})
    async with with_sessions(azure, tmp_path) as hub:
        await azure.until(lambda: azure.clients["d1"].reported == {"a": 4, "list": [4]})
        assert azure.clients["d1"].requests == ["GET", {"a": 4, "list": [4]}]
        await hub.until(lambda: not twins(hub)["unsent"])
        shown = await hub.call("twin show", device_id="d1")
        assert shown["properties"]["desired"] == {"x": 1, "$version": 2}


async def test_a_gap_after_a_lost_session_is_read_in_full(tmp_path: Path, azure: IotHub) -> None:
    """A change that came while the session was down is not missed, nor is the next one applied."""
    async with (
        with_sessions(azure, tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
    ):
        await azure.until(lambda: azure.listens("d1", DESIRED))
        await client.get()
        azure.cut()
        await azure.until(lambda: azure.clients["d1"].link is None)
        azure.desire("d1", {"x": 1})
        assert await client.desired() == ("$iothub/", 2, {"x": 1})
        azure.clients["d1"].desired_version += 1  # one that was lost on the way
        azure.clients["d1"].desired["y"] = 1
        azure.desire("d1", {"z": 1})
        assert await client.desired() == ("$iothub/", 4, {"y": 1, "z": 1})


async def test_a_session_that_the_cloud_closes_is_opened_again(
    tmp_path: Path, azure: IotHub
) -> None:
    """Without the pause after a take-over, if it had lasted; the next close so soon is one."""
    clock = QuickClock(15)
    async with (
        with_sessions(azure, tmp_path, clock=clock) as hub,
        twin_client(hub.mqtt_port, "d1"),
    ):
        for connects, take_overs in ((1, 0), (2, 1)):
            await azure.until(lambda: azure.listens("d1", DESIRED))
            assert azure.clients["d1"].connects == connects
            if connects == 1:
                await clock.sleep(LASTED_S + 1)
            azure.cut("d1")
            await hub.until(lambda: not sessions(hub)["open"])
            await hub.until(lambda connects=connects: ended(hub) == connects)
            assert sessions(hub)["take_overs"] == take_overs


def sessions(hub: BrokerHub) -> dict[str, Any]:
    """Return what a hub says of the sessions of its devices."""
    return dict(hub.hub.status()["affinity"]["upstream_sessions"])


def ended(hub: BrokerHub) -> int:
    """Count the sessions that ended."""
    return int(sessions(hub)["take_overs"] + sessions(hub)["losses"])


async def test_methods_reach_a_device_over_its_own_session(tmp_path: Path, azure: IotHub) -> None:
    """The answer goes back; a device that has gone is not found."""
    async with with_sessions(azure, tmp_path) as hub:
        assert await azure.invoke("d2", "reboot") == (404, None)
        async with twin_client(hub.mqtt_port, "d2") as client:
            await azure.until(lambda: azure.listens("d2", METHODS))
            task = asyncio.create_task(azure.invoke("d2", "reboot", {"in_s": 1}))
            received = await client.call()
            assert (received.name, received.payload) == ("reboot", {"in_s": 1})
            client.respond(received, 202, ["yes"])
            assert await task == (202, ["yes"])
        status, payload = await azure.invoke("d2", "reboot")
        assert (status, payload["errorCode"]) == (404, 404)


async def test_a_refused_report_is_not_sent_for_ever(tmp_path: Path, azure: IotHub) -> None:
    """429 is tried again with the next session, what is wrong once is not."""
    azure.status = 400
    async with (
        with_sessions(azure, tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
    ):
        await client.report({"a": 1})
        await azure.until(lambda: "GET" in azure.clients["d1"].requests)
        azure.status = None
        azure.cut()
        await azure.until(lambda: azure.clients["d1"].reported == {"a": 1})
        await hub.until(lambda: not twins(hub)["unsent"])


async def test_each_device_signs_in_with_its_own_certificate(tmp_path: Path) -> None:
    """Over TLS, to a server that is known by its name."""
    authority = Authority(tmp_path)
    tls = server_tls(*authority.named_server(NAME), authority.certificate)
    async with iot_hub(tls=tls) as azure:
        azure.enrol(tmp_path, "gw")
        azure.register("d1")
        authority.client("d1")
        link = azure.upstream(tmp_path, sessions=True)
        del link["device_shared_access_key_file"]
        link |= {
            "tls": True,
            "ca_file": str(authority.certificate),
            "device_certificate_file": str(tmp_path / "{device}.pem"),
            "device_key_file": str(tmp_path / "{device}.key"),
        }
        async with (
            running_hub(tmp_path / "hub", upstream=link) as hub,
            twin_client(hub.mqtt_port, "d1") as client,
        ):
            await client.report({"a": 1})
            await azure.until(lambda: azure.clients["d1"].reported == {"a": 1})
    assert azure.faults == []


async def test_modules_are_served_here_and_the_status_says_so(
    tmp_path: Path, azure: IotHub
) -> None:
    """A module has no session of its own."""
    async with (
        with_sessions(azure, tmp_path) as hub,
        twin_client(hub.mqtt_port, "d1/m1") as client,
    ):
        assert (await client.report({"a": 1})).status == DONE
        assert (await client.get()).body["reported"] == {"a": 1, "$version": 2}
        assert (twins(hub)["local"], twins(hub)["unsent"]) == (1, 0)
        assert any("1 of modules are served here" in each for each in warnings(hub))
    assert azure.clients["d1"].connects == 0


async def test_with_one_session_only_the_gateway_has_its_twin_there(
    tmp_path: Path, azure: IotHub
) -> None:
    """Those of devices are served here; nothing about them goes up."""
    async with (
        running_hub(tmp_path, upstream=azure.upstream(tmp_path)) as hub,
        twin_client(hub.mqtt_port, "d1") as client,
        twin_client(hub.mqtt_port, "gw") as own,
    ):
        await hub.until(lambda: twins(hub)["synchronised"])
        await own.get()
        azure.desire("gw", {"x": 1})
        assert await own.desired() == ("$iothub/", 2, {"x": 1})
        await own.report({"a": 1})
        await azure.until(lambda: azure.clients["gw"].reported == {"a": 1})
        assert (await client.report({"a": 1})).status == DONE
        patch = {"properties": {"desired": {"y": 1}}}
        await hub.call("twin set", device_id="d1", patch=patch)
        assert await client.desired() == ("$iothub/", 2, {"y": 1})
        assert any("only the gateway's own twin" in each for each in warnings(hub))
    *reads, report = azure.clients["gw"].requests
    assert report == {"a": 1}
    assert set(reads) == {"GET"}


def warnings(hub: BrokerHub) -> list[str]:
    """Return the warnings of a hub."""
    return list(hub.hub.status()["warnings"])
