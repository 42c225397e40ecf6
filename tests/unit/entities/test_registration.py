"""Registration by message: what is created, refused, changed and removed."""

import pytest

from tests.support.entities import ERRORS, INVENTORY, UP, MapperBench, cloud, error_of, options_of

CHILD = {"@type": "child-device"}
B3 = "te/device/boiler3//"
B3_ID = "hub-01:device:boiler3"


@pytest.mark.parametrize(
    ("topic", "registration", "line"),
    [
        (B3, CHILD, f"101,{B3_ID},{B3_ID},thin-edge.io-child,false"),
        (B3, {**CHILD, "@id": "B3"}, "101,B3,B3,thin-edge.io-child,false"),
        (B3, {**CHILD, "name": "b"}, f"101,{B3_ID},b,thin-edge.io-child,false"),
        (B3, {**CHILD, "name": "b, 3"}, f'101,{B3_ID},"b, 3",thin-edge.io-child,false'),
        (B3, {**CHILD, "name": 'b "3"'}, f'101,{B3_ID},"b ""3""",thin-edge.io-child,false'),
        (B3, {**CHILD, "type": "X2"}, f"101,{B3_ID},{B3_ID},X2,false"),
        (B3, {**CHILD, "@parent": "device/main"}, f"101,{B3_ID},{B3_ID},thin-edge.io-child,false"),
        (B3, {**CHILD, "@unknown": 1}, f"101,{B3_ID},{B3_ID},thin-edge.io-child,false"),
        ("te/a//b/", CHILD, "101,hub-01:a::b,hub-01:a::b,thin-edge.io-child,false"),
        (
            "te/device/main/service/pump",
            {"@type": "service"},
            "102,hub-01:device:main:service:pump,service,pump,up",
        ),
        (
            "te/device/main/service/pump",
            {"@type": "service", "@id": "P", "name": "n", "type": "systemd"},
            "102,P,systemd,n,up",
        ),
        (
            "te/apps/g/s/metrics",
            {"@type": "service"},
            "102,hub-01:apps:g:s:metrics,service,hub-01:apps:g:s:metrics,up",
        ),
        (B3, {"@type": "service"}, f"102,{B3_ID},service,{B3_ID},up"),
    ],
)
def test_registration_creates_an_entity(topic, registration, line):
    """Ids, names and types have their defaults, and fields are quoted on demand."""
    assert MapperBench().send(topic, registration) == [(UP, line)]


def test_child_device_marker_is_set():
    """The last field of a create line is that of the settings."""
    lines = MapperBench(child_device_marker=True).child("a")
    assert lines == [(UP, "101,A,A,thin-edge.io-child,true")]


@pytest.mark.parametrize(("setting", "type_"), [("systemd", "systemd"), ("", "service")])
def test_service_type_comes_from_the_settings(setting, type_):
    """An empty one counts as `service`, here and in health lines."""
    bench = MapperBench(service_type=setting)
    topic = "te/device/main/service/s"
    line = f"102,hub-01:device:main:service:s,{type_},s"
    assert bench.send(topic, {"@type": "service"}) == [(UP, f"{line},up")]
    assert bench.send(f"{topic}/status/health", {"status": "down"}) == [(UP, f"{line},down")]


def test_line_goes_to_the_direct_parent():
    """Grandparents do not show in the topic."""
    bench = MapperBench()
    bench.child("a")
    bench.child("b", **{"@parent": "device/a//"})
    assert bench.child("c", **{"@parent": "device/b//"}) == [
        ("c8y/s/us/B", "101,C,C,thin-edge.io-child,false")
    ]
    assert bench.send("te/device/c/service/s", {"@type": "service", "@id": "S"}) == [
        ("c8y/s/us/C", "102,S,service,s,up")
    ]


def test_other_members_become_fragments():
    """One inventory message each, after the create line; null is none."""
    lines = MapperBench().child("a", name="n", room="B12", c8y_Hardware={"model": "x"}, gone=None)
    assert lines == [
        (UP, "101,A,n,thin-edge.io-child,false"),
        (f"{INVENTORY}/A", {"room": "B12"}),
        (f"{INVENTORY}/A", {"c8y_Hardware": {"model": "x"}}),
    ]


@pytest.mark.parametrize(
    "payload",
    [
        "{",
        "not json",
        b"\xff\xfe",
        "[]",
        "null",
        '"child-device"',
        "7",
        {},
        {"@type": "child"},
        {"@type": "Child-Device"},
        {"@type": ["child-device"]},
        {"@type": None},
        {"@type": "device"},
        {**CHILD, "@id": "a/b"},
        {**CHILD, "@id": "a+b"},
        {**CHILD, "@id": "a#b"},
        {**CHILD, "@id": "a\x00b"},
        {**CHILD, "@id": "a\nb"},
        {**CHILD, "@id": ""},
        {**CHILD, "@id": 7},
        {**CHILD, "@id": "hub-01"},
        {**CHILD, "@parent": "a/b/c/d/e"},
        {**CHILD, "@parent": "device/+//"},
        {**CHILD, "@parent": 7},
        {**CHILD, "@parent": "device/boiler3//"},
        {**CHILD, "@health": "a/b/c/d/e"},
        {**CHILD, "@health": {}},
        {**CHILD, "name": ""},
        {**CHILD, "name": 7},
        {**CHILD, "type": ""},
        {**CHILD, "type": []},
        {**CHILD, "name": "x" * 20_000},
    ],
)
def test_wrong_registration_is_refused_and_a_later_one_taken(payload):
    """One error; what was sent before is kept for the registration that is right."""
    bench = MapperBench()
    bench.send(f"{B3}/twin/k", "1")
    assert error_of(bench.send(B3, payload)).startswith(f"{B3}: ")
    assert bench.send(B3, {**CHILD, "@id": "B3"}) == [
        (UP, "101,B3,B3,thin-edge.io-child,false"),
        (f"{INVENTORY}/B3", {"k": 1}),
    ]


def test_telemetry_topic_without_its_slashes_is_reported():
    """It is a registration by its form, and refused as one."""
    assert "@type" in error_of(MapperBench().send("te/device/main/m/x", {"v": 1}))


@pytest.mark.parametrize(
    "registration",
    [
        {"@type": "service"},
        CHILD,
        {"@type": "device", "@parent": "device/a//"},
        {"@type": "device", "@id": "other"},
    ],
)
def test_main_device_keeps_its_place(registration):
    """No other type, no parent, no other id."""
    bench = MapperBench()
    bench.child("a")
    error_of(bench.send("te/device/main//", registration))
    assert bench.send("te/device/main///twin/k", "1") == [(f"{INVENTORY}/hub-01", {"k": 1})]


def test_main_device_may_say_more_about_itself():
    """Name, type and fragments become inventory updates."""
    registration = {"@type": "device", "@id": "hub-01", "name": "Gateway", "room": 7}
    bench = MapperBench()
    assert bench.send("te/device/main//", registration) == [
        (f"{INVENTORY}/hub-01", {"name": "Gateway"}),
        (f"{INVENTORY}/hub-01", {"room": 7}),
    ]
    assert bench.send("te/device/main//", registration) == []


def test_same_registration_again_changes_nothing():
    """Identical, with fewer members, or in another order."""
    bench = MapperBench()
    bench.child("a", name="n", room="B12")
    assert bench.child("a", name="n", room="B12") == []
    assert bench.child("a", room="B12") == []
    assert bench.send("te/device/a//", CHILD) == []


def test_changed_members_travel_as_twin_values():
    """A service's type has its own name at the cloud; nothing is created again."""
    bench = MapperBench()
    bench.send("te/device/main/service/s", {"@type": "service", "@id": "S"})
    changed = {"@type": "service", "name": "new", "type": "systemd", "firmware": {"name": "f"}}
    assert bench.send("te/device/main/service/s", changed) == [
        (f"{INVENTORY}/S", {"name": "new"}),
        (f"{INVENTORY}/S", {"serviceType": "systemd"}),
        (f"{INVENTORY}/S", {"c8y_Firmware": {"name": "f"}}),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"@type": "service", "name": "new"},
        {**CHILD, "@id": "other", "name": "new"},
        {**CHILD, "@parent": "device/unknown//", "name": "new"},
        {**CHILD, "@parent": "device/b//", "name": "new"},
    ],
)
def test_refused_change_keeps_everything(change):
    """Another type, id, or a parent that is unknown or below; the name stays too."""
    bench = MapperBench()
    bench.child("a", name="old")
    bench.child("b", **{"@parent": "device/a//"})
    error_of(bench.send("te/device/a//", change))
    assert bench.send("te/device/a///twin/name", '"old"') == []


def test_entity_cannot_move_below_itself():
    """Nor below what is below it, however far; it may move up."""
    bench = MapperBench()
    bench.child("a")
    for above, below in ("ab", "bc", "cd"):
        bench.child(below, **{"@parent": f"device/{above}//"})
    assert "is below device/a//" in error_of(bench.child("a", **{"@parent": "device/d//"}))
    assert bench.child("d", **{"@parent": "device/a//"}) == []
    assert bench.child("c", **{"@parent": "device/d//"}) == []
    assert "is below device/d//" in error_of(bench.child("d", **{"@parent": "device/c//"}))


def test_entity_can_move_below_another_parent():
    """Nothing is sent; later lines about its services go by the new place."""
    bench = MapperBench()
    bench.child("a")
    bench.child("b")
    bench.send("te/device/a/service/s", {"@type": "service", "@id": "S"})
    moved = {"@type": "service", "@parent": "device/b//"}
    assert bench.send("te/device/a/service/s", moved) == []
    for _ in range(2):
        health = bench.send("te/device/a/service/s/status/health", {"status": "up"})
        assert health == [("c8y/s/us/B", "102,S,service,s,up")]
        bench.restart()


def test_value_of_a_twin_topic_beats_an_inline_one():
    """Whatever comes first after a start without memory; a new inline value counts again."""
    bench = MapperBench()
    bench.send("te/device/main///twin/name", '"from the topic"')
    main = {"@type": "device", "name": "inline"}
    assert bench.send("te/device/main//", main) == []
    assert bench.send("te/device/main//", {**main, "name": "newer"}) == [
        (f"{INVENTORY}/hub-01", {"name": "newer"})
    ]


def test_second_entity_with_the_same_id_is_refused():
    """The cloud could not tell them apart; the first one keeps it."""
    bench = MapperBench()
    bench.child("a")
    text = error_of(bench.send("te/device/b//", {**CHILD, "@id": "A"}))
    assert "belongs to device/a//" in text
    assert bench.send("te/device/b//", {**CHILD, "@id": "B"}) == [
        (UP, "101,B,B,thin-edge.io-child,false")
    ]


def test_number_of_entities_is_bounded():
    """One more is refused, and taken once another is gone."""
    bench = MapperBench(entities_max=2)
    bench.child("a")
    bench.child("b")
    assert "entities_max" in error_of(bench.child("c"))
    bench.send("te/device/a//")
    assert bench.child("c") == [(UP, "101,C,C,thin-edge.io-child,false")]


def test_bytes_of_twins_are_bounded():
    """A value for which there is no room is refused; clearing another makes room."""
    bench = MapperBench(state_bytes_max=2000)
    bench.child("a")
    big = '"' + "x" * 500 + '"'
    assert len(bench.send("te/device/a///twin/one", big)) == 1
    assert "bytes" in error_of(bench.send("te/device/a///twin/two", big))
    bench.send("te/device/a///twin/one")
    assert len(bench.send("te/device/a///twin/two", big)) == 1


def test_a_bound_that_was_lowered_still_lets_values_shrink():
    """What makes room is taken, be it of an entity that holds more than it may."""
    bench = MapperBench()
    bench.child("a")
    bench.send("te/device/a///twin/one", '"' + "x" * 2000 + '"')
    bench.options = options_of("hub-01", alarm_sync_ms=0, state_bytes_max=1000)
    bench.restart()
    assert cloud(bench.send("te/device/a///twin/one", '"x"')) != []


def test_refused_creation_is_repeated_by_the_next_registration():
    """Also by the same one, also after a restart; then it is known again, and stays so."""
    bench = MapperBench()
    bench.child("a", name="n")
    bench.refuse_creation("device/a//")
    bench.restart()
    line = (UP, "101,A,n,thin-edge.io-child,false")
    assert bench.child("a", name="n") == [line]
    (row,) = bench.outputs()
    assert row.creates == "device/a//"
    assert bench.child("a", name="n") == []
    bench.restart()
    assert bench.child("a", name="n") == []


def test_refused_creation_of_an_unknown_entity_is_nothing():
    """It may have gone meanwhile; the main device is never created."""
    bench = MapperBench()
    bench.refuse_creation("device/gone//")
    bench.refuse_creation("device/main//")
    assert bench.send("te/device/main//", {"@type": "device"}) == []


def test_row_names_what_it_needs():
    """Data need their entity's creation, a creation its parent's; the main device needs none."""
    bench = MapperBench()
    bench.child("a", room=1)
    created, fragment = bench.outputs()
    assert (created.creates, created.needs, created.output) == ("device/a//", (), "inventory")
    assert (fragment.creates, fragment.needs, fragment.device) == (None, ("A",), "A")
    bench.child("b", **{"@parent": "device/a//"})
    (below,) = bench.outputs()
    assert (below.creates, below.needs) == ("device/b//", ("A",))
    bench.send("te/device/main///m/", {"v": 1})
    (own,) = bench.outputs()
    assert (own.creates, own.needs, own.device) == (None, (), "hub-01")


def test_e05_registration_upstream_happens_once():
    """E-05: whatever the cloud answers late, a registered child is created once."""
    bench = MapperBench()
    sent = bench.child("c")
    for _ in range(3):
        sent += bench.child("c")
        sent += bench.send("c8y/s/ds", "106")
        bench.restart()
    assert sent == [(UP, "101,C,C,thin-edge.io-child,false")]
    assert bench.send("te/device/c///twin/k", "1") != []
    assert ERRORS not in dict(sent)


def test_other_main_device_takes_over_the_children():
    """Its topic id was changed in the settings; nothing is lost and nothing breaks."""
    bench = MapperBench()
    bench.send("te/device/main///twin/k", "1")
    bench.child("a")
    bench.send("te/device/a/service/s", {"@type": "service", "@id": "S"})
    bench.options = options_of("A", device_topic_id="plant/hub//", alarm_sync_ms=0)
    for _ in range(2):
        bench.restart()
        assert bench.send("te/plant/hub///twin/k", "1") in ([], [(f"{INVENTORY}/A", {"k": 1})])
    bench.send("te/device/a/service/s")
    bench.send("te/device/a//")
    assert bench.mapper.statistics().entities == 1
    text = error_of(bench.child("a"))
    assert "belongs to plant/hub//" in text


DEEP = '{"time":0,"v":1,"x":{"y":' + "[" * 400 + "]" * 400 + "}}"


@pytest.mark.parametrize("channel", ["e/x", "a/x", "twin/x", "m/x"])
def test_deeply_nested_message_is_refused(channel):
    """It can be read and not be written; the next one passes."""
    bench = MapperBench()
    error_of(bench.send(f"te/device/main///{channel}", DEEP))
    properties = DEEP.replace('"x"', '"properties"')
    error_of(bench.send("te/device/main///m/x", properties))
    error_of(bench.send(B3, DEEP.replace('"v":1', '"@type":"child-device"')))
    assert bench.mapper.statistics().entities == 1
    assert len(bench.send("te/device/main///m/x", {"v": 1})) == 1


def test_errors_are_short():
    """However long the text is that they quote."""
    assert len(error_of(MapperBench().send(B3, {"@type": "x" * 100_000}))) <= 1000


def test_fragment_without_room_does_not_stop_the_registration():
    """The entity is there; what had no room is told."""
    bench = MapperBench(state_bytes_max=2300)
    lines = bench.child("a", big="x" * 1000, small=1)
    assert lines[0] == (UP, "101,A,A,thin-edge.io-child,false")
    assert [topic for topic, _ in lines[1:]] == [ERRORS, f"{INVENTORY}/A"]


def test_what_is_retained_at_a_start_announces_nothing_again():
    """A refused entity waits for a correction; a registration of old is none, a live one is."""
    bench = MapperBench()
    bench.child("p")
    bench.refuse_creation("device/p//")
    registration = b'{"@type":"child-device","@id":"P"}'
    assert bench.mapper.redeliver("te/device/p//", registration, bench.now, client="c") == []
    assert bench.mapper.registry.get("device/p//").announced is False
    assert [text for _, text in bench.send("te/device/p//", registration)] == [
        "101,P,P,thin-edge.io-child,false"
    ]


def test_telemetry_that_is_retained_at_a_start_is_not_sent_again():
    """It was taken when it came; twin values count, and are known."""
    bench = MapperBench()
    bench.child("p")
    for channel in ("m/", "e/"):
        topic = f"te/device/p///{channel}"
        assert bench.mapper.redeliver(topic, b'{"v":1}', bench.now, client="c") == []
    effects = bench.mapper.redeliver("te/device/p///twin/x", b"1", bench.now, client="c")
    assert len(effects) == 2
    assert bench.mapper.redeliver("te/device/p///twin/x", b"1", bench.now, client="c") == []


def test_an_operator_sees_why_a_registration_is_refused():
    """And what it causes is handed over either way."""
    bench = MapperBench()
    effects, error = bench.mapper.register("device/p//", b"{", bench.now, client="me")
    assert (effects, "not JSON" in str(error)) == ([], True)
    effects, error = bench.mapper.register(
        "device/p//", b'{"@type":"child-device"}', bench.now, client="me"
    )
    assert (len(effects) > 0, error) == (True, None)
    assert bench.mapper.pending.waits_for("device/p//") is None
    assert bench.mapper.kept_bytes > 0
    assert bench.mapper.pending.oldest_ms() is None


def test_bytes_of_registrations_are_bounded():
    """Their values count although the twin does not keep them, also after a restart."""
    bench = MapperBench(state_bytes_max=100_000)
    before = bench.mapper.kept_bytes
    for number in range(40):
        bench.child(f"d{number}", note="x" * 5000)
        bench.send(f"te/device/d{number}///twin/note", "")
    kept = bench.mapper.kept_bytes
    assert 90_000 < kept <= 100_000
    assert "at most 100000 bytes" in error_of(bench.child("d0", note="x" * 20_000))
    assert bench.mapper.kept_bytes == kept
    bench.restart()
    assert bench.mapper.kept_bytes == kept
    for number in range(40):
        bench.send(f"te/device/d{number}//", "")
    assert bench.mapper.kept_bytes == before


@pytest.mark.parametrize("member", ["", "@parent", "@health"])
def test_length_of_topic_ids_is_bounded(member):
    """Each of them is kept in memory and on disk."""
    bench = MapperBench()
    long = "device/" + "x" * 2000
    document = {"@type": "child-device", **({member: long} if member else {})}
    topic = "te/device/a//" if member else f"te/{long}//"
    assert "at most 1024 characters" in error_of(bench.send(topic, document))
