"""The module input endpoint on a manual clock with scripted sessions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.endpoints.module_input import ROWS_IN_FLIGHT_MAX, ModuleInputEndpoint
from edgehub.message import DELIVERED, FailureKind, Message, SendResult
from tests.support.memory_queue import a_row
from tests.support.recording_listener import RecordingListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class ScriptedSessions:
    """One module whose connection and answers the test decides."""

    def __init__(self) -> None:
        self.connected = False
        self.changed: Callable[[bool], None] = lambda _connected: None
        self.delivered: list[tuple[Message, Callable[[SendResult], None]]] = []
        self.expiries: list[int | None] = []

    def is_connected(self, module_id: str, input_name: str) -> bool:
        """See `ModuleSessions`."""
        assert (module_id, input_name) == ("filter", "in1")
        return self.connected

    def watch(self, module_id: str, input_name: str, changed: Callable[[bool], None]) -> None:
        """See `ModuleSessions`."""
        assert (module_id, input_name) == ("filter", "in1")
        self.changed = changed

    def deliver(
        self,
        module_id: str,
        input_name: str,
        message: Message,
        settle: Callable[[SendResult], None],
        *,
        expires_in_ms: int | None,
    ) -> None:
        """See `ModuleSessions`."""
        assert (module_id, input_name) == ("filter", "in1")
        self.delivered.append((message, settle))
        self.expiries.append(expires_in_ms)

    def unsent_bytes(self, module_id: str) -> int:
        """See `ModuleSessions`."""
        assert module_id == "filter"
        return 42


class Parts:
    """An endpoint that runs, and what is around it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sessions = ScriptedSessions()
        self.listener = RecordingListener()
        self.now_ms = 5_000
        self.endpoint = ModuleInputEndpoint(
            "filter", "in1", self.sessions, clock=self.clock, now_ms=lambda: self.now_ms
        )


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    """Run an endpoint for the length of a test."""
    parts = Parts()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(parts.endpoint.run(parts.listener))
            await parts.clock.advance(0)
            yield parts
            task.cancel()


async def test_the_link_follows_the_module(parts: Parts) -> None:
    """Up when connected and subscribed, down with a reason, and each change is told once."""
    assert parts.endpoint.id == "modules/filter/inputs/in1"
    assert parts.endpoint.state == "down"
    parts.sessions.changed(True)
    parts.sessions.changed(True)
    assert parts.endpoint.state == "up"
    assert parts.listener.rows_max == ROWS_IN_FLIGHT_MAX
    parts.sessions.changed(False)
    assert parts.listener.links == ["up", "down: module not connected or not subscribed"]
    assert parts.endpoint.unsent_bytes() == 42


async def test_a_module_that_was_there_first_is_noticed() -> None:
    """An endpoint that starts late finds the link up."""
    parts = Parts()
    parts.sessions.connected = True
    async with asyncio.TaskGroup() as group:
        task = group.create_task(parts.endpoint.run(parts.listener))
        await parts.clock.advance(0)
        assert parts.listener.links == ["up"]
        task.cancel()


async def test_a_row_is_delivered_after_the_modules_puback(parts: Parts) -> None:
    """The module's answer settles the row it belongs to."""
    parts.sessions.changed(True)
    parts.endpoint.send_batch([a_row(1), a_row(2)], parts.listener.settle)
    assert parts.listener.results == {}
    parts.sessions.delivered[1][1](DELIVERED)
    assert list(parts.listener.results) == [2]
    refused = SendResult(FailureKind.REJECTED, "no")
    parts.sessions.delivered[0][1](refused)
    assert parts.listener.results[1] is refused


async def test_rows_in_flight_come_back_when_the_module_goes(parts: Parts) -> None:
    """Disconnected once; a late answer changes nothing."""
    parts.sessions.changed(True)
    parts.endpoint.send_batch([a_row(1)], parts.listener.settle)
    parts.sessions.changed(False)
    assert parts.listener.results[1].kind is FailureKind.DISCONNECTED
    parts.sessions.delivered[0][1](DELIVERED)
    assert parts.listener.results[1].kind is FailureKind.DISCONNECTED


async def test_a_silent_module_times_out(parts: Parts) -> None:
    """30 s without PUBACK is a time-out of that row; younger ones wait on."""
    parts.sessions.changed(True)
    parts.endpoint.send_batch([a_row(1)], parts.listener.settle)
    await parts.clock.advance(20)
    parts.endpoint.send_batch([a_row(2)], parts.listener.settle)
    await parts.clock.advance(10)
    assert {offset: result.kind for offset, result in parts.listener.results.items()} == {
        1: FailureKind.TIMEOUT
    }
    parts.sessions.delivered[1][1](DELIVERED)
    await parts.clock.advance(60)
    assert parts.listener.results[2].kind is None


async def test_closing_settles_what_is_in_flight(parts: Parts) -> None:
    """A hub that stops leaves no row without a result."""
    parts.sessions.changed(True)
    parts.endpoint.send_batch([a_row(1)], parts.listener.settle)
    await parts.endpoint.close()
    result = parts.listener.results[1]
    assert (result.kind, result.reason) == (FailureKind.DISCONNECTED, "closed by this hub")


async def test_what_is_left_of_its_time_goes_with_a_row(parts: Parts) -> None:
    """The listener learns how long a row may still live; a row without end has none."""
    parts.sessions.changed(True)
    rows = [a_row(1), a_row(2, expires_ms=7_500), a_row(3, expires_ms=4_000)]
    parts.endpoint.send_batch(rows, parts.listener.settle)
    assert parts.sessions.expiries == [None, 2_500, -1_000]
