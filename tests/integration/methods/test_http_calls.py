"""Methods called over HTTP, as a module of IoT Edge calls them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.broker_hub import running_hub
from tests.support.mqtt5_client import AT_MOST_ONCE
from tests.support.twin_client import twin_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

CALL = {"methodName": "reboot", "payload": {"in_s": 1}, "responseTimeoutInSeconds": 20}
PATH = "/twins/d1/methods?api-version=2018-06-28"


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, Any]:
    """Settings with a module that may call methods of d1, and one that may not."""
    path = tmp_path / "identities"
    password = PasswordHash.of(b"secret")
    with changing(path) as entries:
        entries["gw/caller"] = Identity(id="gw/caller", password=password, on_behalf=("d1*",))
        for name in ("gw/other", "d1", "d1/m"):
            entries[name] = Identity(id=name, password=password)
    return {
        "mqtt": {"port": 0, "identities_file": str(path)},
        "http": {"port": 0},
    }


async def post(
    hub: BrokerHub,
    path: str = PATH,
    body: Any = CALL,
    *,
    caller: str | None = "gw/caller",
    user: str | None = "gw/caller",
) -> tuple[int, Any]:
    """Send a request; returns status and document."""

    def send() -> tuple[int, Any]:
        port = hub.hub.http_port
        headers = {"Content-Type": "application/json"}
        if caller is not None:
            headers["x-ms-edge-moduleId"] = caller
        if user is not None:
            token = base64.b64encode(f"{user}:secret".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        ) as connection:
            connection.request("POST", path, text, headers)
            with connection.getresponse() as response:
                return response.status, json.loads(response.read())

    return await asyncio.to_thread(send)


@pytest.mark.parametrize(("client_id", "path"), [("d1", ""), ("d1/m", "/modules/m")])
async def test_a_module_calls_a_method(
    tmp_path: Path, sections: dict[str, Any], client_id: str, path: str
) -> None:
    """The answer of a device or module comes back in the form of the service API."""
    async with (
        running_hub(tmp_path, **sections) as hub,
        twin_client(hub.mqtt_port, client_id, password=b"secret") as client,
    ):
        task = asyncio.create_task(post(hub, f"/twins/d1{path}/methods"))
        call = await client.call()
        assert (call.name, call.payload) == ("reboot", {"in_s": 1})
        client.respond(call, 201, {"done": True})
        assert await task == (200, {"status": 201, "payload": {"done": True}})


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({}, 404, "not connected"),
        ({"caller": "gw/other", "user": "gw/other"}, 403, "may not call"),
        ({"caller": "gw/caller", "user": "gw/other"}, 403, "may not send"),
        ({"user": None}, 401, "password"),
        ({"caller": "free", "user": None}, 403, "identity"),
        ({"caller": None}, 400, "x-ms-edge-moduleId"),
        ({"body": b"{"}, 400, "not JSON"),
        ({"body": {"methodName": ""}}, 400, "methodName"),
        ({"path": "/twins/d1"}, 404, "/twins/<device>/methods"),
        ({"path": "/twins/d1/modules/a+b/methods"}, 400, "module"),
    ],
)
async def test_a_call_that_cannot_be_made(
    tmp_path: Path, sections: dict[str, Any], given: dict[str, Any], status: int, said: str
) -> None:
    """Who may not, and what is wrong, is said with its status; the connection goes on."""
    async with running_hub(tmp_path, **sections) as hub:
        found, document = await post(hub, **given)
        assert (found, said in document["detail"]) == (status, True), document


async def test_an_answer_without_json_and_a_client_that_leaves(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    """What a device answers is checked; one that disconnects is a gateway's time-out."""
    async with running_hub(tmp_path, **sections) as hub:
        async with twin_client(hub.mqtt_port, "d1", password=b"secret") as client:
            task = asyncio.create_task(post(hub))
            call = await client.call()
            topic = f"$iothub/methods/res/200/?$rid={call.request_id}"
            client.client.publish(topic, b"{", qos=AT_MOST_ONCE)
            assert (await task)[0] == 502
            task = asyncio.create_task(post(hub))
            await client.call()
        assert (await task)[0] == 504
