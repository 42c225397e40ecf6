"""When queues will be empty: strict priority, never, and what is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.message import QueueId
from edgehub.operations.forecast.queues import DrainState, LinkRate, QueueLoad, drains, leaves

UP = LinkRate(is_up=True, bytes_s=1000.0)


def a_load(name: str, waiting: int, inflow: float | None = 0.0) -> QueueLoad:
    """Build the load of a queue."""
    return QueueLoad(id=QueueId(name), bytes=waiting, inflow_bytes_s=inflow)


def test_a_queue_waits_for_what_better_ones_hold_and_take_in() -> None:
    """Backlog so far over what the link has left beside all that comes in so far."""
    found = drains([a_load("p0", 1000, 100), a_load("p7", 3000, 400)], UP)
    assert found[QueueId("p0")].seconds == pytest.approx(1000 / 900)
    assert found[QueueId("p7")].seconds == pytest.approx(4000 / 500)


def test_a_load_that_the_link_cannot_carry_never_ends() -> None:
    """Only the queues at and behind the one that fills the link; an empty one is empty."""
    found = drains(
        [a_load("p0", 10, 500), a_load("p2", 10, 500), a_load("p7", 10), a_load("p9", 0, 50)], UP
    )
    states = [found[QueueId(name)].state for name in ("p0", "p2", "p7", "p9")]
    assert states == [DrainState.DRAINS, DrainState.NEVER, DrainState.NEVER, DrainState.EMPTY]


@pytest.mark.parametrize(
    ("link", "inflow", "state"),
    [
        (LinkRate(is_up=False, bytes_s=1000), 0.0, DrainState.OFFLINE),
        (LinkRate(is_up=False, bytes_s=None, is_served=False), None, DrainState.UNSERVED),
        (LinkRate(is_up=True, bytes_s=None), 0.0, DrainState.UNKNOWN),
        (UP, None, DrainState.UNKNOWN),
    ],
)
def test_nothing_is_guessed(link: LinkRate, inflow: float | None, state: DrainState) -> None:
    """Without a link, or before the first measurement, there is no time."""
    assert drains([a_load("p0", 10, inflow)], link)[QueueId("p0")].state is state


def test_a_row_does_not_wait_for_what_its_own_queue_takes_in_later() -> None:
    """Before it: better queues with their inflow, and its own queue up to it."""
    loads = [a_load("p0", 1000, 500), a_load("p7", 9000, 5000)]
    assert leaves(loads, QueueId("p7"), 250, UP).seconds == pytest.approx(1250 / 500)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 2000)), min_size=1, max_size=11))
def test_a_better_queue_is_never_empty_later_than_a_worse_one(
    loads: list[tuple[int, float]],
) -> None:
    """Times rise with the priority's number, and never comes last."""
    found = drains([a_load(str(at), *load) for at, load in enumerate(loads)], UP)
    waits = [found[QueueId(str(at))] for at, load in enumerate(loads) if load[0]]
    never = [drain.state is DrainState.NEVER for drain in waits]
    assert never == sorted(never)
    times = [drain.seconds for drain in waits if drain.seconds is not None]
    assert times == sorted(times)
