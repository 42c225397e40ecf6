"""Clients of the HTTP head that sign in with a certificate, at a whole hub."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.server_tls import thumbprints
from edgehub.hub.hub import Hub
from edgehub.settings import check_settings
from tests.support.certificates import Authority, self_signed
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

OK, NO, FORBIDDEN = "204", "401", "403"


class Site:
    """A hub with an authority and identities of several kinds."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.server()
        self.pump = self.authority.client("pump-7")
        self.parent = self.authority.client("child")
        self.module = self.authority.client("pump-7/camera")
        self.stranger = self.authority.client("stranger")
        self.pinned = self.authority.client("pinned")
        self.own = self_signed(folder, "own", "any name")
        self.identities = folder / "identities"
        other = thumbprints(ssl.PEM_cert_to_DER_cert(self.pump[0].read_text()))
        with changing(self.identities) as entries:
            entries["pump-7"] = Identity(id="pump-7")
            entries["pump-7/camera"] = Identity(id="pump-7/camera")
            entries["child"] = Identity(id="child", on_behalf=("leaf-*",))
            entries["off"] = Identity(id="off", disabled=True)
            entries["pinned"] = Identity(id="pinned", thumbprints=tuple(other))
            entries["press-1"] = Identity(id="press-1", certificates=(self.own[0].name,))
            entries["word"] = Identity(id="word", password=PasswordHash.of(b"secret"))

    def document(self, folder: Path) -> dict[str, Any]:
        """Return the settings."""
        certificate, key = self.server
        return {
            "hub_id": "gw",
            "data_dir": str(folder / "data"),
            "mqtt": {"port": 0, "identities_file": str(self.identities)},
            "http": {
                "port": 0,
                "certificate_file": str(certificate),
                "key_file": str(key),
                "client_ca_file": str(self.authority.certificate),
            },
        }

    async def post(
        self, hub: Hub, sender: str, shown: tuple[Path, Path] | None, *lines: str
    ) -> str:
        """Send a message of a sender; returns the status."""
        async with self.connection(hub, shown) as (reader, writer):
            return await send(reader, writer, sender, *lines)

    @asynccontextmanager
    async def connection(
        self, hub: Hub, shown: tuple[Path, Path] | None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect, showing a certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if shown is not None:
            context.load_cert_chain(*shown)
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.http_port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.close()


async def send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str, *lines: str
) -> str:
    """Send a message on a connection; returns the status."""
    device, _, module = sender.partition("/")
    path = f"/devices/{device}" + (f"/modules/{module}" if module else "") + "/messages/events"
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Length: 1", *lines, "", "x"]
    writer.write("\r\n".join(head).encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in answer.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    await reader.readexactly(length)
    return answer.split()[1].decode()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[tuple[Site, Hub]]:
    """Return a site with its hub running."""
    site = await asyncio.to_thread(Site, tmp_path)
    hub = Hub(check_settings(site.document(tmp_path), file=None))
    async with serving(hub):
        yield site, hub


async def test_a_certificate_signs_its_identity_in(site: tuple[Site, Hub]) -> None:
    """By its name, by its file, for those that it may speak for; and no other."""
    house, hub = site
    for sender, shown, status in (
        ("pump-7", house.pump, OK),
        ("pump-7/camera", house.module, OK),
        ("leaf-1", house.parent, OK),
        ("press-1", house.own, OK),
        ("pump-7", None, NO),
        ("pump-7", house.parent, FORBIDDEN),
        ("child", house.pump, FORBIDDEN),
        ("press-1", house.stranger, NO),
        ("pump-7", house.own, NO),
        ("pump-7", house.stranger, NO),
        ("off", house.stranger, NO),
        ("pinned", house.pinned, NO),
        ("leaf-1", house.pump, FORBIDDEN),
        # As at the MQTT listener: a certificate of no identity is as good as none.
        ("unknown", house.stranger, OK),
    ):
        assert await house.post(hub, sender, shown) == status, (sender, shown)


async def test_a_password_counts_before_a_certificate(site: tuple[Site, Hub]) -> None:
    """A wrong one is not covered up by the certificate."""
    house, hub = site
    right = "Authorization: Basic " + base64.b64encode(b"word:secret").decode()
    wrong = "Authorization: Basic " + base64.b64encode(b"word:other").decode()
    assert await house.post(hub, "word", house.pump, right) == OK
    assert await house.post(hub, "word", house.pump, wrong) == NO


async def test_an_identity_that_is_removed_signs_in_no_more(site: tuple[Site, Hub]) -> None:
    """Also on a connection that is open: it ends, as its certificate is trusted no more."""
    house, hub = site
    async with house.connection(hub, house.own) as own, house.connection(hub, house.pump) as pump:
        assert await send(*own, "press-1") == OK
        assert await send(*pump, "pump-7") == OK
        with changing(house.identities) as entries:
            del entries["press-1"]
        await hub.operations["config reload"]({})
        async with asyncio.timeout(5):
            assert await own[0].read() == b""
            assert await pump[0].read() == b""
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await house.post(hub, "press-1", house.own)
    assert await house.post(hub, "pump-7", house.pump) == OK
