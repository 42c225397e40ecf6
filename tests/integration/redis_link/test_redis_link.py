"""The link to Redis against a real server: what is told, and what is never done twice in secret."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from edgehub.redis_link.faults import RedisRefusedError, RedisUnavailableError
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.redis_link.script import Script
from edgehub.storage.credentials import TlsOptions
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a server of the test's own."""
    with RedisServer(tmp_path) as running:
        yield running


@asynccontextmanager
async def linked(server: RedisServer, **changes: object) -> AsyncIterator[RedisLink]:
    """Return a link to it, closed afterwards."""
    link = RedisLink(RedisOptions(**{"url": server.url, "timeout_s": 0.5, **changes}))
    try:
        yield link
    finally:
        await link.close()


async def test_commands_answer_and_share_connections(server: RedisServer):
    """Commands sent together come back in their order; one connection is enough for one caller."""
    async with linked(server) as link:
        assert await link.calls([("SET", "k", "v"), ("GET", "k"), ("GET", "none")]) == [
            b"OK",
            b"v",
            None,
        ]
        assert await link.call("PING") == b"PONG"
        assert link.sessions == 1


async def test_a_script_is_taught_to_a_server_that_forgot_it(server: RedisServer):
    """A script runs on a server that never saw it, and again after the server forgot it."""
    script = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    async with linked(server) as link:
        assert await link.run(script, ["n"], [5]) == 5
        await link.call("SCRIPT", "FLUSH")
        assert await link.run(script, ["n"], [2]) == 7


async def test_a_refusal_names_its_code(server: RedisServer):
    """The code of the server's answer, or of a script's own, tells one refusal from another."""
    async with linked(server) as link:
        await link.call("SET", "k", "v")
        with pytest.raises(RedisRefusedError) as wrong:
            await link.calls([("LPUSH", "k", "x"), ("PING",)])
        assert wrong.value.code == "WRONGTYPE"
        with pytest.raises(RedisRefusedError) as own:
            await link.run(Script("return redis.error_reply('BEHIND 7')"), [], [])
        assert own.value.code == "BEHIND"
        assert await link.call("PING") == b"PONG"


async def test_an_unreachable_server_is_reported_as_certain(tmp_path: Path):
    """Without a server nothing was done, and the caller knows that."""
    server = RedisServer(tmp_path)
    async with linked(server) as link:
        with pytest.raises(RedisUnavailableError) as away:
            await link.call("PING")
        assert not away.value.outcome_unknown


async def test_a_server_that_hangs_is_reported_as_unknown_outcome(server: RedisServer):
    """A command that was sent and not answered may have been carried out; it is not sent again."""
    async with linked(server) as link:
        await link.call("SET", "n", "0")
        server.pause(1000)
        with pytest.raises(RedisUnavailableError) as away:
            await link.call("INCR", "n")
        assert away.value.outcome_unknown
    async with linked(server, timeout_s=3) as link:
        assert await link.call("GET", "n") in {b"0", b"1"}


async def test_a_new_connection_counts_as_a_session(server: RedisServer):
    """A connection that was lost between two commands is noticed, even where no command failed."""
    async with linked(server) as link:
        await link.call("PING")
        assert link.sessions == 1
        server.cut()
        with suppress(RedisUnavailableError):
            # The loop may not have heard of the end yet.
            await link.call("PING")
        await link.call("PING")
        assert link.sessions == 2


async def test_a_cancelled_command_leaves_no_answer_for_the_next(server: RedisServer):
    """Who gives up waiting does not leave an answer behind that another caller would get."""
    async with linked(server, timeout_s=5, connections_max=1) as link:
        await link.call("PING")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await link.call("BLPOP", "nothing", 0.3)
        assert await link.call("ECHO", "mine") == b"mine"


async def test_a_reader_blocks_beside_the_commands(server: RedisServer):
    """A reader waits in the server while commands go on, and wakes by what they do."""
    async with linked(server) as link, asyncio.TaskGroup() as group:
        reader = link.reader()
        reading = group.create_task(
            reader.call("XREAD", "BLOCK", 5000, "STREAMS", "log", "0", block_s=5)
        )
        while b"cmd=xread" not in await link.call("CLIENT", "LIST"):  # noqa: ASYNC110 - the server gives no event
            await asyncio.sleep(0.005)
        await link.call("XADD", "log", "1-1", "a", "b")
        assert await reading == [[b"log", [[b"1-1", [b"a", b"b"]]]]]


async def test_a_reader_ends_when_the_server_does(server: RedisServer):
    """A reader whose server is killed says so at once, and reads again after its return."""
    async with linked(server) as link:
        reader = link.reader()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(
                _outcome(reader.call("XREAD", "BLOCK", 9000, "STREAMS", "log", "0", block_s=9))
            )
            while b"cmd=xread" not in await link.call("CLIENT", "LIST"):  # noqa: ASYNC110 - the server gives no event
                await asyncio.sleep(0.005)
            server.stop()
        assert isinstance(reading.result(), RedisUnavailableError)
        server.start()
        assert await reader.call("XREAD", "BLOCK", 1, "STREAMS", "log", "0", block_s=1) is None


async def test_password_is_read_for_each_connection(tmp_path: Path):
    """A wrong password is a refusal with a hint; once the file is right the link works."""
    password = tmp_path / "password"
    password.write_text("wrong\n")
    with RedisServer(tmp_path, "--requirepass", "right") as server:
        async with linked(server, password_file=password) as link:
            with pytest.raises(RedisRefusedError, match="password_file"):
                await link.call("PING")
            password.write_text("right\n")
            assert await link.call("PING") == b"PONG"


async def test_a_password_file_that_is_absent_for_a_moment_is_no_sign_in(tmp_path: Path):
    """The connection is given up, so that the next command does not go over it unsigned."""
    password = tmp_path / "password"
    with RedisServer(tmp_path, "--requirepass", "right") as server:
        async with linked(server, password_file=password, connections_max=1) as link:
            with pytest.raises(RedisRefusedError, match="No such file"):
                await link.call("PING")
            password.write_bytes(b"\xef\xbb\xbfright\r\n")
            assert await link.call("PING") == b"PONG"


async def test_tls_checks_the_certificate(tmp_path: Path):
    """Over TLS the server must show a certificate of the authority that the settings name."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.server()
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    files += ["--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"]
    tls_port = free_port()
    with RedisServer(tmp_path, "--tls-port", str(tls_port), *files) as server:
        url = f"rediss://localhost:{tls_port}/0"
        async with linked(server, url=url, tls=TlsOptions(ca_file=authority.certificate)) as link:
            assert await link.call("PING") == b"PONG"
        async with linked(server, url=url, tls=TlsOptions(ca_file=other.certificate)) as link:
            with pytest.raises(RedisUnavailableError, match="certificate"):
                await link.call("PING")


async def _outcome(work: object) -> object:
    try:
        return await work
    except RedisUnavailableError as error:
        return error
