"""A day of a few parcels, simulated by hand and by the program."""

from __future__ import annotations

import json

import pytest

from analytics.what_if.answers import CANNOT_TELL, TOLD, Answer, answers
from analytics.what_if.recorded import (
    CAME,
    CARRIED,
    DROPPED,
    EXPIRED,
    LINK,
    SENT,
    SETTINGS,
    WAITED,
    Parcel,
)
from analytics.what_if.scenarios import RouteChange, Scenario
from analytics.what_if.windows import ALWAYS, DayWindows, windows

UP, MINUTE_MS = "upstream", 60_000


def parcel(second: int, kind: str, rows: int, route: str = "raw", **more: object) -> Parcel:
    """Build a parcel of rows of 100 bytes."""
    keys = {"priority": {"alarm": 0, "raw": 7}[route], "routes": (route,), "ttl_ms": None}
    known = {"at_ms": second * 1000, "endpoint": UP, "bytes": 100 * rows, "text": None}
    return Parcel(**{**keys, **known, "kind": kind, "rows": rows, **more})


def busy_minutes() -> list[Parcel]:
    """Return six minutes: 10 rows/s come for two minutes, the link takes 5 rows/s, 60 s to live.

    Of 1 200 rows the link takes 300 in the first minute. From then on each second 5 rows expire.
    """
    came = [parcel(second, CAME, 10, ttl_ms=MINUTE_MS) for second in range(120)]
    sent = [parcel(second, SENT, 5) for second in range(180)]
    expired = [parcel(second, EXPIRED, 5) for second in range(120, 180)]
    link = parcel(0, LINK, 1, text="0")
    return sorted([*came, *sent, *expired, link], key=lambda each: each.at_ms)


def ask(
    parcels: list[Parcel],
    *,
    factor: float = 1.0,
    opens: DayWindows | None = None,
    limits: dict[str, int | str] | None = None,
    **routes: RouteChange,
) -> dict[str, Answer]:
    """Return the answers to one scenario by route."""
    scenario = Scenario(
        name="s",
        routes=routes,
        factors={} if factor == 1.0 else {UP: factor},
        windows={} if opens is None else {UP: opens},
        limits=limits or {},
    )
    return {answer.route: answer for answer in answers("gw", parcels, [scenario])}


def settings(**members: object) -> Parcel:
    """Build what a hub had in force."""
    return parcel(0, SETTINGS, 1, endpoint="", routes=(), text=json.dumps(members))


def test_the_day_as_it_was_is_simulated_first() -> None:
    """The answer has what was recorded, too, and how well that is simulated."""
    answer = ask(busy_minutes(), raw=RouteChange(priority=3))["raw"]
    assert (answer.recorded_sent, answer.recorded_expired) == (900, 300)
    assert answer.came == answer.was_sent + answer.was_expired == 1200
    assert abs(answer.was_sent - 900) <= 20
    assert answer.error <= 0.05
    assert (answer.answer, answer.reason) == (TOLD, "")
    assert (answer.sent, answer.expired) == (answer.was_sent, answer.was_expired)


def test_a_longer_time_to_live_lets_rows_arrive() -> None:
    """The link that is idle after three minutes goes on at the rate of the hour."""
    later = [*busy_minutes(), parcel(400, CAME, 1, ttl_ms=MINUTE_MS), parcel(400, SENT, 1)]
    answer = ask(later, raw=RouteChange(ttl_ms=10 * MINUTE_MS))["raw"]
    assert answer.sent == 1201
    assert answer.expired == 0
    assert answer.waited_ms > answer.was_waited_ms


def test_a_shorter_one_lets_more_expire() -> None:
    """Only rows that are as young leave."""
    answer = ask(busy_minutes(), raw=RouteChange(ttl_ms=10_000))["raw"]
    assert answer.expired > answer.was_expired
    assert answer.sent + answer.expired == 1200


def test_what_a_sender_shortened_stays_short() -> None:
    """A time to live below that of the route is the sender's."""
    parcels = [
        each._replace(ttl_ms=5_000) if each.kind == CAME and each.at_ms >= 100_000 else each
        for each in busy_minutes()
    ]
    parcels += [parcel(400, CAME, 1, ttl_ms=MINUTE_MS), parcel(400, SENT, 1)]
    answer = ask(parcels, raw=RouteChange(ttl_ms=10 * MINUTE_MS))["raw"]
    assert answer.expired >= 150


def test_another_priority_takes_the_place_of_others() -> None:
    """The rows of the one that was better wait for it."""
    alarms = [parcel(second, CAME, 3, "alarm") for second in range(120)]
    alarms += [parcel(second, SENT, 3, "alarm") for second in range(120)]
    rest = [each for each in busy_minutes() if each.kind not in {SENT, EXPIRED}]
    rest += [parcel(second, SENT, 2) for second in range(120)]
    rest += [parcel(second, SENT, 5) for second in range(120, 180)]
    rest += [parcel(second, EXPIRED, 8) for second in range(120, 180)]
    parcels = sorted([*alarms, *rest], key=lambda each: each.at_ms)
    found = ask(parcels, raw=RouteChange(priority=0), alarm=RouteChange(priority=7))
    assert found["raw"].sent > found["raw"].was_sent
    assert found["alarm"].waited_ms > found["alarm"].was_waited_ms
    assert found["alarm"].expired == 0


def test_a_route_that_lost_wins_where_the_winner_becomes_worse() -> None:
    """Its priority and time to live are those of the journal's settings."""
    table = [
        {"name": "alarm", "endpoint": UP, "priority": 0},
        {"name": "raw", "endpoint": UP, "priority": 7, "ttl_ms": 10_000},
    ]
    parcels = [
        each._replace(routes=("alarm", "raw"), priority=0, ttl_ms=None) for each in busy_minutes()
    ]
    found = ask([settings(routes=table), *parcels], alarm=RouteChange(priority=9))["alarm"]
    assert found.expired > 0


def test_a_faster_link_and_a_slower_one() -> None:
    """Capacity is that of the day, multiplied."""
    fast, slow = (ask(busy_minutes(), factor=factor)["raw"] for factor in (2.0, 0.5))
    assert fast.sent == 1200
    assert abs(slow.sent - 450) <= 30


def test_a_slower_link_cannot_be_told_where_none_was_full() -> None:
    """Its rate is not known."""
    parcels = [parcel(second, kind, 1) for second in range(0, 600, 10) for kind in (CAME, SENT)]
    answer = ask(parcels, factor=0.5)["raw"]
    assert answer.answer == CANNOT_TELL
    assert "rate is not known" in answer.reason


def test_a_day_that_is_simulated_badly_cannot_be_told() -> None:
    """Here rows vanished from a link that could have taken them."""
    parcels = [each for each in busy_minutes() if each.kind != SENT]
    parcels += [parcel(second, EXPIRED, 5) for second in range(60, 120)]
    parcels += [parcel(second, SENT, 5) for second in range(400, 520)]
    answer = ask(sorted(parcels, key=lambda each: each.at_ms), raw=RouteChange(priority=3))["raw"]
    assert answer.answer == CANNOT_TELL
    assert "end differently" in answer.reason
    assert answer.error > 0.05


def test_what_waited_at_midnight_has_its_age() -> None:
    """Of rows that left on the day by their lines; of others by the ages of what was carried in."""
    waited = parcel(-50, WAITED, 100, ttl_ms=MINUTE_MS)
    carried = parcel(0, CARRIED, 150, routes=(), text=json.dumps([[30_000, 100], [10_000, 50]]))
    sent = [parcel(second, SENT, 5) for second in range(30)]
    parcels = [
        waited,
        carried,
        parcel(0, LINK, 1),
        *sent,
        parcel(40, CAME, 1, ttl_ms=MINUTE_MS),
        parcel(41, SENT, 1),
    ]
    found = ask(parcels, raw=RouteChange(ttl_ms=10 * MINUTE_MS))
    assert found["raw"].was_expired > 0
    assert found["raw"].sent == 101
    assert found[""].came == 50


def test_recency_lets_older_rows_wait_behind() -> None:
    """They go to the fallback priority, and rows of both are served in the order of priorities."""
    answer = ask(busy_minutes(), raw=RouteChange(recency_ms=10_000, fallback=9))["raw"]
    assert answer.sent + answer.expired + answer.waiting == 1200
    assert answer.waited_ms < answer.was_waited_ms


def test_a_link_with_windows_sends_in_them_only() -> None:
    """At the rate of the link; what comes between waits, and expires."""
    opens = windows([0, 2 * MINUTE_MS], MINUTE_MS, -1)
    answer = ask(busy_minutes(), opens=opens)["raw"]
    assert abs(answer.sent - 600) <= 10
    assert (answer.sent + answer.expired, answer.answer) == (1200, TOLD)
    assert ask(busy_minutes(), opens=ALWAYS)["raw"].sent == answer.was_sent


def test_urgent_rows_open_the_link() -> None:
    """For all that waits, until no such row does and ten seconds more."""
    alarms = [parcel(90, CAME, 20, "alarm"), parcel(94, SENT, 20, "alarm")]
    parcels = sorted([*busy_minutes(), *alarms], key=lambda each: each.at_ms)
    shut = windows([0], MINUTE_MS, -1)
    found = ask(parcels, opens=shut)
    assert (found["alarm"].sent, found["alarm"].waiting) == (0, 20)
    urgent = ask(parcels, opens=shut._replace(urgent=0))
    assert urgent["alarm"].sent == 20
    # Ten seconds and those of the alarms, at 5 rows/s and once at 25.
    assert 45 <= urgent["raw"].sent - found["raw"].sent <= 70


def test_other_windows_than_those_of_the_day() -> None:
    """Outside of its own the link was closed, not broken."""
    closed = [parcel(0, LINK, 0, text="0"), parcel(60, LINK, 1, text="60000")]
    lived = [each for each in busy_minutes() if each.kind != LINK]
    lived = [each for each in lived if each.kind != SENT or each.at_ms >= MINUTE_MS]
    lived += [parcel(second, EXPIRED, 5) for second in range(60, 120)]
    in_force = settings(endpoints={UP: {"open_at": ["1 * * * *"]}})
    parcels = sorted([in_force, *closed, *lived], key=lambda each: each.at_ms)
    was = ask(parcels, opens=windows([MINUTE_MS], 10 * MINUTE_MS, -1))["raw"]
    assert abs(was.sent - was.was_sent) <= 10
    assert ask(parcels, opens=ALWAYS)["raw"].sent >= was.sent + 200


def test_windows_need_the_time_of_day() -> None:
    """An old journal may not have it."""
    parcels = [each for each in busy_minutes() if each.kind != LINK]
    answer = ask(parcels, opens=ALWAYS)["raw"]
    assert answer.answer == CANNOT_TELL
    assert "time of day" in answer.reason


@pytest.mark.parametrize("overflow", ["by_value", "drop_oldest", "drop_newest"])
@pytest.mark.parametrize("limits", [{"queue_rows_max": 100}, {"bytes_max": 10_000}])
def test_rows_give_way_at_a_limit(limits: dict[str, int | str], overflow: str) -> None:
    """Instead of expiring; old ones, or those that come."""
    answer = ask(busy_minutes(), limits={**limits, "overflow": overflow})["raw"]
    removed = answer.came - answer.sent - answer.expired - answer.waiting
    # As many wait for 20 s at most; then the link is idle.
    assert answer.expired == 0
    assert abs(removed - 500) <= 10
    assert abs(answer.sent - 700) <= 10
    assert answer.waited_ms < answer.was_waited_ms


def test_a_higher_limit_keeps_what_gave_way() -> None:
    """What the day's own limits removed is not removed again; others of them stay in force."""
    lived = [each for each in busy_minutes() if each.kind not in {EXPIRED, SENT}]
    lived = [each._replace(ttl_ms=None) for each in lived]
    lived += [parcel(second, SENT, 5) for second in range(140)]
    lived += [parcel(second, DROPPED, 5) for second in range(20, 120)]
    caps = {"queue_rows_max": 100, "bytes_max": 40_000, "overflow": "by_value"}
    parcels = sorted([settings(caps=caps), *lived], key=lambda each: each.at_ms)
    answer = ask(parcels, limits={"queue_rows_max": 1000})["raw"]
    assert abs(answer.sent + answer.waiting - answer.was_sent - 300) <= 10
    free = ask(parcels, limits={"queue_rows_max": 1000, "bytes_max": 0})["raw"]
    assert free.sent + free.waiting == 1200


def test_worse_rows_give_way_to_better_ones() -> None:
    """By value the worst priority loses its oldest rows, whatever comes."""
    parcels = [parcel(0, LINK, 0, text="0"), parcel(1, CAME, 50), parcel(2, CAME, 30, "alarm")]
    parcels += [parcel(600, LINK, 1, text="600000"), parcel(601, SENT, 30, "alarm")]
    parcels.append(parcel(602, SENT, 50))
    by_value = ask(parcels, limits={"rows_max": 40})
    assert (by_value["alarm"].sent, by_value["raw"].sent) == (30, 10)
    oldest = ask(parcels, limits={"rows_max": 20, "overflow": "drop_oldest"})
    assert (oldest["alarm"].sent, oldest["raw"].sent) == (20, 0)


def test_limits_that_cannot_be_told() -> None:
    """Of all queues with several endpoints, and where senders are refused."""
    other = [parcel(5, CAME, 1, endpoint="lab"), parcel(6, SENT, 1, endpoint="lab")]
    parcels = sorted([*busy_minutes(), *other], key=lambda each: each.at_ms)
    shared = answers("gw", parcels, [Scenario(name="s", limits={"rows_max": 5})])
    assert {answer.reason for answer in shared} == {
        "several endpoints share the limits of all queues"
    }
    own = answers("gw", parcels, [Scenario(name="s", limits={"queue_rows_max": 5})])
    assert {answer.answer for answer in own} == {TOLD}
    refuses = settings(caps={"overflow": "reject_new"})
    answer = ask([refuses, *busy_minutes()], limits={"queue_rows_max": 5})["raw"]
    assert answer.answer == CANNOT_TELL
    assert "reject_new" in answer.reason


def test_a_scenario_of_other_endpoints_has_no_answer() -> None:
    """Nothing would be different."""
    assert not answers("gw", busy_minutes(), [Scenario(name="s", factors={"lab": 2.0})])
    assert not ask(busy_minutes(), other=RouteChange(priority=1))
