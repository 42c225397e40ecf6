"""A storage that loses its table: who puts it back, from what, and when it is left as it is."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from edgehub.clock import SystemClock
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.storage import DEFAULTS, Begun, Position
from tests.support.memory_table import MemoryTable
from tests.support.route_tables import lose, running, until
from tests.unit.sync.test_routing_table import OTHER, ROUTE, hub, manifest

FILE = {"m1": ROUTE, "m2": OTHER}


@pytest.fixture
def shared():
    """Return what several hubs share."""
    return MemoryTable(SystemClock())


def names(table):
    """Return the ids that run."""
    return {key.id for key in table.live.ids()}


def begun(epoch=0, revision=0, root=2):
    """Return what a table was begun with."""
    return Begun(epoch=epoch, revision=revision, first=1, root=root)


HELD = Position(epoch=5, revision=9, begun=begun(2, 3))


@pytest.mark.parametrize(
    ("now", "lacks"),
    [
        (Position(), True),
        (Position(rows=3), False),
        (Position(epoch=5, revision=12, begun=begun(2, 3)), False),
        (Position(epoch=5, revision=2, begun=begun(2, 3)), False),
        (Position(epoch=7, revision=2), False),
        (Position(epoch=7, revision=2, begun=begun(root=7)), True),
        (Position(epoch=7, revision=2, begun=begun(6, 4, root=6)), True),
        (Position(epoch=7, revision=2, begun=begun(5, 8)), True),
        (Position(epoch=7, revision=2, begun=begun(5, 9)), False),
        (Position(epoch=7, revision=2, begun=begun(6, 1)), False),
        (Position(epoch=7, revision=2, begun=begun(1, 4, root=1)), False),
        (Position(epoch=3, revision=2, begun=begun(root=3)), False),
    ],
)
def test_a_table_lacks_what_it_was_begun_without(now, lacks):
    """Only one that never was, or was begun later from less than this hub holds."""
    assert now.lacks(HELD) is lacks
    assert not now.lacks(Position())


async def test_hubs_go_on_and_put_the_table_back(shared):
    """No route stops meanwhile; revisions go on above those that there were; status tells."""
    one, two = hub(shared, "i1", manifest=manifest(m1=ROUTE)), hub(shared, "i2")
    async with running(one, two):
        put = await one.put("r1", OTHER, wait=True)
        off = await one.put("r2", {"route": ROUTE, "enabled": False}, wait=True)
        before = shared.rows[RouteKey(DEFAULT_TENANT, "r1")]
        lose(shared)
        await until(lambda: shared.epoch and two.statistics().epoch == shared.epoch)
        await until(lambda: one.statistics().epoch == shared.epoch)
        for table in (one, two):
            host = table._host  # noqa: SLF001 - the harness
            assert not host.stops
            assert names(table) == {"m1", "r1"}
            assert any("had lost the routing table" in each for each in table.warnings())
        assert off.revision > put.revision
        # The epoch is known a moment before all rows are read again.
        async with asyncio.timeout(5):
            while (view := await one.get("r1")).revision <= off.revision:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        assert view.created_ms == before.created_ms
        assert (await two.get("r2")).state == "disabled"
        assert DEFAULTS in shared.rows
        restored = [table.statistics().restored_total for table in (one, two)]
        assert sorted(restored) == [0, 1]
        reports = [await table.drift() for table in (one, two)]
        assert sorted(each.restored for each in reports) == [0, 4]
        assert [each.total for each in reports] == [0, 0]
        assert (await one.drift()).restored == 0


async def test_a_table_that_was_emptied_stays_empty(shared):
    """Routes that people removed do not come back, nor does the manifest of a hub that starts."""
    one = hub(shared, "i1", manifest=manifest(m1=ROUTE))
    async with running(one):
        await one.put("r1", ROUTE)
        for name in ("r1", "m1"):
            await one.delete(name)
        assert one.live.live_count == 0
        assert any("is empty" in each for each in one.warnings())
        lose(shared)
        await until(lambda: shared.epoch)
        two = hub(shared, "i2", manifest=manifest(m1=ROUTE))
        async with running(two):
            assert (names(one), names(two)) == (set(), set())


async def test_a_write_into_a_lost_table_stands_on_what_was_in_it(shared):
    """Whoever writes before the loss was noticed puts the table back first."""
    one = hub(shared, check_s=30)
    async with running(one):
        await one.put("r1", ROUTE)
        await one.put("r2", ROUTE)
        lose(shared)
        assert (await one.delete("r1")).changed
        await until(lambda: names(one) == {"r2"})
        assert {key.id for key in shared.rows} == {"r2", DEFAULTS.id}


async def test_a_comparison_of_a_lost_table_takes_no_route_for_too_many(shared):
    """It puts the table back; one that is to mend nothing only tells."""
    one = hub(shared, check_s=30)
    async with running(one):
        await one.put("r1", ROUTE)
        lose(shared)
        seen = await one.drift(repair=False)
        assert (seen.extra, seen.restored) == (("r1",), 0)
        assert not shared.epoch
        report = await one.drift()
        assert (report.restored, report.total, names(one)) == (2, 0, {"r1"})


async def test_what_a_new_hub_imported_gives_way(shared):
    """A hub that knew of no table was quicker; what people have changed since then stays."""
    one = hub(shared, "i1", manifest=manifest(**FILE), check_s=1)
    async with running(one):
        await one.put("r1", ROUTE)
        await one.put("r2", ROUTE)
        await one.delete("m2")
        await one.put("r3", ROUTE)
        lose(shared)
        two = hub(shared, "i2", manifest=manifest(m1=OTHER, m2=OTHER, m3=OTHER))
        async with running(two):
            await two.put("r2", OTHER)
            await two.delete("r3")
            await two.put("new", ROUTE)
            await until(lambda: two.statistics().epoch == one.statistics().epoch)
            for table in (one, two):
                # r3 was never there for the hub that was asked to remove it.
                await until(lambda t=table: names(t) == {"m1", "r1", "r2", "r3", "new"})
                assert (await table.get("m1")).members == {"route": ROUTE}
                assert (await table.get("r2")).members == {"route": OTHER}
            assert (await one.drift()).total == 0


async def test_a_route_that_was_imported_again_belongs_to_whom_it_did(shared):
    """The same content from the manifest of a new hub: the next manifest must not remove it."""
    one = hub(shared, "i1", check_s=1)
    async with running(one):
        await one.put("r1", ROUTE)
        lose(shared)
        two = hub(shared, "i2", manifest=manifest(r1=ROUTE))
        async with running(two):
            key = RouteKey(DEFAULT_TENANT, "r1")
            await until(lambda: two.statistics().epoch == one.statistics().epoch)
            await until(lambda: one.statistics().restored_total == 1)
            assert shared.rows[key].origin == "api"


async def test_the_latest_version_wins_whoever_comes_first(shared):
    """A hub that was cut off puts back an older table; one that knows more puts it right."""
    one, two = hub(shared, "i1"), hub(shared, "i2")
    async with running(one, two):
        await one.put("r1", ROUTE)
        await one.put("r2", ROUTE, wait=True)
        two._storage.away = True  # noqa: SLF001 - the harness
        await one.put("r1", OTHER)
        await one.delete("r2")
        await one.put("r3", ROUTE)
        one._storage.away = True  # noqa: SLF001 - the harness
        lose(shared)
        two._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: two.statistics().restored_total == 1)
        assert {key.id for key in shared.rows} == {"r1", "r2", DEFAULTS.id}
        one._storage.away = False  # noqa: SLF001 - the harness
        for table in (one, two):
            await until(lambda t=table: names(t) == {"r1", "r3"})
            assert (await table.get("r1")).members == {"route": OTHER}


async def test_a_table_whose_log_was_cut_is_taken_as_it_is(shared):
    """Nobody could tell what was removed since from what is missing."""
    one, two = hub(shared, "i1"), hub(shared, "i2", manifest=manifest(m1=ROUTE))
    async with running(one):
        await one.put("r1", ROUTE)
        one._storage.away = True  # noqa: SLF001 - the harness
        lose(shared)
        async with running(two):
            await two.put("r2", ROUTE)
            del shared.log[0]
            one._storage.away = False  # noqa: SLF001 - the harness
            await until(lambda: names(one) == {"m1", "r2"})
            assert names(two) == {"m1", "r2"}


async def test_what_cannot_be_read_cannot_be_put_back(shared):
    """A broken row is left out and told; the others come back."""
    one = hub(shared, "i1")
    async with running(one):
        await one.put("r1", ROUTE)
        written = await one.put("r2", OTHER)
        key = RouteKey(DEFAULT_TENANT, "r3")
        shared.rows[key] = replace(shared.rows[written.view.key], key=key, hash="ab")
        await one.drift()
        assert (await one.get("r3")).state == "failed"
        lose(shared)
        await until(lambda: shared.epoch)
        assert key not in shared.rows
        assert any("1 could not be read" in each for each in one.warnings())
        await until(lambda: one.statistics().failed == 0)
        assert names(one) == {"r1", "r2"}
