"""The form of scenarios: what is refused, and with which words."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgehub.lab.simulation.form import ScenarioError, read_scenario
from edgehub.lab.simulation.run import simulate

GOOD = {
    "id": "good",
    "config": {"delay_ms": 400, "dedup": "drop", "keepalive_s": 300, "activation": "otaa"},
    "gateways": ["g1", "g2"],
    "initial": {
        "coordinator": {"f_cnt": 5, "gateway": "g1"},
        "twin": {"f_cnt_up": 5},
        "gateways": {"g1": {"ownership": "owner", "connection": "open", "f_cnt_up": 5}},
    },
    "events": [{"t_ms": 0, "type": "uplink", "gateway": "g1", "f_cnt": 6}],
}
SHARED = {
    "gateways": ["g1"],
    "initial": {
        "devices_with_same_address": ["a", "b"],
        "coordinator": {"a": {"f_cnt": 5, "gateway": "g1"}},
        "twin": {"f_cnt_up": 5},
        "gateways": {"g1": {"a": {"cached": False}, "b": {}}},
    },
    "events": [
        {"t_ms": 0, "type": "uplink", "gateway": "g1", "f_cnt": 6, "device": "a"},
        {"t_ms": 9, "type": "join_request", "gateway": "g1", "dev_nonce": 6, "device": "b"},
    ],
}


def changed(path: str, value: object) -> dict:
    """Return the good scenario with one value changed; the path has dots."""
    form = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = form
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return form


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("gateways", [], "`gateways` must not be empty"),
        ("gateways", ["g1", "g1"], "names one of them twice"),
        ("gateways", ["g1", 3], "`gateways[1]` must be a text"),
        ("config", 3, "`config` must be an object"),
        ("config.delay_ms", "400", "`config.delay_ms` must be a whole number"),
        ("config.delay_mss", 3, "did you mean `delay_ms`?"),
        ("config.dedup", "dropp", "must be 'drop', 'mark' or 'none'; did you mean 'drop'?"),
        ("config.keepalive_s", 30, "0 (never) nor at least 60 seconds"),
        ("config.relaxed_counters", 1, "must be true or false"),
        ("initial.coordinator", 3, "`initial.coordinator` must be an object"),
        ("initial.coordinator.gateway", "", "`initial.coordinator.gateway` must not be empty"),
        ("initial.twin.f_cnt_up", 2**32, "at most 4294967295"),
        ("initial.twin.dev_nonces", ["a"], "`initial.twin.dev_nonces[0]` must be a whole number"),
        ("initial.gateways", [], "`initial.gateways` must be an object"),
        ("initial.gateways.g7", {}, "`g7` is none of `gateways`"),
        ("initial.gateways.g1.ownership", "boss", "must be 'unknown', 'owner' or 'loser'"),
        ("initial.gateways.g1.session", 3, "`initial.gateways.g1.session` must be a text"),
        ("events", None, "`events` must be a list"),
        ("events.0.type", "uplnk", "did you mean 'uplink'?"),
        ("events.0.gateway", "g9", "`events[0]`: gateway `g9` is none of `gateways`"),
        ("events.0.t_ms", -1, "`events[0].t_ms` must be at least 0"),
        ("events.0.t_ms", 10**400, "`events[0].t_ms` must be at most 1000000000000"),
        ("config.delay_ms", 10**13, "`config.delay_ms` must be at most 1000000000000"),
        ("events.0.f_cnt", True, "`events[0].f_cnt` must be a whole number"),
        ("events.0.fcnt", 3, "did you mean `f_cnt`?"),
        ("events.0", 3, "`events[0]` must be an object"),
    ],
)
def test_a_fault_is_reported_with_its_place(path, value, words):
    """What is wrong, where, and what it may have been meant to be."""
    form = changed(path, value) if path != "events.0" else {**GOOD, "events": [value]}
    with pytest.raises(ScenarioError) as refused:
        read_scenario(form)
    assert words in str(refused.value)


@pytest.mark.parametrize("events", [None, 3, "uplink", {}])
@pytest.mark.parametrize("shared", [None, ["a", "b"]])
def test_events_must_be_a_list_whatever_devices_there_are(events, shared):
    """Also where the devices are named beside them, and where there are no events at all."""
    form = copy.deepcopy(GOOD) | {"events": events}
    form["initial"] = {"devices_with_same_address": shared}
    for faulty in (form, {key: form[key] for key in form if key != "events"}):
        with pytest.raises(ScenarioError, match=r"`events` must be a list|needs `events`"):
            read_scenario(faulty)


def test_a_missing_type_and_a_misspelt_one_are_reported():
    """The key comes before its value."""
    for event, words in (({"t_ms": 0}, "needs `type`"), ({"typ": "uplink"}, "mean `type`")):
        with pytest.raises(ScenarioError, match=words):
            read_scenario({**GOOD, "events": [event]})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70_000)
    | st.sampled_from([2**32, 10**400, 0.5, "g1", "x", "open", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["f_cnt", "gateway", "type", "g1", "a", "x"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places(value: object, place: tuple = ()) -> list[tuple]:
    """List every place in a form."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    return [place, *(found for key, part in inner for found in places(part, (*place, key)))]


PLACES = [(form, place) for form in (GOOD, SHARED) for place in places(form) if place]


@settings(max_examples=400)
@given(where=st.sampled_from(PLACES), value=st.just(...) | JSON)
def test_any_value_anywhere_is_run_or_refused(where, value):
    """Nothing else ever comes out than an outcome or a clear refusal, also of a lack (`...`)."""
    form, (*parents, last) = where
    form = place = copy.deepcopy(form)
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    with contextlib.suppress(ScenarioError):
        outcome = simulate(form)
        assert set(outcome) >= {"uplinks", "connection_log", "notifications", "final"}
