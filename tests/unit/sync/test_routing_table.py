"""What is asked of the routing table, on the storage in memory: answers, refusals, other hubs."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from edgehub.clock import SystemClock
from edgehub.errors import ManifestError
from edgehub.routes.content import InvalidRouteError, read_body
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant
from edgehub.sync.faults import (
    ConflictError,
    OwnedByManifestError,
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
    StorageUnavailableError,
    UnknownTenantError,
)
from tests.support.memory_table import MemoryStorage, MemoryTable
from tests.support.route_tables import CountingHost, make_table, running, until

ROUTE = "FROM /messages/* WHERE kind = 'a' INTO $upstream"
OTHER = "FROM /messages/* WHERE kind = 'b' INTO $upstream"
ACME = Tenant("acme", "one")


def document(**routes):
    """Make a manifest's text."""
    return json.dumps(
        {
            "schemaVersion": "1.1",
            "routes": routes,
            "storeAndForwardConfiguration": {"timeToLiveSecs": 600},
        }
    )


def manifest(**routes):
    """Make a manifest."""
    return parse_manifest(document(**routes), file="/etc/m.json")


@pytest.fixture
def shared():
    """Return what several hubs share."""
    return MemoryTable(SystemClock())


class Flaky(MemoryStorage):
    """A storage that can be away."""

    away = False

    async def position(self):
        """See `TableStorage`."""
        return await super().position() if self.up() else None

    async def read(self, keys):
        """See `TableStorage`."""
        return await super().read(keys) if self.up() else []

    async def follow(self, after, wait_s):
        """See `TableStorage`."""
        return await super().follow(after, wait_s) if self.up() else []

    async def write(self, changes, *, session, expected=None):
        """See `TableStorage`."""
        self.up()
        return await super().write(changes, session=session, expected=expected)

    async def reports(self):
        """See `TableStorage`."""
        return await super().reports() if self.up() else []

    async def report(self, report, *, expires_s):
        """See `TableStorage`."""
        self.up()
        return await super().report(report, expires_s=expires_s)

    def up(self) -> bool:
        """Refuse while it is away."""
        if self.away:
            raise StorageUnavailableError("it is away")
        return True


def hub(storage, name="i1", **options):
    """Make one hub's table."""
    return make_table(Flaky(storage, instance=name), name, **options)


async def test_add_says_what_it_did(shared):
    """Created, changed or neither; the view is the one that a later get gives."""
    table = hub(shared)
    async with running(table):
        first = await table.put("r1", ROUTE)
        assert (first.created, first.changed, first.view.state) == (True, True, "running")
        again = await table.put("r1", {"route": ROUTE, "priority": 2_000_000_000})
        assert (again.created, again.changed, again.revision) == (False, False, first.revision)
        other = await table.put("r1", OTHER)
        assert (other.created, other.changed) == (False, True)
        assert await table.get("r1") == other.view
        unnamed = await table.add(ROUTE)
        assert unnamed.view.key.id == unnamed.view.hash
        named = await table.add({"route": ROUTE, "id": "r9"})
        assert named.view.shared_with == (unnamed.view.key.id,)


async def test_a_write_answers_with_what_is_hardly_meant(shared):
    """A bare word in place of a text, and the end of the last route that takes everything."""
    table = hub(shared)
    async with running(table):
        bare = await table.put("r1", "FROM /messages/* WHERE kind = alarm INTO $upstream")
        (warning,) = bare.warnings
        assert warning.startswith("route: column 31 of its text: `alarm` is the name of a property")
        assert bare.document()["warnings"] == [warning]
        assert not (await table.put("r2", "FROM /messages/* INTO $upstream")).warnings
        assert not (await table.put("r3", "FROM /* WHERE true INTO $upstream")).warnings
        assert not (await table.delete("r3")).warnings
        lost = "from now on messages that match no route are acknowledged and dropped"
        for change in (
            table.disable("r2"),
            table.put("r2", ROUTE),
            table.delete("r2"),
        ):
            (warning,) = (await change).warnings
            assert warning.startswith(lost)
            await table.put("r2", "FROM /messages/* INTO $upstream")
        assert not (await table.enable("r2")).warnings


async def test_a_manifest_that_loses_the_catch_all_says_so(shared):
    """What `manifest apply` removes may have taken all that matches nothing else."""
    rest = "FROM /messages/* INTO $upstream"
    table = hub(shared, manifest=manifest(rest=rest, m1=ROUTE))
    async with running(table):
        applied = await table.apply_manifest(document(m1=ROUTE), "m")
        (warning,) = applied.warnings
        assert "acknowledged and dropped" in warning
        assert f'add `"rest": "{rest}"`' in warning
        assert not (await table.apply_manifest(document(rest=rest), "m")).warnings
        assert not (await table.put("other", rest)).warnings
        assert not (await table.apply_manifest(document(m1=ROUTE), "m")).warnings


async def test_conditions_are_on_the_revision(shared):
    """If-Match and If-None-Match refuse with the present revision, and store nothing."""
    table = hub(shared)
    async with running(table):
        first = await table.put("r1", ROUTE, if_none_match=True)
        for change in (
            table.put("r1", OTHER, if_match=first.revision + 1),
            table.put("r1", OTHER, if_none_match=True),
            table.delete("r1", if_match=first.revision + 1),
            table.disable("r1", if_match=first.revision + 1),
        ):
            with pytest.raises(PreconditionError) as refused:
                await change
            assert refused.value.revision == first.revision
        assert (await table.get("r1")).hash == first.view.hash
        gone = await table.delete("r1", if_match=first.revision)
        assert (gone.view, gone.changed) == (None, True)
        assert not (await table.delete("r1")).changed
        with pytest.raises(PreconditionError):
            await table.put("r1", OTHER, if_match=first.revision)


async def test_refusals_come_before_the_storage(shared):
    """What is wrong with id, body, tenant or endpoint is told while the storage is away."""
    table = hub(shared, tenants={ACME: 1})
    async with running(table):
        table._storage.away = True  # noqa: SLF001 - the harness
        broken = read_body(OTHER, DEFAULT_TENANT).content.hash
        table._host.broken.add(broken)  # noqa: SLF001 - the harness
        for change, kind in (
            (table.put("r 1", ROUTE), InvalidRouteError),
            (table.put("r1", {"route": ROUTE, "id": "r2"}), InvalidRouteError),
            (table.put("r1", OTHER), InvalidRouteError),
            (table.put("r1", ROUTE, tenant=Tenant("no", "body")), UnknownTenantError),
            (table.put("$defaults", ROUTE), InvalidRouteError),
            (table.put("r1", ROUTE), StorageUnavailableError),
            (table.instances(), StorageUnavailableError),
        ):
            with pytest.raises(kind):
                await change
        table._storage.away = False  # noqa: SLF001 - the harness


async def test_tenants_have_their_own_ids_and_quotas(shared):
    """One tenant's routes neither show to another nor count for it."""
    table = hub(shared, tenants={ACME: 1}, routes_max=2)
    async with running(table):
        await table.put("r1", ROUTE, tenant=ACME)
        with pytest.raises(QuotaError) as full:
            await table.put("r2", ROUTE, tenant=ACME)
        assert (full.value.tenant, full.value.limit) == ("acme/one", 1)
        with pytest.raises(RouteNotFoundError):
            await table.get("r1")
        await table.put("r1", ROUTE)
        await table.put("r2", ROUTE)
        with pytest.raises(QuotaError):
            await table.put("r3", ROUTE)
        assert table.live.live_count == 2
        page = await table.list(tenant=ACME)
        assert [route["tenant"] for route in page["routes"]] == ["acme/one"]


async def test_lists_come_in_pages(shared):
    """Sorted by id, each page says where the next begins."""
    table = hub(shared)
    async with running(table):
        for number in range(7):
            await table.put(f"r{number}", ROUTE)
        seen, after = [], None
        while True:
            page = await table.list(after=after, limit=3)
            seen += [route["id"] for route in page["routes"]]
            after = page["next"]
            if after is None:
                break
        assert seen == [f"r{number}" for number in range(7)]


async def test_switching_keeps_content_and_says_so_elsewhere(shared):
    """A route that is off is stored, shown and not run, on every hub."""
    one, two = hub(shared, "i1"), hub(shared, "i2")
    async with running(one, two):
        await one.put("r1", ROUTE)
        off = await one.disable("r1", wait=True)
        assert (off.view.state, off.applied.result) == ("disabled", "complete")
        assert (await two.get("r1")).state == "disabled"
        assert two.live.live_count == 0
        on = await two.enable("r1", wait=True)
        assert on.view.members == {"route": ROUTE}
        assert one.live.live_count == 1
        with pytest.raises(RouteNotFoundError):
            await one.enable("r2")


async def test_a_hub_that_cannot_build_is_named(shared):
    """The writer hears who failed and why; that hub keeps the last good one and tries again."""
    one, two = hub(shared, "i1"), hub(shared, "i2")
    async with running(one, two):
        await one.put("r1", ROUTE)
        host: CountingHost = two._host  # noqa: SLF001 - the harness
        await until(lambda: len(two.live) == 1)
        host.broken.add(read_body(OTHER, DEFAULT_TENANT).content.hash)
        written = await one.put("r1", OTHER, wait=True)
        assert written.applied.result == "failed"
        assert written.applied.failed == ({"instance": "i2", "reason": "the host refuses it"},)
        assert written.applied.by == ("i1",)
        states = {each.hub_id: each.state for each in await one.route_status("r1")}
        assert states == {"i1": "running", "i2": "failed"}
        view = await two.get("r1")
        good = read_body(ROUTE, DEFAULT_TENANT).content.hash
        assert (view.state, view.live_hash) == ("failed", good)
        assert "1 routes cannot run here: r1" in two.warnings()[0]
        host.broken.clear()
        two.settings_changed()
        await until(lambda: two.live.hash_of(RouteKey(DEFAULT_TENANT, "r1")) != good)
        assert (await two.get("r1")).state == "running"


async def test_a_hub_that_has_opened_is_waited_for(shared):
    """It is known before it runs, so no change is called complete without it."""
    one, two = hub(shared, "i1"), hub(shared, "i2")
    await two.open()
    async with running(one):
        written = await one.put("r1", ROUTE, wait=True, timeout_s=0.01)
        assert (written.applied.result, written.applied.behind) == ("timeout", ("i2",))
    await two.close()


async def test_a_hub_that_is_silent_is_behind(shared):
    """A hub that does not say that it has applied a change is named when the time is over."""
    one, two = hub(shared, "i1"), hub(shared, "i2")
    async with running(one, two):
        await until(lambda: len(shared.reports) == 2)
        two._storage.away = True  # noqa: SLF001 - the harness
        written = await one.put("r1", ROUTE, wait=True, timeout_s=0.1)
        assert (written.applied.result, written.applied.behind) == ("timeout", ("i2",))
        two._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: len(two.live) == 1)


async def test_routes_of_the_file_belong_to_the_file(shared):
    """On a hub of its own they are shown with the file, and only a reload changes them."""
    table = hub(shared, shared=False, manifest=manifest(m1=ROUTE, m2=OTHER))
    async with running(table):
        view = await table.get("m1")
        assert (view.origin, view.file, view.revision) == ("manifest", "/etc/m.json", 0)
        for change in (table.put("m1", OTHER), table.delete("m1"), table.disable("m1")):
            with pytest.raises(OwnedByManifestError, match=r"/etc/m\.json"):
                await change
        await table.put("r1", ROUTE)
        assert (await table.get("m1")).shared_with == ("r1",)
        with pytest.raises(ManifestError, match="r1"):
            await table.follow_file(manifest(m1=ROUTE, r1=OTHER))
        assert {route["id"] for route in (await table.list())["routes"]} == {"m1", "m2", "r1"}
        await table.follow_file(manifest(m1=OTHER))
        assert {route["id"] for route in (await table.list())["routes"]} == {"m1", "r1"}
        assert (await table.get("m1")).members == {"route": OTHER}
        assert (await table.get("r1")).members == {"route": ROUTE}
        assert {spec.name for spec in table.manifest_in_force().routes} == {"m1"}
        with pytest.raises(ConflictError, match="reload"):
            await table.apply_manifest(document(m1=ROUTE), "m")
        report = await table.drift()
        assert (report.total, report.repaired) == (0, 0)


async def test_a_reload_waits_for_the_id_that_is_being_added(shared):
    """Whoever comes first has the id; the other is refused with its name."""
    table = hub(shared, shared=False, manifest=manifest(m1=ROUTE))
    async with running(table):
        adding = asyncio.create_task(table.put("x", ROUTE))
        await asyncio.sleep(0)
        with pytest.raises(ManifestError, match="x"):
            await table.follow_file(manifest(x=OTHER))
        assert (await adding).view.state == "running"
        following = asyncio.create_task(table.follow_file(manifest(y=OTHER)))
        await asyncio.sleep(0)
        with pytest.raises(OwnedByManifestError):
            await table.put("y", ROUTE)
        await following
        assert {route["id"] for route in (await table.list())["routes"]} == {"x", "y"}


async def test_a_manifest_is_imported_once_and_applied_later(shared):
    """Into a table that never was; then by a person, who has seen the revision."""
    one = hub(shared, "i1", manifest=manifest(m1=ROUTE))
    two = hub(shared, "i2", manifest=manifest(m1=OTHER))
    async with running(one, two):
        assert (await two.get("m1")).members == {"route": ROUTE}
        assert (one.statistics().manifest_difference, two.statistics().manifest_difference) == (
            False,
            True,
        )
        assert two.live.table.manifest.global_ttl_ms == 600_000
        await one.put("r1", ROUTE)
        revision = one.statistics().revision
        with pytest.raises(ConflictError):
            await one.apply_manifest(document(m2=OTHER), "m", expected_revision=revision - 1)
        with pytest.raises(ConflictError, match="r1"):
            await one.apply_manifest(document(r1=OTHER), "m")
        with pytest.raises(InvalidRouteError) as invalid:
            await one.apply_manifest(document(m2="FROM nowhere"), "m")
        assert invalid.value.faults[0].route == "m2"
        applied = await one.apply_manifest(document(m2=OTHER), "m", wait=True)
        assert (applied.added, applied.updated, applied.removed) == (("m2",), (), ("m1",))
        assert {route["id"] for route in (await two.list())["routes"]} == {"m2", "r1"}
        for route in ("m2", "r1"):
            await one.delete(route)
    third = hub(shared, "i3", manifest=manifest(m1=ROUTE))
    async with running(third):
        assert third.live.live_count == 0


async def test_without_storage_the_manifest_stands_in(shared):
    """A hub that starts alone routes by its file and says so; the table takes its place later."""
    one = hub(shared, "i1")
    async with running(one):
        await one.put("r1", OTHER)
    two = hub(shared, "i2", manifest=manifest(m1=ROUTE))
    two._storage.away = True  # noqa: SLF001 - the harness
    async with running(two):
        assert not two.ready[0]
        assert "table stale" in two.ready[1]
        assert {spec.name for spec in two.live.table.manifest.routes} == {"m1"}
        two._storage.away = False  # noqa: SLF001 - the harness
        await until(lambda: two.ready[0])
        await until(lambda: {key.id for key in two.live.ids()} == {"r1"})


async def test_the_comparison_finds_and_reports_what_no_revision_shows(shared):
    """Rows changed by hand: named by kind, repaired unless only asked for, then silent."""
    table = hub(shared)
    async with running(table):
        for number in range(3):
            await table.put(f"r{number}", ROUTE)
        other = await table.put("spare", OTHER)
        keys = [RouteKey(DEFAULT_TENANT, f"r{number}") for number in range(4)]
        del shared.rows[keys[0]]
        row = shared.rows[RouteKey(DEFAULT_TENANT, "spare")]
        shared.rows[keys[1]] = replace(row, key=keys[1])
        shared.rows[keys[3]] = replace(row, key=keys[3])
        seen = await table.drift(repair=False)
        assert (seen.missing, seen.extra, seen.changed) == (("r3",), ("r0",), ("r1",))
        assert (seen.total, seen.repaired) == (3, 0)
        mended = await table.drift()
        assert (mended.missing, mended.extra, mended.changed) == (("r3",), ("r0",), ("r1",))
        assert mended.repaired == 3
        assert table.live.hash_of(keys[3]) == other.view.hash
        assert (await table.drift()).total == 0
        assert table.last_drift.document()["at"].endswith("Z")
        assert table.statistics().drift_repaired_total == 3


async def test_who_waits_for_rows_is_answered_though_the_storage_goes_away(shared):
    """A look that was cut short is taken again for all that waited for it."""
    one = hub(shared)
    async with running(one):
        written = await one.put("r1", ROUTE)
        one._storage.away = True  # noqa: SLF001 - the harness
        reconciler = one._reconciler  # noqa: SLF001 - the harness
        waits = asyncio.create_task(reconciler.settled([written.view.key]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waits.done()
        one._storage.away = False  # noqa: SLF001 - the harness
        async with asyncio.timeout(5):
            await waits
