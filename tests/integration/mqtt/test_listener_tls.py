"""MQTT over TLS beside plain MQTT: real clients, client certificates, a renewed certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest
import uvloop

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.server_tls import read_server_tls
from edgehub.errors import StartupError
from tests.support import mqtt_wire as wire
from tests.support.certificates import Authority
from tests.support.client_programs import command
from tests.support.mqtt5_client import Client5
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The authority of servers and clients."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority):
    """What a server shows, with client certificates allowed."""
    return read_server_tls("mqtt", *authority.server(), authority.certificate).context


@pytest.fixture
def identities(tmp_path) -> Path:
    """Two identities, one of them disabled, whose passwords nobody uses."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as entries:
        password = PasswordHash.of(b"secret")
        entries["dev1"] = Identity(id="dev1", password=password, on_behalf=("line-*",))
        entries["off"] = Identity(id="off", password=password, disabled=True)
    return path


def client_context(authority: Authority, name: str | None = None) -> ssl.SSLContext:
    """What a client trusts and shows."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if name is not None:
        context.load_cert_chain(*authority.client(name))
    return context


async def connected(port: int, context: ssl.SSLContext) -> RawClient:
    """Connect over TLS."""
    return RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


async def answer(port: int, context: ssl.SSLContext, **options: object) -> int:
    """Return the return code of a CONNECT over TLS."""
    client = await connected(port, context)
    client.send(wire.connect(**options))
    code = (await client.read())[1][1]
    await client.close()
    return code


def test_both_ports_at_once(authority, server):
    """Real clients publish over TLS while others do without, on uvloop as the daemon does."""

    async def scenario() -> None:
        async with running(tls=server) as bench:
            base = ["mosquitto_pub", "-i", "dev1", "-t", EVENTS, "-q", "1", "-m"]
            tls = ["-p", str(bench.tls_port), "--cafile", str(authority.certificate)]
            for version in ("311", "5"):
                out = await command(*base, version, "-h", "127.0.0.1", "-V", version, *tls)
                assert out == (0, b"")
            assert await command(*base, "plain", "-p", str(bench.port)) == (0, b"")
            code, _ = await command(*base, "no", "-h", "127.0.0.1", "-p", str(bench.tls_port))
            assert code != 0
            assert [m.body for m in bench.router.messages] == [b"311", b"5", b"plain"]

    uvloop.run(scenario())


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
def test_paho(authority, server, protocol):
    """A paho client publishes hundreds of messages over TLS; all are acknowledged."""

    async def scenario() -> None:
        async with running(tls=server) as bench:
            loop = asyncio.get_running_loop()
            acked: asyncio.Queue[int] = asyncio.Queue()
            client = paho.Client(
                paho.CallbackAPIVersion.VERSION2, client_id="dev1", protocol=protocol
            )
            client.tls_set_context(client_context(authority))
            client.on_publish = lambda _c, _d, mid, *_: loop.call_soon_threadsafe(
                acked.put_nowait, mid
            )
            client.connect_async("127.0.0.1", bench.tls_port)
            client.loop_start()
            for number in range(300):
                client.publish(EVENTS, b"%d" % number + b"x" * 1000, qos=1)
            for _ in range(300):
                await acked.get()
            client.disconnect()
            await asyncio.to_thread(client.loop_stop)
            assert len(bench.router.messages) == 300

    uvloop.run(scenario())


async def test_sign_in_by_certificate(authority, server, identities):
    """The common name is the identity: no password, with its rights, under no other id."""
    async with running(tls=server, identities_file=identities, anonymous=False) as bench:
        context = client_context(authority, "dev1")
        client = await connected(bench.tls_port, context)
        client.send(wire.connect("dev1") + wire.publish("devices/line-3/messages/events/", qos=1))
        assert (await client.read())[1] == b"\0\0"
        assert await client.read_pubacks(1) == [1]
        assert bench.connections()[0].client.identity is not None
        await client.close()
        assert await answer(bench.tls_port, context, client_id="") == 0
        assert await answer(bench.tls_port, context, client_id="dev2") == 5
        assert await answer(bench.tls_port, context, client_id="off") == 5
        assert await answer(bench.tls_port, context, user="dev1", password=b"secret") == 0
        assert await answer(bench.tls_port, context, user="dev1", password=b"wrong") == 4
        for name in ("off", "nobody"):
            context = client_context(authority, name)
            assert await answer(bench.tls_port, context, client_id=name) == 5


async def test_a_module_signs_in_by_certificate(authority, server, tmp_path):
    """A slash in a common name is the one between device and module."""
    path = tmp_path / "modules.jsonl"
    with changing(path) as entries:
        entries["hub/cam"] = Identity(id="hub/cam", password=PasswordHash.of(b"x"))
    async with running(tls=server, identities_file=path, anonymous=False) as bench:
        client = Client5(await connected(bench.tls_port, client_context(authority, "hub/cam")))
        reply = await client.connect("")
        assert reply.assigned_client_id == "hub/cam"
        assert await client.subscribe("devices/hub/modules/cam/#") == [1]
        await client.close()


async def test_without_a_certificate_the_old_rules_hold(authority, server, identities):
    """A client may show none: then its password counts, or nothing on loopback."""
    async with running(tls=server, identities_file=identities) as bench:
        context = client_context(authority)
        assert await answer(bench.tls_port, context, client_id="dev7") == 0
        assert await answer(bench.tls_port, context, client_id="dev1") == 5
        assert await answer(bench.tls_port, context, user="dev1", password=b"secret") == 0


async def test_a_certificate_of_a_foreign_authority(authority, server, identities, tmp_path):
    """A certificate that nobody here has signed does not get as far as MQTT."""
    foreign = Authority(tmp_path, "foreign")
    context = client_context(authority)
    context.load_cert_chain(*foreign.client("dev1"))
    async with running(tls=server, identities_file=identities) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.tls_port, ssl=context)
        writer.write(wire.connect())
        # In TLS 1.3 a client learns only afterwards that its certificate was refused.
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        assert bench.listener.statistics().accepted_total == 0


@pytest.mark.parametrize("on", ["asyncio", "uvloop"])
def test_a_renewed_certificate(authority, server, tmp_path, on):
    """New connections see the new certificate at once; those that are there go on."""
    other = Authority(tmp_path, "other")
    renewed = read_server_tls("mqtt", *other.server(), None).context

    async def scenario() -> None:
        async with running(tls=server) as bench:
            old, new = client_context(authority), client_context(other)
            client = await connected(bench.tls_port, old)
            client.send(wire.connect())
            await client.read()
            for _ in range(3):
                await bench.listener.renew_certificate(renewed)
                assert await answer(bench.tls_port, new, client_id="dev2") == 0
            with pytest.raises(ssl.SSLError):
                await connected(bench.tls_port, old)
            await client.pong()
            await client.close()

    runner = uvloop.run if on == "uvloop" else asyncio.run
    runner(scenario())


async def test_plain_bytes_on_the_tls_port(authority, server):
    """What is no TLS, or stops in the middle of it, harms nobody."""
    async with running(tls=server, connect_timeout_s=0.3) as bench:
        plain = await RawClient.open(bench.tls_port)
        plain.send(wire.connect())
        silent = await RawClient.open(bench.tls_port)
        await plain.closed()
        await silent.closed()
        assert await answer(bench.tls_port, client_context(authority)) == 0
        await plain.close()
        await silent.close()


async def test_the_tls_port_is_in_use(server):
    """The error names the setting, and the plain port is given back."""
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        plain = free.getsockname()[1]
        free.close()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"127\.0\.0\.1:{port}.*set mqtt\.tls_port"):
            async with running(tls=server, port=plain, tls_port=port):
                pass
        with socket.socket() as again:
            again.bind(("127.0.0.1", plain))
