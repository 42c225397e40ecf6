"""The directory of entities: reading, registering, changing, removing, and a full store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from edgehub.entities.faults import (
    EntityArgumentError,
    MappingError,
    NoRoomError,
    UnknownEntityError,
)
from edgehub.message import Refusal
from edgehub.operations.operation import ArgumentError
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.gateway import Cloud, gateway

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.operations.entities import EntityDirectory
    from tests.support.gateway import Gateway

pytestmark = pytest.mark.integration

A, B = "device/a//", "device/b//"
CHILD = {"@type": "child-device"}


def away() -> Cloud:
    """Return a cloud that is not there."""
    cloud = Cloud()
    cloud.up_at_start = False
    return cloud


def directory_of(hub: Gateway) -> EntityDirectory:
    """Return the directory."""
    assert hub.mapping.directory is not None
    return hub.mapping.directory


async def test_registration_change_and_removal_are_answered_once_durable(tmp_path: Path) -> None:
    """And known after a restart, retained on their topics like those of clients."""
    path = tmp_path / "q.db"
    async with gateway(path, away()) as hub:
        directory = directory_of(hub)
        answer = await directory.register(A, {**CHILD, "@id": "A", "name": "Pump", "bar": 4})
        assert (answer["outcome"], answer["entity"]["twin"]) == (
            "registered",
            {"bar": 4, "name": "Pump"},
        )
        assert (await directory.register("device/a", {**CHILD, "@id": "A"}))[
            "outcome"
        ] == "unchanged"
        answer = await directory.register(B, {**CHILD, "@parent": A})
        assert answer["entity"]["@parent"] == A
        assert (await directory.change(B, {"@parent": "device/main"}))["outcome"] == "updated"
        assert [each["@topic-id"] for each in directory.entities(parent="device/main//")] == [A, B]
        assert [each["@id"] for each in directory.entities(type_="device")] == ["gw"]
        assert (await directory.register("x/", {**CHILD, "@parent": "y"}))["waits_for"] == "y///"
        assert (await directory.remove("x"))["removed"] == ["x///"]
    async with gateway(path, away()) as hub:
        directory = directory_of(hub)
        assert directory.show(A)["name"] == "Pump"
        assert [message.topic for message in hub.space.retained("te/+/+/+/+")] == [
            f"te/{A}",
            f"te/{B}",
        ]
        assert (await directory.remove(A))["removed"] == [A]
        assert [message.topic for message in hub.space.retained("te/#")] == [f"te/{B}"]


@pytest.mark.parametrize(
    ("order", "error", "reason"),
    [
        (("register", A, {"@type": "thing"}), MappingError, "`@type` is `thing`"),
        (("register", "a/b/c/d/e", CHILD), EntityArgumentError, "more than four segments"),
        (("register", "device/main//", {"@type": "service"}), MappingError, "main device"),
        (("register", "a\x07", CHILD), EntityArgumentError, "cannot stand in a topic"),
        (("register", "a" * 65_536, CHILD), EntityArgumentError, "at most 1024 characters"),
        (("register", "a\ud800", CHILD), EntityArgumentError, "cannot stand in a topic"),
        (("register", "pump3", CHILD), EntityArgumentError, "a device is device/pump3//"),
        (("register", A, {**CHILD, "n": 2**70}), MappingError, "cannot be passed on"),
        (("change", A, {"@parent": B}), UnknownEntityError, "device/a// is not registered"),
        (("change", "device/main//", {"name": "x"}), EntityArgumentError, "not name"),
        (("change", "device/main//", {}), EntityArgumentError, "not nothing"),
        (("change", "a/+", {"@parent": B}), EntityArgumentError, "holds a wildcard"),
        (("remove", A), UnknownEntityError, "edgehub entity list"),
        (("remove", "a/b/c/d/e"), EntityArgumentError, "more than four segments"),
        (("remove", "device/main//"), MappingError, "cannot be deregistered"),
    ],
)
async def test_what_is_refused_says_why_and_changes_nothing(
    tmp_path: Path, order: tuple[Any, ...], error: type[Exception], reason: str
) -> None:
    """Neither an entity, nor a retained message, nor a row."""
    async with gateway(tmp_path / "q.db", away()) as hub:
        await hub.quiet()
        rows = hub.store.statistics().rows
        name, *arguments = order
        with pytest.raises(error, match=reason):
            await getattr(directory_of(hub), name)(*arguments)
        assert len(directory_of(hub).entities()) == 1
        assert hub.space.retained("te/+/+/+/+") == []
        assert hub.store.statistics().rows == rows


async def test_commands_check_their_arguments(tmp_path: Path) -> None:
    """What comes over the control socket may be anything."""
    async with gateway(tmp_path / "q.db", away()) as hub:
        commands = {each.name: each for each in hub.mapping.operations()}
        assert len((await commands["entity list"]({}))["entities"]) == 1
        with pytest.raises(ArgumentError, match="`topic_id`: want"):
            await commands["entity show"]({"topic_id": 7})
        with pytest.raises(ArgumentError, match="`root`: want"):
            await commands["entity list"]({"root": ""})
        with pytest.raises(UnknownEntityError, match="x/// is not registered"):
            await commands["entity list"]({"parent": "x"})
        with pytest.raises(EntityArgumentError, match="`document`: want"):
            await commands["entity register"]({"topic_id": A, "document": "x"})
        answer = await commands["entity register"]({"topic_id": A, "document": CHILD})
        assert answer["outcome"] == "registered"
        assert (await commands["entity remove"]({"topic_id": A}))["removed"] == [A]
        assert (await commands["entity pending"]({}))["messages"] == 0


@pytest.mark.parametrize("has_child", [False, True])
async def test_a_removed_entity_leaves_nothing_that_brings_it_back(
    tmp_path: Path, has_child: bool
) -> None:
    """Whatever is retained below its topic id goes, of its children too; of others nothing."""
    path = tmp_path / "q.db"
    late = ["e/x/meta", "status/disk", "config", "twin/big", "m/", "x/y/z"]
    async with gateway(path, away(), auto_register=True) as hub:
        directory = directory_of(hub)
        for topic_id in (A, B, *(["device/c//"] if has_child else [])):
            below = {"@parent": A} if topic_id == "device/c//" else {}
            await directory.register(topic_id, {**CHILD, **below})
            for channel in late:
                body = b'"%s"' % (b"x" * 20_000) if channel == "twin/big" else b'{"v":1}'
                hub.send(f"te/{topic_id}/{channel}", body, retain=True)
        await hub.quiet()
        assert len(hub.space.retained("te/#")) == (21 if has_child else 14)
        await directory.remove(A)
        topics = {message.topic for message in hub.space.retained("te/#")}
        assert topics == {f"te/{B}", *(f"te/{B}/{channel}" for channel in late)}
    async with gateway(path, away(), auto_register=True) as hub:
        assert [each["@topic-id"] for each in directory_of(hub).entities()] == ["device/main//", B]
        assert directory_of(hub).pending()["messages"] == 0


async def test_a_move_that_automatic_registration_forbids_is_answered_with_advice(
    tmp_path: Path,
) -> None:
    """Whoever asked for it hears it, not only the errors topic."""
    async with gateway(tmp_path / "q.db", away(), auto_register=True) as hub:
        hub.measure(A, 1)
        directory = directory_of(hub)
        answer = await directory.register(B, CHILD)
        assert "warning" not in answer
        answer = await directory.change(A, {"@parent": B})
        assert (answer["outcome"], answer["entity"]["@parent"]) == ("unchanged", "device/main//")
        assert "stays below device/main//, not device/b//" in answer["warning"]
        assert "auto_register = false" in answer["warning"]


async def test_a_debt_that_is_old_is_a_warning_and_ends_after_its_time(tmp_path: Path) -> None:
    """Who owes, since when; after `pending_ttl_s` it is given up and counted."""
    async with gateway(tmp_path / "q.db", away(), pending_ttl_s=7200) as hub:
        hub.measure(A, 1, client="press")
        await hub.quiet()
        assert hub.mapping.warnings() == []
        await hub.clock.advance(3700)
        assert "1 message of 1 unregistered entity waits" in hub.mapping.warnings()[0]
        (pending,) = directory_of(hub).pending()["entities"]
        assert (pending["clients"], pending["oldest_age_s"]) == (["press"], 3700)
        assert hub.mapping.status()["entities"]["pending"]["bytes"] > 0
        await hub.clock.advance(3600)
        await hub.quiet()
        assert directory_of(hub).pending()["expired_total"] == 1


@pytest.mark.parametrize("overflow", [Overflow.REJECT_NEW, Overflow.BY_VALUE])
async def test_a_message_that_is_refused_has_changed_nothing(
    tmp_path: Path, overflow: Overflow
) -> None:
    """Beyond a limit state joins up to a bound; then all is refused, and later taken as if new."""
    cloud = away()
    options = StoreOptions(caps=Caps(rows=20, overflow=overflow))
    async with gateway(tmp_path / "q.db", cloud, options=options, priorities=SAME) as hub:
        hub.register(A, "A")
        await hub.quiet()
        tokens = [hub.send(f"te/{A}/twin/n", {"n": n}) for n in range(1300)]
        await hub.quiet()
        refused = [token for token in tokens if hub.settled[token] is Refusal.LIMIT]
        if overflow is Overflow.BY_VALUE:
            assert refused == []
            assert hub.store.statistics().rows <= 20  # the oldest have given way
            return
        assert 200 < len(refused) < 300
        assert hub.store.statistics().rows < 1100
        assert directory_of(hub).show(A)["twin"]["n"] == {"n": 1300 - len(refused) - 1}
        with pytest.raises(NoRoomError):
            await directory_of(hub).register(B, CHILD)
        token = hub.measure(A, 1)
        await hub.quiet()
        assert hub.settled[token] is Refusal.LIMIT
        assert hub.mapping.status()["entities"]["refused_total"] == len(refused) + 1
        other = hub.send("c8y/s/us", "400,x")
        await hub.quiet()
        assert hub.settled[other] is None
        cloud.revive()
        await hub.drained()
        token = hub.send(f"te/{A}/twin/n", {"n": 1299})
        await hub.drained()
        assert hub.settled[token] is None
        assert cloud.rows[-1][1] == '{"n":{"n":1299}}'


SAME = dict.fromkeys(
    ("inventory", "measurements", "alarms", "events", "twin", "health", "operations"), 5
)


async def test_telemetry_meets_limits_like_any_other_message(tmp_path: Path) -> None:
    """A measurement of a known entity is refused at the limit, and nothing of it is kept."""
    options = StoreOptions(caps=Caps(rows=5, overflow=Overflow.REJECT_NEW))
    async with gateway(tmp_path / "q.db", away(), options=options) as hub:
        hub.register(A, "A")
        await hub.quiet()
        tokens = [hub.measure(A, n) for n in range(10)]
        await hub.quiet()
        outcomes = [hub.settled[token] for token in tokens]
        taken = outcomes.count(None)
        assert outcomes == [None] * taken + [Refusal.LIMIT] * (10 - taken)
        assert (taken, hub.store.statistics().rows) == (2, 5)


async def test_a_full_store_lets_what_is_due_wait(tmp_path: Path) -> None:
    """Held messages end a little later, once there is room again."""
    cloud = away()
    options = StoreOptions(caps=Caps(rows=4, overflow=Overflow.REJECT_NEW))
    async with gateway(
        tmp_path / "q.db", cloud, options=options, pending_ttl_s=60, ttl_s=-1
    ) as hub:
        hub.register(A, "A")
        hub.measure(B, 1)
        for n in range(1010):
            hub.send(f"te/{A}/twin/n", {"n": n})
        await hub.quiet()
        assert not hub.store.appender.has_room()
        await hub.clock.advance(90)
        assert directory_of(hub).pending()["expired_total"] == 0
        cloud.revive()
        await hub.drained()
        await hub.clock.advance(5)
        assert directory_of(hub).pending()["expired_total"] == 1
