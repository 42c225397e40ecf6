"""Methods that a module on the Azure IoT device SDK as it is calls with `invoke_method`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.heads.workload.server import NAME
from edgehub.mqtt.shared_access import SharedAccessKey
from tests.support.azure_client import azure_client
from tests.support.broker_hub import running_hub
from tests.support.certificates import Authority
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KEY = SharedAccessKey(bytes(range(32)))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path: that of a socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp())
    yield path / "w"
    shutil.rmtree(path)


async def test_a_module_invokes_methods_over_tls(folder: Path, tmp_path: Path) -> None:
    """It starts by its environment, and calls those of a device and a module; of no others."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    with changing(tmp_path / "identities") as entries:
        for name, on_behalf in (("gw/caller", ("press-1*",)), ("press-1", ()), ("press-1/cam", ())):
            entries[name] = Identity(id=name, keys=(KEY,), on_behalf=on_behalf)
    files = {"certificate_file": str(certificate), "key_file": str(key)}
    mqtt = {
        "port": 0,
        "tls_port": free_port(),
        "identities_file": str(tmp_path / "identities"),
        **files,
    }
    http_port = free_port()
    ports = {"8883": mqtt["tls_port"], "https": http_port}
    own = {"websockets": False, "authority": str(authority.certificate), "key": KEY.to_text()}
    environment = {
        "IOTEDGE_IOTHUBHOSTNAME": "hub.azure-devices.net",
        "IOTEDGE_DEVICEID": "gw",
        "IOTEDGE_MODULEID": "caller",
        "IOTEDGE_GATEWAYHOSTNAME": "localhost",
        "IOTEDGE_MODULEGENERATIONID": "636",
        "IOTEDGE_WORKLOADURI": f"unix://{folder}/modules/caller/{NAME}",
        "IOTEDGE_APIVERSION": "2019-01-30",
    }
    workload = {"folder": str(folder), "trust_bundle_file": str(authority.certificate)}
    async with (
        running_hub(tmp_path, mqtt=mqtt, http={"port": http_port, **files}, workload=workload),
        azure_client(environment=environment, ports=ports, websockets=False, edge=True) as caller,
        azure_client(device="press-1", ports=ports, **own) as device,
        azure_client(device="press-1", module="cam", ports=ports, **own) as module,
    ):
        await caller.do("connect")
        call = {"methodName": "reboot", "payload": {"in_s": 3}, "responseTimeoutInSeconds": 20}
        for client, named in ((device, {"device": "press-1"}), (module, {"module": "cam"})):
            await client.do("connect")
            await client.do("follow")
            invoked = asyncio.create_task(
                caller.do("invoke", **{"device": "press-1", "call": call, **named})
            )
            called = await client.received("called")
            assert (called["called"], called["payload"]) == ("reboot", {"in_s": 3})
            answer = (await invoked)["answer"]
            assert answer == {"status": 200, "payload": {"echo": {"in_s": 3}}}
        refused = await caller.attempt("invoke", device="press-2", call=call)
        assert "403" in refused["error"] + refused["cause"], refused
