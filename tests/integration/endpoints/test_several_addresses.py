"""A peer whose name has an address that swallows packets before one that works (RFC 8305)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.endpoints.device_session import SessionError
from edgehub.endpoints.http_link import HttpLinkError
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.tcp import connect_tcp
from edgehub.redis_link.faults import RedisUnavailableError
from edgehub.storage.credentials import TlsOptions
from tests.support.addresses import LOOPS, NAME, SILENT_NAME, black_hole, link_local_addresses
from tests.support.certificates import Authority
from tests.support.connections import device, http, mqtt, redis
from tests.support.http_peer import http_peer
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    Loop = Callable[[], asyncio.AbstractEventLoop]

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("loop", LOOPS), pytest.mark.waits]


def run(loop: Loop, work: Awaitable[Any]) -> None:
    """Run to the end; a connection that is tried at the dead address alone takes longer."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await work

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return an authority, and certificate and key of a server that is known by its name only."""
    authority = Authority(tmp_path)
    return authority.certificate, *authority.named_server(NAME)


@contextlib.contextmanager
def dead_before(port: int) -> Iterator[None]:
    """Make the other address of the name swallow packets to this port."""
    with black_hole(port):
        yield


def test_the_address_that_answers_is_taken(loop: Loop) -> None:
    """The connection leads to the working address, and no other one stays open."""

    async def work(port: int) -> None:
        with await connect_tcp(NAME, port) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)
            assert not sock.getblocking()

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with dead_before(port):
            run(loop, work(port))


def test_what_no_address_takes_is_an_error(loop: Loop) -> None:
    """A port that is closed at every address is refused at once."""

    async def work() -> None:
        with pytest.raises(ConnectionRefusedError):
            await connect_tcp(NAME, free_port())

    run(loop, work())


@pytest.mark.skipif(not link_local_addresses(), reason="no interface has a link-local address")
def test_a_link_local_address_keeps_its_scope(loop: Loop) -> None:
    """Without the scope the kernel does not know by which interface it is reached."""

    async def work() -> None:
        with await connect_tcp(host, port) as sock:
            assert sock.getpeername() == server.getsockname()

    host = link_local_addresses()[0]
    with socket.socket(socket.AF_INET6) as server:
        server.bind(socket.getaddrinfo(host, 0)[0][4])
        server.listen()
        port = server.getsockname()[1]
        run(loop, work())


def test_mqtt_reaches_the_working_address(loop: Loop, tmp_path: Path) -> None:
    """The session of an endpoint or of [broker], and those of devices."""
    with Mosquitto(tmp_path) as broker, dead_before(broker.port):
        run(loop, mqtt(NAME, broker.port))
        run(loop, device(NAME, broker.port))


def test_mqtt_over_tls_checks_the_name(
    loop: Loop, tmp_path: Path, tls: tuple[Path, Path, Path]
) -> None:
    """Likewise over TLS; the peer proves the name, whichever address was taken."""
    authority, certificate, key = tls
    lines = f"certfile {certificate}", f"keyfile {key}"
    with Mosquitto(tmp_path, *lines) as broker, dead_before(broker.port):
        run(loop, mqtt(NAME, broker.port, TlsOptions(ca_file=authority)))
        run(loop, device(NAME, broker.port, TlsOptions(ca_file=authority)))


def test_http_reaches_the_working_address(loop: Loop, tls: tuple[Path, Path, Path]) -> None:
    """The HTTP endpoint, with and without TLS."""
    authority, certificate, key = tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def work() -> None:
        async with http_peer() as peer, http_peer(tls=context) as encrypted:
            with dead_before(peer.port), dead_before(encrypted.port):
                await http(NAME, peer.port)
                await http(NAME, encrypted.port, TlsOptions(ca_file=authority))

    run(loop, work())


def test_redis_reaches_the_working_address(
    loop: Loop, tmp_path: Path, tls: tuple[Path, Path, Path]
) -> None:
    """Commands and blocking readers, with and without TLS."""
    authority, certificate, key = tls
    tls_port = free_port()
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    files += ["--tls-ca-cert-file", str(authority), "--tls-auth-clients", "no"]
    with (
        RedisServer(tmp_path, "--tls-port", str(tls_port), *files) as server,
        dead_before(server.port),
        dead_before(tls_port),
    ):
        run(loop, redis(NAME, server.port))
        run(loop, redis(NAME, tls_port, TlsOptions(ca_file=authority)))


@pytest.mark.parametrize("host", [SILENT_NAME, "::1"])
@pytest.mark.parametrize(
    ("user", "error"),
    [
        (mqtt, LinkError),
        (device, SessionError),
        (http, HttpLinkError),
        (redis, RedisUnavailableError),
    ],
)
def test_a_name_without_answer_is_given_up(
    loop: Loop, user: Callable[..., Awaitable[None]], error: type[Exception], host: str
) -> None:
    """A resolver that is silent, or an only address that is, costs the time-out of the connect."""

    async def work(port: int) -> None:
        with pytest.raises(error, match=r"timed out|in time"):
            await user(
                f"[{host}]" if ":" in host and user in (http, redis) else host, port, timeout_s=0.2
            )

    with black_hole() as port:
        run(loop, work(port))
