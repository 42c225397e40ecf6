"""Alarms: conversion, journal, and the comparison after a start."""

import pytest

from edgehub.entities.alarms import ALARMS_MAX
from edgehub.entities.effects import LocalPublish
from tests.support.entities import ERRORS, TIME, UP, MapperBench, cloud, error_of, options_of

HOT = "te/device/main///a/hot"
JOURNAL = "c8y-internal/alarms/"
ALARMS = "c8y/alarm/alarms/create"
WINDOW_MS = 3000
RAISED = '{"severity":"major","text":"x","time":0}'
LINE = (UP, "302,hot,x,1970-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("name", "alarm", "line"),
    [
        ("hot", {"severity": "critical", "text": "x"}, "301,hot,x"),
        ("hot", {"severity": "major", "text": "x"}, "302,hot,x"),
        ("hot", {"severity": "minor", "text": "x"}, "303,hot,x"),
        ("hot", {"severity": "warning", "text": "x"}, "304,hot,x"),
        ("hot", {"severity": "CRITICAL", "text": "x"}, "303,hot,x"),
        ("hot", {"severity": "odd", "text": "x"}, "303,hot,x"),
        ("hot", {"severity": None, "text": "x"}, "303,hot,x"),
        ("hot", {"text": "x"}, "303,hot,x"),
        ("hot", {}, "303,hot,hot"),
        ("hot", {"text": None}, "303,hot,hot"),
        ("hot", {"text": ""}, "303,hot,"),
        ("hot", {"text": "a, b"}, '303,hot,"a, b"'),
        ("hot", {"text": 'a "b"'}, '303,hot,"a ""b"""'),
        ("hot", {"text": "a\nb"}, '303,hot,"a\nb"'),
        ("", {"text": "x"}, "303,ThinEdgeAlarm,x"),
        ("", {}, "303,ThinEdgeAlarm,ThinEdgeAlarm"),
        ("hot", {"type": "cold", "text": "x"}, "303,cold,x"),
        ("hot", {"type": "", "text": "x"}, "303,hot,x"),
        ("hot", {"text": "x", "externalSource": {"externalId": "other"}}, "303,hot,x"),
    ],
)
def test_alarm_is_a_line(name, alarm, line):
    """Severity chooses the template; what is no severity is minor."""
    sent = MapperBench().send(f"te/device/main///a/{name}", {"time": TIME, **alarm})
    assert cloud(sent) == [(UP, f"{line},{TIME}")]


def test_alarms_of_a_deregistered_entity_count_no_more():
    """Also those that were gathered for the comparison: all they took is free again."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    kept_bytes = bench.mapper.kept_bytes
    bench.child("a")
    bench.send("te/device/a///a/hot", RAISED)
    bench.send("te/device/a//")
    assert bench.mapper.kept_bytes == kept_bytes


def test_alarm_without_a_time_gets_that_of_its_arrival():
    """In UTC."""
    assert cloud(MapperBench().send(HOT, "{}")) == [(UP, f"303,hot,hot,{TIME}")]


def test_alarm_with_more_members_is_a_document():
    """With the severity in capitals, and the source of all but the main device."""
    bench = MapperBench()
    bench.child("a")
    alarm = {"time": TIME, "severity": "major", "text": "x", "zone": 4, "externalSource": 1}
    document = {"type": "hot", "severity": "MAJOR", "text": "x", "time": TIME, "zone": 4}
    assert cloud(bench.send(HOT, alarm)) == [(ALARMS, document)]
    source = {"externalId": "A", "type": "c8y_Serial"}
    assert cloud(bench.send("te/device/a///a/hot", alarm)) == [
        (ALARMS, {**document, "externalSource": source})
    ]


@pytest.mark.parametrize(
    "payload",
    ["x", "[]", '"x"', {"text": 5}, {"text": {}}, {"severity": 5}, {"time": "bad"}],
)
def test_wrong_alarm_is_refused(payload):
    """It enters no journal."""
    error_of(MapperBench().send(HOT, payload))


def test_lines_of_an_entity_go_to_its_own_topic():
    """Raised and cleared."""
    bench = MapperBench()
    bench.child("a")
    assert cloud(bench.send("te/device/a///a/hot", RAISED)) == [("c8y/s/us/A", LINE[1])]
    assert cloud(bench.send("te/device/a///a/hot", "")) == [("c8y/s/us/A", "306,hot")]
    assert cloud(bench.send("te/device/a///a/", "")) == [("c8y/s/us/A", "306,ThinEdgeAlarm")]


def test_journal_holds_a_copy_of_each_live_alarm():
    """The payload as it was; empty when the alarm is cleared."""
    bench = MapperBench()
    assert bench.send(HOT, RAISED.encode())[1][0] == JOURNAL + HOT
    (copy,) = [effect for effect in bench.effects if isinstance(effect, LocalPublish)]
    assert (copy.payload, copy.retain) == (RAISED.encode(), True)
    assert bench.send(HOT, "") == [(UP, "306,hot"), (JOURNAL + HOT, "")]


def test_repeats_are_sent():
    """Each of them: the cloud counts."""
    bench = MapperBench()
    for _ in range(2):
        assert cloud(bench.send(HOT, RAISED)) == [LINE]
        assert cloud(bench.send(HOT, "")) == [(UP, "306,hot")]


def a_started_bench(**journal):
    """Start a mapper that gathers alarms, with a journal of the main device's alarms."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    for name, payload in journal.items():
        assert bench.send(f"{JOURNAL}te/device/main///a/{name}", payload) == []
    return bench


def test_nothing_is_sent_while_alarms_are_gathered():
    """Other messages are."""
    bench = a_started_bench()
    assert bench.send(HOT, RAISED) == []
    assert len(bench.send("te/device/main///m/", {"v": 1})) == 1
    assert bench.go_on(WINDOW_MS - 1) == []
    assert cloud(bench.go_on(1)) == [LINE]
    assert cloud(bench.send(HOT, RAISED)) == [LINE]


def test_known_alarm_is_left_alone():
    """Journal and live alarm agree byte for byte."""
    bench = a_started_bench(hot=RAISED)
    bench.send(HOT, RAISED)
    assert bench.go_on(WINDOW_MS) == []


def test_changed_alarm_is_sent():
    """As it is now."""
    bench = a_started_bench(hot='{"severity":"minor"}')
    bench.send(HOT, RAISED)
    assert cloud(bench.go_on(WINDOW_MS)) == [LINE]


def test_missed_clearing_is_sent_first():
    """In the journal and not live: cleared while the hub was away."""
    bench = a_started_bench(cold="{}", hot=RAISED)
    bench.send("te/device/main///a/new", '{"time":0}')
    assert bench.go_on(WINDOW_MS) == [
        (UP, "306,cold"),
        (f"{JOURNAL}te/device/main///a/cold", ""),
        (UP, "306,hot"),
        (JOURNAL + HOT, ""),
        (UP, "303,new,new,1970-01-01T00:00:00Z"),
        (f"{JOURNAL}te/device/main///a/new", {"time": 0}),
    ]


def test_clearing_that_comes_while_alarms_are_gathered_is_sent_once():
    """A broker's queue delivers it; the topic is empty."""
    bench = a_started_bench(hot=RAISED)
    bench.send(HOT, RAISED)
    bench.send(HOT, "")
    assert cloud(bench.go_on(WINDOW_MS)) == [(UP, "306,hot")]


def test_bad_alarm_does_not_end_the_comparison():
    """It is told, the others are sent."""
    bench = a_started_bench()
    bench.send("te/device/main///a/bad", "{")
    bench.send(HOT, RAISED)
    lines = bench.go_on(WINDOW_MS)
    assert [topic for topic, _ in lines] == [ERRORS, UP, JOURNAL + HOT]


def test_journal_outlives_a_restart_by_itself():
    """Nobody need hand it in again; what was cleared is not in it."""
    bench = MapperBench()
    bench.send(HOT, RAISED)
    bench.send("te/device/main///a/cold", RAISED)
    bench.send("te/device/main///a/cold", "")
    bench.options = options_of("hub-01", alarm_sync_ms=WINDOW_MS)
    bench.restart()
    bench.send(HOT, RAISED)
    assert bench.go_on(WINDOW_MS) == []
    bench.restart()
    assert cloud(bench.go_on(WINDOW_MS)) == [(UP, "306,hot")]


def test_alarm_gathered_before_a_crash_is_not_lost():
    """It was acknowledged; it is compared after the next start."""
    bench = a_started_bench()
    bench.send(HOT, '{"severity":"major"}')
    bench.go_on(1000)
    bench.restart()
    assert cloud(bench.go_on(WINDOW_MS)) == [(UP, f"302,hot,hot,{TIME}")]
    assert bench.mapper.next_due_ms() is None


def test_alarms_of_an_unregistered_entity_wait():
    """A clearing that was missed, too; what is held as live is not cleared."""
    topic = "te/device/a///a/"
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    for name in ("gone", "live"):
        bench.send(f"{JOURNAL}{topic}{name}", RAISED)
    bench.send(f"{topic}live", RAISED)
    assert bench.go_on(WINDOW_MS) == []
    sent = [payload for topic, payload in bench.child("a") if topic == "c8y/s/us/A"]
    assert sent == ["302,live,x,1970-01-01T00:00:00Z", "306,gone"]


def test_early_alarm_takes_part_in_the_comparison():
    """Its entity is registered while alarms are gathered."""
    bench = a_started_bench()
    bench.send("te/device/a///a/hot", RAISED)
    assert len(bench.child("a")) == 1
    assert cloud(bench.go_on(WINDOW_MS)) == [("c8y/s/us/A", LINE[1])]


def test_journal_is_no_longer_read_after_the_comparison():
    """The hub's own copies come back from a broker."""
    bench = MapperBench()
    assert bench.send(JOURNAL + HOT, RAISED) == []
    bench.options = options_of("hub-01", alarm_sync_ms=WINDOW_MS)
    bench.restart()
    assert bench.go_on(WINDOW_MS) == []


def test_alarm_that_is_gathered_goes_with_its_entity():
    """Deregistered before the comparison: nothing is left to send."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    bench.child("a")
    bench.send("te/device/a///a/hot", RAISED)
    bench.send("te/device/a//")
    bench.child("a")
    assert bench.go_on(WINDOW_MS) == []


def test_alarm_that_is_gathered_goes_with_its_entity_from_the_disk_too():
    """A crash right after the deregistration does not bring it back."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    bench.child("a")
    bench.send("te/device/a///a/hot", RAISED)
    bench.send("te/device/a//")
    bench.child("a")
    bench.restart()
    assert bench.go_on(WINDOW_MS) == []


def test_number_of_alarms_is_bounded():
    """Those beyond are refused while alarms are gathered, and sent without a journal afterwards."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS)
    for number in range(ALARMS_MAX):
        bench.mapper.handle(f"te/device/main///a/{number}", b'{"time":0}', bench.now)
    assert "more than" in error_of(bench.send(HOT, RAISED))
    assert bench.send("te/device/main///a/7", RAISED) == []
    assert len(cloud(bench.go_on(WINDOW_MS))) == ALARMS_MAX
    assert bench.send(HOT, RAISED) == [LINE]
    bench.send("te/device/main///a/7", "")
    assert [topic for topic, _ in bench.send(HOT, RAISED)] == [UP, JOURNAL + HOT]


def test_bytes_of_alarms_are_bounded():
    """A client that sends large ones takes no more memory and disk than that."""
    bench = MapperBench(alarm_sync_ms=WINDOW_MS, packet_bytes_max=2**18)
    body = b'{"text":"%b"}' % (b"x" * 2**18)
    for number in range(63):
        bench.mapper.handle(f"te/device/main///a/{number}", body, bench.now)
    before = bench.mapper.kept_bytes
    assert "bytes of alarms" in error_of(bench.send(HOT, body.decode()))
    assert bench.mapper.kept_bytes == before > 63 * 2**18
    bench.go_on(WINDOW_MS)
    assert bench.mapper.kept_bytes < 2**18


def test_a_clearing_after_the_hubs_own_is_not_taken_for_it():
    """Deregistered, raised and cleared again before the next registration: it ends cleared."""
    bench = MapperBench()
    bench.child("a")
    alarm = "te/device/a///a/hot"
    bench.send(alarm, RAISED)
    bench.send("te/device/a//", "")
    bench.send(alarm, RAISED)
    bench.send(alarm, "")
    bench.child("a")
    assert [row.payload for row in bench.outputs() if row.output == "alarms"][-1] == b"306,hot"
