"""The storages of the routing table behind one contract: memory, SQLite and a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from edgehub.clock import SystemClock
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant
from edgehub.sync.faults import ConflictError, PreconditionError, QuotaError, RouteNotFoundError
from edgehub.sync.sqlite import SqliteStorage
from edgehub.sync.storage import Change, Digest, Position, Report
from tests.support.redis import RedisServer
from tests.support.route_tables import storages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

A, B = "a" * 64, "b" * 64


def key(name: str, tenant: Tenant = DEFAULT_TENANT) -> RouteKey:
    """Name a route."""
    return RouteKey(tenant, name)


def put(name: str, content: str = A, **rest: object) -> Change:
    """Want a row."""
    return Change(key=key(name), hash=content, text=f'{{"route":"{content[0]}"}}', **rest)


@pytest.fixture(params=["double", "memory", "sqlite", "redis"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[object]:
    """Return each kind, empty."""
    if request.param == "redis":
        with RedisServer(tmp_path) as server:
            async with storages("redis", tmp_path, server.url) as (only,):
                yield only
                await only.close()
    else:
        async with storages(request.param, tmp_path) as (only,):
            yield only


async def write(storage, *changes: Change, expected: int | None = None):
    """Store changes."""
    return await storage.write(changes, session="s", expected=expected)


async def test_a_table_in_memory_is_forgotten_and_leaves_that_of_the_file_alone(tmp_path):
    """Also where the hub kept its routes in the file before."""
    async with storages("sqlite", tmp_path) as (only,):
        await write(only, put("r1"))
    for name in ("r2", "r3"):
        async with storages("memory", tmp_path) as (only,):
            assert (only.kind, (await only.position()).rows) == ("memory", 0)
            await write(only, put(name, B))
            assert [row.key async for page in only.scan() for row in page] == [key(name)]
    async with storages("sqlite", tmp_path) as (only,):
        assert [row.key async for page in only.scan() for row in page] == [key("r1")]


async def test_rows_get_the_revision_of_their_change(storage):
    """Each change gets the table's next number; what is equal gets none."""
    assert (await storage.position()).revision == 0
    first = await write(storage, put("r1"), put("r2", B))
    assert [each.row.revision for each in first.stored] == [1, 2]
    assert [each.created for each in first.stored] == [True, True]
    again = await write(storage, put("r1"))
    assert again.revision == 2
    assert not again.stored[0].changed
    updated = await write(storage, put("r1", B))
    assert (updated.stored[0].row.revision, updated.stored[0].created) == (3, False)
    position = await storage.position()
    assert (position.revision, position.rows) == (3, 2)
    assert position.epoch == first.epoch > 1_600_000_000_000


async def test_rows_are_read_with_their_content(storage):
    """A row comes with the text of its hash; a content stays while one row has it."""
    await write(storage, put("r1"), put("r2"))
    await write(storage, put("r1", B))
    r1, r2, none = await storage.read([key("r1"), key("r2"), key("r3")])
    assert (r1.hash, r1.text) == (B, '{"route":"b"}')
    assert (r2.hash, r2.text) == (A, '{"route":"a"}')
    assert none is None


async def test_conditions_hold_for_the_whole_write(storage):
    """One condition that fails refuses all changes of a write."""
    await write(storage, put("r1"))
    with pytest.raises(PreconditionError) as stale:
        await write(storage, put("r2"), put("r1", B, expected=7))
    assert (stale.value.revision, stale.value.wanted) == (1, 7)
    with pytest.raises(PreconditionError):
        await write(storage, put("r1", B, expected=0))
    with pytest.raises(ConflictError):
        await write(storage, put("r2"), expected=9)
    assert [row is None for row in await storage.read([key("r2")])] == [True]
    assert (await write(storage, put("r2", expected=0), expected=1)).revision == 2
    assert (await write(storage, put("r1", B, expected=1))).revision == 3


async def test_switching_keeps_the_content(storage):
    """A row is switched off and on without naming its content; one that is not there cannot be."""
    await write(storage, put("r1", enabled=False))
    on = await write(storage, Change(key=key("r1"), enabled=True))
    assert (on.stored[0].row.enabled, on.stored[0].row.hash) == (True, A)
    same = await write(storage, Change(key=key("r1"), enabled=True))
    assert not same.stored[0].changed
    with pytest.raises(RouteNotFoundError):
        await write(storage, Change(key=key("r2"), enabled=True))
    (row,) = await storage.read([key("r1")])
    assert (row.enabled, row.text) == (True, '{"route":"a"}')


async def test_deleting_what_is_not_there_changes_nothing(storage):
    """A second delete is no fault and no change."""
    await write(storage, put("r1"))
    gone = await write(storage, Change(key=key("r1"), delete=True))
    assert (gone.stored[0].row, gone.stored[0].changed, gone.revision) == (None, True, 2)
    again = await write(storage, Change(key=key("r1"), delete=True))
    assert (again.stored[0].changed, again.revision) == (False, 2)


async def test_a_quota_counts_the_rows_of_one_tenant(storage):
    """A tenant that has all its routes may change and replace them, and others may add."""
    await write(storage, put("r1", quota=2), put("r2", quota=2))
    with pytest.raises(QuotaError) as full:
        await write(storage, put("r3", quota=2))
    assert full.value.limit == 2
    await write(storage, put("r1", B, quota=2))
    other = Change(key=key("r1", Tenant("acme", "two")), hash=A, text="{}", quota=1)
    await write(storage, other)
    await write(storage, Change(key=key("r2"), delete=True), put("r4", quota=2))
    assert (await storage.position()).rows == 3


async def test_scan_and_sum_see_every_row(storage):
    """A scan gives each row; the sum is that of the rows, in any order."""
    rows = {f"r{number}" for number in range(1234)}
    await write(storage, *(put(name) for name in sorted(rows)))
    found = [row async for page in storage.scan() for row in page]
    assert {row.key.id for row in found} == rows
    summed = Digest.of((str(row.key), row.raw) for row in {row.key: row for row in found}.values())
    assert await storage.digest() == summed
    await write(storage, Change(key=key("r7"), enabled=False))
    assert await storage.digest() != summed


async def test_reports_are_forgotten_when_a_hub_leaves(storage):
    """What a hub says takes the place of what it said before a restart, until it takes it back."""
    report = Report(
        instance="i1",
        hub_id="h1",
        epoch=5,
        revision=7,
        routes=2,
        failed={"k": "no"},
        failed_total=1,
    )
    assert await storage.report(report, expires_s=30) == ""
    (read,) = await storage.reports()
    assert (read.instance, read.revision, dict(read.failed)) == ("i1", 7, {"k": "no"})
    assert 0 <= read.age_ms < 10_000
    before = await storage.report(replace(report, instance="i2"), expires_s=30)
    assert before == ("" if isinstance(storage, SqliteStorage) else "i1")
    assert [each.instance for each in await storage.reports()] == ["i2"]
    await storage.leave("h1")
    assert await storage.reports() == []


async def test_names_of_manifests_may_hold_anything(storage):
    """A route name with slashes, blanks and letters of the world is a key like any other."""
    names = ["a/b", "größe ☃", "x y", "%#+", "r\n2"]
    await write(storage, *(put(name) for name in names))
    assert [row.key.id for row in await storage.read([key(name) for name in names])] == names
    assert {row.key.id async for page in storage.scan() for row in page} == set(names)


@pytest.mark.parametrize("storage", ["double", "redis"], indirect=True)
@pytest.mark.parametrize("rows", [0, 1, 3])
async def test_a_table_put_back_leaves_a_gap_in_the_revisions(storage, rows):
    """By it other hubs notice that they must read the whole table, also if rows only went."""
    await write(storage, put("r1"), put("r2"))
    before = await storage.position()
    (r1,) = await storage.read([key("r1")])
    back = [replace(r1, key=key(f"b{n}")) for n in range(rows)]
    version = Position(epoch=before.epoch - 1, revision=7)
    assert await storage.restore(back, [key("r2")], at=before, version=version)
    now = await storage.position()
    (entry,) = await storage.follow(before, 2)
    assert entry.revision == now.revision > version.revision + 1
    found = {row.key.id: row async for page in storage.scan() for row in page}
    assert found.keys() == {"r1", *(each.key.id for each in back)}
    revisions = [found[each.key.id].revision for each in back]
    assert all(version.revision + 1 < each <= now.revision for each in revisions)


async def test_the_log_wakes_others_and_names_the_writer(tmp_path: Path):
    """Another hub reads each change in order, with who made it."""
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url, 2) as (one, two):
            before = await two.position()
            result = await one.write([put("r1"), put("r2")], session="s1")
            entries = await two.follow(before, 2)
            assert [(e.key.id, e.revision, e.instance, e.session) for e in entries] == [
                ("r1", 1, "i1", "s1"),
                ("r2", 2, "i1", "s1"),
            ]
            now = await two.position()
            assert now.continues(Position(epoch=result.epoch, server=now.server, revision=1))
            assert not now.continues(before)
            await one.close()
            await two.close()


async def test_contents_are_kept_once_and_no_longer_than_their_rows(tmp_path: Path):
    """Many rows of one content keep it once; with the last of them it goes."""
    contents, uses = "{test:routes}:contents", "{test:routes}:references"
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (one,):
            await one.write([put(f"r{number}") for number in range(5)], session="s")
            assert server.command("HLEN", contents) == b":1\r\n"
            assert server.command("HGET", uses, A) == b"$1\r\n5\r\n"
            gone = [Change(key=key(f"r{number}"), delete=True) for number in range(4)]
            await one.write([*gone, put("r4", B)], session="s")
            assert server.command("HKEYS", contents) == f"*1\r\n$64\r\n{B}\r\n".encode()
            await one.close()


async def test_a_hubs_own_file_keeps_contents_no_longer_than_their_rows(tmp_path: Path):
    """A content goes with the last row that has it, replaced or deleted."""
    async with storages("sqlite", tmp_path) as (one,):

        async def contents() -> set[str]:
            query = "SELECT hash FROM route_content"
            found = await one._file.run(lambda c: c.execute(query).fetchall())  # noqa: SLF001 - nothing else shows it
            return {each for (each,) in found}

        await write(one, put("r1"), put("r2"))
        await write(one, put("r1", B))
        assert await contents() == {A, B}
        await write(one, Change(key=key("r2"), delete=True))
        assert await contents() == {B}


async def test_a_foreign_entry_in_the_log_does_not_stop_writes(tmp_path: Path):
    """Somebody who writes into the log makes the table begin a new epoch, and nothing else."""
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (one,):
            first = await one.write([put("r1")], session="s")
            server.command("XADD", "{test:routes}:log", "9999999999999-1", "x", "y")
            second = await one.write([put("r1", B)], session="s")
            assert second.epoch > first.epoch
            assert second.revision == 1
            assert (await one.read([key("r1")]))[0].hash == B
            assert SystemClock().wall_ms() < second.epoch
            await one.close()


async def test_a_row_that_cannot_be_read_can_be_replaced_and_deleted(tmp_path: Path):
    """Rubbish under a key is told as such and gives way to a write."""
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url) as (one,):
            await one.write([put("r1")], session="s")
            server.command("HSET", "{test:routes}:rows", "default/default/r1", "rubbish")
            (row,) = await one.read([key("r1")])
            assert "cannot be read" in row.reason
            written = await one.write([put("r1", B)], session="s")
            assert written.stored[0].changed
            assert (await one.read([key("r1")]))[0].text == '{"route":"b"}'
            await one.close()
