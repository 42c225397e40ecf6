"""Calls of direct methods on a manual clock: time-outs, ways, bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from edgehub.clock import ManualClock
from edgehub.methods.methods import (
    CALLS_MAX,
    PAYLOAD_BYTES_MAX,
    MethodCall,
    MethodError,
    MethodNotConnectedError,
    Methods,
    MethodTimeoutError,
    failure_document,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Way(NamedTuple):
    """A connection by which a client is reached."""

    listener: str
    client_id: str


class Ways:
    """Ways that the test opens, and what was sent on them."""

    def __init__(self) -> None:
        self.open: list[Way] = []
        self.sent: list[tuple[Way, MethodCall, str]] = []
        self.failed: dict[str, Callable[[bool], None]] = {}

    def ways(self, client_id: str) -> list[Way]:
        """Return the open ways to a client."""
        return [way for way in self.open if way.client_id == client_id]

    def call(
        self, way: Way, call: MethodCall, request_id: str, failed: Callable[[bool], None]
    ) -> None:
        """Record a call."""
        self.sent.append((way, call, request_id))
        self.failed[request_id] = failed


class Bench:
    """Methods with scripted ways."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ways = Ways()
        self.owners: dict[str, str] = {}
        self.methods = Methods(self.ways, self.clock, self.owner)
        self.own = Way("d", "d")

    async def owner(self, device_id: str) -> str | None:
        """Return the other hub that owns a device."""
        return self.owners.get(device_id)

    async def begin(self, **given: Any) -> asyncio.Task[Any]:
        """Begin a call and let it get as far as it can."""
        call = MethodCall.parse({"methodName": "m", **given})
        task = asyncio.create_task(self.methods.call("d", call))
        await turns()
        return task

    def answer(
        self,
        status: str = "200",
        payload: bytes = b"1",
        way: Way | None = None,
        *,
        failed: bool = False,
    ) -> None:
        """Answer the last call."""
        sent_way, _, request_id = self.ways.sent[-1]
        self.methods.answered(way or sent_way, request_id, status, payload, failed=failed)

    async def after(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.advance(seconds)
        await turns()


async def turns() -> None:
    """Give all tasks their turns."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> Bench:
    """Return methods of a client that is connected."""
    bench = Bench()
    bench.ways.open.append(bench.own)
    return bench


async def test_an_answer_ends_a_call(bench: Bench) -> None:
    """The first answer by the way of the call counts, any other does not."""
    task = await bench.begin()
    bench.answer("200", b'"forged"', Way("x", "d"))
    bench.answer("201", b'"right"')
    bench.answer("202", b'"late"')
    assert await task == (201, b'"right"')
    assert bench.methods.open_calls == 0


async def test_silence_ends_a_call_after_its_response_time(bench: Bench) -> None:
    """Not before; an answer after it changes nothing."""
    task = await bench.begin(responseTimeoutInSeconds=7)
    await bench.after(6.9)
    assert not task.done()
    await bench.after(0.2)
    bench.answer()
    with pytest.raises(MethodTimeoutError, match="within 7 s"):
        await task
    assert (bench.methods.calls_total, bench.methods.failed_total) == (1, 1)


async def test_the_response_time_begins_once_a_client_is_connected(bench: Bench) -> None:
    """Time spent waiting for the client is not counted against its answer."""
    bench.ways.open.clear()
    task = await bench.begin(connectTimeoutInSeconds=20, responseTimeoutInSeconds=5)
    await bench.after(19)
    bench.methods.listening_changed("other", True)
    await turns()
    assert bench.ways.sent == []
    bench.ways.open.append(bench.own)
    bench.methods.listening_changed("d", True)
    await turns()
    await bench.after(4)
    bench.answer()
    assert (await task).status == 200


async def test_a_client_that_does_not_connect_is_not_found(bench: Bench) -> None:
    """After the connect time; without one at once."""
    bench.ways.open.clear()
    task = await bench.begin(connectTimeoutInSeconds=20)
    await bench.after(20.1)
    with pytest.raises(MethodNotConnectedError):
        await task
    with pytest.raises(MethodNotConnectedError):
        await (await bench.begin())


async def test_another_way_is_tried_only_if_the_first_cannot_have_reached_the_client(
    bench: Bench,
) -> None:
    """What was not sent is sent elsewhere; what may have been is not sent twice."""
    bench.ways.open.append(Way("hub", "d"))
    task = await bench.begin()
    bench.ways.failed[bench.ways.sent[-1][2]](False)
    await turns()
    assert [way.listener for way, _, _ in bench.ways.sent] == ["d", "hub"]
    bench.ways.failed[bench.ways.sent[-1][2]](True)
    with pytest.raises(MethodTimeoutError, match="disconnected"):
        await task
    assert len(bench.ways.sent) == 2


async def test_a_connection_that_ends_ends_its_calls(bench: Bench) -> None:
    """Those of other connections go on."""
    task = await bench.begin()
    bench.methods.listening_changed("other", False)
    await turns()
    assert not task.done()
    bench.methods.listening_changed("d", False)
    with pytest.raises(MethodTimeoutError, match="d disconnected"):
        await task


@pytest.mark.parametrize(
    ("status", "payload", "said"),
    [
        ("x", b"", "'x'"),
        ("-1", b"", "status"),
        ("1" * 11, b"", "status"),
        ("200", b"x" * (PAYLOAD_BYTES_MAX + 1), "131073 bytes"),
    ],
)
async def test_a_bad_answer_is_an_error_of_the_call(
    bench: Bench, status: str, payload: bytes, said: str
) -> None:
    """The caller knows what was wrong with it."""
    task = await bench.begin()
    bench.answer(status, payload)
    with pytest.raises(MethodError, match=said):
        await task


@pytest.mark.parametrize("error", [MethodTimeoutError("silent"), MethodError(413, "too large")])
async def test_a_failure_behind_a_hub_is_that_of_the_call(bench: Bench, error: MethodError) -> None:
    """It is an error with the same status and reason, and no answer of the client."""
    task = await bench.begin()
    bench.answer(str(error.status), failure_document(error), failed=True)
    with pytest.raises(type(error), match=str(error)) as caught:
        await task
    assert caught.value.status == error.status


async def test_a_hub_behind_which_a_client_is_not_is_passed_over(bench: Bench) -> None:
    """The next one is called; without another one the call fails as it did there."""
    bench.ways.open[:] = [Way("north", "d"), Way("south", "d")]
    absent = failure_document(MethodNotConnectedError("d is away"))
    task = await bench.begin()
    bench.answer("404", absent, failed=True)
    await turns()
    bench.answer("200")
    assert (await task).status == 200
    task = await bench.begin()
    for _ in range(2):
        bench.answer("404", absent, failed=True)
        await turns()
    with pytest.raises(MethodNotConnectedError, match="d is away"):
        await task


@pytest.mark.parametrize(
    ("status", "payload", "outcome"),
    [("404", b"[]", "no reason"), ("504", b"no JSON", "no reason"), ("999", b"1", (999, b"1"))],
)
async def test_a_failure_without_a_reason_or_a_known_status(
    bench: Bench, status: str, payload: bytes, outcome: object
) -> None:
    """What a hub says may be anything."""
    task = await bench.begin()
    bench.answer(status, payload, failed=True)
    if isinstance(outcome, str):
        with pytest.raises(MethodError, match=outcome):
            await task
    else:
        assert await task == outcome


async def test_a_client_of_another_hub_is_named_with_it(bench: Bench) -> None:
    """The caller learns where to call."""
    bench.ways.open.clear()
    bench.owners["d"] = "hub-b"
    with pytest.raises(MethodNotConnectedError, match="hub-b"):
        await (await bench.begin())


async def test_open_calls_are_bounded(bench: Bench) -> None:
    """The next one is refused at once; one that is cancelled makes room."""
    tasks = [await bench.begin() for _ in range(3)]
    more = MethodCall(name="m")
    tasks += [
        asyncio.create_task(bench.methods.call("d", more)) for _ in range(CALLS_MAX - len(tasks))
    ]
    await turns()
    with pytest.raises(MethodError, match="open") as caught:
        await bench.methods.call("d", more)
    assert caught.value.status == 429
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bench.methods.open_calls == 0
    task = await bench.begin()
    bench.answer()
    assert (await task).status == 200
