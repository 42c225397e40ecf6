"""Measurements, events, twin values and health: what they become."""

import json
import tracemalloc

import pytest

from edgehub.entities.documents import write_json
from tests.support.entities import (
    ERRORS,
    INVENTORY,
    MEASUREMENTS,
    TIME,
    UP,
    MapperBench,
    error_of,
)

MAIN = "te/device/main//"
SERVICE = "te/device/main/service/feeder"
SOURCE = {"externalId": "P1", "type": "c8y_Serial"}
EVENTS = "c8y/event/events/create"


def measured(payload, *, type_name="", bench=None):
    """Return what a measurement of the main device becomes, without its type."""
    ((topic, document),) = (bench or MapperBench()).send(f"{MAIN}/m/{type_name}", payload)
    assert topic == MEASUREMENTS, document
    assert document.pop("type") == (type_name or "ThinEdgeMeasurement")
    return document


@pytest.mark.parametrize(
    ("members", "fragments"),
    [
        ({"temp": 21.5}, {"temp": {"temp": {"value": 21.5}}}),
        ({"n": 0}, {"n": {"n": {"value": 0}}}),
        ({"n": -4}, {"n": {"n": {"value": -4}}}),
        ({"w": -25000000000}, {"w": {"w": {"value": -25000000000}}}),
        ({"w": 18446744073709551615}, {"w": {"w": {"value": 18446744073709551615}}}),
        (
            {"env": {"t": 1, "h": 2.5}},
            {"env": {"t": {"value": 1}, "h": {"value": 2.5}}},
        ),
        (
            {"a": 1, "g": {"b": 2}, "c": 3},
            {
                "a": {"a": {"value": 1}},
                "g": {"b": {"value": 2}},
                "c": {"c": {"value": 3}},
            },
        ),
        ({"v": 1, "note": "ok"}, {"v": {"v": {"value": 1}}}),
        ({"note": "only text counts as content"}, {}),
        (
            {"v": 1, "properties": {"site": {"hall": 3}}},
            {"v": {"v": {"value": 1}}, "site": {"hall": 3}},
        ),
        ({"v": 1, "properties": "none"}, {"v": {"v": {"value": 1}}}),
        ({"v": 1, "properties": {"time": "x", "type": "y"}}, {"v": {"v": {"value": 1}}}),
        ({"escaped\\": 1}, {"escaped\\": {"escaped\\": {"value": 1}}}),
    ],
)
def test_measurement_becomes_fragments(members, fragments):
    """Single values, groups, text that is left out, properties that go along."""
    assert measured({"time": TIME, **members}) == {"time": TIME, **fragments}


def test_exponents_are_numbers():
    """As they are written in JSON."""
    fragments = measured(b'{"time":0,"a":1E3,"b":-2.5e-3}')
    assert fragments["a"]["a"]["value"] == 1000
    assert fragments["b"]["b"]["value"] == -0.0025


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        "{",
        "7",
        "[]",
        "null",
        b'{"v":\xff}',
        {},
        {"time": TIME},
        {"time": TIME, "properties": {"a": 1}},
    ],
)
def test_what_holds_no_measurement_is_refused(payload):
    """One error, nothing for the cloud."""
    text = error_of(MapperBench().send(f"{MAIN}/m/env", payload))
    assert text.startswith(f"{MAIN}/m/env: ")


@pytest.mark.parametrize(
    "payload",
    [
        {"v": True},
        {"v": None},
        {"v": [1]},
        {"v": {}},
        {"g": {"h": {"i": 1}}},
        {"g": {"h": "text"}},
        {"g": {"h": True}},
        {"g": {"h": None}},
        {"type": 5, "v": 1},
        {"g": {"type": 5}},
        {"externalSource": 1, "v": 1},
        {"externalSource": {"externalId": "other"}, "v": 1},
        {"externalSource": "x", "v": 1},
        {"time": "2026-02-03 04:05:06", "v": 1},
        {"time": None, "v": 1},
        '{"v":1e400}',
        '{"v":NaN}',
        '{"v":1e-310}',
    ],
)
def test_wrong_measurement_is_refused_whole(payload):
    """One error, nothing for the cloud, whatever is right before and behind what is wrong."""
    wrong = payload if isinstance(payload, str) else json.dumps(payload)
    for whole in (wrong, f'{{"good":1,{wrong[1:]}', f'{wrong[:-1]},"good":1}}'):
        text = error_of(MapperBench().send(f"{MAIN}/m/env", whole))
        assert text.startswith(f"{MAIN}/m/env: ")


@pytest.mark.parametrize(
    ("topic_type", "own_type", "type_"),
    [
        ("", None, "ThinEdgeMeasurement"),
        ("env", None, "env"),
        ("env", "oven", "oven"),
        ("", "oven", "oven"),
        ("env", "", "env"),
    ],
)
def test_type_of_a_measurement(topic_type, own_type, type_):
    """That of the payload, else that of the topic, else the default."""
    payload = {"time": TIME, "v": 1} | ({} if own_type is None else {"type": own_type})
    ((_, document),) = MapperBench().send(f"{MAIN}/m/{topic_type}", payload)
    assert document["type"] == type_


def test_source_is_named_but_for_the_main_device():
    """Children and services alike."""
    bench = MapperBench()
    bench.send("te/device/pump1//", {"@type": "child-device", "@id": "P1"})
    bench.send("te/device/pump1/service/s", {"@type": "service", "@id": "S"})
    for topic, external_id in (("te/device/pump1//", "P1"), ("te/device/pump1/service/s", "S")):
        ((_, document),) = bench.send(f"{topic}/m/", {"v": 1})
        assert document["externalSource"] == {"externalId": external_id, "type": "c8y_Serial"}
    assert "externalSource" not in measured({"v": 1}, bench=bench)


def test_units_stand_beside_their_values():
    """For single values and groups of their type and entity only; they outlive a restart."""
    bench = MapperBench()
    units = {"temp": {"unit": "°C"}, "env.t": {"unit": "K"}, "odd": 7, "none": {}}
    assert bench.send(f"{MAIN}/m/x/meta", units) == []
    bench.restart()
    values = {"time": TIME, "temp": 1, "env": {"t": 2, "h": 3}}
    plain = {
        "time": TIME,
        "temp": {"temp": {"value": 1}},
        "env": {"t": {"value": 2}, "h": {"value": 3}},
    }
    assert measured(values, type_name="y", bench=bench) == plain
    with_units = measured(values, type_name="x", bench=bench)
    assert with_units["temp"] == {"temp": {"value": 1, "unit": "°C"}}
    assert with_units["env"] == {"t": {"value": 2, "unit": "K"}, "h": {"value": 3}}
    bench.send(f"{MAIN}/m/x/meta", "")
    assert measured(values, type_name="x", bench=bench) == plain
    error_of(bench.send(f"{MAIN}/m/x/meta", "[]"))
    error_of(bench.send(f"{MAIN}/m/x/meta", {"a": {"unit": "x" * 20_000}}))
    assert bench.send(f"{MAIN}/m/never/meta", "") == []


@pytest.mark.parametrize(
    ("name", "payload", "line"),
    [
        ("door", {"text": "x"}, 'door,"x"'),
        ("door", {}, 'door,"door"'),
        ("door", b"", 'door,"door"'),
        ("", {}, 'ThinEdgeEvent,"ThinEdgeEvent"'),
        ("door", {"text": "a, b"}, 'door,"a, b"'),
        ("door", {"text": 'say "hi"'}, 'door,"say ""hi"""'),
        ("door", {"text": ""}, 'door,""'),
        ("door", {"text": None}, 'door,"door"'),
        ("door", {"type": "gate", "text": "x"}, 'gate,"x"'),
        ("door", {"type": "", "text": "x"}, 'door,"x"'),
        ("door", {"type": 5, "text": "x"}, 'door,"x"'),
        ("do,or", {"text": "x"}, '"do,or","x"'),
        ("door", {"text": "x", "externalSource": {"externalId": "other"}}, 'door,"x"'),
    ],
)
def test_plain_event_of_the_main_device_is_a_line(name, payload, line):
    """Its text is always quoted."""
    assert MapperBench().send(f"{MAIN}/e/{name}", payload) == [(UP, f"400,{line},{TIME}")]


def test_other_events_are_documents():
    """With anything extra, or of another entity; nobody speaks for another."""
    bench = MapperBench()
    bench.send("te/device/pump1//", {"@type": "child-device", "@id": "P1"})
    event = {"text": "x", "time": TIME}
    plain = {"type": "door", **event}
    assert bench.send(f"{MAIN}/e/door", {**event, "user": {"id": 7}}) == [
        (EVENTS, {**plain, "user": {"id": 7}})
    ]
    foreign = {**event, "externalSource": {"externalId": "other"}}
    assert bench.send("te/device/pump1///e/door", foreign) == [
        (EVENTS, {**plain, "externalSource": SOURCE})
    ]


@pytest.mark.parametrize("payload", ["x", "[]", '"x"', {"time": "bad"}, {"text": 5}, {"text": {}}])
def test_wrong_event_is_refused(payload):
    """Not an object, a wrong time, a text that is none."""
    error_of(MapperBench().send(f"{MAIN}/e/door", payload))


def test_event_metadata_say_nothing_to_the_cloud():
    """Nor do those of alarms, configuration documents, or the status of a part."""
    bench = MapperBench()
    for channel in ("e/door/meta", "a/hot/meta", "config", "status/disk", "signal/other"):
        assert bench.send(f"{MAIN}/{channel}", "{}") == []


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ('"B12"', "B12"),
        ("5.6789", 5.6789),
        ("false", False),
        ("[1,2]", [1, 2]),
        ('{"a":{"b":1}}', {"a": {"b": 1}}),
    ],
)
def test_twin_value_becomes_a_fragment(payload, value):
    """Scalars, arrays and objects alike."""
    assert MapperBench().send(f"{MAIN}/twin/k", payload) == [(f"{INVENTORY}/hub-01", {"k": value})]


@pytest.mark.parametrize(
    ("key", "fragment"),
    [("firmware", "c8y_Firmware"), ("agent", "c8y_Agent"), ("name", "name"), ("type", "type")],
)
def test_some_twin_keys_have_other_names_at_the_cloud(key, fragment):
    """Of a device."""
    assert MapperBench().send(f"{MAIN}/twin/{key}", "{}") == [
        (f"{INVENTORY}/hub-01", {fragment: {}})
    ]


def test_type_of_a_service_has_its_own_name_at_the_cloud():
    """All services have one type there."""
    bench = MapperBench()
    bench.send(SERVICE, {"@type": "service", "@id": "S"})
    assert bench.send(f"{SERVICE}/twin/type", '"x"') == [(f"{INVENTORY}/S", {"serviceType": "x"})]


def test_only_changes_of_twin_values_are_sent():
    """Also over a restart; the order of members is no change, 1 and true and 1.0 are different."""
    bench = MapperBench()
    topic = f"{MAIN}/twin/k"
    values = ['{"a":1,"b":2}', "1", "true", "1.0", '"1"']
    for value in values:
        assert len(bench.send(topic, value)) == 1
        assert bench.send(topic, value) == []
        bench.restart()
        assert bench.send(topic, value) == []
    bench.send(topic, '{"a":1,"b":2}')
    assert bench.send(topic, '{"b":2, "a":1}') == []


@pytest.mark.parametrize("nothing", ["", "null"])
def test_cleared_twin_value_is_sent_once(nothing):
    """And may be set again to what it was."""
    bench = MapperBench()
    topic = f"{MAIN}/twin/k"
    assert bench.send(topic, nothing) == []
    bench.send(topic, "1")
    assert bench.send(topic, nothing) == [(f"{INVENTORY}/hub-01", {"k": None})]
    assert bench.send(topic, nothing) == []
    bench.restart()
    assert bench.send(topic, "1") == [(f"{INVENTORY}/hub-01", {"k": 1})]


@pytest.mark.parametrize("key", ["", "@id"])
def test_wrong_twin_key_is_refused(key):
    """Empty, or one of the registration's own words."""
    error_of(MapperBench().send(f"{MAIN}/twin/{key}", "1"))


def test_unquoted_twin_text_is_refused():
    """A text is JSON, too."""
    assert "not JSON" in error_of(MapperBench().send(f"{MAIN}/twin/k", "B12"))


@pytest.mark.parametrize(
    ("payload", "lines"),
    [("1", ["up", "500"]), ("0", ["down"]), ("2", ["unknown"]), ({"status": "up"}, ["unknown"])],
)
def test_mosquitto_bridge_says_it_in_numbers(payload, lines):
    """When it comes up, the cloud is asked for operations."""
    bench = MapperBench()
    topic = "te/device/main/service/mosquitto-c8y-bridge"
    bench.send(topic, {"@type": "service", "@id": "B"})
    sent = bench.send(f"{topic}/status/health", payload)
    assert sent[0] == (UP, f"102,B,service,mosquitto-c8y-bridge,{lines[0]}")
    assert sent[1:] == [(UP, line) for line in lines[1:]]


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        ("m/big", {f"value{number}": number for number in range(2000)}),
        ("a/big", {"text": "x" * 17_000}),
        ("twin/big", '"' + "x" * 17_000 + '"'),
        ("cmd/log_upload", {"types": ["x" * 200] * 100}),
    ],
)
def test_what_is_too_large_is_an_error(channel, payload):
    """Whatever its kind, and the next message passes."""
    bench = MapperBench()
    lines = bench.send(f"{MAIN}/{channel}", payload)
    topic, text = lines[-1]
    assert topic == ERRORS
    assert "larger than the cloud takes" in text
    assert bench.send(f"{MAIN}/twin/k", "1") == [(f"{INVENTORY}/hub-01", {"k": 1})]


def test_event_that_is_too_large_is_left_to_a_local_client():
    """As the original does, which then posts it over HTTP."""
    bench = MapperBench()
    event = {"text": "x" * 17_000, "time": TIME}
    assert bench.send(f"{MAIN}/e/big", event) == [
        ("c8y/http/events/create/hub-01", {"type": "big", **event})
    ]
    assert bench.outputs() == []
    assert bench.mapper.statistics().large_events_total == 1


def test_limit_counts_the_whole_packet():
    """A row that just fits passes, one byte more does not."""
    row = '"' + "x" * 100 + '"'
    fits = 9 + len(f"{INVENTORY}/hub-01") + len('{"k":}') + len(row)
    for limit, count in ((fits, 0), (fits - 1, 1)):
        bench = MapperBench(packet_bytes_max=limit)
        bench.send(f"{MAIN}/twin/k", row)
        assert bench.mapper.statistics().errors_total == count


@pytest.mark.parametrize(
    ("channel", "payload", "output"),
    [
        ("m/x", '{"v":1}', "measurements"),
        ("e/x", "{}", "events"),
        ("a/x", "{}", "alarms"),
        ("twin/x", "1", "twin"),
        ("cmd/restart", "{}", "operations"),
    ],
)
def test_every_kind_has_its_output(channel, payload, output):
    """So that routes can tell them apart."""
    bench = MapperBench()
    bench.send(f"{MAIN}/{channel}", payload)
    (row,) = bench.outputs()
    assert row.output == output
    assert bench.mapper.statistics().outputs_total[row.output] >= 1


def test_value_that_the_cloud_cannot_take_is_not_known():
    """Told each time, in a twin message and in a registration; the last good one stays."""
    bench = MapperBench(packet_bytes_max=1000)
    bench.child("a", room="B1")
    topic, large = "te/device/a///twin/room", "x" * 2000
    for _ in range(2):
        assert "larger than the cloud takes" in error_of(bench.send(topic, f'"{large}"'))
        bench.restart()
    assert error_of(bench.child("a", room=large)).startswith(topic)
    assert bench.send(topic, '"B1"') == []
    assert bench.send(topic, '"B2"') == [(f"{INVENTORY}/A", {"room": "B2"})]


def test_name_that_the_cloud_cannot_take_does_not_silence_a_service():
    """Its lines go on under the name that the cloud knows."""
    bench = MapperBench(packet_bytes_max=1000)
    bench.send(SERVICE, {"@type": "service", "@id": "S", "name": "n"})
    error_of(bench.send(f"{SERVICE}/twin/name", f'"{"x" * 2000}"'))
    assert bench.send(f"{SERVICE}/status/health", "") == [(UP, "102,S,service,n,unknown")]


def test_creation_and_health_have_their_outputs():
    """Inventory and health."""
    bench = MapperBench()
    bench.send(SERVICE, {"@type": "service"})
    assert [row.output for row in bench.outputs()] == ["inventory"]
    bench.send(f"{SERVICE}/status/health", "{}")
    assert [row.output for row in bench.outputs()] == ["health"]


def test_only_wanted_topics_are_taken():
    """Where filters are set; declarations and commands are always wanted."""
    bench = MapperBench(topics=("te/+/+/+/+", "te/+/+/+/+/m/+"))
    assert bench.send(f"{MAIN}/e/x", "{}") == []
    assert len(bench.send(f"{MAIN}/m/x", {"v": 1})) == 1
    assert len(bench.send(f"{MAIN}/cmd/restart", "{}")) == 1
    assert bench.mapper.statistics().ignored_total == 1


def test_other_topics_are_ignored():
    """Another root, words that are none, the cloud's own topics."""
    bench = MapperBench()
    for topic in ("other/device/main///m/", "te/device/main///x/y", "c8y/s/ds", "te/errors"):
        assert bench.send(topic, "{}") == []
    assert bench.mapper.statistics().ignored_total == 4


def test_what_has_no_place_at_the_cloud_does_not_wait_for_its_entity():
    """Configuration and other states than health are counted and passed over."""
    bench = MapperBench()
    for channel in ("config", "status/other"):
        assert bench.send(f"te/device/unknown///{channel}", "{}") == []
    assert bench.mapper.statistics().ignored_total == 2
    assert bench.child("unknown") == [(UP, "101,UNKNOWN,UNKNOWN,thin-edge.io-child,false")]


def test_cloud_prefix_leads_every_topic():
    """Of rows and of operations."""
    bench = MapperBench(topic_prefix="cumu-b")
    lines = bench.child("a", room=1)
    lines += bench.send("te/device/a///m/", {"v": 1})
    lines += bench.send("te/device/a///e/x", "{}")
    lines += bench.send("te/device/a///a/x", {"extra": 1})[:1]
    assert {topic.split("/")[0] for topic, _ in lines} == {"cumu-b"}


def test_what_is_kept_takes_no_more_memory_than_its_bytes():
    """The writer's buffer of some KiB is not kept with each row that waits in memory."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [write_json({"t": {"t": {"value": number}}}) for number in range(500)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500 * (len(kept[0]) + 200)


def test_bytes_of_units_are_bounded():
    """All of them together; what is dropped makes room."""
    bench = MapperBench()
    units = {"t": {"unit": "x" * 16_000}}
    sent = [bench.send(f"te/device/main///m/{number}/meta", units) for number in range(600)]
    assert [bool(lines) for lines in sent] == sorted(bool(lines) for lines in sent)
    assert sent[-1]
    assert bench.mapper.kept_bytes < 9 * 2**20
    bench.restart()
    assert 8 * 2**20 - 20_000 < bench.mapper.kept_bytes < 9 * 2**20
    bench.send("te/device/main///m/0/meta", "")
    assert bench.send("te/device/main///m/0/meta", units) == []
