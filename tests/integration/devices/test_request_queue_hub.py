"""The request queue of devices in a whole hub that elects nothing."""

import asyncio

import aiomqtt
import pytest

from edgehub.devices.request_queue import RequestKind
from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from tests.support.serving import serving

pytestmark = pytest.mark.integration


async def test_a_device_is_shown_with_what_runs_and_what_waits(tmp_path):
    """A device's message waits for an operation of the same device, and is then acknowledged."""
    hub = Hub(Settings(data_dir=tmp_path, mqtt={"port": 0}))

    async def queue():
        return (await hub.operations["device show"]({"device_id": "dev-1"}))["queue"]

    async with serving(hub), aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="dev-1") as dev:
        await dev.publish("devices/dev-1/messages/events/", b"1", qos=1)
        shown = await queue()
        assert (shown["done"], shown["at_once"], shown["running"]) == (1, 1, None)

        [devices] = [part for part in hub.parts if part.name == "devices"]
        began, end = asyncio.Event(), asyncio.Event()

        async def operation():
            began.set()
            await end.wait()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(devices.queues.run("dev-1", RequestKind.TWIN_PATCH, operation))
            await began.wait()
            sent = tasks.create_task(dev.publish("devices/dev-1/messages/events/", b"2", qos=1))
            async with asyncio.timeout(5):
                while not (await queue())["waiting"]:  # noqa: ASYNC110 - a status has no event
                    await asyncio.sleep(0)
            shown = await queue()
            assert (shown["running"], shown["waiting"]) == ("twin_patch", ("data",))
            async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="dev-2") as other:
                await other.publish("devices/dev-2/messages/events/", b"3", qos=1)
            assert not sent.done()
            end.set()
        assert hub.status()["requests"] == {
            "queues": 2,
            "busy": 0,
            "waiting": 0,
            "at_once": 2,
            "in_turn": 1,
        }
