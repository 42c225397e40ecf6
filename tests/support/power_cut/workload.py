"""A store under a recorded load: marks what it was promised and what it let go.

    python -m tests.support.power_cut.workload FOLDER LOG SEED STEPS [SYNCHRONOUS]

SYNCHRONOUS (OFF, NORMAL) weakens SQLite's syncs, to prove that the test would notice. Marks:
`sent TOKEN QUEUE:TTL_MS...` before a message is handed in, `stored TOKEN OFFSET` or `refused TOKEN`
as the store says so; `leaves TOKEN QUEUE FATE` before a result is handed in; `flushed` when all
results so far are promised; `now HUB_MS` before time passes; `begins KEY` before something else is
written, `noted KEY VALUE` after it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.journal.journal import Journal
from edgehub.journal.lines import Origin
from edgehub.journal.retention import Bounds
from edgehub.journal.segments import Segments
from edgehub.message import FailureKind
from edgehub.store import Store, StoreOptions, database
from tests.support.power_cut.records import Marks
from tests.support.stores import LAB, P0, P7, UPSTREAM, a_message, a_result

if TYPE_CHECKING:
    import sqlite3

    from edgehub.clock import Clock
    from edgehub.message import EndpointId, Message, Priority, Refusal, RouteResult, Row
    from edgehub.store import Queue

QUEUES = ((UPSTREAM, P0), (UPSTREAM, P7), (LAB, P7))
DEVICES = ("a", "b", "c")
TTLS_S = (None, None, 8.0, 600.0)
DEAD_LETTERS_MAX = 50
OPTIONS = StoreOptions(
    wal_bytes_max=96 * 1024,  # a checkpoint every few groups, and a cut log after large ones
    cache_bytes_max=64 * 1024,
    dead_letter_rows_max=DEAD_LETTERS_MAX,
    journal=True,
)
STEP_S = 0.06
"""Longer than results wait for their commit."""


class Workload:
    """Random things that a hub does to its store."""

    def __init__(self, path: Path, marks: Marks, rng: random.Random) -> None:
        self._path = path
        self._marks = marks
        self._rng = rng
        self._clock = ManualClock()
        self._store: Store
        self._journal: Journal
        self._messages: list[Message] = []
        self._settled = 0

    async def run(self, steps: int) -> None:
        """Work through two lives of the store, an orderly stop between them."""
        for part in (steps // 2, steps - steps // 2):
            self._store = await Store.open(self._path, clock=self._clock, options=OPTIONS)
            try:
                self._journal = make_journal(self._store, self._path, self._clock)
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(self._store.run())
                    await self._live(part)
                    running.cancel()
            finally:
                # Otherwise its thread keeps the process, and the test that waits for it, for ever.
                await self._store.close()

    async def _live(self, steps: int) -> None:
        await self._advance(0)
        actions = [self._append] * 5 + [self._send] * 5
        actions += [self._wait, self._flush, self._write_down, self._tell]
        for _ in range(steps):
            await self._rng.choice(actions)()
        await self._breathe()

    async def _append(self) -> None:
        for _ in range(self._rng.choice([1, 1, 5, 40, 150])):
            token = len(self._messages)
            chosen = self._rng.sample(QUEUES, self._rng.choice([1, 1, 2, 3]))
            results = [self._result(endpoint, priority) for endpoint, priority in chosen]
            ends = [result.ttl_ms or 0 for result in results]
            names = [f"{endpoint}/{priority}" for endpoint, priority in chosen]
            self._marks.add("sent", token, *map("{}:{}".format, names, ends))
            body = f"{token}|".ljust(self._rng.choice([10, 200, 3000]), "x").encode()
            message = a_message(self._rng.choice(DEVICES), body)
            self._messages.append(message)
            self._store.appender.append(message, results, self._settle, token)
        if self._rng.random() < 0.7:
            while self._settled < len(self._messages):
                await self._advance(STEP_S)
                await self._store.database.run(_nothing)

    def _result(self, endpoint: EndpointId, priority: Priority) -> RouteResult:
        return a_result(priority, endpoint_id=endpoint, ttl_s=self._rng.choice(TTLS_S))

    def _settle(self, token: int, refusal: Refusal | None) -> None:
        self._settled += 1
        if refusal is None:
            offset = int(self._messages[token].message_id.rsplit("-", 1)[1], 16)
            self._marks.add("stored", token, offset)
        else:
            self._marks.add("refused", token)

    async def _send(self) -> None:
        queues = self._store.queues.all()
        if not queues:
            return
        queue = self._rng.choice(queues)
        rows = await queue.read_batch(self._rng.choice([1, 10, 100]), 1 << 20)
        if not rows:
            return
        fate = self._rng.choice(["sent", "sent", "sent", "expired", "dead", "back"])
        if fate == "back":
            queue.give_back(rows, attempted=self._rng.random() < 0.5)
            return
        self._mark_leaving(queue, rows, fate)
        if fate == "sent":
            queue.confirm(rows)
        elif fate == "expired":
            queue.expire(rows)
        else:
            for row in rows:
                queue.dead_letter(row, FailureKind.REJECTED, "no")

    async def _wait(self) -> None:
        await self._advance(self._rng.choice([STEP_S, 6.0, 30.0]))
        await self._store.database.run(_nothing)

    async def _flush(self) -> None:
        await self._store.writer.flush()
        self._marks.add("flushed")

    async def _tell(self) -> None:
        """Write the journal's lines, as its background work does."""
        await self._journal.write_out(close=self._rng.random() < 0.3)

    async def _write_down(self) -> None:
        """Let a rare operation join a commit, as stored sessions do."""
        key, value = self._rng.choice(DEVICES), str(len(self._messages))
        self._marks.add("begins", key)
        sql = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
        await self._store.writer.transact(lambda conn: conn.execute(sql, (key, value)).close())
        self._marks.add("noted", key, value)

    async def _breathe(self) -> None:
        """Fill the file and empty it, and wait until its free pages go back to the disk."""
        for _ in range(20):
            await self._append()
        await self._flush()
        for queue in self._store.queues.all():
            while rows := await queue.read_batch(1000, 1 << 30):
                self._mark_leaving(queue, rows, "sent")
                queue.confirm(rows)
        await self._flush()
        for _ in range(10):
            await self._advance(5.0)
            await self._store.database.run(_nothing)
        await self._flush()

    async def _advance(self, seconds: float) -> None:
        self._marks.add("now", self._store.hub_time.now_ms() + round(seconds * 1000))
        await self._clock.advance(seconds)

    def _mark_leaving(self, queue: Queue, rows: list[Row], fate: str) -> None:
        for row in rows:
            token = token_of(row.message)
            self._marks.add("leaves", token, f"{queue.endpoint_id}/{queue.priority}", fate)


def make_journal(store: Store, path: Path, clock: Clock) -> Journal:
    """Make the journal of a store, beside its file."""
    feed = store.journal
    assert feed is not None
    return Journal(
        feed,
        Segments(path.parent / "journal", hub_id="gw", store_id=feed.store_id),
        Origin("gw", feed.store_id, feed.message_prefix),
        clock=clock,
        bounds=Bounds(keep_days=3650, bytes_max=1 << 30),
    )


def token_of(message: Message) -> int:
    """Read a message's token out of its body."""
    return int(message.body.split(b"|", 1)[0])


def _nothing(_connection: sqlite3.Connection) -> None:
    """Take a turn of the store's thread."""


def weaken(synchronous: str) -> None:
    """Make every database opened from now on sync less than it should."""
    configure = database.configure

    def configure_weakly(connection: sqlite3.Connection) -> None:
        configure(connection)
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    database.configure = configure_weakly


def main() -> None:
    """Run the workload of the command line."""
    folder, log, seed, steps, *synchronous = sys.argv[1:]
    for level in synchronous:
        weaken(level)
    marks = Marks(Path(log))
    workload = Workload(Path(folder) / "queue.db", marks, random.Random(int(seed)))
    asyncio.run(workload.run(int(steps)))
    marks.close()


if __name__ == "__main__":
    main()
