"""Signatures and certificates at the listener: who gets in, for how long, and as whom."""

from __future__ import annotations

import hashlib
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import mqtt5
import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identities import CLOCK_TOLERANCE_S, certificate_files, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.server_tls import ServerTls, read_server_tls
from edgehub.hub.hub import Hub
from edgehub.mqtt.reasons import ReasonCode
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.settings import Settings
from tests.support import mqtt_wire as wire
from tests.support.certificates import NEW_KEY, Authority, openssl
from tests.support.mqtt5_client import Client5
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

KEY = SharedAccessKey(bytes(range(32)))
OTHER = SharedAccessKey(bytes(32))
NOT_A_CA = ("-addext", "basicConstraints=critical,CA:FALSE")


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    """The authority of the hub, and of some devices."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority) -> tuple[Path, Path]:
    """Certificate and key of the hub."""
    return authority.server()


class Site:
    """A folder with an identities file and the certificates of devices."""

    def __init__(self, folder: Path, authority: Authority, server: tuple[Path, Path]) -> None:
        self.file = folder / "identities"
        self._folder = folder
        self._authority = authority
        self._server = server

    @contextmanager
    def entries(self) -> Iterator[dict[str, Identity]]:
        """Change the identities."""
        with changing(self.file) as entries:
            yield entries

    def self_signed(self, name: str, *options: str, subject: str = "") -> tuple[Path, Path]:
        """Make a certificate that stands for itself."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        openssl(
            *("req", "-x509", *NEW_KEY, "-keyout", str(key), "-out", str(certificate)),
            *("-days", "2", "-subj", f"/CN={subject or name}", *options),
        )
        return certificate, key

    def forged(self, issuer: tuple[Path, Path], name: str) -> tuple[Path, Path]:
        """Make a certificate with a name of choice, signed with that of a device."""
        certificate, key = self._folder / "forged.pem", self._folder / "forged.key"
        request = self._folder / "forged.csr"
        openssl(
            *("req", *NEW_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(issuer[0]), "-CAkey", str(issuer[1])),
            *("-CAcreateserial", "-days", "2", "-out", str(certificate)),
        )
        return certificate, key

    def tls(self, *, with_authority: bool = False) -> ServerTls:
        """Read what the listener shows and trusts."""
        identities = read_identity_list(self.file)
        files = [
            file
            for entry in identities.entries.values()
            for file in certificate_files(identities, entry)
        ]
        authority = self._authority.certificate if with_authority else None
        return read_server_tls("mqtt", *self._server, authority, files)

    def client(self, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
        """Return what a device trusts and shows."""
        context = ssl.create_default_context(cafile=self._authority.certificate)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


@pytest.fixture
def site(tmp_path, authority, server) -> Site:
    """A folder without identities."""
    return Site(tmp_path, authority, server)


async def answer(port: int, client_id: str, tls: ssl.SSLContext | None = None, **options) -> int:
    """Return the return code of a CONNECT; -1 = the handshake of TLS failed."""
    try:
        client = await RawClient.open(port, tls)
    except OSError:
        return -1
    client.send(wire.connect(client_id, **options))
    try:
        code = (await client.read())[1][1]
    except (OSError, EOFError):
        # In TLS 1.3 a client learns only afterwards that its certificate was refused.
        client.cut()
        return -1
    await client.close()
    return code


async def signature_answer(bench, client_id: str, key: SharedAccessKey, resource: str) -> int:
    """Return the return code of a CONNECT as the SDK of Azure sends it."""
    return await answer(
        bench.port,
        client_id,
        user=f"h.azure-devices.net/{client_id}/?api-version=2019-10-01&DeviceClientType=x",
        password=key.token(resource, 1_900_000_000).encode(),
    )


async def test_signatures(site):
    """A signature opens its own identity, made with either key, and no other."""
    with site.entries() as entries:
        entries["dev1"] = Identity(id="dev1", keys=(OTHER, KEY))
        entries["dev1/cam"] = Identity(id="dev1/cam", keys=(KEY,))
        entries["off"] = Identity(id="off", keys=(KEY,), disabled=True)
    async with running(identities_file=site.file, clock=ManualClock()) as bench:
        host = "h.azure-devices.net/devices"
        assert await signature_answer(bench, "dev1", KEY, f"{host}/dev1") == 0
        assert await signature_answer(bench, "dev1", OTHER, f"{host}/dev1") == 0
        assert await signature_answer(bench, "dev1/cam", KEY, f"{host}/dev1/modules/cam") == 0
        assert await signature_answer(bench, "dev1/cam", OTHER, f"{host}/dev1/modules/cam") == 4
        assert await signature_answer(bench, "dev1/cam", KEY, f"{host}/dev1") == 4
        assert await signature_answer(bench, "dev1", KEY, f"{host}/dev1/modules/cam") == 4
        assert await signature_answer(bench, "dev1", KEY, host) == 4
        assert await signature_answer(bench, "off", KEY, f"{host}/off") == 4
        assert await signature_answer(bench, "dev9", KEY, f"{host}/dev9") == 4
        assert await answer(bench.port, "dev1") == 5
        assert bench.listener.statistics().refused_connects == {
            "credentials": 6,
            "not_authorized": 1,
        }


@pytest.mark.parametrize("level", [4, 5])
async def test_a_signature_expires(site, level):
    """The client is closed when its time is over; MQTT 5 says why."""
    with site.entries() as entries:
        entries["dev1"] = Identity(id="dev1", keys=(KEY,))
    clock = ManualClock()
    async with running(identities_file=site.file, clock=clock) as bench:
        expires_s = clock.wall_ms() // 1000 + 100 - CLOCK_TOLERANCE_S
        password = KEY.token("h/devices/dev1", expires_s).encode()
        if level == 4:
            client = await RawClient.signed_in(
                bench.port, "dev1", user="dev1", password=password, keep_alive_s=0
            )
        else:
            client = Client5(await RawClient.open(bench.port))
            await client.connect("dev1", username="dev1", password=password, keep_alive=0)
        await clock.advance(99)
        assert bench.client_ids() == ["dev1"]
        await clock.advance(2)
        if level == 4:
            await client.closed()
        else:
            closed = await client.read(mqtt5.DisconnectPacket)
            assert closed.reason_code == ReasonCode.NOT_AUTHORIZED
        assert bench.ended() == {"expired": 1}
        assert await answer(bench.port, "dev1", user="dev1", password=password) == 4
        await client.close()


async def test_self_signed(site):
    """The very file is the identity, whatever its names; nothing else that it signs is."""
    press = site.self_signed("press-1", subject="anything")
    # By itself this file would be the certificate of an identity with a password.
    liar = site.self_signed("liar", subject="dev1")
    with site.entries() as entries:
        entries["press-1"] = Identity(id="press-1", certificates=(press[0].name,))
        entries["liar"] = Identity(id="liar", certificates=(liar[0].name,))
        entries["dev1"] = Identity(id="dev1", keys=(KEY,))
        entries["off"] = Identity(id="off", certificates=(press[0].name,), disabled=True)
    tls = site.tls().context
    async with running(identities_file=site.file, tls=tls, anonymous=False) as bench:
        context = site.client(press)
        assert await answer(bench.tls_port, "press-1", context) == 0
        assert await answer(bench.tls_port, "liar", context) == 5
        assert await answer(bench.tls_port, "off", context) == 5
        assert await answer(bench.tls_port, "anything", context) == 5
        assert await answer(bench.tls_port, "liar", site.client(liar)) == 0
        assert await answer(bench.tls_port, "dev1", site.client(liar)) == 5
        assert await answer(bench.tls_port, "press-1", site.client(None)) == 5
        stranger = site.client(site.self_signed("stranger", subject="press-1"))
        assert await answer(bench.tls_port, "press-1", stranger) == -1
        # Made by a device whose certificate is trusted, in the name of another one.
        forged = site.forged(press, "dev1")
        assert await answer(bench.tls_port, "dev1", site.client(forged)) != 0
        forged = site.forged(press, "press-1")
        assert await answer(bench.tls_port, "press-1", site.client(forged)) != 0


async def test_next_to_an_authority(site, authority):
    """Certificates of an authority sign in by name, self-signed ones by themselves."""
    press = site.self_signed("press-1", *NOT_A_CA, subject="dev1")
    with site.entries() as entries:
        entries["press-1"] = Identity(id="press-1", certificates=(press[0].name,))
        entries["dev1"] = Identity(id="dev1")
    tls = site.tls(with_authority=True).context
    async with running(identities_file=site.file, tls=tls, anonymous=False) as bench:
        assert await answer(bench.tls_port, "dev1", site.client(authority.client("dev1"))) == 0
        assert await answer(bench.tls_port, "press-1", site.client(press)) == 0
        assert await answer(bench.tls_port, "dev1", site.client(press)) == 5
        by_name = site.client(authority.client("press-1"))
        assert await answer(bench.tls_port, "press-1", by_name) == 5
        forged = site.client(site.forged(press, "dev1"))
        assert await answer(bench.tls_port, "dev1", forged) == -1


async def test_a_single_certificate_of_another_authority(site, tmp_path):
    """It counts as the file that it is, not by the name in it, and its authority is not trusted."""
    foreign = Authority(tmp_path, "foreign")
    press, other = foreign.client("dev1"), foreign.client("dev2")
    with site.entries() as entries:
        entries["press-1"] = Identity(id="press-1", certificates=(press[0].name,))
        entries["dev1"] = Identity(id="dev1")
        entries["dev2"] = Identity(id="dev2")
    for with_authority in (False, True):
        tls = site.tls(with_authority=with_authority).context
        async with running(identities_file=site.file, tls=tls, anonymous=False) as bench:
            assert await answer(bench.tls_port, "press-1", site.client(press)) == 0
            assert await answer(bench.tls_port, "dev1", site.client(press)) == 5
            assert await answer(bench.tls_port, "dev2", site.client(other)) == -1


@pytest.mark.parametrize("digest", ["sha1", "sha256"])
async def test_a_pinned_certificate(site, authority, digest):
    """With a thumbprint only that certificate of the authority counts."""
    pinned = authority.client("dev1")
    binary = ssl.PEM_cert_to_DER_cert(pinned[0].read_text())
    thumbprint = hashlib.new(digest, binary).hexdigest()
    with site.entries() as entries:
        entries["dev1"] = Identity(id="dev1", thumbprints=(thumbprint,))
        entries["dev2"] = Identity(id="dev2", thumbprints=(thumbprint,))
    tls = site.tls(with_authority=True).context
    async with running(identities_file=site.file, tls=tls, anonymous=False) as bench:
        first = site.client(pinned)
        # With another key, under the same name.
        renewed = site.client(authority.client("dev1"))
        assert await answer(bench.tls_port, "dev1", first) == 0
        assert await answer(bench.tls_port, "dev1", renewed) == 5
        assert await answer(bench.tls_port, "dev2", first) == 5


async def test_a_reload_of_a_hub(site, server, tmp_path):
    """A reload lets a new certificate in, and its removal keeps it out; others stay connected."""
    first, second = site.self_signed("first"), site.self_signed("second")
    with site.entries() as entries:
        entries["first"] = Identity(id="first", certificates=("first.pem",))
    mqtt = {
        "port": 0,
        "tls_port": 0,
        "identities_file": site.file,
        "certificate_file": server[0],
        "key_file": server[1],
    }
    hub = Hub(Settings(hub_id="hub", data_dir=tmp_path / "data", mqtt=mqtt))
    async with serving(hub):
        port = next(part.ports()["mqtt_tls_port"] for part in hub.parts if part.name == "mqtt")
        reload = hub.operations["config reload"].handler
        client = await RawClient.signed_in(port, "first", tls=site.client(first))
        assert await answer(port, "second", site.client(second)) == -1
        with site.entries() as entries:
            entries["second"] = Identity(id="second", certificates=("second.pem",))
        await reload()
        assert await answer(port, "second", site.client(second)) == 0
        with site.entries() as entries:
            del entries["second"]
        await reload()
        assert await answer(port, "second", site.client(second)) == -1
        await client.pong()
        await client.close()
