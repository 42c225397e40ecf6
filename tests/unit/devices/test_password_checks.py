"""The order of password checks: fair between addresses and identities, bounded, cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edgehub.devices.password_checks import (
    THREADS_MAX,
    WAITING_MAX,
    PasswordChecks,
    TooManyChecksError,
)


class Bench:
    """Checks that end when they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.checks = PasswordChecks()
        self.began: list[str] = []
        self._go = threading.Event()
        self.tasks: list[asyncio.Task[bool]] = []

    def _check(self, name: bytes) -> bool:
        self._go.wait(10)
        self.began.append(name.decode())
        return True

    async def _run(self, address: str, identity_id: str, name: str) -> bool:
        await self.checks.turn(address, identity_id, lambda: None)
        return await self.checks.run(self._check, name.encode())

    async def ask(self, address: str, identity_id: str, name: str = "") -> asyncio.Task[bool]:
        """Begin a check, or let it wait."""
        name = name or f"{address} {identity_id}"
        task = asyncio.create_task(self._run(address, identity_id, name))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def fill(self) -> None:
        """Take every thread."""
        for _ in range(THREADS_MAX):
            await self.ask("first", "first")

    async def end(self) -> list[str]:
        """Release all checks; return those that began behind the first ones, in their order."""
        self._go.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.checks.close()
        return [name for name in self.began if not name.startswith("first")]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """One check at a time, so that their order can be told."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)


async def test_addresses_take_turns() -> None:
    """A flood from one address delays a client of another by one check."""
    bench = Bench()
    await bench.fill()
    for _ in range(20):
        await bench.ask("a", "")
    await bench.ask("b", "dev1")
    assert (await bench.end()).index("b dev1") <= 1


async def test_identities_of_an_address_take_turns() -> None:
    """Wrong ids of one address, as those of loopback, delay a known one of it by one check."""
    bench = Bench()
    await bench.fill()
    for _ in range(20):
        await bench.ask("127.0.0.1", "")
    await bench.ask("127.0.0.1", "dev1")
    assert (await bench.end()).index("127.0.0.1 dev1") <= 1


async def test_a_cancelled_check_is_not_begun() -> None:
    """Who has gone costs nothing any more, waiting or just given its turn."""
    bench = Bench()
    await bench.fill()
    gone = [await bench.ask("a", "", "gone") for _ in range(20)]
    await bench.ask("a", "dev1")
    for each in gone:
        each.cancel()
    assert await bench.end() == ["a dev1"]
    assert all(each.cancelled() for each in gone)


async def test_a_turn_that_comes_with_the_cancellation_goes_to_the_next() -> None:
    """The thread was given a moment before; it is free for the one that asks next."""
    checks = PasswordChecks()
    await checks.turn("a", "dev1", lambda: None)
    gone = asyncio.create_task(checks.turn("b", "dev2", lambda: None))
    await asyncio.sleep(0)
    checks.release()
    gone.cancel()
    await asyncio.wait({gone})
    waits: list[str] = []
    async with asyncio.timeout(1):
        await checks.turn("c", "dev3", lambda: waits.append("c"))
    assert (gone.cancelled(), waits) == (True, [])
    checks.close()


async def test_a_cancelled_check_that_runs_keeps_its_thread() -> None:
    """No more threads are used than there are, whatever callers do meanwhile."""
    bench = Bench()
    await bench.fill()
    for task in bench.tasks:
        task.cancel()
    await bench.ask("a", "dev1")
    await asyncio.sleep(0)
    assert bench.began == []
    assert await bench.end() == ["a dev1"]


async def test_checks_of_an_address_that_wait_are_bounded() -> None:
    """Beyond the bound the identity with most of them gives way, not one that comes later."""
    bench = Bench()
    await bench.fill()
    waiting = [await bench.ask("a", "", "flood") for _ in range(WAITING_MAX)]
    known = await bench.ask("a", "dev1")
    await asyncio.sleep(0)
    with pytest.raises(TooManyChecksError):
        await waiting[-1]
    assert not known.done()
    refused = await bench.ask("a", "", "flood")
    with pytest.raises(TooManyChecksError):
        await refused
    other = await bench.ask("b", "", "other")
    await bench.end()
    assert await known
    assert await other


async def test_many_identities_of_an_address_shut_out_none() -> None:
    """Each may have one check that waits, whatever the others do; second ones give way."""
    bench = Bench()
    await bench.fill()
    known = [f"dev{number}" for number in range(WAITING_MAX + 20)]
    firsts = [await bench.ask("a", each) for each in known]
    seconds = [await bench.ask("a", each, "flood") for each in known]
    last = await bench.ask("a", "right")
    await asyncio.sleep(0)
    assert not any(each.done() for each in (*firsts, last))
    for each in seconds:
        with pytest.raises(TooManyChecksError):
            await each
    assert await bench.end() == [f"a {each}" for each in (*known, "right")]


async def test_of_equal_identities_the_one_whose_turn_is_last_gives_way() -> None:
    """Not the one that has waited longest: nobody could wait that long."""
    bench = Bench()
    await bench.fill()
    waiting = [
        await bench.ask("a", f"dev{number % (WAITING_MAX // 2)}", f"check {number}")
        for number in range(WAITING_MAX)
    ]
    await bench.ask("a", "right")
    await asyncio.sleep(0)
    assert [number for number, each in enumerate(waiting) if each.done()] == [WAITING_MAX - 1]
    await bench.end()


async def test_a_check_cancelled_at_the_bound_gives_way() -> None:
    """One whose client has just gone is the one to go, and no fault of the hub."""
    bench = Bench()
    await bench.fill()
    gone = [await bench.ask("a", "", "gone") for _ in range(WAITING_MAX)]
    known = asyncio.create_task(bench.checks.turn("a", "dev1", lambda: None))
    for each in gone:
        each.cancel()
    assert await bench.end() == []
    await known
    assert all(each.cancelled() for each in gone)
