"""The state of a link and the wait for its next try, as all endpoints share it."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.endpoints.link_state import PARKED_RETRY_S, STABLE_S, LinkState
from edgehub.message import UPSTREAM
from tests.support.recording_listener import RecordingListener


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves."""
    return ManualClock()


@pytest.fixture
def link(clock: ManualClock) -> LinkState:
    """Return the state of a link that was never up."""
    return LinkState(UPSTREAM, clock=clock, rng=random.Random(1))


def test_states_and_what_the_listener_hears(link: LinkState) -> None:
    """`connecting` until the first success, `down` after it, `parked` when a person must act."""
    listener = RecordingListener()
    seen = [link.state]
    link.down("refused", listener)
    seen.append(link.state)
    link.trying()
    link.up()
    seen.append(link.state)
    link.down("lost", listener)
    seen.append(link.state)
    assert link.down("password", listener, parked=True) == PARKED_RETRY_S
    seen.append(link.state)
    link.closed()
    assert [*seen, link.state] == ["connecting", "connecting", "up", "down", "parked", "down"]
    assert listener.links == ["down: refused", "down: lost", "parked: password"]


async def test_back_off_grows_until_the_peer_does_its_work(
    link: LinkState, clock: ManualClock
) -> None:
    """A peer that lets us in and closes soon is not asked once a second for ever."""
    listener = RecordingListener()
    waits = []
    for _ in range(4):
        link.up()
        waits.append(link.down("lost", listener))
    assert waits == sorted(waits)
    assert waits[3] > 5
    link.up()
    link.worked()
    assert link.down("lost", listener) < 1.5
    for _ in range(4):
        link.down("refused", listener)
    link.up()
    await clock.advance(STABLE_S)
    assert link.down("lost", listener) < 1.5


async def test_a_link_that_worked_for_some_seconds_starts_over(
    link: LinkState, clock: ManualClock
) -> None:
    """After an outage of a minute: up for 1.5 s changes nothing, for 6 s it begins with 1 s."""
    listener = RecordingListener()
    for _ in range(6):
        link.down("refused", listener)
    link.up()
    await clock.advance(1.5)
    assert link.down("lost", listener) > 40
    link.up()
    await clock.advance(6)
    assert link.down("lost", listener) < 1.5


def test_a_state_of_affairs_gets_one_line(link: LinkState) -> None:
    """Not one for each try; a success in between makes the same reason news again."""
    listener = RecordingListener()
    with capture_logs() as lines:
        for reason in ("refused", "refused", "timeout", "timeout"):
            link.down(reason, listener)
        link.up()
        link.down("timeout", listener)
    events = [(line["event"], line.get("reason")) for line in lines]
    assert events == [
        ("endpoint.link_down", "refused"),
        ("endpoint.link_down", "timeout"),
        ("endpoint.link_up", None),
        ("endpoint.link_down", "timeout"),
    ]


async def test_a_wait_can_be_cut_short_unless_a_person_must_act(
    link: LinkState, clock: ManualClock
) -> None:
    """A fresh row shortens a back-off; a parked link waits, for its time or an operator's word."""
    listener = RecordingListener()
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            link.down("refused", listener)
        task = group.create_task(link.wait(link.down("refused", listener)))
        await clock.advance(0)
        assert link.retry_in_s is not None
        assert link.retry_in_s > 20
        link.retry_within(5)
        await clock.advance(5)
        assert task.done()
        task = group.create_task(link.wait(link.down("password", listener, parked=True)))
        await clock.advance(0)
        link.retry_within(5)
        await clock.advance(10)
        assert not task.done()
        link.retry_now()
        await clock.advance(0)
        assert task.done()


async def test_while_it_is_up_nothing_asks_for_another_try(
    link: LinkState, clock: ManualClock
) -> None:
    """What was said to a link that works does not shorten the wait after its end."""
    link.up()
    link.retry_now()
    link.retry_within(0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(link.wait(link.down("lost", RecordingListener())))
        await clock.advance(0)
        assert not task.done()
        await clock.advance(2)
        assert task.done()
