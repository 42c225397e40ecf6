"""Automatic registration, and where it meets explicit ones."""

import pytest

from edgehub.entities.registrar import WARNINGS_MAX
from tests.support.entities import ERRORS, INVENTORY, TIME, UP, MapperBench, cloud

SILO = (UP, "101,hub-01:device:silo9,silo9,thin-edge.io-child,false")
SILO_MESSAGE = (
    "te/device/silo9//",
    {"@type": "child-device", "@parent": "device/main//", "name": "silo9"},
)


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        ("m/", '{"v":1}'),
        ("m/env", "rubbish"),
        ("m/env/meta", "{}"),
        ("e/door", "{}"),
        ("e/door/meta", "{}"),
        ("a/hot", "{}"),
        ("a/hot/meta", "{}"),
        ("twin/k", "1"),
        ("config", "{}"),
        ("cmd/restart", "{}"),
        ("status/health", "{}"),
        ("status/disk", "full"),
    ],
)
def test_first_message_registers_a_device(channel, payload):
    """Before anything else: the registration for everybody, then the create line."""
    lines = MapperBench(auto_register=True).send(f"te/device/silo9///{channel}", payload)
    assert lines[:2] == [SILO_MESSAGE, SILO]


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        ("cmd/restart/c8y-mapper-1", '{"status":"executing"}'),
        ("signal/sync", "{}"),
        ("twin/k", ""),
        ("m/", ""),
        ("a/hot", ""),
        ("status/health", ""),
        ("foo/bar", "1"),
    ],
)
def test_other_messages_register_nothing(channel, payload):
    """Commands, signals, and whatever only clears a topic."""
    assert MapperBench(auto_register=True).send(f"te/device/silo9///{channel}", payload) == []


@pytest.mark.parametrize(
    "entity", ["machine/silo9//", "device/silo9/app/x", "device/silo9//x", "device///"]
)
def test_custom_scheme_is_held_until_it_is_registered(entity):
    """It cannot be told what such an entity is."""
    bench = MapperBench(auto_register=True)
    assert bench.send(f"te/{entity}/twin/k", "1") == []
    assert bench.send(f"te/{entity}", {"@type": "child-device", "@id": "X"}) == [
        (UP, "101,X,X,thin-edge.io-child,false"),
        (f"{INVENTORY}/X", {"k": 1}),
    ]


def test_device_of_a_service_comes_first():
    """Both are published and created, the device before its service."""
    topic = "te/device/silo9/service/weigher"
    lines = MapperBench(auto_register=True).send(f"{topic}/status/health", {"status": "down"})
    service = "hub-01:device:silo9:service:weigher,service,weigher"
    assert lines == [
        SILO_MESSAGE,
        SILO,
        (topic, {"@type": "service", "@parent": "device/silo9//", "name": "weigher"}),
        ("c8y/s/us/hub-01:device:silo9", f"102,{service},up"),
        ("c8y/s/us/hub-01:device:silo9", f"102,{service},down"),
    ]


def test_own_registration_that_comes_back_changes_nothing():
    """A broker hands the hub's own message back."""
    bench = MapperBench(auto_register=True)
    (topic, message), *_ = bench.send("te/device/silo9///m/", {"v": 1})
    assert bench.send(topic, message) == []


@pytest.mark.parametrize("members", [{}, {"@id": "hub-01:device:silo9"}, {"name": "silo9"}])
def test_explicit_registration_that_agrees_is_silent(members):
    """Without an id, or with the same."""
    bench = MapperBench(auto_register=True)
    bench.send("te/device/silo9///m/", {"v": 1})
    assert bench.send("te/device/silo9//", {"@type": "child-device", **members}) == []
    assert bench.mapper.statistics().warnings == {}


def test_explicit_registration_with_another_id_is_reported():
    """The first id stays, also after a restart; errors topic and status say what to do."""
    bench = MapperBench(auto_register=True)
    bench.send("te/device/silo9///m/", {"v": 1})
    bench.restart()
    ((topic, text),) = bench.send("te/device/silo9//", {"@type": "child-device", "@id": "S9"})
    assert topic == ERRORS
    assert "auto_register = false" in text
    assert "auto_register = false" in bench.mapper.statistics().warnings["device/silo9//"]
    assert bench.send("te/device/silo9///twin/k", "1") == [
        (f"{INVENTORY}/hub-01:device:silo9", {"k": 1})
    ]


def test_explicit_nesting_comes_too_late():
    """What was registered as a child of the main device stays one, and that is reported."""
    bench = MapperBench(auto_register=True)
    bench.child("line")
    bench.send("te/device/silo9/service/s/status/health", {"status": "up"})
    lines = bench.send("te/device/silo9//", {"@type": "child-device", "@parent": "device/line//"})
    assert cloud(lines) == []
    assert "auto_register = false" in lines[0][1]


def test_nested_registration_is_reported_while_auto_registration_is_on():
    """It works, but the next one may come after its data."""
    bench = MapperBench(auto_register=True)
    assert bench.child("a") == [(UP, "101,A,A,thin-edge.io-child,false")]
    created, (topic, text) = bench.child("b", **{"@parent": "device/a//"})
    assert created == ("c8y/s/us/A", "101,B,B,thin-edge.io-child,false")
    assert topic == ERRORS
    assert "nested below device/a//" in text
    assert list(bench.mapper.statistics().warnings) == ["device/b//"]
    bench.send("te/device/b//")
    assert bench.mapper.statistics().warnings == {}


def test_nothing_is_advised_while_it_is_off():
    """Explicit nesting is what it is off for."""
    bench = MapperBench()
    bench.child("a")
    assert len(bench.child("b", **{"@parent": "device/a//"})) == 1
    assert bench.mapper.statistics().warnings == {}


def test_data_do_not_overtake_an_explicit_registration_that_waits():
    """Neither those of the entity nor those of its services."""
    bench = MapperBench(auto_register=True)
    bench.child("b", **{"@parent": "device/a//"})
    assert bench.send("te/device/b///m/", {"time": TIME, "v": 1}) == []
    assert bench.send("te/device/b/service/s/m/", {"time": TIME, "v": 1}) == []
    lines = cloud(bench.child("a"))
    assert [payload for _, payload in lines][:2] == [
        "101,A,A,thin-edge.io-child,false",
        "101,B,B,thin-edge.io-child,false",
    ]
    assert lines[2][1]["externalSource"]["externalId"] == "B"


def test_deregistered_device_comes_back_with_its_next_data():
    """As long as it sends, it is."""
    bench = MapperBench(auto_register=True)
    bench.send("te/device/silo9///m/", {"v": 1})
    bench.send("te/device/silo9//")
    assert bench.send("te/device/silo9///m/", {"v": 1})[:2] == [SILO_MESSAGE, SILO]


def test_automatic_registration_releases_what_waited_for_it():
    """A child that named the device as its parent, and a command that came early."""
    bench = MapperBench(auto_register=True)
    bench.child("b", **{"@parent": "device/silo9//"})
    bench.send("te/device/silo9///cmd/restart/c8y-mapper-7", {"status": "executing"})
    lines = cloud(bench.send("te/device/silo9///twin/k", "1"))
    assert lines == [
        SILO,
        ("c8y/s/us/hub-01:device:silo9", "504,7"),
        ("c8y/s/us/hub-01:device:silo9", "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/hub-01:device:silo9", {"k": 1}),
    ]


def test_full_registry_holds_what_cannot_be_registered():
    """The error says why, and nothing is lost."""
    bench = MapperBench(auto_register=True, entities_max=1)
    bench.child("a")
    ((topic, text),) = bench.send("te/device/silo9///twin/k", "1")
    assert topic == ERRORS
    assert "entities_max" in text
    bench.send("te/device/a//")
    assert cloud(bench.send("te/device/silo9//", {"@type": "child-device"})) == [
        (UP, "101,hub-01:device:silo9,hub-01:device:silo9,thin-edge.io-child,false"),
        (f"{INVENTORY}/hub-01:device:silo9", {"k": 1}),
    ]


def test_advice_is_bounded():
    """The first hundred entities show the pattern; all are told on the errors topic."""
    bench = MapperBench(auto_register=True)
    bench.child("a")
    for number in range(WARNINGS_MAX + 5):
        assert len(bench.child(f"n{number}", **{"@parent": "device/a//"})) == 2
    assert len(bench.mapper.statistics().warnings) == WARNINGS_MAX
