"""Damaged documents in a real Redis: parts of the hub that read them answer or refuse."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.devices.affinity.coordinator import DownlinkClaim, ElectionRequest
from edgehub.devices.affinity.redis_coordinator import RedisCoordinator
from edgehub.devices.faults import (
    CoordinatorUnreachableError,
    DeviceSourceError,
    DeviceUnknownError,
)
from edgehub.devices.redis_registry import RedisRegistry
from edgehub.devices.source import DeviceProfile
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.faults import QuotaError, StorageUnavailableError
from edgehub.sync.redis import RedisStorage
from edgehub.sync.storage import Change, Position
from tests.support.fuzzing import JSON_PIECES, fuzzer, hostile
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

pytestmark = pytest.mark.integration

PREFIX = "{fuzz:routes}:"
AFFINITY = "{fuzz}:affinity:"
NUMBERS = [b"1", b"17", b"", b"1790000000000"]
PIECES = [b"-1", b"9" * 25, b"9" * 5_000, b"1e308", b"nan", b"inf", b" ", b"\0", b"\xff"]
numbers = hostile(NUMBERS, PIECES)
REPORT = json.dumps(
    {
        "instance": "i",
        "hub_id": "h",
        "epoch": 1,
        "revision": 2,
        "routes": 3,
        "failed": {"default/default/r": "why"},
        "failed_total": 1,
        "stale": "",
    }
).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for all inputs, which are in its memory one after the other."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


def with_redis(
    server: RedisServer, commands: list[tuple[Any, ...]], use: Callable[[RedisLink], Awaitable[T]]
) -> T:
    """Put some commands into an empty Redis, then use it."""

    async def run() -> T:
        link = RedisLink(RedisOptions(url=server.url))
        try:
            await link.calls([("FLUSHALL",), *commands])
            return await use(link)
        finally:
            await link.close()

    return asyncio.run(run())


rows = hostile([b"17 " + b"ab" * 32 + b" 1 api 1790000000000 1790000000001"], PIECES)
keys = hostile([b"default/default/r1", b"acme/press/a/b"], [b"/", *PIECES])


@fuzzer
@given(
    st.lists(st.tuples(keys, rows), max_size=4),
    st.fixed_dictionaries({"epoch": numbers, "revision": numbers, "begun": numbers}),
    hostile([b"1 " + REPORT], [*JSON_PIECES, *PIECES]),
    st.lists(hostile([b"key", b"default/default/r1", b"instance", b"i"]), min_size=2, max_size=2),
)
def test_a_damaged_table_is_read_or_unavailable(server, table, meta, report, entry):
    """Position, rows, sums, reports and log: what is returned can be stored and shown."""

    async def use(link: RedisLink) -> None:
        storage = RedisStorage(link, prefix="fuzz", instance="i1")
        key = RouteKey(DEFAULT_TENANT, "r1")

        async def scanned() -> list[Any]:
            return [row async for page in storage.scan() for row in page]

        calls = [
            storage.position,
            scanned,
            storage.digest,
            storage.reports,
            lambda: storage.read([key]),
            lambda: storage.follow(Position(epoch=0, revision=0), 0.001),
            lambda: storage.write([Change(key=key, hash="ab" * 32, text="{}")], session="s"),
        ]
        for call in calls:
            try:
                result = await call()
            except (StorageUnavailableError, QuotaError):
                continue
            orjson.dumps(result, default=str)
        await storage.close()

    commands = [
        *(("HSET", f"{PREFIX}rows", key, row) for key, row in table),
        ("HSET", f"{PREFIX}counts", "default/default", meta["revision"]),
        *(("HSET", f"{PREFIX}meta", name, value) for name, value in meta.items()),
        ("HSET", f"{PREFIX}reports", "h", report),
        ("ZADD", f"{PREFIX}deadlines", "inf", "h"),
        ("XADD", f"{PREFIX}log", "1-1", *entry),
    ]
    with_redis(server, commands, use)


RECORD = ["owner", "epoch", "f_cnt", "generation", "f_cnt_down", "begun_ms"]
FLEET = ["incarnation", "epoch", "notices:g1", "notices:g2"]
words = hostile([b"g1", b"g2", *NUMBERS], PIECES)


@fuzzer
@given(
    st.fixed_dictionaries(dict.fromkeys(RECORD, words)),
    st.dictionaries(st.sampled_from(FLEET), words),
    st.lists(
        st.lists(
            st.tuples(hostile([b"device", b"epoch", b"owner"]), words), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_damaged_affinity_data_is_read_or_unreachable(server, record, fleet, notices):
    """Elections, grants and notices: an answer, or no coordinator; the reader goes on."""

    async def use(link: RedisLink) -> None:
        coordinator = RedisCoordinator(link, prefix="fuzz", block_s=0.001)
        claim = DownlinkClaim(device_id="d", hub_id="g1", generation=0, f_cnt_down=1)
        position = await coordinator.position("g1")
        incarnation, _, count = position.rpartition("-")
        stream = f"{AFFINITY}notices:{incarnation}:g1"
        assert count == "0"
        written = [
            ("XADD", stream, f"{number}-1", *(part for pair in pairs for part in pair))
            for number, pairs in enumerate(notices, 1)
        ]
        damaged = [("HSET", f"{AFFINITY}device:d", *pair) for pair in record.items()]
        damaged += [("HSET", f"{AFFINITY}fleet", *pair) for pair in fleet.items()]
        await link.calls([*written, ("HSET", f"{AFFINITY}fleet", "notices:g1", len(notices))])
        batch = await coordinator.notices("g1", position, wait=False)
        assert batch.position in {position, f"{incarnation}-{len(notices)}"}
        await link.calls(damaged or [("PING",)])
        calls = [
            lambda: coordinator.elect(ElectionRequest(device_id="d", hub_id="g1", f_cnt=7)),
            lambda: coordinator.grant_downlink(claim),
            lambda: coordinator.notices("g1", position, wait=False),
        ]
        for call in calls:
            try:
                await call()
            except CoordinatorUnreachableError:
                continue

    with_redis(server, [], use)


@fuzzer
@given(
    hostile([b'{"deduplication":"mark"}', b"{}"], JSON_PIECES),
    hostile([b'{"generation":7,"f_cnt_up":8}', b"{}"], JSON_PIECES),
)
def test_a_damaged_device_in_redis_is_a_device_or_refused(server, profile, session):
    """One device, whole, or an error that names it."""

    async def use(link: RedisLink) -> None:
        registry = RedisRegistry(link, prefix="fuzz", common=DeviceProfile(device_id=""))
        with suppress(DeviceSourceError, DeviceUnknownError):
            assert (await registry.load("d")).profile.device_id == "d"

    key = "{fuzz}:devices:id:d"
    with_redis(server, [("HSET", key, "profile", profile, "session", session)], use)
