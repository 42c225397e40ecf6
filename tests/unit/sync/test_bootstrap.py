"""What stands in for a shared table that is away, and what comes when it is there."""

from __future__ import annotations

import asyncio
import json

import pytest

from edgehub.clock import ManualClock, SystemClock
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.presence import FORGOTTEN_S
from edgehub.sync.storage import DEFAULTS, FAILED_SHOWN_MAX, Change
from tests.support.memory_table import MemoryStorage, MemoryTable
from tests.support.route_tables import make_table, running, until
from tests.unit.sync.test_routing_table import OTHER, ROUTE, Flaky, hub, manifest

M1 = RouteKey(DEFAULT_TENANT, "m1")


@pytest.fixture
def shared():
    """Return what several hubs share."""
    return MemoryTable(SystemClock())


async def test_a_table_that_never_was_gets_the_manifest_late(shared):
    """A first start before its storage: the routes go on, and are the table's then."""
    table = hub(shared, manifest=manifest(m1=ROUTE))
    table._storage.away = True  # noqa: SLF001 - the harness
    async with running(table):
        table._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: table.ready[0])
        assert set(table.live.ids()) == {M1}
        assert M1 in shared.rows
        assert (await table.get("m1")).revision > 0
        assert (await table.drift()).total == 0


async def test_what_stood_in_does_not_take_along_what_the_table_has_too(shared):
    """A route of that id in the table runs on, as the table has it."""
    one = hub(shared, "i1", manifest=manifest(m1=OTHER))
    async with running(one):
        await one.put("r1", ROUTE)
    two = hub(shared, "i2", manifest=manifest(m1=ROUTE))
    two._storage.away = True  # noqa: SLF001 - the harness
    async with running(two):
        two._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: two.ready[0])
        assert (await two.get("m1")).members == {"route": OTHER}
        assert (await two.get("m1")).state == "running"
        assert [route["id"] for route in (await two.list())["routes"]] == ["m1", "r1"]
        assert (await two.drift()).total == 0


async def test_a_stored_change_is_no_error_when_the_storage_goes_away(shared):
    """Whoever waits for the others hears that it is stored, and that they did not say so."""

    class Leaving(Flaky):
        async def reports(self):
            self.away = True
            return await super().reports()

    table = hub(shared)
    async with running(table):
        table._presence._storage = Leaving(shared, instance="i1")  # noqa: SLF001 - the harness
        written = await table.put("r1", ROUTE, wait=True, timeout_s=0.1)
        assert (written.changed, written.applied.result) == (True, "timeout")
        assert written.view.state == "running"


async def test_a_change_that_cannot_be_read_back_is_shown_as_it_was_stored(shared):
    """Not as the route was before: its revision is the next one's condition."""

    class Leaving(Flaky):
        async def write(self, changes, *, session, expected=None):
            result = await super().write(changes, session=session, expected=expected)
            self.away = True
            return result

    table = make_table(Leaving(shared, instance="i1"), "i1")
    async with running(table):
        for body in (ROUTE, OTHER):
            table._storage.away = False  # noqa: SLF001 - the harness
            await until(lambda: table.ready[0] and not table.busy)
            written = await table.put("r1", body, timeout_s=0.05)
            assert written.view.revision == written.revision
            assert (written.view.members, written.view.state) == ({"route": body}, "pending")
        table._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: table.live.live_count == 1 and not table.busy)
        assert (await table.get("r1")).state == "running"


async def test_no_name_of_a_manifest_takes_the_place_of_the_defaults(shared):
    """Their key is none that a route can have; they count for nobody's quota and are no route."""
    routes = {"$defaults": ROUTE, "$/$/defaults": OTHER}
    table = hub(shared, manifest=manifest(**routes), routes_max=2)
    async with running(table):
        assert {key.id for key in table.live.ids()} == set(routes)
        assert DEFAULTS in shared.rows
        assert (await table.instances())[0].routes == 2
        assert table.live.table.manifest.global_ttl_ms == 600_000


@pytest.mark.parametrize(
    ("seconds", "ttl_ms"),
    [
        (1, 1_000),
        (2**31 - 1, (2**31 - 1) * 1000),
        (-1, None),
        *((wrong, 7_200_000) for wrong in (0, 2**31, -(2**31), True, 1.5, "60")),
    ],
)
async def test_defaults_of_the_table_have_the_bounds_of_a_manifest(shared, seconds, ttl_ms):
    """What lies outside of them leaves in force what was."""
    text = json.dumps({"timeToLiveSecs": seconds})
    change = Change(key=DEFAULTS, hash="d" * 64, text=text)
    await MemoryStorage(shared, instance="i2").write([change], session="s")
    table = hub(shared)
    async with running(table):
        assert table.live.table.manifest.global_ttl_ms == ttl_ms


async def test_two_hubs_of_one_name_are_reported(shared):
    """A copied disk: both run, and each says that there is another."""
    one, two = hub(shared, "i1"), make_table(Flaky(shared, instance="i2"), "i2", hub_id="i1")
    async with running(one, two):
        for table in (one, two):
            await until(lambda table=table: table._presence.duplicate_hub)  # noqa: SLF001 - the harness
            assert any("another running hub is called i1" in each for each in table.warnings())


async def test_a_report_that_cannot_show_all_failures_shows_the_latest(shared):
    """Also of a route that has failed before, otherwise."""

    class Everything(set):
        def __contains__(self, _content_hash):
            return True

    one, two = hub(shared, "i1"), hub(shared, "i2")
    two._host.broken = Everything()  # noqa: SLF001 - the harness
    async with running(one, two):
        for number in range(FAILED_SHOWN_MAX + 1):
            await one.put(f"r{number}", ROUTE)
        await one.put("r0", OTHER)
        await until(lambda: not two.busy and two.statistics().revision == shared.revision)
        report = two._presence.own()  # noqa: SLF001 - the harness
    assert report.failed_total == FAILED_SHOWN_MAX + 1
    assert str(RouteKey(DEFAULT_TENANT, "r0")) in report.failed


async def test_a_caller_that_waits_for_a_row_is_notified_once_the_storage_is_back(shared):
    """It was away when the row was to be read; nothing is asked for again."""

    class Counting(Flaky):
        refused = 0

        async def read(self, keys):
            self.refused += self.away
            return await super().read(keys)

    storage = Counting(shared, instance="i1")
    table = make_table(storage, "i1")
    async with running(table):
        await until(lambda: not table.busy)
        storage.away = True
        waiting = asyncio.create_task(table._reconciler.settled([M1]))  # noqa: SLF001 - the harness
        await until(lambda: storage.refused)
        assert not waiting.done()
        storage.away = False
        async with asyncio.timeout(5):
            await waiting


async def test_what_changes_during_a_report_is_reported_after_it():
    """At once, not with the next beat."""

    class Slow(MemoryStorage):
        reports_taken = 0

        async def report(self, report, *, expires_s):
            self.reports_taken += 1
            if self.reports_taken == 1:
                presence.report_soon()
            return await super().report(report, expires_s=expires_s)

    clock = ManualClock()
    storage = Slow(MemoryTable(clock), instance="i1")
    presence = make_table(storage, "i1", clock=clock)._presence  # noqa: SLF001 - the harness
    task = asyncio.create_task(presence.run())
    await clock.advance(0)
    assert storage.reports_taken == 2
    task.cancel()


async def test_a_removed_hub_of_the_same_name_is_reported_no_more():
    """A minute after it has said something for the last time."""
    clock = ManualClock()
    shared = MemoryTable(clock)
    one, two = (
        make_table(MemoryStorage(shared, instance=name), name, hub_id="gw", clock=clock)
        for name in ("i1", "i2")
    )

    def is_told() -> bool:
        return any("another running hub is called gw" in each for each in one.warnings())

    for table in (one, two, one):
        await table._presence.report()  # noqa: SLF001 - the harness
    assert is_told()
    for _ in range(2):
        assert is_told()
        await clock.advance(FORGOTTEN_S / 2 + 1)
        await one._presence.report()  # noqa: SLF001 - the harness
    assert not is_told()
