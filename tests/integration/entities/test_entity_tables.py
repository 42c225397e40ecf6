"""Entities on disk: what a mapper keeps, and that it is written with the rows it belongs to."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgehub.entities.tables import EntityContents, EntityTable, load_entities, statement_of
from edgehub.message import Refusal
from edgehub.store.migrations import migrate
from edgehub.store.row_changes import RowChanges
from tests.support.entities import INVENTORY, MEASUREMENTS, TIME, UP, MapperBench, cloud
from tests.support.stores import a_message, a_result, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgehub.entities.tables import Key, Value

pytestmark = pytest.mark.integration


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a new database file."""
    connection = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    migrate(connection)
    yield connection
    connection.close()


def test_new_file_holds_nothing(connection: sqlite3.Connection) -> None:
    """The four tables are there and empty."""
    assert load_entities(connection) == EntityContents()


async def test_last_change_of_a_row_counts(tmp_path: Path) -> None:
    """Within one commit and over several; deleting what is not there is nothing."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        changes = RowChanges(hub.store.writer, "test.not_stored")

        def write(table: EntityTable, key: Key, value: Value | None) -> asyncio.Future[None]:
            return changes.add((table, key), statement_of(table, key, value))

        with hub.store.writer.together():
            write(EntityTable.TWIN, ("a", "k"), (b"1",))
            write(EntityTable.TWIN, ("a", "k"), (b"2",))
            write(EntityTable.TWIN, ("a", "gone"), (b"3",))
            write(EntityTable.TWIN, ("a", "gone"), None)
            write(EntityTable.PENDING, (2,), ("te/b", b"p", "c", 10, 20))
            write(EntityTable.PENDING, (1,), ("te/a", b"", "", 1, 2))
            write(EntityTable.STATE, ("x",), None)
            written = write(EntityTable.ENTITY, ("a",), (b"{}",))
        await written
        contents = await hub.store.database.run(load_entities)
        assert contents.twins == (("a", "k", b"2"),)
        assert contents.entities == (("a", b"{}"),)
        assert [row.seq for row in contents.pending] == [1, 2]
        assert contents.pending[1].client_id == "c"
        await write(EntityTable.TWIN, ("a", "k"), None)
        assert (await hub.store.database.run(load_entities)).twins == ()


async def test_changes_and_rows_are_one_transaction(tmp_path: Path) -> None:
    """A group that holds the row of a message holds its changes, and both are there after."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        changes = RowChanges(hub.store.writer, "test.not_stored")
        commits = hub.store.statistics().commits_total
        hub.send(a_message("d", b"row"), a_result())
        await changes.add(0, statement_of(EntityTable.STATE, ("alarm/x",), (b"{}",)))
        assert hub.store.statistics().commits_total == commits + 1
    async with running(path) as hub:
        contents = await hub.store.database.run(load_entities)
        assert contents.state == (("alarm/x", b"{}"),)
        assert hub.queue().zones.depth == 1


async def test_changes_of_a_closed_store_are_refused(tmp_path: Path) -> None:
    """Each of them, also the second one of a transaction that takes no more."""
    async with running(tmp_path / "queue.db") as hub:
        changes = RowChanges(hub.store.writer, "test.not_stored")
    refusals: list[Refusal | None] = []
    for number in range(2):
        statement = statement_of(EntityTable.STATE, ("x",), None)
        written = changes.add(number, statement, lambda _token, refusal: refusals.append(refusal))
        await asyncio.wait([written])
    assert refusals == [Refusal.CLOSED, Refusal.CLOSED]


def test_e03_data_right_after_a_restart_belong_to_their_entity(tmp_path: Path) -> None:
    """E-03: the registry is there before the first message."""
    bench = MapperBench(str(tmp_path / "queue.db"))
    bench.child("c")
    bench.connection.close()
    bench = MapperBench(str(tmp_path / "queue.db"))
    ((topic, document),) = bench.send("te/device/c///m/", {"time": TIME, "v": 1})
    assert topic == MEASUREMENTS
    assert document["externalSource"]["externalId"] == "C"
    assert bench.child("c") == []


def test_everything_is_known_after_a_restart(tmp_path: Path) -> None:
    """Nesting, services, names, health endpoints: the same answers from a new process."""
    path = str(tmp_path / "queue.db")
    bench = MapperBench(path)
    bench.send("te/device/main//", {"@type": "device", "name": "gw"})
    bench.child("a", name="n", room=1)
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b/service/s", {"@type": "service", "@id": "S", "type": "t"})
    before = load_entities(bench.connection)
    bench.connection.close()
    bench = MapperBench(path)
    assert load_entities(bench.connection) == before
    assert bench.send("te/device/main//", {"@type": "device", "name": "gw"}) == []
    assert bench.child("a", name="n", room=1) == []
    assert bench.child("b", **{"@parent": "device/a//"}) == []
    assert bench.send("te/device/b/service/s/status/health", {"status": "down"}) == [
        ("c8y/s/us/B", "102,S,t,s,down")
    ]
    assert bench.child("c", **{"@parent": "device/b//"})[0][0] == "c8y/s/us/B"


def test_deregistration_is_kept(tmp_path: Path) -> None:
    """No ghosts after a restart."""
    path = str(tmp_path / "queue.db")
    bench = MapperBench(path)
    bench.child("a", room=1)
    bench.send("te/device/a//")
    bench.connection.close()
    bench = MapperBench(path)
    assert bench.mapper.statistics().entities == 1
    assert load_entities(bench.connection).twins == ()
    assert bench.send("te/device/a///twin/room", "1") == []


def test_clean_start_forgets_entities_and_keeps_what_is_held(tmp_path: Path) -> None:
    """Also on disk; retained registrations rebuild them in any order."""
    path = str(tmp_path / "queue.db")
    bench = MapperBench(path, clean_start=True)
    bench.child("a", room=1)
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b///m/x/meta", {"v": {"unit": "K"}})
    bench.send("te/device/c///twin/k", "1")
    bench.connection.close()
    bench = MapperBench(path, clean_start=True)
    assert bench.mapper.statistics().entities == 1
    assert load_entities(bench.connection).entities == ()
    assert load_entities(bench.connection).twins == ()
    assert bench.send("te/device/b///m/x", {"time": TIME, "v": 1}) == []
    assert bench.child("b", **{"@parent": "device/a//"}) == []
    assert bench.child("a", room=1) == [
        (UP, "101,A,A,thin-edge.io-child,false"),
        (f"{INVENTORY}/A", {"room": 1}),
        ("c8y/s/us/A", "101,B,B,thin-edge.io-child,false"),
        (
            MEASUREMENTS,
            {
                "type": "x",
                "time": TIME,
                "v": {"v": {"value": 1}},
                "externalSource": {"externalId": "B", "type": "c8y_Serial"},
            },
        ),
    ]
    assert bench.child("c")[1:] == [(f"{INVENTORY}/C", {"k": 1})]


DEVICES = {"a": None, "b": "a", "c": "b", "d": "b", "e": None}
"""Parent by device: a tree of three levels, and one beside it."""

registrations = st.sampled_from(sorted(DEVICES)).map(lambda device: ("register", device))
data = st.tuples(st.sampled_from(["m", "e", "twin"]), st.sampled_from(sorted(DEVICES)))
steps = st.lists(st.one_of(registrations, data, st.just(("restart", ""))), min_size=25, max_size=60)


def register(bench: MapperBench, device: str) -> list[Any]:
    """Register a device of the tree."""
    parent = DEVICES[device]
    return bench.child(device, **({} if parent is None else {"@parent": f"device/{parent}//"}))


def owner_of(line: tuple[str, Any]) -> str:
    """Return the external id of the entity that a line is about."""
    topic, payload = line
    if topic.startswith(INVENTORY):
        return topic.removeprefix(f"{INVENTORY}/")
    if isinstance(payload, str):
        return payload.split(",")[1]
    return str(payload["externalSource"]["externalId"])


class Story:
    """What was sent while steps were carried out, and what had to come of it."""

    def __init__(self, steps: list[tuple[str, str]]) -> None:
        """Carry out the steps, then register whatever is not registered."""
        self.bench = MapperBench()
        self.sent: list[tuple[str, Any]] = []
        self.expected: Counter[tuple[str, int]] = Counter()
        self.values: dict[str, int] = {}
        for number, (step, device) in enumerate(steps):
            self.sent += cloud(self.carry_out(number, step, device))
        for device in DEVICES:
            self.sent += cloud(register(self.bench, device))

    def carry_out(self, number: int, step: str, device: str) -> list[tuple[str, Any]]:
        """Carry out one step; messages carry its number."""
        if step == "restart":
            return [line for line in self.bench.restart() if line[1] not in {"114", "500"}]
        if step == "register":
            return register(self.bench, device)
        if step == "twin":
            self.values[device] = number
            return self.bench.send(f"te/device/{device}///twin/k", str(number))
        self.expected[device.upper(), number] += 1
        body = {"time": number, ("v" if step == "m" else "n"): number}
        return self.bench.send(f"te/device/{device}///{step}/x", body)


@given(steps)
def test_any_interleaving_gives_every_message_in_order(steps: list[tuple[str, str]]) -> None:
    """Parents before children, creation before data, each message once, whatever restarts."""
    story = Story(steps)
    created: list[str] = []
    arrived: Counter[tuple[str, int]] = Counter()
    last: dict[tuple[str, str], int] = {}
    values: dict[str, int] = {}
    for line in story.sent:
        topic, payload = line
        owner = owner_of(line)
        if isinstance(payload, str):
            parent = DEVICES[owner.lower()]
            assert owner not in created
            assert parent is None or parent.upper() in created
            assert topic == (UP if parent is None else f"{UP}/{parent.upper()}")
            created.append(owner)
            continue
        assert owner in created
        if topic.startswith(INVENTORY):
            values[owner.lower()] = payload["k"]
            continue
        number = payload["v"]["v"]["value"] if topic == MEASUREMENTS else payload["n"]
        arrived[owner, number] += 1
        assert last.get((owner, topic), -1) < number
        last[owner, topic] = number
    assert sorted(created) == [device.upper() for device in sorted(DEVICES)]
    assert (arrived, values) == (story.expected, story.values)
    assert story.bench.mapper.statistics().held == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "device/a//",
                    "device/a/service/s",
                    "device/b//",
                    "x/y/z/",
                    "device/main//",
                ]
            ),
            st.sampled_from(
                [
                    "",
                    "/twin/k",
                    "/m/x",
                    "/m/x/meta",
                    "/e/x",
                    "/a/x",
                    "/status/health",
                    "/cmd/restart",
                    "/cmd/log_upload",
                    "/cmd/restart/c8y-mapper-1",
                ]
            ),
            st.sampled_from(
                [
                    "",
                    "{}",
                    "7",
                    "{",
                    '{"@type":"child-device"}',
                    '{"@type":"child-device","@parent":"device/b//"}',
                    '{"@type":"service"}',
                    '{"@type":"device","name":"n"}',
                    '{"status":"executing"}',
                    '{"v":1,"types":["a"]}',
                ]
            ),
            st.booleans(),
        ),
        min_size=15,
        max_size=40,
    ),
    st.booleans(),
)
def test_tables_always_hold_what_the_mapper_knows(
    messages: list[tuple[str, str, str, bool]], auto_register: bool
) -> None:
    """After every message a mapper loaded from the tables is the mapper that wrote them."""
    bench = MapperBench(auto_register=auto_register, alarm_sync_ms=5)
    for topic_id, channel, payload, restart in messages:
        bench.now_ms += 1
        lines = bench.send(f"te/{topic_id}{channel}", payload)
        assert len(lines) < 50
        held, entities = bench.mapper.statistics().held, bench.mapper.statistics().entities
        waiting = bench.mapper.pending.entities()
        if restart:
            bench.restart()
            assert bench.mapper.statistics().held == held
            assert bench.mapper.statistics().entities == entities
            assert bench.mapper.pending.entities() == [replace(each, evicted=0) for each in waiting]


def test_rows_that_cannot_be_read_do_not_keep_the_mapper_from_starting(tmp_path: Path) -> None:
    """A damaged file may hold anything; what makes no sense goes, the rest is used."""
    path = str(tmp_path / "queue.db")
    bench = MapperBench(path, alarm_sync_ms=10)
    bench.child("a")
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b///twin/k", "1")
    bench.connection.executescript(
        """
        UPDATE entity SET document = x'7b' WHERE topic_id = 'device/a//';
        INSERT INTO entity VALUES ('device/c//', CAST('{"type":"odd"}' AS BLOB));
        INSERT INTO entity VALUES ('device/d//', CAST('[]' AS BLOB));
        INSERT INTO twin VALUES ('device/b//', 'bad', x'ff'), ('device/x//', 'k', x'31');
        INSERT INTO mapper_state VALUES
          ('operations/B', x'7b'), ('command/c8y-mapper-1', x'7b7d'), ('units/device/b//|x', x'5b'),
          ('alarm-seen/te/device/b///a/x', x'ff'), ('unknown/x', x'00');
        INSERT INTO pending VALUES
          (1, 'te/device/p//', x'7b', 'c', 0, 0), (2, 'te/device/p///twin/k', x'32', 'c', 0, 0);
        """
    )
    bench.connection.close()
    bench = MapperBench(path, alarm_sync_ms=10)
    assert bench.mapper.statistics().dropped_total == 9
    assert [topic for topic, _ in bench.go_on(10)] == []
    assert bench.send("te/device/b///twin/k", "1") == []
    assert bench.child("p")[1:] == [(f"{INVENTORY}/P", {"k": 2})]
    assert bench.child("a") == [(UP, "101,A,A,thin-edge.io-child,false")]
    bench.restart()
    assert bench.mapper.statistics().dropped_total == 0
