"""What is held for entities that are not registered: order, bounds, time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.entities.registrar import WAITING_LEVELS_MAX
from tests.support.entities import (
    INVENTORY,
    MEASUREMENTS,
    UP,
    WALL_MS,
    MapperBench,
    error_of,
    options_of,
)

DAY_MS = 24 * 3600 * 1000
TANK = "te/device/tank4"
CREATED = (UP, "101,TANK4,TANK4,thin-edge.io-child,false")


def values_of(lines):
    """Return the single values of the measurements among lines, in order."""
    return [
        next(iter(document["v"].values()))["value"]
        for topic, document in lines
        if topic == MEASUREMENTS
    ]


def measure(bench, *values, device="tank4", client=""):
    """Send measurements of an entity, one message each."""
    for value in values:
        lines = bench.send(f"te/device/{device}///m/", {"v": value}, client=client)
        assert lines == []


def test_e01_early_data_follow_the_registration_in_order():
    """E-01: seven measurements before their registration leave under its id."""
    bench = MapperBench()
    for number in range(7):
        assert bench.send("te/device/p9///m/temp", {"t": number}) == []
    lines = bench.send("te/device/p9//", {"@type": "child-device", "@id": "plc-9"})
    assert lines[0] == (UP, "101,plc-9,plc-9,thin-edge.io-child,false")
    assert [document["t"]["t"]["value"] for _, document in lines[1:]] == list(range(7))
    assert {document["externalSource"]["externalId"] for _, document in lines[1:]} == {"plc-9"}
    assert all(row.needs == ("plc-9",) for row in bench.outputs()[1:])


def test_release_is_creation_then_states_then_telemetry():
    """States in the order of their newest message, telemetry as it came."""
    bench = MapperBench()
    bench.send(f"{TANK}///e/ping", {"time": 0, "text": "p"})
    bench.send(f"{TANK}///twin/k1", "1")
    bench.send(f"{TANK}///cmd/restart", "{}")
    bench.send(f"{TANK}///a/leak", {"time": 0, "severity": "minor"})
    bench.send(f"{TANK}///twin/k1", "2")
    bench.send(f"{TANK}///twin/k2", "3")
    assert [payload for _, payload in bench.child("tank4", room=1)] == [
        CREATED[1],
        {"room": 1},
        "114,c8y_Restart",
        {"k1": 2},
        {"k2": 3},
        {
            "type": "ping",
            "text": "p",
            "time": "1970-01-01T00:00:00Z",
            "externalSource": {"externalId": "TANK4", "type": "c8y_Serial"},
        },
        "303,leak,leak,1970-01-01T00:00:00Z",
        {"time": 0, "severity": "minor"},
    ]


def test_held_message_without_a_time_gets_that_of_its_arrival():
    """Also when it was held over a restart."""
    bench = MapperBench()
    measure(bench, 1)
    bench.go_on(5000)
    bench.restart()
    _, (_, document) = bench.child("tank4")
    assert WALL_MS % 60_000 == 6000
    assert document["time"] == "2026-02-03T04:05:06Z"


def test_cleared_states_leave_nothing():
    """Twin values, units, declarations and commands; a health message without a body says one."""
    bench = MapperBench()
    for channel in ("twin/k", "m/env/meta", "cmd/restart", "cmd/restart/c8y-mapper-1"):
        bench.send(f"{TANK}///{channel}", "{}")
        bench.send(f"{TANK}///{channel}", "")
    bench.send("te/device/main/service/s/status/health", "")
    assert bench.child("tank4") == [CREATED]
    lines = bench.send("te/device/main/service/s", {"@type": "service", "@id": "S"})
    assert lines == [(UP, "102,S,service,s,up"), (UP, "102,S,service,s,unknown")]


def test_bad_held_message_is_reported_and_the_others_leave():
    """One error at its place."""
    bench = MapperBench()
    bench.send(f"{TANK}///twin/k", "not json")
    measure(bench, 1)
    bench.send(f"{TANK}///m/", "{")
    measure(bench, 2)
    lines = bench.child("tank4")
    assert [topic for topic, _ in lines] == [
        UP,
        "te/errors",
        MEASUREMENTS,
        "te/errors",
        MEASUREMENTS,
    ]
    assert values_of(lines) == [1, 2]


def test_children_follow_depth_first():
    """Each with its own messages before the next, in the order of their registrations."""
    bench = MapperBench()
    bench.child("c", **{"@parent": "device/a//"})
    bench.child("b", **{"@parent": "device/a//"})
    bench.child("d", **{"@parent": "device/c//"})
    bench.send("te/device/d///twin/k", "4")
    bench.send("te/device/b///twin/k", "2")
    bench.send("te/device/c///twin/k", "3")
    bench.child("e", **{"@parent": "device/elsewhere//"})
    assert bench.child("a") == [
        (UP, "101,A,A,thin-edge.io-child,false"),
        ("c8y/s/us/A", "101,C,C,thin-edge.io-child,false"),
        (f"{INVENTORY}/C", {"k": 3}),
        ("c8y/s/us/C", "101,D,D,thin-edge.io-child,false"),
        (f"{INVENTORY}/D", {"k": 4}),
        ("c8y/s/us/A", "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/B", {"k": 2}),
    ]
    assert [each.topic_id for each in bench.mapper.pending.entities()] == ["device/e//"]


def test_grandchildren_are_created_in_the_order_of_their_registrations():
    """Whichever way they come to wait: two below one parent, and two below its sibling."""
    bench = MapperBench()
    for child, parent in ["ba", "ca", "fc", "eb", "gc", "db"]:
        bench.child(child, **{"@parent": f"device/{parent}//"})
    assert [payload.split(",")[1] for _, payload in bench.child("a")] == list("ABEDCFG")


def test_chain_of_any_depth_is_released():
    """Two thousand levels are no more than two thousand entities."""
    bench = MapperBench()
    for number in range(2000, 0, -1):
        bench.child(f"d{number}", **{"@parent": f"device/d{number - 1}//"})
    assert len(bench.child("d0")) == 2001


def test_waiting_child_follows_its_latest_parent_only():
    """A registration with another parent takes the place of the first one."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b///twin/k", "1")
    bench.child("b", **{"@parent": "device/z//"})
    assert bench.child("a") == [(UP, "101,A,A,thin-edge.io-child,false")]
    assert bench.child("z")[1:] == [
        ("c8y/s/us/Z", "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/B", {"k": 1}),
    ]


def test_child_of_a_known_parent_waits_no_more():
    """A registration with a parent that is there replaces the one that waits."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "device/a//"})
    assert len(bench.child("b")) == 1
    assert bench.child("a") == [(UP, "101,A,A,thin-edge.io-child,false")]


def test_repeated_waiting_registration_keeps_its_place():
    """The newest content counts, at the place of the first."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "device/a//"})
    bench.child("c", **{"@parent": "device/a//"})
    bench.child("b", name="again", **{"@parent": "device/a//"})
    assert [payload for _, payload in bench.child("a")[1:]] == [
        "101,B,again,thin-edge.io-child,false",
        "101,C,C,thin-edge.io-child,false",
    ]


def test_waiting_child_whose_registration_grows_too_large_stops_nothing():
    """It is told, waits no more, and its parent and siblings come to be."""
    bench = MapperBench(pending_client_bytes_max=1000)
    bench.child("b", **{"@parent": "device/a//"})
    bench.child("c", **{"@parent": "device/a//"})
    assert "cannot be held" in error_of(bench.child("b", k="x" * 2000, **{"@parent": "device/a//"}))
    assert [payload for _, payload in bench.child("a")] == [
        "101,A,A,thin-edge.io-child,false",
        "101,C,C,thin-edge.io-child,false",
    ]


def test_bad_waiting_child_does_not_stop_its_siblings():
    """Its id was taken meanwhile; what it sent stays for a better registration."""
    bench = MapperBench()
    bench.send("te/device/b//", {"@type": "child-device", "@id": "A", "@parent": "device/a//"})
    bench.send("te/device/b///twin/k", "1")
    bench.child("c", **{"@parent": "device/a//"})
    lines = bench.child("a")
    assert [topic for topic, _ in lines] == [UP, "te/errors", "c8y/s/us/A"]
    assert bench.child("b")[1:] == [(f"{INVENTORY}/B", {"k": 1})]


def test_entities_that_wait_for_each_other_are_reported():
    """The registration that closes the circle is refused."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "device/a//"})
    bench.child("c", **{"@parent": "device/b//"})
    assert "waits for device/a// itself" in error_of(bench.child("a", **{"@parent": "device/c//"}))


def test_parents_that_wait_for_each_other_are_bounded():
    """Each message would look at all of them; what is waiting already goes on waiting."""
    bench = MapperBench()
    levels = WAITING_LEVELS_MAX + 1
    for number in range(levels):
        assert bench.child(f"d{number}", **{"@parent": f"device/d{number + 1}//"}) == []
    assert "levels of parents" in error_of(bench.child("late", **{"@parent": "device/d0//"}))
    assert bench.child("other", **{"@parent": "device/d9//"}) == []
    assert len(bench.child(f"d{levels}")) == levels + 2


def test_telemetry_of_an_entity_is_bounded():
    """The oldest goes first; others keep theirs, and what went is counted."""
    bench = MapperBench(telemetry_cache_size=3)
    measure(bench, 1, device="quiet")
    measure(bench, *range(10))
    (_, each) = sorted(bench.mapper.pending.entities(), key=lambda each: each.evicted)
    assert (each.topic_id, each.messages, each.evicted) == ("device/tank4//", 3, 7)
    assert values_of(bench.child("tank4")) == [7, 8, 9]
    assert values_of(bench.child("quiet")) == [1]
    assert bench.mapper.statistics().evicted_total == 7


def test_telemetry_can_be_bounded_in_all():
    """Scope global: the oldest of any entity goes first, and the bound stays after a release."""
    bench = MapperBench(telemetry_cache_size=3, telemetry_cache_scope="global")
    measure(bench, 1, device="quiet")
    measure(bench, 1, 2, 3)
    assert values_of(bench.child("quiet")) == []
    assert values_of(bench.child("tank4")) == [1, 2, 3]
    measure(bench, *range(10), device="tank5")
    assert values_of(bench.child("tank5")) == [7, 8, 9]


def test_no_telemetry_is_held_with_a_bound_of_zero():
    """States are."""
    bench = MapperBench(telemetry_cache_size=0)
    measure(bench, 1)
    bench.send(f"{TANK}///twin/k", "1")
    assert bench.child("tank4") == [CREATED, (f"{INVENTORY}/TANK4", {"k": 1})]
    assert bench.mapper.statistics().evicted_total == 1


@pytest.mark.parametrize("options", [{"pending_max": 20}, {"pending_bytes_max": 20 * 160}])
def test_anonymous_clients_get_half_of_what_is_held(options):
    """Ever new names, with little each, drive out none of the messages of an identity."""
    bench = MapperBench(known={"plc": object()}, **options)
    measure(bench, *range(8), device="press", client="plc")
    for number in range(40):
        measure(bench, number, device=f"r{number:02}", client=f"rogue{number:02}")
    held = {each.topic_id: each.messages for each in bench.mapper.pending.entities(100)}
    assert held.pop("device/press//") == 8
    assert 8 <= sum(held.values()) <= 10
    bench.restart()
    measure(bench, 41, device="r41", client="rogue41")
    held = {each.topic_id: each.messages for each in bench.mapper.pending.entities(100)}
    assert held["device/press//"] == 8


def test_bytes_of_one_client_are_bounded():
    """It gives up its own oldest telemetry, then its own oldest states; others lose nothing."""
    bench = MapperBench(pending_client_bytes_max=3000)
    bench.send("te/device/quiet///twin/k", "1", client="quiet")
    bench.send("te/device/r0///twin/k", "0", client="rogue")
    for number in range(1, 50):
        measure(bench, number, device=f"r{number}", client="rogue")
    assert bench.mapper.statistics().held_bytes <= 3000 + 200
    assert values_of(bench.child("r1")) == []
    assert values_of(bench.child("r49")) == [49]
    assert len(bench.child("r0")) == 2
    for number in range(50, 100):
        bench.send(f"te/device/r{number}///twin/k", "1", client="rogue")
    assert len(bench.child("r50")) == 1
    assert len(bench.child("quiet")) == 2


def test_number_of_held_messages_is_bounded():
    """Who holds most gives way."""
    bench = MapperBench(pending_max=10)
    measure(bench, 1, 2, client="quiet", device="quiet")
    for number in range(100):
        measure(bench, number, device=f"r{number}", client="rogue")
    assert bench.mapper.statistics().held == 10
    assert values_of(bench.child("quiet")) == [1, 2]
    assert values_of(bench.child("r99")) == [99]


def test_bytes_in_all_are_bounded():
    """Who holds most bytes gives way."""
    bench = MapperBench(pending_bytes_max=5000)
    measure(bench, 1, 2, client="quiet", device="quiet")
    for number in range(100):
        measure(bench, number, device=f"r{number}", client=f"rogue{number % 2}")
    assert bench.mapper.statistics().held_bytes <= 5000
    assert values_of(bench.child("quiet")) == [1, 2]


def test_message_that_can_never_be_held_is_reported():
    """Larger than all that one client may hold."""
    bench = MapperBench(pending_client_bytes_max=1000)
    error_of(bench.send(f"{TANK}///twin/k", '"' + "x" * 2000 + '"', client="c"))
    error_of(bench.send(f"{TANK}///e/k", '"' + "x" * 2000 + '"', client="c"))
    assert bench.mapper.pending.entities() == []


def test_registration_that_must_make_room_is_reported():
    """It is the last that a client gives up, and it has to come again."""
    bench = MapperBench(pending_client_bytes_max=400)
    bench.child("b", **{"@parent": "device/a//"})
    lines = bench.send("te/device/x///twin/k", '"' + "x" * 100 + '"')
    assert "send it again" in error_of(lines)
    assert len(bench.child("a")) == 1


def test_what_waits_too_long_is_given_up():
    """Each message after its own time; one error per entity, and the count says how many."""
    bench = MapperBench(pending_ttl_s=DAY_MS // 1000)
    measure(bench, 1, 2)
    bench.go_on(DAY_MS // 2)
    measure(bench, 3)
    bench.child("b", **{"@parent": "device/a//"})
    assert bench.go_on(DAY_MS // 2 - 1) == []
    assert "not registered within 86400 s" in error_of(bench.go_on(1))
    assert bench.mapper.statistics().expired_total == 2
    lines = bench.go_on(DAY_MS)
    assert [topic for topic, _ in lines] == ["te/errors"]
    assert bench.mapper.statistics().held == 0
    assert values_of(bench.child("tank4")) == []
    assert len(bench.child("a")) == 1
    assert bench.mapper.next_due_ms() is None


def test_registration_again_renews_its_time():
    """A retained registration that is sent anew waits as long as a new one."""
    bench = MapperBench(pending_ttl_s=1)
    bench.child("b", **{"@parent": "device/a//"})
    bench.go_on(900)
    bench.child("b", **{"@parent": "device/a//"})
    assert bench.go_on(900) == []
    assert len(bench.child("a")) == 2


def test_debt_names_who_owes():
    """Clients, bytes, age and what is missing, the largest first."""
    bench = MapperBench()
    bench.send(f"{TANK}///twin/k", "1", client="plc")
    bench.go_on(1000)
    measure(bench, *range(5), client="gateway")
    bench.child("b", **{"@parent": "device/a//"})
    first, second = bench.mapper.pending.entities()
    assert (first.topic_id, first.waits_for, first.messages) == ("device/tank4//", None, 6)
    assert (first.clients, first.oldest_ms) == (("gateway", "plc"), 0)
    assert first.bytes + second.bytes == bench.mapper.statistics().held_bytes
    assert (second.topic_id, second.waits_for) == ("device/b//", "device/a//")


def test_held_messages_survive_a_restart():
    """Registrations with their parents, states, telemetry, and the order of all."""
    bench = MapperBench()
    measure(bench, 1)
    bench.child("c", **{"@parent": "device/a//"})
    bench.child("b", **{"@parent": "device/a//"})
    bench.send("te/device/b///twin/k", "1")
    measure(bench, 2)
    waiting = bench.mapper.pending.entities()
    bench.restart()
    assert bench.mapper.pending.entities() == waiting
    assert bench.child("a")[1:] == [
        ("c8y/s/us/A", "101,C,C,thin-edge.io-child,false"),
        ("c8y/s/us/A", "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/B", {"k": 1}),
    ]
    measure(bench, 3)
    assert values_of(bench.child("tank4")) == [1, 2, 3]
    bench.restart()
    assert bench.mapper.statistics().held == 0


def test_held_messages_end_in_time_after_a_restart():
    """The time they had waited counts."""
    bench = MapperBench(pending_ttl_s=1)
    measure(bench, 1)
    bench.go_on(600)
    bench.restart()
    assert len(bench.go_on(400)) == 1


def test_held_alarm_is_not_held_twice_when_a_broker_delivers_it_again():
    """A retained alarm comes back once after a restart; whatever is sent then is a new one."""
    bench = MapperBench()
    bench.send(f"{TANK}///a/leak", {"time": 0})
    bench.restart()
    for second in (0, 1, 0):
        bench.send(f"{TANK}///a/leak", {"time": second})
    lines = [payload for topic, payload in bench.child("tank4") if topic == "c8y/s/us/TANK4"]
    assert lines == [f"303,leak,leak,1970-01-01T00:00:0{second}Z" for second in (0, 1, 0)]


def test_held_messages_of_another_root_are_dropped():
    """After a change of the root nothing can be registered below the old one."""
    bench = MapperBench()
    measure(bench, 1)
    bench.options = options_of("hub-01", alarm_sync_ms=0, topic_root="plant")
    bench.restart()
    assert bench.mapper.statistics().held == 0


def test_waiting_registration_that_became_possible_is_taken_up_at_the_start():
    """Another main device was named meanwhile."""
    bench = MapperBench()
    bench.child("b", **{"@parent": "plant/hub//"})
    bench.options = options_of("hub-01", alarm_sync_ms=0, device_topic_id="plant/hub//")
    assert (UP, "101,B,B,thin-edge.io-child,false") in bench.restart()


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans(), st.integers(0, 300)),
        min_size=30,
        max_size=80,
    )
)
def test_bounds_hold_whatever_comes(messages):
    """After every message: count, bytes, bytes per client, telemetry per entity."""
    bench = MapperBench(
        telemetry_cache_size=4,
        pending_max=12,
        pending_bytes_max=4000,
        pending_client_bytes_max=2500,
    )
    for device, client, is_state, size in messages:
        channel = "twin/k" if is_state else "m/"
        topic = f"te/device/d{device}///{channel}"
        bench.send(topic, '"' + "x" * size + '"', client=f"c{client}")
        statistics = bench.mapper.statistics()
        waiting = bench.mapper.pending.entities()
        assert statistics.held <= 12
        assert statistics.held_bytes <= 4000
        assert sum(each.messages for each in waiting) == statistics.held
        assert all(each.messages <= 5 for each in waiting)
        (rows,) = bench.connection.execute("SELECT count(*) FROM pending").fetchone()
        assert rows == statistics.held
        per_client = bench.connection.execute(
            "SELECT sum(128 + length(topic) + length(payload)) FROM pending GROUP BY client_id"
        )
        assert all(total <= 2500 for (total,) in per_client)


@pytest.mark.parametrize("clients", [1, 50])
def test_rogue_client_costs_no_memory(clients):
    """Three seconds of 2 000 messages a second for ever new entities stay within the bounds."""
    bench = MapperBench(pending_max=500)
    for number in range(6_000):
        bench.mapper.handle(
            f"te/device/r{number}///m/", b'{"v":1}', bench.now, client=f"c{number % clients}"
        )
    statistics = bench.mapper.statistics()
    assert statistics.held == 500
    assert statistics.evicted_total == 5_500
    assert len(bench.mapper.pending.entities()) == 500


def test_what_is_handed_in_again_keeps_its_time():
    """A hub that starts each night gives retained messages up after a day all the same."""
    bench = MapperBench()
    messages = {
        "te/device/a///twin/x": "1",
        "te/device/b//": '{"@type":"child-device","@parent":"device/gone//"}',
    }
    for topic, payload in messages.items():
        bench.send(topic, payload)
    bench.go_on(20 * 3600 * 1000)
    bench.restart()
    for topic, payload in messages.items():
        bench.mapper.redeliver(topic, payload.encode(), bench.now, client="")
    assert bench.mapper.statistics().held == 2
    bench.go_on(5 * 3600 * 1000)
    assert bench.mapper.statistics().held == 0
