"""A disk and a clock whose timing a seed decides, so that a history runs the same way each time.

The file and SQLite are the real ones. Only the moments are chosen: how many turns of the loop a job
takes until it is done, and how many more until the loop hears of it.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from edgehub.clock import ManualClock
from edgehub.storage.sqlite_thread import JobResult
from tests.support.stores import FaultPlan, faulty_database

if TYPE_CHECKING:
    import random
    import sqlite3
    from collections.abc import Callable

    from edgehub.clock import TimerHandle
    from edgehub.store.database import Database

    Job = Callable[[sqlite3.Connection], Any]
    Start = Callable[[Job], asyncio.Future[Any]]

TURNS = (0, 0, 1, 3, 8)
WAKE_TURNS = 5
"""From the result of a job until the task that waits for it has gone on."""


class SteppedClock(ManualClock):
    """A manual clock that knows when its next timer is due."""

    def __init__(self) -> None:
        super().__init__()
        self._dues: list[float] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See `Clock`."""
        heapq.heappush(self._dues, self.monotonic() + max(0.0, seconds))
        return super().call_later(seconds, callback)

    async def advance_to_timer(self, end: float) -> bool:
        """Go on to the next timer, but not beyond `end`; False = there was none before it."""
        while self._dues and self._dues[0] <= end:
            wait_s = heapq.heappop(self._dues) - self.monotonic()
            if wait_s > -1:  # those of the past have fired
                await self.advance(max(0.0, wait_s) + 1e-6)
                return True
        await self.advance(max(0.0, end - self.monotonic()))
        return False


class Disk:
    """Does jobs in their order, one or all that wait, while the loop stands still."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._jobs: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._start: Start
        self._busy = False
        self._unheard = 0
        self.database: Database | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is to be done or told."""
        return not self._busy and not self._unheard

    @property
    def is_ahead(self) -> bool:
        """Return whether something is in the file of which who waits for it has not heard yet."""
        return self._unheard > 0

    def submit(self, start: Start, job: Job) -> asyncio.Future[Any]:
        """Take a job; see `Database.submit`."""
        self._start = start
        answer: asyncio.Future[Any] = JobResult(loop=asyncio.get_running_loop())
        answer.add_done_callback(_retrieve)
        self._jobs.append((job, answer))
        if not self._busy:
            self._busy = True
            self._after_turns(self._rng.choice(TURNS), self._work)
        return answer

    def look(self, job: Job) -> Any:
        """Run a reading job at once, before all that wait, while the loop stands still."""
        seen: list[Any] = []

        def look(connection: sqlite3.Connection) -> None:
            try:
                seen.append(job(connection))
            except Exception as exc:  # noqa: BLE001 - raised below, where it was asked for
                seen.append(exc)

        self._wait_for(look)
        if isinstance(seen[0], Exception):
            raise seen[0]
        return seen[0]

    def finish(self) -> None:
        """Do what waits; nobody hears of it any more."""
        while self._jobs:
            self._wait_for(self._jobs.popleft()[0])

    async def close(self) -> None:
        """End the connection's thread, whoever else holds it."""
        if self.database is not None:
            await self.database.close()

    def _work(self) -> None:
        count = self._rng.choice((1, len(self._jobs)))
        done = []
        while self._jobs and len(done) < count:
            job, answer = self._jobs.popleft()
            done.append((self._wait_for(job), answer))
        self._unheard += 1
        self._after_turns(self._rng.choice(TURNS), lambda: self._tell(done))

    def _tell(self, done: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]]) -> None:
        self._after_turns(WAKE_TURNS, self._heard)
        for result, answer in done:
            error = result.exception()
            if answer.done():
                continue
            if error is None:
                answer.set_result(result.result())
            else:
                answer.set_exception(error)
        self._busy = bool(self._jobs)
        if self._busy:
            self._after_turns(self._rng.choice(TURNS), self._work)

    def _wait_for(self, job: Job) -> asyncio.Future[Any]:
        # The second job begins when the result of the first is on its way to the loop.
        done = threading.Event()
        result = self._start(job)
        result.add_done_callback(_retrieve)
        self._start(lambda _connection: done.set())
        assert done.wait(20), "the connection's thread has ended"
        return result

    def _heard(self) -> None:
        self._unheard -= 1

    def _after_turns(self, turns: int, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def turn(left: int) -> None:
            if left:
                loop.call_soon(turn, left - 1)
            else:
                action()

        # Two turns at least: the result of a job has to come over from its thread.
        loop.call_soon(turn, 1 + turns)


def _retrieve(future: asyncio.Future[Any]) -> None:
    # Who asked may be gone by now.
    if not future.cancelled():
        future.exception()


def stepped_database(faults: FaultPlan, disk: Disk) -> type[Database]:
    """Make a database adapter that works when `disk` says so, and fails as planned."""

    class SteppedDatabase(faulty_database(faults)):  # type: ignore[misc] - made by a function
        def submit(self, job: Job) -> asyncio.Future[Any]:
            disk.database = self
            return disk.submit(super().submit, job)

        async def close(self) -> None:
            disk.finish()
            await super().close()

    return SteppedDatabase
