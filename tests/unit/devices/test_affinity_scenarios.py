"""Scenarios of one device and several hubs: who handles a frame, when, and over what connection."""

import pytest

from edgehub.lab.simulation.run import simulate
from tests.support.affinity import (
    connections,
    event,
    join,
    loser,
    owner,
    results,
    run,
    state,
    uplink,
)

PROCESSED, DROPPED, REJECTED, FAILED = "processed", "dropped", "rejected", "failed"
REFUSED = "refused"


def told(t_ms, gateway):
    """Write a notice that arrived at once."""
    return {"t_ms": t_ms, "to": gateway, "delivered": True, "delivered_at_ms": t_ms}


def reasons(outcome: dict) -> list:
    """Return the reason of each data frame."""
    return [frame.get("reason") for frame in outcome["uplinks"]]


def test_the_first_hub_to_ask_gets_an_unknown_device():
    """Nobody waits for a device that nobody has; the second one becomes its loser."""
    outcome = run(uplink(0, "g1", 1), uplink(30, "g2", 1))
    assert results(outcome) == [(PROCESSED, 0), (DROPPED, 30)]
    assert connections(outcome) == [(0, "g1", "open")]
    assert state(outcome, "g1") == ("owner", "open")
    assert state(outcome, "g2") == ("loser", "closed")


@pytest.mark.parametrize(("late_ms", "keeps"), [(399, True), (400, True), (401, False)])
def test_an_owner_keeps_the_device_within_the_delay(late_ms, keeps):
    """An owner that hears a frame no later than the delay after the first hearer keeps it."""
    outcome = run(
        uplink(1000, "g2", 6),
        uplink(1000 + late_ms, "g1", 6),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert state(outcome, "g1")[0] == ("owner" if keeps else "loser")
    assert outcome["final"]["coordinator"] == {"f_cnt": 6, "gateway": "g1" if keeps else "g2"}
    assert [frame["upstream"] for frame in outcome["uplinks"]] == [not keeps, keeps]


def test_an_owner_that_was_notified_waits_like_any_loser():
    """A late owner is told at the election, waits for its own copy, and is refused."""
    outcome = run(
        uplink(0, "g2", 6), uplink(450, "g1", 6), g1=owner(5), g2=loser(), record=(5, "g1")
    )
    assert results(outcome) == [(PROCESSED, 400), (DROPPED, 850)]
    assert connections(outcome) == [(400, "g1", "close"), (400, "g2", "open")]


def test_frames_behind_a_waiting_one_wait_their_own_time():
    """The wait is spent in the device's queue; a hub that lost again waits anew."""
    outcome = run(
        uplink(0, "g2", 6),
        uplink(100, "g2", 7),
        uplink(150, "g1", 6),
        uplink(200, "g1", 7),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert results(outcome) == [(DROPPED, 400), (DROPPED, 800), (PROCESSED, 150), (PROCESSED, 200)]


def test_a_loser_that_won_asks_at_once_for_the_frames_behind():
    """The first of two frames is elected after the wait, the second in the same moment."""
    outcome = run(
        uplink(0, "g2", 6), uplink(100, "g2", 7), g1=owner(5), g2=loser(), record=(5, "g1")
    )
    assert results(outcome) == [(PROCESSED, 400), (PROCESSED, 400)]
    assert len(outcome["notifications"]) == 1


def test_an_unreachable_owner_does_not_hold_up_the_election():
    """The notice is lost for now; the new owner works, the old one learns it from a refusal."""
    outcome = run(
        event(0, "notify_unreachable", "g1"),
        uplink(10, "g2", 6),
        uplink(500, "g1", 6),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert results(outcome) == [(PROCESSED, 410), (DROPPED, 500)]
    assert outcome["notifications"] == [{"t_ms": 410, "to": "g1", "delivered": False}]
    assert connections(outcome) == [(410, "g2", "open"), (500, "g1", "close")]
    assert state(outcome, "g1") == ("loser", "closed")


def test_a_notice_that_was_held_up_is_read_later():
    """A hub that can be reached again reads its stream from where it was."""
    outcome = run(
        event(0, "notify_unreachable", "g1"),
        uplink(10, "g2", 6),
        event(5000, "notify_reachable", "g1"),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert connections(outcome) == [(410, "g2", "open"), (5000, "g1", "close")]
    assert state(outcome, "g1") == ("loser", "closed")


def test_a_late_notice_of_an_older_election_changes_nothing():
    """The device went to g2 and came back before g1 heard that it had left."""
    outcome = run(
        event(0, "notify_unreachable", "g1"),
        uplink(10, "g2", 6),
        uplink(1000, "g1", 7),
        event(2000, "notify_reachable", "g1"),
        uplink(3000, "g1", 8),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert results(outcome) == [(PROCESSED, 410), (PROCESSED, 1000), (PROCESSED, 3000)]
    assert connections(outcome) == [(410, "g2", "open"), (1000, "g2", "close")]
    assert state(outcome, "g1") == ("owner", "open")


def test_a_slow_notice_closes_late_and_delays_nothing():
    """The new owner is elected at once, whatever time the notice takes."""
    outcome = run(
        uplink(0, "g2", 6), g1=owner(5), g2=loser(), record=(5, "g1"), notify_latency_ms=60_000
    )
    assert results(outcome) == [(PROCESSED, 400)]
    assert connections(outcome) == [(400, "g2", "open"), (60_400, "g1", "close")]


def test_a_close_waits_for_the_frame_that_runs():
    """A hub that is told while it sends finishes, closes after that, and does not open again."""
    outcome = run(
        uplink(0, "g1", 6),
        event(100, "close_request", "g1"),
        uplink(200, "g1", 6, station="s2"),
        g1=owner(5),
        record=(5, "g1"),
        upstream_ms=1000,
        keepalive_s=0,
    )
    assert connections(outcome) == [(1000, "g1", "close")]
    assert state(outcome, "g1") == ("loser", "closed")
    assert results(outcome)[0] == (PROCESSED, 0)


def test_a_frame_behind_the_close_is_judged_again():
    """What waits behind a running frame runs as a loser, and opens only if it won."""
    outcome = run(
        uplink(0, "g1", 6),
        event(100, "close_request", "g1"),
        uplink(200, "g1", 7),
        g1=owner(5),
        record=(5, "g1"),
        upstream_ms=1000,
    )
    assert results(outcome) == [(PROCESSED, 0), (PROCESSED, 1400)]
    assert connections(outcome) == [(1000, "g1", "close"), (1400, "g1", "open")]


def test_a_close_request_for_a_device_that_is_not_loaded_loads_nothing():
    """Only the flag changes."""
    outcome = run(event(0, "close_request", "g1"), g1={"cached": False, "load_ms": 100})
    assert connections(outcome) == []
    assert state(outcome, "g1") == ("loser", "closed")


def test_an_idle_connection_closes_and_its_owner_stays():
    """The next frame asks at once and opens it again; with 0 nothing is ever idle."""
    events = (event(1000, "idle_timeout", "g1"), uplink(2000, "g1", 6))
    outcome = run(*events, g1=owner(5), record=(5, "g1"))
    assert connections(outcome) == [(1000, "g1", "close"), (2000, "g1", "open")]
    assert results(outcome) == [(PROCESSED, 2000)]
    assert connections(run(*events, g1=owner(5), record=(5, "g1"), keepalive_s=0)) == []


def test_a_refresh_during_a_frame_comes_after_it():
    """One operation at a time; a refresh by an unknown hub closes what it opened."""
    outcome = run(
        event(0, "cache_refresh", "g1"), event(0, "cache_refresh", "g2"), g1=owner(5), g2={}
    )
    assert connections(outcome) == [(0, "g2", "close"), (0, "g2", "open")]


def test_a_close_during_a_refresh_waits_for_it():
    """The read is not cut, the connection closes after it."""
    outcome = run(
        event(0, "cache_refresh", "g1"),
        event(100, "close_request", "g1"),
        g1=owner(5, load_ms=300),
        record=(5, "g1"),
    )
    assert connections(outcome) == [(300, "g1", "close")]
    assert state(outcome, "g1") == ("loser", "closed")


def test_a_loser_waits_before_it_loads():
    """A hub that remembers that it lost does not open a connection for the load at once."""
    outcome = run(
        uplink(0, "g2", 6),
        g1=owner(5),
        g2=loser(cached=False, load_ms=250),
        record=(5, "g1"),
        twin={"f_cnt_up": 5},
    )
    assert results(outcome) == [(PROCESSED, 650)]
    assert connections(outcome)[:2] == [(400, "g2", "open"), (650, "g1", "close")]


def test_frames_that_come_during_a_load_share_it_and_keep_their_order():
    """One load, whatever waits for it; frames are judged in the order in which they came."""
    outcome = run(
        uplink(0, "g1", 1),
        uplink(10, "g1", 2),
        uplink(20, "g1", 3),
        g1={"cached": False, "load_ms": 250},
    )
    assert results(outcome) == [(PROCESSED, 250)] * 3
    assert connections(outcome).count((0, "g1", "open")) == 1
    assert len(connections(outcome)) == 3


def test_a_frame_waits_for_the_one_before_it_whose_address_is_still_searched():
    """A slow load of a neighbour with the same address does not let a later frame pass."""
    outcome = run(
        uplink(0, "g1", 1, device="a"),
        uplink(50, "g1", 2, device="a"),
        devices=["a", "b"],
        g1={"a": {"cached": False, "load_ms": 10}, "b": {"cached": False, "load_ms": 500}},
    )
    assert results(outcome) == [(PROCESSED, 500), (PROCESSED, 500)]


def test_devices_of_one_address_are_loaded_once_for_frames_of_both():
    """The second one's frame waits for the load that the first one's began."""
    outcome = run(
        uplink(0, "g1", 1, device="a"),
        uplink(10, "g1", 1, device="b"),
        devices=["a", "b"],
        g1={"cached": False, "load_ms": 100},
    )
    assert results(outcome) == [(PROCESSED, 100), (PROCESSED, 100)]
    opened = [(0, "g1", "open"), (100, "g1", "open")]
    assert [entry for entry in connections(outcome) if entry[2] == "open"] == sorted(2 * opened)


def test_a_restarted_hub_remembers_that_it_lost():
    """It waits before it loads and asks, so it does not take the device from its owner."""
    outcome = run(
        uplink(0, "g2", 6),
        uplink(100, "g1", 6),
        event(1000, "gateway_down", "g2"),
        event(2000, "gateway_up", "g2"),
        uplink(3000, "g2", 7),
        uplink(3100, "g1", 7),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
        twin={"f_cnt_up": 5},
    )
    assert results(outcome)[2:] == [(DROPPED, 3400), (PROCESSED, 3100)]
    assert state(outcome, "g1") == ("owner", "open")


def test_a_restarted_owner_reads_the_notices_that_it_missed():
    """The notice waits in its stream; its next frame is asked for after the wait."""
    outcome = run(
        event(0, "gateway_down", "g1"),
        uplink(100, "g2", 6),
        event(5000, "gateway_up", "g1"),
        uplink(6000, "g1", 7),
        uplink(6100, "g2", 7),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
        twin={"f_cnt_up": 5},
    )
    assert results(outcome) == [(PROCESSED, 500), (DROPPED, 6400), (PROCESSED, 6100)]
    assert outcome["notifications"] == [{"t_ms": 500, "to": "g1", "delivered": False}]


def test_a_dead_hub_hears_nothing():
    """A frame at a hub that is gone is not heard, one that waits there is lost."""
    outcome = run(
        uplink(0, "g2", 6),
        event(100, "gateway_down", "g2"),
        uplink(200, "g2", 7),
        g2=loser(),
        record=(5, "g1"),
        g1=owner(5),
    )
    assert results(outcome) == [(FAILED, None), ("not_heard", None)]
    assert outcome["final"]["gateways"]["g2"] == {"down": True}


def test_a_coordinator_that_is_busy_for_a_moment_is_waited_for():
    """The frame waits in its queue for the answer."""
    outcome = run(
        event(0, "coordinator_lock_busy", duration_ms=2000),
        uplink(100, "g1", 6),
        g1=owner(5),
        record=(5, "g1"),
    )
    assert results(outcome) == [(PROCESSED, 2000)]


def test_a_coordinator_that_is_busy_for_too_long_costs_the_frame_and_no_flag():
    """After ten seconds the frame fails; the frame behind it is asked for then."""
    outcome = run(
        event(0, "coordinator_lock_busy", duration_ms=20_000),
        uplink(100, "g1", 6),
        uplink(200, "g1", 7),
        g1=owner(5),
        record=(5, "g1"),
    )
    assert results(outcome) == [(FAILED, None), (PROCESSED, 20_000)]
    assert reasons(outcome)[0] == "coordinator_unreachable"
    assert connections(outcome) == []


def test_a_coordinator_that_is_away_leaves_a_loser_a_loser():
    """The loser spends its wait, gets no answer, and is what it was."""
    outcome = run(
        event(0, "coordinator_down"),
        uplink(0, "g2", 6),
        event(1000, "coordinator_up"),
        uplink(2000, "g2", 6),
        g1=owner(5),
        g2=loser(),
        record=(5, "g1"),
    )
    assert results(outcome) == [(FAILED, None), (PROCESSED, 2400)]


def test_a_forgotten_record_is_taken_by_the_next_hub():
    """Nobody is known who could be told."""
    outcome = run(
        event(0, "coordinator_state_expires"),
        uplink(100, "g2", 9),
        g1=owner(8),
        g2={},
        record=(8, "g1"),
    )
    assert results(outcome) == [(PROCESSED, 100)]
    assert outcome["notifications"] == []


def test_counters_have_32_bits():
    """A device goes on behind 65535; the election knows which is higher."""
    outcome = run(
        uplink(0, "g1", 65_535),
        uplink(1000, "g1", 65_536),
        uplink(1030, "g2", 65_536),
        g1=owner(65_534),
        g2=loser(),
        record=(65_534, "g1"),
    )
    assert results(outcome) == [(PROCESSED, 0), (PROCESSED, 1000), (DROPPED, 1430)]
    assert outcome["final"]["coordinator"] == {"f_cnt": 65_536, "gateway": "g1"}


@pytest.mark.parametrize(("f_cnt", "result"), [(16_389, PROCESSED), (16_390, REJECTED)])
def test_too_large_a_gap_is_refused(f_cnt, result):
    """The gap of LoRaWAN is 16384; nobody is asked beyond it."""
    outcome = run(uplink(0, "g1", f_cnt), g1=owner(5), record=(5, "g1"))
    assert results(outcome) == [(result, 0 if result == PROCESSED else None)]


def test_an_old_counter_at_a_loser_is_a_duplicate_to_the_coordinator():
    """A late copy waits, is asked for, and dropped."""
    outcome = run(uplink(0, "g2", 4), g1=owner(5), g2=loser(), record=(5, "g1"))
    assert (results(outcome), reasons(outcome)) == ([(DROPPED, 400)], ["duplicate"])


def test_a_confirmed_frame_is_answered_again_three_times():
    """A repetition is asked for and answered, and not sent on a second time."""
    repeats = [uplink(1000 * n, "g1", 6, confirmed=True) for n in range(5)]
    outcome = run(*repeats, g1=owner(5), record=(5, "g1"))
    assert [frame["result"] for frame in outcome["uplinks"]] == [PROCESSED] * 4 + [REJECTED]
    assert [frame["upstream"] for frame in outcome["uplinks"]] == [True] + [False] * 4
    assert [frame["downlink"] for frame in outcome["uplinks"]] == [True] * 4 + [False]
    assert reasons(outcome)[4] == "resubmit_limit"


def test_a_confirmed_frame_that_failed_upstream_is_sent_when_it_is_repeated():
    """A reading that was not sent does not count as processed."""
    outcome = run(
        uplink(0, "g1", 6, confirmed=True, upstream_fails=True),
        uplink(2000, "g1", 6, confirmed=True),
        g1=owner(5),
        record=(5, "g1"),
    )
    assert [frame["result"] for frame in outcome["uplinks"]] == [FAILED, PROCESSED]
    assert outcome["uplinks"][1]["upstream"] is True


def test_a_frame_that_failed_does_not_hide_the_copy_of_another_station():
    """After a failure the next copy of the same hub is tried."""
    outcome = run(
        event(0, "coordinator_down"),
        uplink(10, "g1", 6),
        event(20, "coordinator_up"),
        uplink(30, "g1", 6, station="s2"),
        g1=owner(5),
        record=(5, "g1"),
    )
    assert results(outcome) == [(FAILED, None), (PROCESSED, 30)]


def test_an_abp_device_may_start_again():
    """The owner clears the counter and writes it; a loser's copy is a duplicate."""
    outcome = run(
        uplink(0, "g2", 0),
        uplink(30, "g1", 0),
        uplink(5000, "g1", 1),
        g1=owner(50),
        g2=loser(),
        record=(50, "g1"),
        activation="abp",
    )
    assert results(outcome) == [(DROPPED, 400), (PROCESSED, 30), (PROCESSED, 5000)]
    assert [frame["twin_written"] for frame in outcome["uplinks"]] == [False, True, True]


def test_an_abp_restart_that_only_a_loser_hears_notifies_the_owner():
    """Clearing the counter keeps the owner, so it can be told."""
    outcome = run(uplink(0, "g2", 0), g1=owner(50), g2=loser(), record=(50, "g1"), activation="abp")
    assert results(outcome) == [(PROCESSED, 400)]
    assert outcome["notifications"] == [told(400, "g1")]
    assert state(outcome, "g1") == ("loser", "closed")


def test_an_abp_device_that_started_again_elsewhere_is_heard_here():
    """A loser with an old, high counter leaves the judgement to the coordinator."""
    outcome = run(
        uplink(0, "g1", 0),
        uplink(1000, "g1", 1),
        uplink(2000, "g2", 2),
        g1=owner(50),
        g2=loser(50),
        record=(50, "g1"),
        activation="abp",
    )
    assert results(outcome)[2] == (PROCESSED, 2400)


@pytest.mark.parametrize("strict", [{"activation": "otaa"}, {"relaxed_counters": False}])
def test_other_devices_may_not_start_again(strict):
    """Counter 0 after 50 is refused without a question."""
    outcome = run(uplink(0, "g1", 0), g1=owner(50), record=(50, "g1"), **strict)
    assert results(outcome) == [(REJECTED, None)]


def test_with_mark_every_hub_sends_and_the_later_copies_say_so():
    """One answers; the former owner is told, waits, and sends its copy all the same."""
    outcome = run(
        uplink(0, "g1", 1, confirmed=True),
        uplink(30, "g2", 1, confirmed=True),
        uplink(40, "g2", 1, confirmed=True, station="s2"),
        uplink(5000, "g2", 2, confirmed=True),
        uplink(5030, "g1", 2, confirmed=True),
        dedup="mark",
    )
    assert [frame["result"] for frame in outcome["uplinks"]] == [PROCESSED] * 5
    assert [frame["marked_duplicate"] for frame in outcome["uplinks"]] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert [frame["downlink"] for frame in outcome["uplinks"]] == [True, False, False, True, False]
    assert [frame["elected_at_ms"] for frame in outcome["uplinks"]] == [0, 30, None, 5000, 5430]
    assert outcome["notifications"] == [told(5000, "g1")]
    assert state(outcome, "g1") == state(outcome, "g2") == ("owner", "open")


def test_with_none_no_owner_is_asked_unless_an_answer_is_wanted():
    """All copies go upstream unmarked; of a confirmed one a single hub answers."""
    outcome = run(
        uplink(0, "g1", 1),
        uplink(30, "g2", 1),
        uplink(5000, "g1", 2, confirmed=True),
        uplink(5030, "g2", 2, confirmed=True),
        dedup="none",
    )
    assert results(outcome) == [
        (PROCESSED, None),
        (PROCESSED, None),
        (PROCESSED, 5000),
        (PROCESSED, 5030),
    ]
    assert [frame["marked_duplicate"] for frame in outcome["uplinks"]] == [False] * 4
    assert [frame["downlink"] for frame in outcome["uplinks"]] == [False, False, True, False]


def test_a_pinned_device_is_handled_by_its_gateway_alone():
    """Nobody is asked; the others refuse, and do not load it to learn that."""
    outcome = run(
        uplink(0, "g2", 1), uplink(10, "g1", 1), g1={}, g2={"cached": False}, pinned_to="g1"
    )
    assert connections(outcome) == [(10, "g1", "open")]
    assert not outcome["final"]["gateways"]["g2"]["cached"]
    assert results(outcome) == [(REJECTED, None), (PROCESSED, None)]
    assert reasons(outcome)[0] == "belongs_to_another_gateway"
    assert outcome["final"]["coordinator"] is None
    assert state(outcome, "g2") == ("unknown", "closed")


def test_one_hub_answers_a_join_and_the_others_load_before_the_next_frame():
    """A hub that was refused opens nothing, changes no flag, and loads before its next frame."""
    outcome = run(
        join(0, "g1"),
        join(30, "g2"),
        uplink(5000, "g2", 0),
        uplink(5020, "g1", 0),
        g1={"cached": False},
        g2={"f_cnt_up": 40, "load_ms": 100},
    )
    assert [(each["result"], each.get("reason")) for each in outcome["joins"]] == [
        ("accepted", None),
        (REFUSED, "dev_nonce_used"),
    ]
    assert results(outcome) == [(DROPPED, 5100), (PROCESSED, 5020)]
    assert connections(outcome) == [
        (0, "g1", "close"),
        (0, "g1", "open"),
        (5000, "g2", "open"),
        (5020, "g1", "open"),
        (5100, "g2", "close"),
    ]


def test_a_hub_that_did_not_hear_the_join_reads_the_new_session():
    """Its old session does not fit the frame, so it loads instead of staying deaf."""
    outcome = run(
        join(0, "g1"), uplink(5000, "g2", 1), g1={}, g2=loser(40, load_ms=100), record=(40, "g2")
    )
    assert results(outcome) == [(PROCESSED, 5500)]


def test_a_join_keeps_the_owner_and_clears_the_counter():
    """The old owner stays on record and is told when another hub is elected."""
    outcome = run(join(0, "g2"), uplink(5000, "g2", 0), g1=owner(40), g2=loser(), record=(40, "g1"))
    assert results(outcome) == [(PROCESSED, 5400)]
    assert outcome["notifications"] == [told(5400, "g1")]
    assert state(outcome, "g1") == ("loser", "closed")


def test_a_forged_join_clears_nothing():
    """The counter stays until the MIC was found right; the genuine request is still answered."""
    outcome = run(
        join(0, "g2", mic_ok=False),
        uplink(100, "g2", 30),
        join(600, "g1"),
        g1=owner(40),
        g2=loser(),
        record=(40, "g1"),
    )
    assert [each["result"] for each in outcome["joins"]] == [REFUSED, "accepted"]
    assert results(outcome) == [(DROPPED, 500)]


def test_a_nonce_that_was_used_is_refused_after_the_coordinator_forgot_it():
    """The device's own list of nonces outlives the coordinator's five minutes."""
    outcome = run(join(0, "g1"), join(400_000, "g1"), uplink(400_100, "g1", 0), g1={})
    assert [each["result"] for each in outcome["joins"]] == ["accepted", REFUSED]
    assert results(outcome) == [(PROCESSED, 400_100)]


def test_a_join_whose_coordinator_is_away_fails():
    """Nothing is opened and no session is made."""
    outcome = run(event(0, "coordinator_down"), join(10, "g1"), g1={"cached": False})
    assert outcome["joins"][0]["reason"] == "coordinator_unreachable"
    assert connections(outcome) == []


def test_an_owner_closes_after_a_join_and_stays_the_owner():
    """Who speaks for the device is decided by its first message."""
    outcome = run(join(0, "g1"), g1=owner(40), record=(40, "g1"))
    assert connections(outcome) == [(0, "g1", "close")]
    assert state(outcome, "g1") == ("owner", "closed")
    assert outcome["final"]["coordinator"] == {"f_cnt": None, "gateway": "g1"}


def test_class_c_downlinks_go_through_the_owner():
    """Any other hub drops them and loads nothing."""
    outcome = run(
        event(0, "class_c_downlink", "g1"),
        event(0, "class_c_downlink", "g2"),
        g1=owner(5),
        g2=loser(cached=False),
        record=(5, "g1"),
    )
    assert [each["result"] for each in outcome["downlinks"]] == [PROCESSED, DROPPED]
    assert connections(outcome) == []


def test_a_frame_of_no_known_device_is_refused():
    """Nothing is opened for it."""
    outcome = run(uplink(0, "g1", 1, device="a"), devices=["b", "c"], g1={"cached": True})
    assert results(outcome) == [(REJECTED, None)]
    assert reasons(outcome) == ["no_device_by_address"]


def test_a_frame_of_the_old_session_does_not_mute_the_new_one():
    """It is judged after the join, is late, and leaves the cleared counter alone."""
    outcome = run(
        uplink(100, "g2", 41),
        join(200, "g1"),
        uplink(5000, "g1", 0),
        uplink(6000, "g1", 1),
        g1=owner(40),
        g2=loser(),
        record=(40, "g1"),
    )
    assert results(outcome) == [(DROPPED, 500), (PROCESSED, 5000), (PROCESSED, 6000)]


def test_a_join_that_the_coordinator_did_not_hear_of_is_good_all_the_same():
    """The first frame of the new session clears the counter."""
    outcome = run(
        join(0, "g1"),
        event(50, "coordinator_down"),
        event(5000, "coordinator_up"),
        uplink(6000, "g1", 0),
        g1={**owner(40), "cached": False, "load_ms": 100},
        record=(40, "g1"),
    )
    assert outcome["joins"][0]["result"] == "accepted"
    assert results(outcome) == [(PROCESSED, 6000)]


def test_a_repeated_join_request_costs_its_hub_no_load():
    """The hub that answered it knows the session already."""
    outcome = run(join(0, "g1"), join(6000, "g1"), uplink(7000, "g1", 0), g1={})
    assert [each.get("reason") for each in outcome["joins"]] == [None, "dev_nonce_used"]
    assert results(outcome) == [(PROCESSED, 7000)]
    assert connections(outcome)[-1] == (7000, "g1", "open")
    assert len(connections(outcome)) == 3


def test_a_join_of_a_pinned_device_is_answered_by_its_gateway():
    """Another hub claims nothing, so the right one can answer at the same time."""
    outcome = run(join(0, "g2"), join(0, "g1"), g1={}, g2={}, pinned_to="g1")
    assert [each["result"] for each in outcome["joins"]] == [REFUSED, "accepted"]
    assert outcome["joins"][0]["reason"] == "belongs_to_another_gateway"


def test_a_claim_that_cannot_be_given_back_ends_by_itself():
    """The coordinator went away in between; five minutes later the request may be taken."""
    outcome = run(
        join(0, "g2", mic_ok=False, mic="x"),
        event(50, "coordinator_down"),
        event(1000, "coordinator_up"),
        join(400_000, "g1", mic="x"),
        g2={"cached": False, "load_ms": 100},
        g1={},
    )
    assert [each["result"] for each in outcome["joins"]] == [REFUSED, "accepted"]


def test_a_join_waits_for_a_busy_coordinator_no_longer_than_ten_seconds():
    """Then it fails."""
    outcome = run(event(0, "coordinator_lock_busy", duration_ms=20_000), join(10, "g1"), g1={})
    assert outcome["joins"][0]["reason"] == "coordinator_unreachable"


def test_devices_with_addresses_of_their_own_have_states_of_their_own():
    """Two devices in one scenario: an election each."""
    outcome = run(
        uplink(0, "g1", 1, device="a"),
        uplink(10, "g2", 1, device="b"),
        uplink(20, "g2", 1, device="a"),
    )
    assert results(outcome) == [(PROCESSED, 0), (PROCESSED, 10), (DROPPED, 20)]
    assert outcome["final"]["coordinator"] == {
        "a": {"f_cnt": 1, "gateway": "g1"},
        "b": {"f_cnt": 1, "gateway": "g2"},
    }
    final = {"ownership": "owner", "connection": "open", "cached": True}
    assert outcome["final"]["gateways"]["g2"]["b"] == final


def test_joins_at_two_hubs_do_not_let_a_frame_in_between_mute_the_device():
    """A hub that answers a join reads first what another one answered a moment ago."""
    outcome = run(
        uplink(300, "g2", 0),
        join(0, "g2", 1),
        join(300, "g1", 2),
        uplink(320, "g3", 0),
        uplink(60_000, "g1", 1),
        g1=owner(5),
        g2=loser(),
        g3={},
        record=(5, "g1"),
        delay_ms=150,
    )
    assert results(outcome) == [(DROPPED, 450), (PROCESSED, 320), (PROCESSED, 60_150)]


def test_a_notice_to_a_gateway_that_has_left_reaches_nobody():
    """The record of the coordinator may name one; the device is taken over all the same."""
    outcome = run(uplink(0, "g1", 6), record=(5, "g9"), g1={})
    assert results(outcome) == [(PROCESSED, 0)]
    assert outcome["notifications"] == [{"t_ms": 0, "to": "g9", "delivered": False}]


def test_a_release_request_is_answered_by_what_it_names():
    """Nothing readable, a device that does not exist, and one that does and is not loaded."""
    payloads = ["{", None, [], {}, {"dev_eui": 7}, {"dev_eui": ""}, {"dev_eui": "x"}]
    payloads.append({"dev_eui": "device"})
    requests = [event(n, "close_request", "g1", payload=each) for n, each in enumerate(payloads)]
    outcome = run(*requests, event(99, "close_request", "g1"), g1={"cached": False})
    assert outcome["close_replies"] == [400] * 6 + [404, 200, 200]
    final = {"ownership": "loser", "connection": "closed", "cached": False}
    assert (outcome["final"]["gateways"]["g1"], outcome["connection_log"]) == (final, [])


@pytest.mark.parametrize(
    ("f_cnt", "wire", "result"),
    [(65_536, 0, PROCESSED), (65_540, 4, PROCESSED), (131_077, 5, REJECTED), (65_537, 2, REJECTED)],
)
def test_the_air_carries_half_of_a_counter(f_cnt, wire, result):
    """The gateway completes it by what it heard last; a wrong guess does not fit the MIC."""
    outcome = run(uplink(0, "g1", f_cnt, wire_f_cnt=wire), g1=owner(65_530), record=(65_530, "g1"))
    assert [frame["result"] for frame in outcome["uplinks"]] == [result]


def test_a_class_c_downlink_goes_to_the_preferred_gateway():
    """Where the event names none; it is sent only if that gateway owns the device."""
    scenario = {
        "gateways": ["g1", "g2"],
        "initial": {"gateways": {"g1": owner(1), "g2": loser()}, "preferred_gateway": "g1"},
        "events": [event(0, "class_c_downlink"), event(1, "class_c_downlink", "g2")],
    }
    outcome = simulate(scenario)
    assert [each["result"] for each in outcome["downlinks"]] == [PROCESSED, DROPPED]
    assert outcome["ignored"] == []
