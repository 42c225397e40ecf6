"""The workload API on its sockets, and modules of the Azure SDK that start by it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import Clock, ManualClock, SystemClock
from edgehub.devices.identities import Identities, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.server_tls import read_server_tls
from edgehub.errors import StartupError
from edgehub.heads.workload.api import WorkloadApi
from edgehub.heads.workload.server import (
    CONNECTIONS_MAX,
    NAME,
    REQUEST_BYTES_MAX,
    SILENCE_MAX_S,
    WorkloadServer,
)
from edgehub.hub.hub import Hub
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.settings import Settings
from tests.support.azure_client import azure_client
from tests.support.certificates import Authority
from tests.support.mqtt_listener import HUB_ID, running
from tests.support.route_tables import until
from tests.support.serving import serving as serving_hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.integration

KEY = SharedAccessKey(bytes(range(32)))
SIGN = {"keyId": "primary", "algo": "HMACSHA256", "data": "dGV4dA=="}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp())
    yield path / "w"
    shutil.rmtree(path)


@asynccontextmanager
async def serving(
    folder: Path, identities_file: Path, clock: Clock | None = None
) -> AsyncIterator[tuple[WorkloadServer, Identities]]:
    """Serve the API of the hub."""
    identities = Identities(lambda: None)
    identities.apply(read_identity_list(identities_file))
    clock = clock or SystemClock()
    server = WorkloadServer(folder, WorkloadApi(HUB_ID, identities, clock), clock)
    await server.open()
    try:
        yield server, identities
    finally:
        await server.close()
        identities.close()


def written(tmp_path: Path, *entries: Identity) -> Path:
    """Write an identities file in place of the one before."""
    path = tmp_path / "identities"
    with changing(path) as identities:
        identities.clear()
        identities.update({entry.id: entry for entry in entries})
    return path


def a_module(name: str, **fields: object) -> Identity:
    """Build an identity of a module of the hub."""
    return Identity(**{"id": f"{HUB_ID}/{name}", "keys": (KEY,), **fields})


def signing(module: str) -> bytes:
    """Write a request for a signature."""
    body = json.dumps(SIGN).encode()
    head = f"POST /modules/{module}/genid/1/sign?api-version=1 HTTP/1.1\r\nHost: x\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict]:
    """Read an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def ask(path: Path, *requests: bytes) -> list[int]:
    """Return the statuses of answers to requests that are sent at once."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(requests))
    statuses = [(await answer(reader))[0] for _ in requests]
    writer.close()
    return statuses


async def test_sockets(folder, tmp_path):
    """A module on its own socket, a process of a user on the shared one, and neither elsewhere."""
    file = written(tmp_path, a_module("cam"), a_module("pump", uid=os.getuid()), a_module("x"))
    async with serving(folder, file) as (server, _):
        own, shared = folder / "modules" / "cam" / NAME, folder / NAME
        assert await ask(own, signing("cam"), signing("x"), signing("cam")) == [200, 403, 200]
        assert await ask(shared, signing("pump"), signing("cam")) == [200, 403]
        assert await ask(own, signing("pump")) == [403]
        assert not (folder / "modules" / "pump").exists()
        assert stat.S_IMODE((folder / "modules").stat().st_mode) == 0o700
        assert server.statistics().signed_total == 3
        assert server.statistics().refused_total == 3


async def test_another_user(folder, tmp_path):
    """The user of the process counts, not what it asks for."""
    file = written(tmp_path, a_module("pump", uid=os.getuid() + 1))
    async with serving(folder, file):
        assert await ask(folder / NAME, signing("pump")) == [403]


async def test_identities_at_run_time(folder, tmp_path):
    """Sockets come and go with their identities; a restart finds what a killed hub left."""
    file = written(tmp_path, a_module("cam"))
    async with serving(folder, file) as (server, identities):
        old, new = (folder / "modules" / name / NAME for name in ("cam", "pump"))
        written(tmp_path, a_module("pump"))
        identities.apply(read_identity_list(file))
        await server.follow()
        assert await ask(new, signing("pump")) == [200]
        assert not old.exists()
        assert old.parent.exists()
        # As a hub that is killed leaves it.
        left = new.with_name("left")
        new.rename(left)
    left.rename(new)
    async with serving(folder, file):
        assert await ask(new, signing("pump")) == [200]


@pytest.mark.parametrize(
    "data",
    [b"\r\nno HTTP\r\n", b"POST / HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX],
    ids=["no HTTP", "too large"],
)
async def test_what_is_no_request(folder, tmp_path, data):
    """It is answered and closed."""
    async with serving(folder, written(tmp_path)):
        reader, writer = await asyncio.open_unix_connection(folder / NAME)
        writer.write(data)
        status, _ = await answer(reader)
        assert status in (400, 413)
        assert await reader.read() == b""
        writer.close()


async def test_silent_clients(folder, tmp_path):
    """They are closed after a time, and too many of them at once."""
    clock = ManualClock()
    async with serving(folder, written(tmp_path), clock) as (server, _):
        clients = [
            await asyncio.open_unix_connection(folder / NAME) for _ in range(CONNECTIONS_MAX)
        ]
        await until(lambda: len(server.connections) == CONNECTIONS_MAX)
        reader, writer = await asyncio.open_unix_connection(folder / NAME)
        assert await reader.read() == b""
        writer.close()
        await clock.advance(SILENCE_MAX_S)
        for reader, writer in clients:
            assert await reader.read() == b""
            writer.close()
        assert server.statistics().connections == 0


async def test_a_folder_that_cannot_be_had(tmp_path):
    """The error names the setting."""
    for folder in (tmp_path / ("x" * 100) / "y", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(StartupError, match=r"workload\.folder"):
            async with serving(folder, written(tmp_path)):
                pass


async def test_a_hub_with_the_api(folder, tmp_path):
    """It opens with the hub, follows reloads of identities, and is gone with the hub."""
    file = written(tmp_path, a_module("cam"))
    authority = Authority(tmp_path)
    hub = Hub(
        Settings(
            hub_id=HUB_ID,
            data_dir=tmp_path / "data",
            mqtt={"port": 0, "identities_file": file},
            workload={"folder": folder, "trust_bundle_file": authority.certificate},
        )
    )
    async with serving_hub(hub):
        socket = folder / "modules" / "cam" / NAME
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"GET /trust-bundle HTTP/1.1\r\nHost: x\r\n\r\n")
        bundle = {"certificate": authority.certificate.read_text()}
        assert await answer(reader) == (200, bundle)
        writer.close()
        written(tmp_path, a_module("pump"))
        await hub.operations["config reload"].handler()
        assert not socket.exists()
        assert await ask(folder / "modules" / "pump" / NAME, signing("pump")) == [200]
        assert hub.status()["workload"]["signed_total"] == 1
    assert [path for path in folder.rglob("*") if path.is_socket()] == []


@pytest.mark.parametrize("websockets", [False, True], ids=["mqtt", "websocket"])
async def test_a_module_of_the_sdk(folder, tmp_path, websockets):
    """It starts unchanged by its environment, signs in, and sends."""
    authority = Authority(tmp_path)
    file = written(tmp_path, a_module("cam"))
    tls = read_server_tls("mqtt", *authority.server(), None).context
    async with (
        serving(folder, file) as (server, _),
        running(identities_file=file, anonymous=False, tls=tls, wss_port=0) as bench,
    ):
        server.api.trust_bundle = authority.certificate.read_text()
        environment = {
            "IOTEDGE_IOTHUBHOSTNAME": "hub.azure-devices.net",
            "IOTEDGE_DEVICEID": HUB_ID,
            "IOTEDGE_MODULEID": "cam",
            "IOTEDGE_GATEWAYHOSTNAME": "localhost",
            "IOTEDGE_MODULEGENERATIONID": "636",
            "IOTEDGE_WORKLOADURI": f"unix://{folder}/modules/cam/{NAME}",
            "IOTEDGE_APIVERSION": "2019-01-30",
        }
        async with azure_client(
            environment=environment,
            ports={"8883": bench.tls_port, "443": bench.wss_port},
            websockets=websockets,
            edge=True,
        ) as module:
            await module.do("connect")
            await module.do("send", body="up", output="alarms")
            (message,) = await bench.router.received(1)
            assert (message.sender, message.body) == (f"{HUB_ID}/cam", b"up")
