"""A day of a few parcels, simulated by hand and by the program."""

from __future__ import annotations

import json

from analytics.what_if.answers import CANNOT_TELL, TOLD, Answer, answers
from analytics.what_if.recorded import CAME, CARRIED, EXPIRED, LINK, SENT, SETTINGS, WAITED, Parcel
from analytics.what_if.scenarios import RouteChange, Scenario

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
    return sorted([*came, *sent, *expired, parcel(0, LINK, 1)], key=lambda each: each.at_ms)


def ask(parcels: list[Parcel], *, factor: float = 1.0, **routes: RouteChange) -> dict[str, Answer]:
    """Return the answers to one scenario by route."""
    factors = {} if factor == 1.0 else {UP: factor}
    scenario = Scenario(name="s", routes=routes, factors=factors)
    return {answer.route: answer for answer in answers("gw", parcels, [scenario])}


def test_the_day_as_it_was_is_simulated_first() -> None:
    """The answer stands beside what was recorded, and how well that is simulated."""
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
    settings = parcel(0, SETTINGS, 1, endpoint="", routes=(), text=json.dumps(table))
    found = ask([settings, *parcels], alarm=RouteChange(priority=9))["alarm"]
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


def test_a_day_that_is_simulated_badly_is_said_so() -> None:
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


def test_a_scenario_of_other_endpoints_has_no_answer() -> None:
    """Nothing would be different."""
    assert not answers("gw", busy_minutes(), [Scenario(name="s", factors={"lab": 2.0})])
    assert not ask(busy_minutes(), other=RouteChange(priority=1))
