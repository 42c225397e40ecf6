"""A Redis that answers but refuses writes shows in the status, though no one changes anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from edgehub.clock import SystemClock
from edgehub.redis_link import write_probe
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.redis_link.write_probe import WriteProbe
from tests.support.broker_hub import running_hub
from tests.support.ports import free_port
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a server that cannot write its file, whose name is that of a folder."""
    with RedisServer(tmp_path, "--dbfilename", "taken") as server:
        (tmp_path / f"redis-{server.port}" / "taken").mkdir()
        yield server


def refuse(server: RedisServer, code: str) -> None:
    """Make the server refuse writes with a code."""
    match code:
        case "OOM":
            server.command("CONFIG", "SET", "maxmemory", "1")
        case "READONLY":
            server.command("REPLICAOF", "127.0.0.1", str(free_port()))
        case "NOREPLICAS":
            server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        case _:
            server.command("CONFIG", "SET", "save", "3600 1")
            server.command("BGSAVE")
            while b"rdb_last_bgsave_status:err" not in server.command("INFO", "persistence"):
                pass


def accept(server: RedisServer) -> None:
    """Make it take writes again."""
    server.command("CONFIG", "SET", "maxmemory", "0")
    server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    server.command("CONFIG", "SET", "save", "")
    server.command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("code", ["OOM", "READONLY", "NOREPLICAS", "MISCONF"])
async def test_each_refusal_is_reported_in_the_servers_words(
    server: RedisServer, code: str
) -> None:
    """Once in the log, and until a write is taken."""
    link = RedisLink(RedisOptions(url=server.url))
    probe = WriteProbe(link, "probe", SystemClock())
    with capture_logs() as lines:
        await probe.probe()
        assert probe.warnings() == []
        await asyncio.to_thread(refuse, server, code)
        await probe.probe()
        await probe.probe()
        (warning,) = probe.warnings()
        assert warning.startswith(f"Redis refuses writes: {code} ")
        await asyncio.to_thread(accept, server)
        await probe.probe()
        assert probe.warnings() == []
    told = [line["event"] for line in lines]
    assert told == ["redis.writes_refused", "redis.writes_accepted"]
    await link.close()


async def test_a_server_that_is_away_is_another_matter(server: RedisServer) -> None:
    """Without an answer the last one counts."""
    link = RedisLink(RedisOptions(url=server.url))
    probe = WriteProbe(link, "probe", SystemClock())
    await asyncio.to_thread(refuse, server, "OOM")
    await probe.probe()
    await asyncio.to_thread(server.stop)
    await probe.probe()
    assert len(probe.warnings()) == 1
    await link.close()


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"routing_table": {"storage": "redis"}}, "the routing table cannot be changed"),
        ({"affinity": {"coordinator": "redis", "registry": "redis"}}, "affinity"),
        ({"affinity": {"coordinator": "in-process", "registry": "redis"}}, "affinity"),
    ],
    ids=["table", "coordinator", "registry"],
)
async def test_the_status_warns_until_it_works_again(
    server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sections: dict[str, Any],
    part: str,
) -> None:
    """In each part of the hub that keeps something there."""
    monkeypatch.setattr(write_probe, "PROBE_S", 0.05)
    wanted = f"{part}: Redis refuses writes: READONLY "
    async with running_hub(tmp_path / "hub", redis={"url": server.url}, **sections) as hub:

        def warns() -> bool:
            return any(each.startswith(wanted) for each in hub.hub.status()["warnings"])

        assert not warns()
        await asyncio.to_thread(refuse, server, "READONLY")
        await hub.until(warns)
        await asyncio.to_thread(accept, server)
        await hub.until(lambda: not warns())
