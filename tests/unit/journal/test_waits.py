"""What rows waited for: parts that add up, from a bounded history."""

from __future__ import annotations

import json
import random
from itertools import pairwise

from edgehub.journal.row_events import PUMP_DEFAULT, PUMP_IDLE, PUMP_OFFLINE, PUMP_PAUSED
from edgehub.journal.waits import INTERVALS_MAX, POINTS_MAX, Course, Waits
from edgehub.message import DEFAULT_PRIORITY

UP = "upstream"


def waits_of(*changes: tuple[int, int]) -> Waits:
    """Build the history of one endpoint from times and states."""
    waits = Waits()
    for at_ms, state in changes:
        waits.change(UP, state, at_ms)
    return waits


def test_each_state_counts_for_what_it_is() -> None:
    """Offline, behind, paused and the rest of one wait."""
    waits = waits_of((0, PUMP_OFFLINE), (100, 0), (130, 7), (150, PUMP_PAUSED), (155, PUMP_IDLE))
    assert waits.split((UP, 7), "d", 1, 0, 160) == (100, 30, 5, 25)
    assert waits.split((UP, 0), "d", 1, 0, 160) == (100, 0, 5, 55)
    assert waits.split((UP, 7), "d", 1, 110, 140) == (0, 20, 0, 10)


def test_the_default_priority_is_behind_all_others() -> None:
    """Nine is better than none, and none is not behind itself."""
    waits = waits_of((0, 9), (10, PUMP_DEFAULT), (30, PUMP_IDLE))
    assert waits.split((UP, DEFAULT_PRIORITY), "d", 1, 0, 30) == (0, 10, 0, 20)


def test_an_endpoint_that_is_not_served_is_offline() -> None:
    """No pump ever told of it."""
    assert Waits().split(("lab", 0), "d", 1, 5, 25) == (20, 0, 0, 0)


def test_the_time_before_an_endpoint_was_served_is_offline() -> None:
    """A row that was stored before its pump first told of anything waited for that."""
    waits = waits_of((100, PUMP_OFFLINE), (130, PUMP_IDLE))
    assert waits.split((UP, 7), "d", 1, 20, 150) == (110, 0, 0, 20)
    assert waits.split((UP, 7), "d", 1, 20, 90) == (70, 0, 0, 0)


def test_holds_count_for_those_who_are_held() -> None:
    """A queue, a sender and a row; what overlaps counts once, and what is offline stays so."""
    waits = waits_of((0, 0), (60, PUMP_OFFLINE), (80, 0))
    key = (UP, 3)
    waits.hold(key, "d", 10, begins=True)
    waits.hold(key, None, 20, begins=True)
    waits.hold(key, None, 40, begins=False)
    waits.hold(key, "d", 30, begins=False)
    waits.hold(key, 8, 50, begins=True)
    assert waits.split(key, "d", 7, 0, 100) == (20, 50, 30, 0)
    assert waits.split(key, "e", 7, 0, 100) == (20, 60, 20, 0)
    assert waits.split(key, "e", 8, 0, 100) == (20, 30, 50, 0)


def test_the_time_in_which_the_hub_did_not_run_is_offline() -> None:
    """From its end to the first word of its pump."""
    waits = waits_of((0, 0))
    waits.hold((UP, 1), "d", 40, begins=True)
    waits.stop(50)
    waits.change(UP, PUMP_IDLE, 90)
    assert waits.split((UP, 1), "d", 1, 0, 100) == (40, 40, 10, 10)


def test_time_off_that_is_known_later_is_offline() -> None:
    """What happened before moves back, what rows of this life waited for stays."""
    waits = waits_of((0, 0))
    waits.hold((UP, 1), "d", 10, begins=True)
    waits.hold((UP, 1), "d", 20, begins=False)
    waits.stop(50)
    waits.change(UP, 0, 60)
    waits.age(55, 1000)
    assert waits.split((UP, 1), "d", 1, -1000, 100) == (1010, 80, 10, 0)
    assert waits.split((UP, 1), "d", 1, 60, 100) == (0, 40, 0, 0)


def test_time_off_begins_where_a_crash_has_ended_a_life() -> None:
    """Hub time goes on from there: not a moment of the power-off counts as something else."""
    waits = waits_of((0, 0))
    waits.stop(100)
    waits.age(100, 1000)
    assert waits.split((UP, 0), "d", 1, -950, 100) == (1000, 0, 0, 50)
    waits.change(UP, 0, 130)
    waits = Waits.load(json.loads(json.dumps(waits.document())))
    assert waits.split((UP, 0), "d", 1, -950, 150) == (1030, 0, 0, 70)
    assert waits.split((UP, 0), "d", 1, 120, 150) == (10, 0, 0, 20)


def test_the_parts_add_up_however_long_the_history() -> None:
    """Random histories beyond the bound: the sum is exact, and the memory bounded."""
    dice = random.Random(5)
    waits, exact = Waits(), []
    at_ms = 0
    for _ in range(20 * POINTS_MAX):
        state = dice.choice([PUMP_OFFLINE, PUMP_PAUSED, 0, 3, PUMP_DEFAULT, PUMP_IDLE])
        waits.change(UP, state, at_ms)
        exact.append((at_ms, state))
        at_ms += dice.randrange(1, 50)
    for index in range(2000):
        waits.hold((UP, 5), f"d{index % 7}", index * 10, begins=index % 2 == 0)
    for _ in range(300):
        begin = dice.randrange(at_ms)
        end = dice.randrange(begin, at_ms + 1)
        split = waits.split((UP, 5), "d1", 1, begin, end)
        assert sum(split) == end - begin
        assert min(split) >= 0
    whole = waits.split((UP, 0), "d1", 1, 0, at_ms)
    times = [*exact, (at_ms, 0)]
    offline = sum(
        later - at for (at, state), (later, _) in pairwise(times) if state == PUMP_OFFLINE
    )
    assert whole[0] == offline
    courses, held = waits.document()
    assert all(len(course[1]) <= POINTS_MAX for course in courses.values())
    assert all(len(intervals) <= INTERVALS_MAX for *_, intervals in held)


def test_a_stored_history_is_the_same() -> None:
    """Document and back, over JSON."""
    waits = waits_of((0, 0), (20, PUMP_IDLE), (35, 2), (70, PUMP_OFFLINE))
    waits.hold((UP, 5), "d", 40, begins=True)
    again = Waits.load(json.loads(json.dumps(waits.document())))
    for at_ms in range(0, 90, 7):
        assert again.split((UP, 5), "d", 1, at_ms, 90) == waits.split((UP, 5), "d", 1, at_ms, 90)


def test_the_newest_points_are_exact() -> None:
    """What had to be dropped is old."""
    course = Course(0)
    for at_ms in range(1, 4 * POINTS_MAX):
        course.change(0 if at_ms % 2 else PUMP_IDLE, at_ms * 10)
    last = 10 * (4 * POINTS_MAX - 1)
    before, after = course.sums(last - 40), course.sums(last)
    assert after[3] - before[3] == 20
