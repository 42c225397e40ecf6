"""The form of scenarios: what is refused, and with which words."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgehub.devices.affinity.simulation.form import ScenarioError, read_scenario
from edgehub.devices.affinity.simulation.run import simulate

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


def changed(path: str, value: object) -> dict:
    """Give the good scenario with one value changed; the path has dots."""
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
        ("gateways", [], "`gateways` must be a list of names"),
        ("gateways", ["g1", "g1"], "names one of them twice"),
        ("gateways", ["g1", 3], "names that are not empty"),
        ("config", 3, "`config` must be an object"),
        ("config.delay_ms", "400", "`config`: `delay_ms` must be a whole number"),
        ("config.delay_mss", 3, "did you mean `delay_ms`?"),
        ("config.dedup", "dropp", "must be one of drop, mark, none; did you mean drop?"),
        ("config.keepalive_s", 30, "0 (never) or at least 60 seconds"),
        ("config.relaxed_counters", 1, "must be true or false"),
        ("initial.coordinator", 3, "`initial.coordinator` must be an object"),
        ("initial.coordinator.gateway", "g9", "'g9', which is none of `gateways`"),
        ("initial.twin.f_cnt_up", 2**32, "at most 4294967295 (32 bits)"),
        ("initial.twin.dev_nonces", ["a"], "list of whole numbers"),
        ("initial.gateways", [], "must be an object with a member per gateway"),
        ("initial.gateways.g7", {}, "`g7` is none of `gateways`"),
        ("initial.gateways.g1.ownership", "boss", "must be one of unknown, owner, loser"),
        ("initial.gateways.g1.session", 3, "`session` must be a text"),
        ("events", None, "`events` must be a list of events"),
        ("events.0.type", "uplnk", "did you mean uplink?"),
        ("events.0.gateway", "g9", "`events[0]`: `gateway` is 'g9'"),
        ("events.0.t_ms", -1, "`events[0]`: `t_ms` must be a whole number of at least 0"),
        ("events.0.f_cnt", True, "`f_cnt` must be a whole number"),
        ("events.0.fcnt", 3, "did you mean `f_cnt`?"),
        ("events.0", 3, "`events[0]` must be an object"),
    ],
)
def test_a_fault_is_told_with_its_place(path, value, words):
    """What is wrong, where, and what it may have been meant to be."""
    form = changed(path, value) if path != "events.0" else {**GOOD, "events": [value]}
    with pytest.raises(ScenarioError) as refused:
        read_scenario(form)
    assert words in str(refused.value)


def test_a_missing_type_and_a_misspelt_one_are_told():
    """The key comes before its value."""
    for event, words in (({"t_ms": 0}, "needs `type`"), ({"typ": "uplink"}, "mean `type`")):
        with pytest.raises(ScenarioError, match=words):
            read_scenario({**GOOD, "events": [event]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70_000) | st.sampled_from(["g1", "x", "open", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["f_cnt", "gateway", "type", "g1", "x"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)
PATHS = [
    *("id", "config", "gateways", "initial", "events", "config.delay_ms", "config.dedup"),
    *("config.keepalive_s", "config.activation", "config.gateway_id", "config.upstream_ms"),
    *("initial.coordinator", "initial.twin", "initial.gateways", "initial.gateways.g1"),
    *("initial.coordinator.f_cnt", "initial.gateways.g1.load_ms", "initial.gateways.g1.cached"),
    *("initial.devices_with_same_address", "events.0.f_cnt", "events.0.device", "events.0.station"),
    *("events.0.type", "events.0.confirmed", "events.0.mic"),
]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_any_value_anywhere_is_run_or_refused(path, value):
    """Nothing else ever comes out than an outcome or a clear refusal."""
    with contextlib.suppress(ScenarioError):
        outcome = simulate(changed(path, value))
        assert set(outcome) >= {"uplinks", "connection_log", "notifications", "final"}
