"""The queues of all devices: one per device, messages through them, eviction."""

import asyncio

from edgehub.clock import ManualClock
from edgehub.devices.request_queue import RequestKind
from edgehub.devices.request_queues import RequestQueues
from edgehub.lab.simulation.virtual_time import run_on
from edgehub.message import Message


def a_message(device_id: str, body: bytes = b"") -> Message:
    """Make a message."""
    return Message(device_id, None, "/messages/", {}, {}, body)


class Router:
    """Takes messages."""

    def __init__(self) -> None:
        self.bodies = []

    def submit(self, message, settle, token) -> None:
        """Take a message, and settle it at once."""
        self.bodies.append(message.body)
        settle(token, None)


def test_a_message_of_an_idle_device_is_handed_on_in_the_same_call():
    """There is neither a task nor a turn, and the message is counted."""
    queues, router, settled = RequestQueues(ManualClock()), Router(), []
    submit = queues.submitter(router.submit)
    submit(a_message("d", b"1"), lambda token, refusal: settled.append((token, refusal)), 7)
    assert (router.bodies, settled) == ([b"1"], [(7, None)])
    shown = queues.statistics()
    assert (shown.queues, shown.at_once, shown.in_turn) == (1, 1, 0)
    assert queues.known("d").statistics().done == 1


def test_messages_wait_for_an_operation_of_their_device_and_for_no_other():
    """What is asked of a device and what it sends keep one order; other devices go on."""
    clock, router = ManualClock(), Router()
    queues = RequestQueues(clock)
    submit = queues.submitter(router.submit)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queues.run("d", RequestKind.TWIN_PATCH, lambda: clock.sleep(1)))
            await asyncio.sleep(0)
            for device_id, body in (("d", b"1"), ("e", b"2"), ("d", b"3")):
                submit(a_message(device_id, body), lambda *_: None, 0)
            assert router.bodies == [b"2"]
            assert queues.known("d").statistics().waiting == (RequestKind.DATA,) * 2
            assert (queues.statistics().busy, queues.statistics().waiting) == (1, 2)

    run_on(clock, main())
    assert router.bodies == [b"2", b"1", b"3"]
    assert (queues.statistics().at_once, queues.statistics().in_turn) == (1, 2)


def test_idle_queues_are_evicted_and_those_in_use_stay():
    """A queue that runs something, or that an object uses, is the only one of its device."""
    clock, router = ManualClock(), Router()
    queues = RequestQueues(clock, queues_max=3)
    submit = queues.submitter(router.submit)

    async def main():
        held = queues.of("held")
        held.held = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queues.run("busy", RequestKind.METHOD, lambda: clock.sleep(1)))
            await asyncio.sleep(0)
            busy = queues.known("busy")
            for number in range(5):
                submit(a_message(f"d{number}"), lambda *_: None, 0)
            assert queues.known("held") is held
            assert queues.known("busy") is busy
        assert len(router.bodies) == 5
        assert queues.statistics().queues == 3
        assert queues.statistics().at_once == 5

    run_on(clock, main())
