"""Deregistration: what goes, what is cleared, what may come back."""

from tests.support.entities import INVENTORY, UP, MapperBench, cloud, error_of


def test_deregistered_entity_is_forgotten_with_all_below():
    """Nothing goes to the cloud; what is retained of them is cleared, children first."""
    bench = MapperBench()
    bench.child("a")
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b/service/s", {"@type": "service", "@id": "S"})
    bench.send("te/device/b///twin/k", "1")
    bench.send("te/device/b///m/env/meta", {"t": {"unit": "K"}})
    bench.send("te/device/b///cmd/restart", "{}")
    bench.send("te/device/b///cmd/restart/c8y-mapper-7", {"status": "executing"})
    bench.send("te/device/b///a/hot", {"severity": "major"})
    lines = bench.send("te/device/a//")
    assert cloud(lines) == []
    assert all(payload == "" for _, payload in lines)
    topics = [topic for topic, _ in lines]
    assert topics == [
        "te/device/b/service/s/status/health",
        "te/device/b/service/s",
        "c8y-internal/alarms/te/device/b///a/hot",
        "te/device/b///twin/k",
        "te/device/b///m/env/meta",
        "te/device/b///cmd/restart",
        "te/device/b///cmd/restart/c8y-mapper-7",
        "te/device/b///a/hot",
        "te/device/b//",
    ]
    for topic in topics:
        assert bench.send(topic) == []  # as a broker hands them back
    assert bench.child("b", **{"@parent": "device/a//"}) == []
    assert bench.child("a") == [
        (UP, "101,A,A,thin-edge.io-child,false"),
        ("c8y/s/us/A", "101,B,B,thin-edge.io-child,false"),
    ]


def test_data_after_deregistration_is_early_data():
    """It waits for the next registration; twin values are not known any more."""
    bench = MapperBench()
    bench.child("a", room=1)
    bench.send("te/device/a//")
    assert bench.send("te/device/a///twin/room", "1") == []
    assert bench.child("a") == [
        (UP, "101,A,A,thin-edge.io-child,false"),
        (f"{INVENTORY}/A", {"room": 1}),
    ]


def test_deregistration_of_nothing_does_nothing():
    """An unknown entity has nothing to forget."""
    assert MapperBench().send("te/device/nobody//") == []


def test_main_device_cannot_be_deregistered():
    """An empty retained message must not remove the root."""
    bench = MapperBench()
    bench.child("a")
    assert "main device" in error_of(bench.send("te/device/main//"))
    assert bench.send("te/device/a///twin/k", "1") == [(f"{INVENTORY}/A", {"k": 1})]


def test_waiting_registration_is_dropped_by_an_empty_one():
    """What is held beside it stays."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b///twin/k", "1")
    bench.send("te/device/b//")
    assert bench.child("a") == [(UP, "101,A,A,thin-edge.io-child,false")]
    assert bench.child("b") == [
        (UP, "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/B", {"k": 1}),
    ]
