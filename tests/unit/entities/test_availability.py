"""Availability: required interval and heartbeats."""

import pytest

from tests.support.entities import INVENTORY, UP, MapperBench

HALF_MS = 1800 * 1000
AGENT = "te/device/main/service/tedge-agent"


def a_bench(interval_s=3600, *, enable=True):
    """Start a mapper with availability on, and register the agent of the main device."""
    bench = MapperBench(availability=enable, availability_interval_s=interval_s)
    bench.send(AGENT, {"@type": "service"})
    return bench


def beat(external_id):
    """Return the heartbeat of a device."""
    return (f"{INVENTORY}/{external_id}", {})


def test_start_sends_the_interval_of_the_main_device():
    """In minutes, after what it can do."""
    assert a_bench().restart() == [(UP, "114"), (UP, "500"), (UP, "117,60")]


@pytest.mark.parametrize(("interval_s", "minutes"), [(3600, 60), (119, 1), (59, 0), (0, 0)])
def test_child_is_announced_with_its_interval(interval_s, minutes):
    """After its create line; less than a minute counts as none."""
    bench = a_bench(interval_s)
    assert bench.child("a") == [
        (UP, "101,A,A,thin-edge.io-child,false"),
        ("c8y/s/us/A", f"117,{minutes}"),
    ]
    assert bench.child("a") == []


def test_off_means_nothing():
    """No interval, no heartbeat."""
    bench = a_bench(enable=False)
    assert len(bench.child("a")) == 1
    bench.send(f"{AGENT}/status/health", {"status": "up"})
    assert bench.mapper.next_due_ms() is None


def test_heartbeat_leaves_each_half_interval_while_the_agent_is_up():
    """An agent that was never heard of is not up."""
    bench = a_bench()
    assert bench.go_on(HALF_MS) == []
    bench.send(f"{AGENT}/status/health", {"status": "up"})
    assert bench.go_on(HALF_MS) == [beat("hub-01")]
    assert bench.go_on(3 * HALF_MS) == [beat("hub-01")] * 3
    bench.send(f"{AGENT}/status/health", {"status": "down"})
    assert bench.go_on(2 * HALF_MS) == []


def test_no_heartbeats_with_an_interval_of_zero():
    """The cloud is told, and that is all."""
    bench = a_bench(0)
    bench.send(f"{AGENT}/status/health", {"status": "up"})
    assert bench.mapper.next_due_ms() is None


def test_child_has_its_own_agent():
    """By its name, or the one that the registration names; it may be renamed."""
    bench = a_bench()
    bench.child("a")
    bench.child("b", **{"@health": "device/a/service/b-agent"})  # it need not be registered
    bench.send("te/device/a/service/tedge-agent/status/health", {"status": "up"})
    bench.send("te/device/a/service/b-agent/status/health", {"status": "up"})
    assert sorted(bench.go_on(HALF_MS)) == [beat("A"), beat("B")]
    bench.child("b", **{"@health": "device/b/service/other"})
    assert bench.go_on(HALF_MS) == [beat("A")]


def test_custom_device_without_an_agent_is_not_watched():
    """Neither interval nor heartbeat."""
    bench = a_bench()
    assert len(bench.send("te/plant/x//", {"@type": "child-device", "@id": "X"})) == 1
    health = {"@type": "child-device", "@id": "Y", "@health": "plant/y/service/s"}
    assert len(bench.send("te/plant/y//", health)) == 2


def test_deregistered_device_beats_no_more():
    """Also when it comes back meanwhile, it beats once per half interval."""
    bench = a_bench()
    bench.child("a")
    bench.send("te/device/a/service/tedge-agent/status/health", {"status": "up"})
    bench.send("te/device/a//")
    assert bench.go_on(2 * HALF_MS) == []
    bench.child("a")
    bench.send("te/device/a//")
    bench.child("a")
    assert bench.go_on(HALF_MS) == [beat("A")]


def test_deregistered_agent_is_not_up():
    """Its device beats no more, until the agent is there again and says so."""
    bench = a_bench()
    bench.child("a")
    agent = "te/device/a/service/tedge-agent"
    bench.send(agent, {"@type": "service", "@parent": "device/a//"})
    bench.send(f"{agent}/status/health", {"status": "up"})
    assert bench.go_on(HALF_MS) == [beat("A")]
    bench.send(agent)
    assert bench.go_on(HALF_MS) == []


def test_health_outlives_a_restart():
    """Heartbeats go on without a message."""
    bench = a_bench()
    bench.send(f"{AGENT}/status/health", {"status": "up"})
    bench.restart()
    assert bench.go_on(HALF_MS) == [beat("hub-01")]


def test_one_heartbeat_makes_up_for_a_long_sleep():
    """The machine was suspended for a day."""
    bench = a_bench()
    bench.send(f"{AGENT}/status/health", {"status": "up"})
    bench.now_ms += 48 * HALF_MS
    assert bench.go_on(0) == [beat("hub-01")]
    assert bench.go_on(HALF_MS) == [beat("hub-01")]
