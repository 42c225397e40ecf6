"""Nonsense in the shared storage, by whose hand ever: hubs tell of it, run on and recover."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from edgehub.routes.content import content_hash
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.storage import DEFAULTS, Change
from tests.support.redis import RedisServer
from tests.support.route_tables import make_table, running, storages, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ROUTE = "FROM /messages/* INTO $upstream"
DIGITS = "9" * 5_000
DEEP = "[" * 100_000 + "]" * 100_000
R1_KEY = RouteKey(DEFAULT_TENANT, "r1")
R1, X = (str(RouteKey(DEFAULT_TENANT, name)) for name in ("r1", "x"))
TEXTS = {
    content_hash(text, tenant): (key, text)
    for key, tenant, text in (
        (X, DEFAULT_TENANT, DEEP),
        (X, DEFAULT_TENANT, '{"route":"FROM"}'),
        (X, DEFAULT_TENANT, DIGITS),
        (str(DEFAULTS), DEFAULTS.tenant, DEEP),
        (str(DEFAULTS), DEFAULTS.tenant, json.dumps({"timeToLiveSecs": 10**30})),
        (str(DEFAULTS), DEFAULTS.tenant, '{"timeToLiveSecs":1e999}'),
    )
}
REPORT = {"instance": "i", "hub_id": "h", "epoch": "x", "revision": None, "routes": [], "failed": 1}
COMMANDS: list[tuple[str, ...]] = [
    *(
        ("HSET", "rows", X, raw)
        for raw in ("", "1 2 3", f"{DIGITS} ab 1 api 1 1", "1 ab 1 api -1 x")
    ),
    *(("HSET", "rows", key, R1) for key in ("", "x", "a/b", "a/b/", "\ufffd/\n/\u2028")),
    *(("HSET", "meta", "epoch", value) for value in (DIGITS, "-1", "x", "1e308", "")),
    *(("HSET", "meta", "revision", value) for value in (DIGITS, "-1", "x", "1e308", "0")),
    ("XADD", "log", "*", "x", "y"),
    ("XADD", "log", "18446744073709551615-1", "key", "", "instance", "i1", "session", ""),
    *(
        ("HSET", "reports", "h", f"1 {text}")
        for text in ("", DEEP, "{}", json.dumps(REPORT), DIGITS)
    ),
    ("ZADD", "deadlines", "inf", "h"),
    *(("HSET", "counts", "default/default", value) for value in ("x", "-5", DIGITS)),
    *(("HSET", "references", content_hash("x", DEFAULT_TENANT), value) for value in ("x", DIGITS)),
    *(("SET", name, "x") for name in ("rows", "contents", "meta", "log", "reports", "counts")),
]


async def test_nonsense_in_redis_ends_no_hub(tmp_path: Path) -> None:
    """Each piece of it is met by the log, a comparison, a write and a look at the others."""
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (storage,):
            table = make_table(storage, "i1", check_s=0.1)
            async with running(table):
                for hashed, (key, text) in TEXTS.items():
                    server.command("HSET", "{test:routes}:contents", hashed, text)
                    server.command("HSET", "{test:routes}:rows", key, f"1 {hashed} 1 api 1 1")
                    await meet(table)
                for name, where, *rest in COMMANDS:
                    if name == "SET":
                        server.command("DEL", f"{{test:routes}}:{where}")
                    server.command(name, f"{{test:routes}}:{where}", *rest)
                    await meet(table)
                server.command("FLUSHALL")
                await until(lambda: {key.id for key in table.live.ids()} == {"r1"})
                written = await table.put("r1", ROUTE, wait=True)
                assert written.applied.result == "complete"
                assert (await table.drift()).total == 0
                assert table.live.table.manifest.global_ttl_ms == 7_200_000


async def meet(table) -> None:
    """Do what may come across it; only the storage may be to blame."""
    for work in (
        table.drift,
        lambda: table.put("r1", ROUTE, timeout_s=0.5),
        lambda: table.put("r1", {"route": ROUTE, "priority": 1}, wait=True, timeout_s=0.2),
        table.instances,
        table.list,
    ):
        with contextlib.suppress(StorageUnavailableError):
            await work()


@pytest.mark.parametrize("number", ["inf", "nan", "0x10", "1e308", "-1", "", "x", DIGITS])
async def test_a_damaged_counter_is_none(tmp_path: Path, number: str) -> None:
    """Whatever Lua might read as a number: the table takes the next write and counts on from it."""
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (storage,):
            before = await storage.write([put("r1"), put("r2")], session="s")
            for name, field in (
                ("meta", "epoch"),
                ("meta", "revision"),
                ("counts", DEFAULT_TENANT),
                ("references", content_hash("1", DEFAULT_TENANT)),
            ):
                server.command("HSET", f"{{test:routes}}:{name}", str(field), number)
                written = await storage.write([put("r1", "2"), put("r2", "1")], session="s")
                assert written.epoch >= before.epoch
                assert 0 < written.revision < 100
                position = await storage.position()
                assert (position.epoch, position.revision) == (written.epoch, written.revision)
                written = await storage.write([put("r1"), put("r3")], session="s")
                assert [row and row.text for row in await storage.read([R1_KEY])] == ["1"]
                await storage.write([Change(key=put("r3").key, delete=True)], session="s")


@pytest.mark.parametrize("name", ["rows", "contents", "references", "counts", "meta"])
async def test_a_key_of_another_type_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    """Half a write would be a table that no hub has asked for."""
    keys = [f"{{test:routes}}:{each}" for each in ("rows", "contents", "references", "counts")]
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (storage,):
            await storage.write([put("r1")], session="s")
            server.command("DEL", f"{{test:routes}}:{name}")
            server.command("SET", f"{{test:routes}}:{name}", "x")
            others = [key for key in keys if not key.endswith(name)]
            state = [server.command("HGETALL", key) for key in others]
            entries = server.command("XLEN", "{test:routes}:log")
            with pytest.raises(StorageUnavailableError, match="WRONGTYPE"):
                await storage.write([put("r1", "2"), put("r2")], session="s")
            assert [server.command("HGETALL", key) for key in others] == state
            assert server.command("XLEN", "{test:routes}:log") == entries


def put(name: str, text: str = "1") -> Change:
    """Return the change that stores a route."""
    hashed = content_hash(text, DEFAULT_TENANT)
    return Change(key=RouteKey(DEFAULT_TENANT, name), hash=hashed, text=text)
