"""Health of services: what a message says, what is sent, and what is known already."""

import pytest

from tests.support.entities import ERRORS, UP, MapperBench

MAIN = "te/device/main//"
SERVICE = "te/device/main/service/feeder"


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"status": "up"}, "up"),
        ({"status": "down"}, "down"),
        ({"status": "degraded"}, "degraded"),
        ({"status": "a, b"}, '"a, b"'),
        ({"status": ""}, "unknown"),
        ({"status": 1}, "unknown"),
        ({"status": None}, "unknown"),
        ({}, "unknown"),
        ("alive", "unknown"),
        ("[]", "unknown"),
        ("1", "unknown"),
        ("", "unknown"),
        ({"status": "up", "pid": "x", "time": "bad", "extra": [1]}, "up"),
    ],
)
def test_health_of_a_service_is_a_line(payload, status):
    """What says no status says `unknown`; other words pass."""
    bench = MapperBench()
    bench.send(SERVICE, {"@type": "service"})
    line = f"102,hub-01:device:main:service:feeder,service,feeder,{status}"
    assert bench.send(f"{SERVICE}/status/health", payload) == [(UP, line)]


def test_health_uses_current_name_and_type():
    """As twin messages changed them."""
    bench = MapperBench()
    bench.send(SERVICE, {"@type": "service", "@id": "S", "name": "a", "type": "b"})
    bench.send(f"{SERVICE}/twin/name", '"c"')
    bench.send(f"{SERVICE}/twin/type", '"d"')
    assert bench.send(f"{SERVICE}/status/health", {"status": "up"}) == [(UP, "102,S,d,c,up")]


@pytest.mark.parametrize("told", [b'{"status":"down"}', b"gone", b'{"status":"%s"}' % (b"x" * 100)])
def test_health_that_comes_again_at_a_start_is_known(told):
    """Silent over restarts while it is the same; another one, and any live one, is sent."""
    bench = MapperBench()
    topic = f"{SERVICE}/status/health"
    bench.send(SERVICE, {"@type": "service", "@id": "S"})
    bench.send(topic, told)
    line = bench.outputs()[0].payload
    for _ in range(2):
        bench.restart()
        assert bench.mapper.redeliver(topic, told, bench.now, client="c") == []
    effects = bench.mapper.redeliver(topic, b'{"status":"up"}', bench.now, client="c")
    assert bench.carry_out(effects) == [(UP, "102,S,service,feeder,up")]
    assert bench.send(topic, told) == [(UP, line.decode())]
    assert bench.send(topic, told) == [(UP, line.decode())]


def test_health_that_was_not_sent_or_is_too_long_to_be_kept_comes_again():
    """What the cloud was never told, and what would take too much memory."""
    bench = MapperBench(packet_bytes_max=1000)
    topic = f"{SERVICE}/status/health"
    bench.send(SERVICE, {"@type": "service", "@id": "S"})
    for length, topics in ((101, [UP]), (2000, [ERRORS])):
        told = b'{"status":"%s"}' % (b"x" * length)
        assert [topic for topic, _ in bench.send(topic, told)] == topics
        bench.restart()
        effects = bench.mapper.redeliver(topic, told, bench.now, client="c")
        assert [topic for topic, _ in bench.carry_out(effects)] == topics


def test_health_of_a_service_that_is_registered_again_is_sent_again():
    """The cloud was told `up` with its creation, and a refused creation says what is known."""
    bench = MapperBench()
    topic, down = f"{SERVICE}/status/health", b'{"status":"down"}'
    bench.send(SERVICE, {"@type": "service", "@id": "S"})
    bench.send(topic, down)
    bench.refuse_creation("device/main/service/feeder")
    bench.restart()
    again = bench.send(SERVICE, {"@type": "service", "@id": "S"})
    assert again == [(UP, "102,S,service,feeder,down")]
    bench.send(SERVICE, b"")
    bench.send(SERVICE, {"@type": "service", "@id": "S"})
    effects = bench.mapper.redeliver(topic, down, bench.now, client="c")
    assert bench.carry_out(effects) == [(UP, "102,S,service,feeder,down")]


def test_health_of_a_device_is_not_sent():
    """The cloud knows only that of services."""
    bench = MapperBench()
    bench.child("a")
    for topic in ("te/device/a//", MAIN):
        assert bench.send(f"{topic}/status/health", {"status": "up"}) == []
