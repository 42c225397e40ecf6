"""The queue of one device: turns, bounds, cancellation."""

import asyncio

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.faults import DeviceQueueFullError
from edgehub.devices.request_queue import DeviceRequestQueue, RequestKind
from edgehub.lab.simulation.virtual_time import StandstillError, run_on


def a_queue(clock: ManualClock, waiting_max: int = 8) -> DeviceRequestQueue:
    """Make a queue."""
    return DeviceRequestQueue("d", clock, waiting_max=waiting_max)


def test_operations_run_one_at_a_time_in_their_order():
    """Each ends before the next begins, and gives its result to its caller."""
    clock, log = ManualClock(), []

    async def main():
        queue = a_queue(clock)

        async def operation(name):
            log.append(f"{name} begins")
            await clock.sleep(1)
            log.append(f"{name} ends")
            return name

        async with asyncio.TaskGroup() as tasks:
            runs = [
                tasks.create_task(queue.run(RequestKind.DATA, lambda n=n: operation(n)))
                for n in "abc"
            ]
        assert [run.result() for run in runs] == ["a", "b", "c"]
        assert queue.is_idle
        assert queue.statistics().done == 3
        assert queue.statistics().waited_s_max == 2

    run_on(clock, main())
    assert log == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_an_error_goes_to_its_caller_and_the_next_operation_runs():
    """The queue goes on behind a failure."""
    clock = ManualClock()

    async def main():
        queue = a_queue(clock)

        async def fail():
            await clock.sleep(1)
            raise ZeroDivisionError

        async def succeed():
            return 1

        failed, done = await asyncio.gather(
            queue.run(RequestKind.DATA, fail),
            queue.run(RequestKind.JOIN, succeed),
            return_exceptions=True,
        )
        assert isinstance(failed, ZeroDivisionError)
        assert done == 1
        assert queue.statistics().failed == 1

    run_on(clock, main())


def test_a_full_queue_refuses_and_shows_what_it_holds():
    """More than the bound never waits; the statistics name what runs and what waits."""
    clock = ManualClock()

    async def main():
        queue = a_queue(clock, waiting_max=2)
        async with asyncio.TaskGroup() as tasks:
            for kind in (RequestKind.LOAD, RequestKind.DATA, RequestKind.CLOSE):
                tasks.create_task(queue.run(kind, lambda: clock.sleep(1)))
            await clock.sleep(0.5)
            with pytest.raises(DeviceQueueFullError, match="2 operations wait"):
                await queue.run(RequestKind.DATA, lambda: clock.sleep(1))
            shown = queue.statistics()
            assert (shown.running, shown.running_s) == (RequestKind.LOAD, 0.5)
            assert shown.waiting == (RequestKind.DATA, RequestKind.CLOSE)
            assert shown.refused == 1
        assert queue.is_idle

    run_on(clock, main())


@pytest.mark.parametrize("turns", range(1, 13))
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_turn_is_never_lost(victim, turns):
    """Whoever is cancelled at whatever step, all others run, once, in order."""
    clock, done = ManualClock(), []

    async def main():
        queue = a_queue(clock)

        async def operation(number):
            for _ in range(2):
                await asyncio.sleep(0)
            done.append(number)

        async with asyncio.TaskGroup() as tasks:
            runs = [
                tasks.create_task(queue.run(RequestKind.DATA, lambda n=n: operation(n)))
                for n in range(4)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            runs[victim].cancel()
        assert queue.is_idle
        assert queue.statistics().waiting == ()
        assert queue.statistics().cancelled == runs[victim].cancelled()

    run_on(clock, main())
    assert [n for n in done if n != victim] == [n for n in range(4) if n != victim]


def test_the_loop_of_simulations_ends_what_would_wait_for_ever():
    """A run in which nothing will ever happen is an error."""

    async def main():
        await asyncio.Event().wait()

    with pytest.raises(StandstillError):
        run_on(ManualClock(), main())


def test_a_call_runs_at_once_on_an_idle_queue_and_in_its_turn_on_a_busy_one():
    """Calls keep their place among operations; one made by a call comes behind what waits."""
    clock, log = ManualClock(), []

    async def main():
        queue = a_queue(clock, waiting_max=2)

        def call():
            log.append(f"call while {queue.statistics().running}")
            queue.call(RequestKind.DATA, lambda: log.append("call of a call"))

        queue.call(RequestKind.DATA, call)
        assert log == ["call while data", "call of a call"]
        log.clear()

        async def operation(name):
            log.append(f"{name} begins")
            await clock.sleep(1)
            log.append(f"{name} ends")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.run(RequestKind.TWIN_PATCH, lambda: operation("patch")))
            await asyncio.sleep(0)
            queue.call(RequestKind.DOWNLINK, call)
            tasks.create_task(queue.run(RequestKind.METHOD, lambda: operation("method")))
            await asyncio.sleep(0)
            shown = queue.statistics()
            assert shown.waiting == (RequestKind.DOWNLINK, RequestKind.METHOD)
            assert log == ["patch begins"]
        assert queue.is_idle
        assert queue.statistics().done == 6

    run_on(clock, main())
    assert log == [
        *("patch begins", "patch ends", "call while downlink"),
        *("method begins", "method ends", "call of a call"),
    ]


def test_a_call_that_fails_leaves_those_behind_it_their_turns():
    """Its error is raised where it ran; the calls and the operation behind it run."""
    clock, log = ManualClock(), []

    async def main():
        queue = a_queue(clock)

        def fail():
            raise ZeroDivisionError

        async def begin():
            await clock.sleep(1)

        async def end():
            log.append("operation")

        first = asyncio.create_task(queue.run(RequestKind.LOAD, begin))
        await asyncio.sleep(0)
        queue.call(RequestKind.DATA, fail)
        queue.call(RequestKind.DATA, lambda: log.append("call"))
        last = asyncio.create_task(queue.run(RequestKind.CLOSE, end))
        with pytest.raises(ZeroDivisionError):
            await first
        await last
        assert queue.is_idle
        assert (queue.statistics().failed, queue.statistics().done) == (1, 3)

    run_on(clock, main())
    assert log == ["call", "operation"]


def test_calls_have_no_part_in_the_bound():
    """A device may have more messages under way than operations may wait, and none is refused."""
    clock, taken = ManualClock(), []

    async def main():
        queue = a_queue(clock, waiting_max=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.run(RequestKind.TWIN_READ, lambda: clock.sleep(1)))
            await asyncio.sleep(0)
            for number in range(100):
                queue.call(RequestKind.DATA, lambda n=number: taken.append(n))
            tasks.create_task(queue.run(RequestKind.CLOSE, lambda: clock.sleep(1)))
            await asyncio.sleep(0)
            assert taken == []
            with pytest.raises(DeviceQueueFullError, match="1 operations wait"):
                await queue.run(RequestKind.CLOSE, lambda: clock.sleep(1))

    run_on(clock, main())
    assert taken == list(range(100))


@pytest.mark.parametrize("turns", range(1, 9))
def test_a_cancelled_caller_lets_the_calls_behind_it_run(turns):
    """Wherever an operation is cancelled, the calls behind it run once, in order."""
    clock, done = ManualClock(), []

    async def main():
        queue = a_queue(clock)

        async def operation():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.run(RequestKind.LOAD, operation))
            await asyncio.sleep(0)
            victim = tasks.create_task(queue.run(RequestKind.METHOD, operation))
            await asyncio.sleep(0)
            for number in range(3):
                queue.call(RequestKind.DATA, lambda n=number: done.append(n))
            for _ in range(turns):
                await asyncio.sleep(0)
            victim.cancel()
        assert queue.is_idle

    run_on(clock, main())
    assert done == [0, 1, 2]
