"""The watch over a silent HTTP peer, on a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from edgehub.clock import ManualClock
from edgehub.endpoints import http_slot
from edgehub.endpoints.http_link import Answer, HttpLinkError, HttpLinkOptions
from edgehub.endpoints.http_outbox import OutboxRow
from edgehub.endpoints.http_slot import HttpSlot
from edgehub.message import FailureKind, SendResult
from tests.support.memory_queue import a_row

TIMEOUT_S = 40.0


class SilentLink:
    """A connection that takes a request whole and gives no answer."""

    is_open = True
    received_bytes = 0

    def __init__(self) -> None:
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def unsent_bytes(self) -> int:
        """Return that all has left."""
        return 0

    async def request(self, body: bytes, headers: str) -> Answer:
        """Wait for an answer that never comes."""
        del body, headers
        return await self._answer

    def abort(self, reason: str) -> None:
        """Fail the request."""
        self._answer.set_exception(HttpLinkError(reason))


async def test_time_of_connecting_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer has the whole time-out from the moment at which it can answer."""
    connected = asyncio.Event()

    async def opens(_options: HttpLinkOptions) -> SilentLink:
        await connected.wait()
        return SilentLink()

    monkeypatch.setattr(http_slot, "open_link", opens)
    clock = ManualClock()
    settled: list[SendResult] = []
    slot = HttpSlot(HttpLinkOptions(url="http://peer/"), clock=clock, timeout_s=TIMEOUT_S)
    slot.rows = [
        OutboxRow(a_row(number), b"{}", lambda _row, result: settled.append(result))
        for number in (1, 2)
    ]
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(_fails(slot))
        await clock.advance(TIMEOUT_S - 1)
        connected.set()
        await clock.advance(30)
        assert settled == []
        await clock.advance(TIMEOUT_S / 4)
        (result,) = settled
        assert (result.kind, result.reason) == (FailureKind.TIMEOUT, "no answer for 40 s")
    assert request.result() == "no answer for 40 s"


async def _fails(slot: HttpSlot) -> str:
    with pytest.raises(HttpLinkError) as failed:
        await slot.request(b"[]")
    return failed.value.reason
