"""The mapper on the real store, local space and pump: commits, predecessors, restarts, bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.message import UPSTREAM, EndpointId, FailureKind, Priority, Refusal
from tests.support.gateway import LATER, NEVER, Cloud, gateway
from tests.support.stores import FaultPlan, crash_copy, faulty_database

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Row

pytestmark = pytest.mark.integration

A, B, C = "device/a//", "device/b//", "device/c//"


async def test_a_creation_behind_its_data_leaves_first(tmp_path: Path) -> None:
    """Three levels in a worse queue than their data: one batch a level, then the data."""
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud) as hub:
        await hub.quiet()
        hub.register(A, "A")
        hub.register(B, "B", A)
        hub.register(C, "C", B)
        for value in range(3):
            for topic_id in (A, B, C):
                hub.measure(topic_id, value)
        await hub.quiet()
        cloud.revive()
        await hub.drained()
        assert cloud.faults == []
        kinds = [text.split(",")[1] for _, text in cloud.rows if text.startswith("101")]
        assert kinds == ["A", "B", "C"]
        assert [cloud.bodies(name) for name in "ABC"] == [[0, 1, 2]] * 3
        assert not len(hub.mapping.announcements)


async def test_rows_without_predecessors_go_on(tmp_path: Path) -> None:
    """The gateway's own data leaves while a creation is refused again and again."""
    cloud = Cloud()
    cloud.up_at_start = False
    cloud.answer = lambda row: LATER if row.creation else None
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(A, "A")
        hub.measure(A, 1)
        hub.measure("device/main//", 7)
        await hub.quiet()
        cloud.revive()
        await hub.quiet()
        assert (cloud.bodies("gw"), cloud.bodies("A")) == ([7], [])
        cloud.answer = lambda _row: None
        await hub.drained()
        assert (cloud.bodies("A"), cloud.faults) == ([1], [])


async def test_a_refused_creation_parks_its_rows_until_a_corrected_registration(
    tmp_path: Path,
) -> None:
    """Also over a restart; children wait with it, others do not."""
    cloud = Cloud()
    cloud.answer = lambda row: NEVER if b"bad" in row.message.body else None
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.send(f"te/{A}", {"@type": "child-device", "@id": "A", "name": "bad"}, retain=True)
        hub.register(B, "B", A)
        hub.measure(A, 1)
        hub.measure(B, 2)
        hub.measure("device/main//", 3)
        await hub.drained(minutes=5)
        assert hub.mapping.directory is not None
        assert hub.mapping.directory.show(A)["announced"] is False
        assert (cloud.bodies("gw"), cloud.bodies("A"), cloud.bodies("B")) == ([3], [], [])
        assert any("refused to create 1" in text for text in hub.mapping.warnings())
    cloud = Cloud()
    cloud.created = {"gw"}
    async with gateway(tmp_path / "q.db", cloud) as hub:
        await hub.drained(minutes=5)
        assert (cloud.bodies("A"), cloud.bodies("B")) == ([], [])
        hub.measure(A, 4)
        hub.send(f"te/{A}", {"@type": "child-device", "@id": "A", "name": "good"}, retain=True)
        await hub.drained()
        assert cloud.faults == []
        assert (cloud.bodies("A"), cloud.bodies("B")) == ([1, 4], [2])
        assert hub.store.statistics().rows == 0
        assert hub.mapping.status()["entities"]["creations_refused"] == 0


async def test_state_and_rows_are_of_one_commit(tmp_path: Path) -> None:
    """What a registration releases is there as a whole after a crash, or not at all."""
    cloud = Cloud()
    cloud.up_at_start = False
    path = tmp_path / "q.db"
    async with gateway(path, cloud, telemetry_cache_size=5000) as hub:
        for value in range(3000):
            hub.measure(A, value, client=f"c{value % 7}")
        await hub.quiet()
        before = hub.store.statistics().commits_total
        token = hub.register(A, "A")
        at_once = crash_copy(path, tmp_path / "early")
        await hub.quiet()
        assert hub.settled[token] is None
        assert hub.store.statistics().commits_total - before <= 20
        copy = crash_copy(path, tmp_path / "late")
    for file, rows, held in ((at_once, 0, 3000), (copy, 3001, 0)):
        cloud = Cloud()
        cloud.up_at_start = False
        async with gateway(file, cloud, telemetry_cache_size=5000) as hub:
            assert hub.mapping.directory is not None
            assert hub.mapping.directory.pending()["messages"] == held
            sent = [
                queue.zones.depth for queue in hub.store.queues.all() if queue.priority in {1, 5}
            ]
            assert sum(sent) == rows


async def test_redelivered_registrations_change_nothing(tmp_path: Path) -> None:
    """After a restart retained registrations and twins cause no row and no change."""
    cloud = Cloud()
    path = tmp_path / "q.db"
    async with gateway(path, cloud) as hub:
        for number in range(50):
            hub.register(f"device/d{number}//", f"D{number}")
            hub.send(f"te/device/d{number}///twin/site", {"n": number}, retain=True)
        await hub.drained()
        assert len(cloud.created) == 51
    cloud = Cloud()
    async with gateway(path, cloud) as hub:
        await hub.drained()
        assert [text for _, text in cloud.rows] == ["114", "500"]
        assert hub.mapping.status()["entities"]["entities"] == 51


async def test_what_is_retained_says_nothing_new_at_a_start(tmp_path: Path) -> None:
    """Twins, units, declarations, commands under way, alarms and health: two restarts, no row."""
    path, cloud = tmp_path / "q.db", Cloud()
    service = "device/main/service/feeder"
    async with gateway(path, cloud) as hub:
        hub.register(A, "A")
        hub.send(f"te/{service}", {"@type": "service", "@id": "S"}, retain=True)
        hub.send(f"te/{service}/status/health", {"status": "down"}, retain=True)
        hub.send(f"te/{A}/twin/room", '"B12"', retain=True)
        hub.send(f"te/{A}/m/env/meta", {"t": {"unit": "K"}}, retain=True)
        hub.send(f"te/{A}/cmd/restart", {}, retain=True)
        hub.send(f"te/{A}/cmd/restart/c8y-mapper-7", {"status": "executing"}, retain=True)
        hub.send(f"te/{A}/a/hot", {"severity": "major"}, retain=True)
        await hub.drained()
    said = [row for row in cloud.rows if row[1] not in {"114", "500"}]
    assert ("c8y/s/us", "102,S,service,feeder,down") in said
    for _ in range(2):
        again = Cloud()
        again.created |= cloud.created
        async with gateway(path, again) as hub:
            await hub.drained()
        assert [row for row in again.rows if row[1] not in {"114", "500"}] == []


async def test_a_purged_creation_parks_its_rows(tmp_path: Path) -> None:
    """What a person removes is as good as refused."""
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(A, "A")
        hub.measure(A, 1)
        await hub.quiet()
        store = hub.store
        (queue,) = [queue for queue in store.queues.of("upstream") if queue.priority == 5]
        await store.purger.take_out(queue, None, from_offset=0, through=1 << 40)
        hub.mapping.rows_changed(queue.endpoint_id, are_removed=True)
        cloud.revive()
        await hub.quiet()
        assert cloud.bodies("A") == []
        assert hub.mapping.directory is not None
        assert hub.mapping.directory.show(A)["announced"] is False
        hub.register(A, "A")
        await hub.drained()
        assert (cloud.bodies("A"), cloud.faults) == ([1], [])


async def test_a_requeued_creation_lets_its_rows_go(tmp_path: Path) -> None:
    """An operator who requeues the dead letter need not have it registered anew."""
    cloud = Cloud()
    refused: list[Row] = []

    def once(row: Row) -> object:
        if row.creation and not refused:
            refused.append(row)
            return NEVER
        return None

    cloud.answer = once  # type: ignore[assignment] - gives what `answer` gives
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(A, "A")
        hub.measure(A, 1)
        await hub.quiet()
        assert cloud.bodies("A") == []
        (letter,) = await hub.store.inspection.dead_letters()
        await hub.store.requeuer.requeue([letter.id])
        hub.mapping.rows_changed(letter.endpoint_id, are_removed=False)
        await hub.drained()
        assert (cloud.bodies("A"), cloud.faults) == ([1], [])
        assert hub.mapping.directory is not None
        assert hub.mapping.directory.show(A)["announced"] is True


async def test_a_moved_creation_is_not_waited_for(tmp_path: Path) -> None:
    """It goes to another endpoint; what stays here has nothing before it any more."""
    cloud = Cloud()
    cloud.up_at_start = False
    cloud.created |= {"A"}  # by that other endpoint
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(A, "A")
        hub.measure(A, 1)
        await hub.quiet()
        (queue,) = [queue for queue in hub.store.queues.of(UPSTREAM) if queue.priority == 5]
        target = hub.store.queues.get(EndpointId("lab"), Priority(5))
        await hub.store.purger.take_out(queue, target, from_offset=0, through=1 << 40)
        hub.mapping.rows_changed(UPSTREAM, are_removed=False)
        cloud.revive()
        await hub.quiet()
        assert cloud.bodies("A") == [1]
        assert hub.mapping.announcements.endpoints() == {"lab"}


async def test_a_hub_without_mapper_still_keeps_the_order_of_what_it_has(tmp_path: Path) -> None:
    """Rows of a mapper that is switched off leave as they were meant to."""
    path = tmp_path / "q.db"
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(path, cloud) as hub:
        hub.register(A, "A")
        hub.register(B, "B", A)
        hub.measure(B, 1)
        await hub.quiet()
    cloud = Cloud()
    cloud.answer = lambda row: NEVER if b"101,A" in row.message.body else None
    async with gateway(path, cloud, enabled=False) as hub:
        await hub.quiet()
        assert (hub.mapping.status()["entities"], hub.mapping.warnings()) == (
            {"enabled": False},
            [],
        )
        assert (cloud.bodies("B"), cloud.faults) == ([], [])
        (letter,) = await hub.store.inspection.dead_letters()
        await hub.store.requeuer.requeue([letter.id])
        hub.mapping.rows_changed(UPSTREAM, are_removed=False)
        cloud.answer = lambda _row: None
        await hub.drained()
        assert (cloud.bodies("B"), cloud.faults, len(hub.mapping.announcements)) == ([1], [], 0)


async def test_a_creation_refused_while_the_hub_dies_is_known_at_the_start(tmp_path: Path) -> None:
    """The dead letter says so where the mapper's own note of it was not written."""
    path = tmp_path / "q.db"
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(path, cloud) as hub:
        hub.register(A, "A")
        hub.measure(A, 1)
        await hub.quiet()
        (queue,) = [queue for queue in hub.store.queues.of(UPSTREAM) if queue.priority == 5]
        (row,) = await queue.read_batch(1, 1 << 20)
        queue.dead_letter(row, FailureKind.REJECTED, "no")  # nobody is told
        await hub.store.writer.flush()
        copy = crash_copy(path, tmp_path / "crash")
    cloud = Cloud()
    async with gateway(copy, cloud) as hub:
        await hub.quiet()
        assert cloud.bodies("A") == []
        assert hub.mapping.directory is not None
        assert hub.mapping.directory.show(A)["announced"] is False
        hub.send(f"te/{A}", {"@type": "child-device", "@id": "A"}, client="person")
        await hub.drained()
        assert (cloud.bodies("A"), cloud.faults) == ([1], [])


async def test_changes_that_cannot_be_written_are_reported_to_the_sender(tmp_path: Path) -> None:
    """SQLite refuses a value: the message is refused as invalid; a closed store refuses all."""
    plan = FaultPlan()
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud, database_type=faulty_database(plan)) as hub:
        await hub.quiet()
        plan.fail("INSERT OR REPLACE INTO twin", "SQLITE_TOOBIG")
        token = hub.send("te/device/main///twin/x", {"n": 1})
        await hub.quiet()
        assert hub.settled[token] is Refusal.INVALID
        token = hub.send("te/device/main///twin/x", {"n": 2})
        await hub.quiet()
        assert hub.settled[token] is None


async def test_a_busy_disk_makes_senders_wait(tmp_path: Path) -> None:
    """The same changes are written once it has room; nothing is acknowledged before."""
    plan = FaultPlan()
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud, database_type=faulty_database(plan)) as hub:
        await hub.quiet()
        plan.fail("INSERT OR REPLACE INTO entity", "SQLITE_FULL", times=3)
        token = hub.register(A, "A")
        while plan.is_armed:
            assert token not in hub.settled
            await hub.clock.advance(1)
            await hub.store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())
        await hub.clock.advance(10)
        await hub.quiet()
        assert (hub.settled[token], plan.raised) == (None, 3)


async def test_what_becomes_of_an_old_id_does_not_touch_the_entity_under_a_new_one(
    tmp_path: Path,
) -> None:
    """Deregistered and registered under another id: the refusal was about the first."""
    cloud = Cloud()
    cloud.up_at_start = False
    cloud.answer = lambda row: NEVER if b"101,old" in row.message.body else None
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(A, "old")
        hub.measure(A, 1)
        hub.send(f"te/{A}", b"", retain=True)
        hub.register(A, "new")
        hub.measure(A, 2)
        await hub.quiet()
        cloud.revive()
        await hub.quiet()
        assert (cloud.bodies("old"), cloud.bodies("new"), cloud.faults) == ([], [2], [])
        assert hub.mapping.directory is not None
        assert hub.mapping.directory.show(A)["announced"] is True


async def test_heartbeats_go_on_while_nothing_else_happens(tmp_path: Path) -> None:
    """One each half interval, though no message comes and no table changes."""
    cloud = Cloud()
    settings = {"availability": True, "availability_interval_s": 600}
    async with gateway(tmp_path / "q.db", cloud, mapper=settings) as hub:
        agent = "te/device/main/service/tedge-agent"
        hub.send(agent, {"@type": "service"}, retain=True)
        hub.send(f"{agent}/status/health", {"status": "up"})
        await hub.quiet()
        for _ in range(3):
            await hub.clock.advance(300)
            await hub.quiet()
        beats = [text for topic, text in cloud.rows if topic.startswith("c8y/inventory/")]
        assert beats == ["{}"] * 3


async def test_rows_wait_for_the_creation_of_the_id_that_they_name(tmp_path: Path) -> None:
    """One topic id, first `one`, then `two`, then `one` again while its creation still waits."""
    cloud = Cloud()
    cloud.answer = lambda row: LATER if b"101,one" in row.message.body else None
    async with gateway(tmp_path / "q.db", cloud) as hub:
        for external_id in ("one", "two", "one"):
            hub.send(f"te/{A}", b"", retain=True)
            hub.register(A, external_id)
        hub.measure(A, 1)
        await hub.quiet()
        assert (cloud.bodies("one"), cloud.faults) == ([], [])
        cloud.answer = lambda _row: None
        await hub.drained()
        assert (cloud.bodies("one"), cloud.faults) == ([1], [])


async def test_health_below_a_new_parent_waits_for_its_creation(tmp_path: Path) -> None:
    """A service is moved below a device that the cloud does not have yet."""
    cloud = Cloud()
    service = "device/b/service/s"
    async with gateway(tmp_path / "q.db", cloud) as hub:
        hub.register(B, "B")
        hub.send(f"te/{service}", {"@type": "service", "@id": "S"}, retain=True)
        await hub.drained()
        cloud.answer = lambda row: LATER if b"101,A" in row.message.body else None
        hub.register(A, "A")
        hub.send(f"te/{service}", {"@type": "service", "@id": "S", "@parent": A}, retain=True)
        hub.send(f"te/{service}/status/health", {"status": "down"}, retain=True)
        await hub.quiet()
        assert [topic for topic, _ in cloud.rows if topic == "c8y/s/us/A"] == []
        cloud.answer = lambda _row: None
        await hub.drained()
        assert ("c8y/s/us/A", "102,S,service,s,down") in cloud.rows


async def test_a_refused_entity_stays_parked_over_a_restart(tmp_path: Path) -> None:
    """Also if none of its rows waited when the hub ended."""
    path = tmp_path / "q.db"
    cloud = Cloud()
    cloud.answer = lambda row: NEVER if row.creation else None
    async with gateway(path, cloud) as hub:
        hub.send(f"te/{A}", {"@type": "child-device", "@id": "A"})
        await hub.drained()
    async with gateway(path, cloud := Cloud()) as hub:
        hub.measure(A, 1)
        await hub.quiet()
        assert (cloud.bodies("A"), cloud.faults) == ([], [])
        hub.register(A, "A")
        await hub.drained()
        assert (cloud.bodies("A"), cloud.faults) == ([1], [])


async def test_what_says_nothing_new_is_acknowledged_with_what_it_repeats(tmp_path: Path) -> None:
    """Two clients say the same; the second is not told so before the first one's is on disk."""
    plan = FaultPlan()
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud, database_type=faulty_database(plan)) as hub:
        await hub.quiet()
        plan.fail("INSERT OR REPLACE INTO entity", "SQLITE_FULL", times=3)
        tokens = {hub.register(A, "A"), hub.send(f"te/{A}", {"@type": "child-device", "@id": "A"})}
        while plan.is_armed:
            assert tokens.isdisjoint(hub.settled)
            await hub.clock.advance(1)
            await hub.store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())
        await hub.clock.advance(10)
        await hub.quiet()
        assert {hub.settled[token] for token in tokens} == {None}


async def test_qos_0_telemetry_is_not_stored_where_the_settings_say_so(tmp_path: Path) -> None:
    """While the uplink is down; states, retained ones and QoS 1 are."""
    cloud = Cloud()
    cloud.up_at_start = False
    async with gateway(tmp_path / "q.db", cloud, store_qos0=False) as hub:
        cloud.started.clear()
        hub.send(f"te/{A}", {"@type": "child-device", "@id": "A"}, qos=0)
        hub.send(f"te/{A}/m/", {"v": 1}, qos=0)
        hub.send(f"te/{A}/a/hot", {"text": "hot"}, qos=0, retain=True)
        hub.measure(A, 2)
        await hub.quiet()
        assert hub.mapping.status()["entities"]["qos0_offline_total"] == 1
        assert set(hub.settled.values()) == {None}
        cloud.revive()
        await hub.drained()
        assert (cloud.bodies("A"), cloud.created) == ([2], {"gw", "A"})
        assert [text for _, text in cloud.rows if ",hot," in text]


async def test_an_operation_survives_clients_that_retain_all_they_may(tmp_path: Path) -> None:
    """What the hub itself publishes is kept beyond their bound, so it is not begun twice."""
    path = tmp_path / "q.db"
    operation = {"id": "7", "externalSource": {"externalId": "gw"}, "c8y_Restart": {}}
    command = "te/device/main///cmd/restart/c8y-mapper-7"
    async with gateway(path, Cloud(), retained_max=2) as hub:
        for number in range(3):
            hub.send(f"c8y-internal/x{number}", b"x", retain=True)
        hub.send("c8y/devicecontrol/notifications", operation)
        await hub.quiet()
        assert [each.topic for each in hub.space.retained("te/#")] == [command]
    async with gateway(path, Cloud(), retained_max=2) as hub:
        before = hub.mapping.status()["entities"]["ignored_total"]
        hub.send("c8y/devicecontrol/notifications", operation)
        await hub.quiet()
        assert hub.mapping.status()["entities"]["ignored_total"] == before + 1
