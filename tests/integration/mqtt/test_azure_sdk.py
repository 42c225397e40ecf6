"""The Azure IoT device SDK as it is: as device and module, with keys and certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.devices.identities import certificate_files, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.server_tls import read_server_tls
from edgehub.message import Message
from edgehub.mqtt.shared_access import SharedAccessKey
from tests.support.azure_client import azure_client
from tests.support.certificates import NEW_KEY, Authority, openssl
from tests.support.mqtt_listener import HUB_ID, Results, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KEY = SharedAccessKey(bytes(range(32)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    """The authority of the hub and of a device."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def site(tmp_path_factory, authority) -> tuple[Path, dict[str, dict]]:
    """An identities file, and what each kind of client shows."""
    folder = tmp_path_factory.mktemp("identities")
    file = folder / "identities"
    own = folder / "own.pem", folder / "own.key"
    openssl(
        *("req", "-x509", *NEW_KEY, "-keyout", str(own[1]), "-out", str(own[0]), "-days", "2"),
        *("-subj", "/CN=anything", "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    with changing(file) as entries:
        for name in ("press-1", f"{HUB_ID}/cam"):
            entries[name] = Identity(id=name, keys=(KEY,))
        entries["press-2"] = Identity(id="press-2")
        entries["press-3/cam"] = Identity(id="press-3/cam", certificates=(own[0].name,))
    signed = authority.client("press-2")
    return file, {
        "key": {"device": "press-1", "key": KEY.to_text()},
        "module key": {"device": HUB_ID, "module": "cam", "key": KEY.to_text()},
        "certificate": {
            "device": "press-2",
            "certificate": str(signed[0]),
            "certificate_key": str(signed[1]),
        },
        "self-signed module": {
            "device": "press-3",
            "module": "cam",
            "certificate": str(own[0]),
            "certificate_key": str(own[1]),
        },
    }


@pytest.mark.parametrize("websockets", [False, True], ids=["mqtt", "websocket"])
@pytest.mark.parametrize("kind", ["key", "module key", "certificate", "self-signed module"])
async def test_send_and_receive(authority, site, kind, websockets):
    """It signs in, its message arrives, and it receives one."""
    file, clients = site
    client = clients[kind]
    identities = read_identity_list(file)
    trusted = [
        path
        for entry in identities.entries.values()
        for path in certificate_files(identities, entry)
    ]
    tls = read_server_tls("mqtt", *authority.server(), authority.certificate, trusted).context
    async with (
        running(identities_file=file, anonymous=False, tls=tls, wss_port=0) as bench,
        azure_client(
            ports={"8883": bench.tls_port, "443": bench.wss_port},
            websockets=websockets,
            authority=str(authority.certificate),
            **client,
        ) as device,
    ):
        await device.do("connect")
        sender = "/".join(filter(None, (client["device"], client.get("module"))))
        assert bench.client_ids() == [sender]
        await device.do("send", body="up", properties={"kind": "alarm"})
        (message,) = await bench.router.received(1)
        assert (message.sender, message.body) == (sender, b"up")
        assert message.properties["kind"] == "alarm"
        await device.do("listen")
        results = Results()
        down = Message("cloud", None, "/messages/", {"a": "b"}, {}, b"down", message_id="m1")
        if kind == "module key":
            await device.do("send", body="out", output="alarms")
            bench.listener.deliver("cam", "in", down, results.settle)
        elif "module" not in client:
            bench.send(client["device"], down, results.settle)
        else:
            return
        received = await device.received()
        assert (received["received"], received["properties"]["a"]) == ("down", "b")
        assert (await results.count(1))[0].kind is None


async def test_a_wrong_key(authority, site):
    """It is refused as the SDK expects it."""
    file, _ = site
    tls = read_server_tls("mqtt", *authority.server(), None).context
    async with (
        running(identities_file=file, anonymous=False, tls=tls) as bench,
        azure_client(
            ports={"8883": bench.tls_port},
            websockets=False,
            authority=str(authority.certificate),
            device="press-1",
            key=SharedAccessKey(bytes(32)).to_text(),
        ) as device,
    ):
        answer = await device.attempt("connect")
        assert "CredentialError" in answer["error"]
