"""The HTTP head and what web pages, scanners and clients that mean no good send it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import structlog

from edgehub.devices.passwords import PasswordHash
from tests.support.http_head import EVENTS, basic, request, running
from tests.support.http_rules import CHUNKS, RULES, SERVED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

LINES_MAX = 20
"""Of one event a minute."""


@pytest.fixture
def identities_file(tmp_path: Path) -> Path:
    """One identity."""
    file = tmp_path / "identities"
    file.write_text(f'{{"id": "dev1", "password": "{PasswordHash.of(b"secret")}"}}\n')
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example:8080"}, 421),
        ({"Host": "localhost:8080"}, 204),
        ({"Host": "[::1]"}, 204),
        ({"Origin": "http://localhost:8080", "Sec_Fetch_Site": "same-origin"}, 204),
        ({"Host": "gateway.example"}, 204),
    ],
)
async def test_pages_of_other_sites_send_nothing(headers: dict[str, str], status: int) -> None:
    """Without a password a page elsewhere stores nothing, nor by a name that points here."""
    async with running(host_names=("gateway.example",)) as bench:
        client = await bench.connect()
        assert (await client.post(**headers)).status == status
        assert len(bench.router.messages) == (status == 204)


async def test_a_password_is_enough(identities_file: Path) -> None:
    """A client that has one may come by any name."""
    async with running(identities_file=identities_file) as bench:
        client = await bench.connect()
        path = EVENTS.replace("press-1", "dev1")
        authorization = basic("dev1", "secret")
        answer = await client.post(path=path, Host="hub.example", Authorization=authorization)
        assert answer.status == 204


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\x01", b"\0" * 54, b"GET\r\n\r\n", b"{}"])
async def test_junk_behind_a_request_ends_the_connection(junk: bytes) -> None:
    """What was whole is stored and answered, then comes a 400 and the end."""
    async with running() as bench:
        client = await bench.connect()
        client.send(request() + request() + junk)
        assert [(await client.answer()).status for _ in range(3)] == [204, 204, 400]
        assert await client.ended() == b""
        assert len(bench.router.messages) == 2


async def test_junk_does_not_fill_the_log() -> None:
    """A hundred clients that send it cause some lines, without a traceback."""
    with structlog.testing.capture_logs() as lines:
        async with running() as bench:
            for _ in range(100):
                client = await bench.connect()
                client.send(request() + b"\0" * 54)
                await client.ended()
    refused = [line for line in lines if line["event"] == "http.request_refused"]
    assert len(refused) == LINES_MAX
    assert len(lines) <= LINES_MAX + 1
    assert not any("exc_info" in line for line in lines)


async def test_upgrades_are_answered_as_if_not_asked() -> None:
    """Five hundred requests with an upgrade in one write: all are served, in their order."""
    wanted = 500
    async with running() as bench:
        client = await bench.connect()
        each = [
            request(b"%d" % number, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c")
            for number in range(wanted)
        ]
        client.send(b"".join(each))
        for _ in range(wanted):
            assert (await client.answer()).status == 204
        bodies = [message.body for message in bench.router.messages]
        assert bodies == [b"%d" % number for number in range(wanted)]


async def test_a_flood_of_requests_lets_others_have_their_turn() -> None:
    """Thousands of requests in one write are served in slices, others in between."""
    flood = 20_000
    async with running() as bench:
        attacker, client = await bench.connect(), await bench.connect()
        attacker.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n" * flood)
        reading = asyncio.create_task(attacker.reader.read(-1))
        await bench.until(lambda: bench.head.statistics().answers.get("404", 0) > 0)
        assert (await client.post()).status == 204
        assert bench.head.statistics().answers["404"] < flood / 2
        reading.cancel()


async def test_sign_ins_of_clients_that_have_gone_are_not_checked(identities_file: Path) -> None:
    """Wrong passwords of closed connections do not delay a client with a right one.

    Nor do the bodies that came with them count any longer.
    """
    path = EVENTS.replace("press-1", "dev1")
    async with running(identities_file=identities_file) as bench:
        for _ in range(60):
            gone = await bench.connect()
            gone.send(request(path=path, Authorization=basic("dev1", "wrong")))
        await bench.until(lambda: bench.head.statistics().connections == 60)
        bench.close()
        client = await bench.connect()
        answer = await client.post(path=path, Authorization=basic("dev1", "secret"))
        assert answer.status == 204
        assert bench.head.statistics().answers.get("401", 0) < 10
        assert bench.head.statistics().waiting_bytes == 0


async def test_too_many_sign_ins_of_an_address_are_refused(identities_file: Path) -> None:
    """Those that would have to wait for long get 429, and when to come again."""
    async with running(identities_file=identities_file) as bench:
        clients = [await bench.connect() for _ in range(140)]
        for client in clients:
            client.send(request(Authorization=basic("press-1", "wrong")))
        answer = await clients[-1].answer()
        assert answer.status == 429
        assert answer.headers["retry-after"] == "10"


@pytest.mark.parametrize(("head", "status"), RULES)
async def test_rules_of_http(head: bytes, status: int) -> None:
    """Versions, hosts and transfer encodings; what is refused is not stored."""
    async with running() as bench:
        client = await bench.connect()
        client.send(f"POST {EVENTS} ".encode() + head + CHUNKS)
        assert (await client.answer()).status == (status or 204)
        assert len(bench.router.messages) == (status == SERVED)


async def test_later_minor_versions_keep_the_connection() -> None:
    """As HTTP/1.1 does, whatever came before on it."""
    async with running() as bench:
        client = await bench.connect()
        later = request().replace(b"HTTP/1.1", b"HTTP/1.2")
        client.send(later + request() + later)
        for _ in range(3):
            answer = await client.answer()
            assert (answer.status, "connection" in answer.headers) == (204, False)
