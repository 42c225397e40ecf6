"""How fast queues fill, from totals looked at from time to time."""

from __future__ import annotations

import asyncio

import pytest

from edgehub.clock import ManualClock
from edgehub.message import QueueId
from edgehub.operations.forecast.rates import SAMPLE_S, SPAN_S, QueueRates

QUEUE = QueueId("upstream")


@pytest.fixture
async def measured():
    """Return rates that run on a manual clock, and the totals they look at."""
    clock, totals = ManualClock(), {QUEUE: (1_000, 50_000)}
    rates = QueueRates(clock, lambda: totals)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rates.run())
        await clock.advance(0)
        yield clock, totals, rates
        task.cancel()


async def test_nothing_is_said_before_it_was_measured(measured):
    """No rate, and not zero, until the first span has passed."""
    clock, _, rates = measured
    assert rates.rates() == {}
    await clock.advance(SAMPLE_S / 2)
    assert rates.rates() == {}


async def test_what_was_there_before_does_not_count(measured):
    """A rate is the difference over the span that was watched."""
    clock, totals, rates = measured
    totals[QUEUE] = (1_100, 70_000)
    await clock.advance(20)
    rate = rates.rates()[QUEUE]
    assert (rate.rows_s, rate.bytes_s, rate.measured_s) == (5, 1_000, 20)


async def test_a_queue_that_appears_counts_from_nothing(measured):
    """Its totals began at zero while it was not there."""
    clock, totals, rates = measured
    await clock.advance(30)
    totals[QueueId("lab")] = (10, 400)
    await clock.advance(10)
    assert rates.rates()[QueueId("lab")].bytes_s == 10


async def test_the_last_minutes_count(measured):
    """Old traffic is forgotten, and the samples are bounded."""
    clock, totals, rates = measured
    totals[QUEUE] = (2_000, 1_000_000)
    await clock.advance(2 * SPAN_S)
    rate = rates.rates()[QUEUE]
    assert rate.bytes_s == 0
    assert rate.measured_s <= SPAN_S + SAMPLE_S
    assert len(rates._samples) <= SPAN_S / SAMPLE_S + 1  # noqa: SLF001 - the bound itself


async def test_the_last_seconds_alone_can_be_asked_for(measured):
    """What came before them is not in the figure, though it is in that of the minutes."""
    clock, totals, rates = measured
    totals[QUEUE] = (2_000, 1_000_000)
    await clock.advance(SAMPLE_S)
    assert rates.rates(60)[QUEUE].bytes_s > 0
    await clock.advance(70)
    assert rates.rates(60)[QUEUE].bytes_s == 0
    assert rates.rates()[QUEUE].bytes_s > 0
