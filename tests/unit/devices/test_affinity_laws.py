"""What holds in every scenario, however frames, failures and restarts fall."""

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.affinity import event, join, loser, owner, run, state, uplink

GATEWAYS = ("g1", "g2", "g3")


@st.composite
def frames(draw, counters=range(6, 14), gateways=GATEWAYS):
    """Write a device's frames: each heard by some hubs, at some distance, through some stations."""
    events, t_ms = [], 0
    for f_cnt in counters:
        t_ms += draw(st.sampled_from((50, 300, 900, 5_000)))
        for gateway in draw(st.permutations(gateways)):
            if draw(st.integers(0, 3)):
                late_ms = draw(st.sampled_from((0, 20, 399, 400, 401, 900)))
                station = draw(st.sampled_from(("s1", "s2")))
                events.append(uplink(t_ms + late_ms, gateway, f_cnt, station=station))
    return events


def disturbances(last_ms=20_000):
    """Write failures of notices, hubs and coordinator, and operations that come in between."""
    types = st.sampled_from(
        ("cache_refresh", "close_request", "idle_timeout", "notify_unreachable", "notify_reachable")
    )
    of_gateways = st.builds(event, st.integers(0, last_ms), types, st.sampled_from(GATEWAYS))
    of_hubs = st.builds(
        event,
        st.integers(0, last_ms),
        st.sampled_from(("gateway_down", "gateway_up")),
        st.sampled_from(GATEWAYS),
    )
    busy = st.builds(
        event,
        st.integers(0, last_ms),
        st.just("coordinator_lock_busy"),
        duration_ms=st.integers(0, 12_000),
    )
    away = st.builds(
        event, st.integers(0, last_ms), st.sampled_from(("coordinator_down", "coordinator_up"))
    )
    return st.lists(
        st.one_of(of_gateways, of_gateways, of_hubs, busy, away), min_size=2, max_size=6
    )


TIMES = st.fixed_dictionaries(
    {
        "upstream_ms": st.sampled_from((0, 0, 30, 700)),
        "notify_latency_ms": st.sampled_from((0, 0, 250, 3_000)),
        "coordinator_ms": st.sampled_from((0, 0, 40)),
        "delay_ms": st.sampled_from((0, 150, 400)),
    }
)


def g2_states():
    """Write what the second hub knows: it lost, was never judged, or has not loaded the device."""
    return st.sampled_from(
        (loser(), {}, {"cached": False, "load_ms": 300}, loser(cached=False, load_ms=300))
    )


def senders(outcome):
    """Return the hubs that sent a counter on, and when each was elected, by counter."""
    sent = {}
    for frame, written in zip(outcome["uplinks"], outcome["written"], strict=True):
        if frame["result"] == "processed" and frame["upstream"]:
            sent.setdefault(written["f_cnt"], {})[frame["gateway"]] = frame["elected_at_ms"]
    return sent


def run_frames(events, extra=(), **parts):
    """Run a scenario whose device belongs to g1, and keep what was written of its frames."""
    both = [*events, *extra]
    outcome = run(*both, record=(5, "g1"), twin={"f_cnt_up": 5}, g1=owner(5), **parts)
    outcome["written"] = [each for each in both if each["type"] == "uplink"]
    return outcome


def lives_on(hub, elected_at_ms, extra):
    """Return whether a hub goes on after it was elected."""
    ends = [each["t_ms"] for each in extra if each.get("gateway") == hub and "down" in each["type"]]
    return not any(t_ms >= elected_at_ms for t_ms in ends)


@given(events=frames(), extra=disturbances(), times=TIMES, g2=g2_states())
@example(
    events=[uplink(100, "g1", 6), uplink(100, "g2", 6)],
    extra=[
        event(300, "coordinator_lock_busy", duration_ms=5_000),
        event(1_500, "gateway_down", "g1"),
    ],
    times={"upstream_ms": 700},
    g2=loser(),
)
def test_at_most_one_hub_sends_a_counter(events, extra, times, g2):
    """With deduplication `drop`, whatever fails meanwhile.

    Of a hub that ends before it could report what it sent, another one sends its copy.
    """
    outcome = run_frames(events, extra, g2=g2, g3=loser(), **times)
    for counter, found in senders(outcome).items():
        assert [hub for hub in found if lives_on(hub, found[hub], extra)][1:] == [], counter


@given(events=frames(), times=TIMES, g2=g2_states())
def test_when_all_is_quiet_one_hub_at_most_holds_a_connection(events, times, g2):
    """Every notice was delivered and nothing runs: an open connection is the recorded owner's."""
    outcome = run_frames(events, g2=g2, g3=loser(), **times)
    final = outcome["final"]["gateways"]
    holding = [name for name in final if final[name]["connection"] == "open"]
    assert holding in ([], [outcome["final"]["coordinator"]["gateway"]])


@given(events=frames(), times=TIMES, g2=g2_states())
def test_the_hub_notified_last_is_a_loser_without_a_connection(events, times, g2):
    """A hub that was told, and not elected since, does not go on as if it had not been."""
    outcome = run_frames(events, g2=g2, g3=loser(), **times)
    owner_ = outcome["final"]["coordinator"]["gateway"]
    for notice in outcome["notifications"]:
        if notice["to"] != owner_:
            assert state(outcome, notice["to"]) == ("loser", "closed")


@given(
    events=frames(gateways=("g2", "g3")), late=st.lists(st.integers(0, 400), min_size=8, max_size=8)
)
def test_an_owner_in_time_keeps_the_device(events, late):
    """It hears every frame no later than the delay after the first, all others are losers."""
    first = {}
    for each in events:
        first[each["f_cnt"]] = min(each["t_ms"], first.get(each["f_cnt"], each["t_ms"]))
    owners = [uplink(t_ms + late[f_cnt - 6], "g1", f_cnt) for f_cnt, t_ms in first.items()]
    in_order = sorted(owners, key=lambda each: each["t_ms"])
    if [each["f_cnt"] for each in in_order] != sorted(first):
        return  # the owner heard them in another order
    outcome = run_frames([*events, *owners], g2=loser(), g3=loser())
    assert outcome["notifications"] == []
    assert state(outcome, "g1") == ("owner", "open")


@given(
    events=frames(counters=range(3)),
    joins=st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(GATEWAYS)), max_size=3),
    times=TIMES,
)
def test_a_device_is_heard_after_its_joins(events, joins, times):
    """Whichever hubs heard them: a frame of the newest session is handled by one of them."""
    extra = [join(t_ms, gateway, nonce) for nonce, (t_ms, gateway) in enumerate(joins)]
    last = [uplink(60_000, "g3", 50), uplink(65_000, "g2", 51)] if joins else []
    outcome = run_frames([*events, *last], extra, g2=loser(), g3={}, **times)
    assert {each["result"] for each in outcome["joins"]} <= {"accepted", "refused", "dropped"}
    assert [frame["result"] for frame in outcome["uplinks"][len(events) :]] == [
        "processed" for _ in last
    ]


@given(events=frames(), extra=disturbances(), times=TIMES)
def test_a_scenario_runs_the_same_each_time(events, extra, times):
    """Nothing depends on anything but the scenario."""
    assert run_frames(events, extra, **times) == run_frames(events, extra, **times)
