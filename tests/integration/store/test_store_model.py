"""The store against a list model: random histories with crashes, restarts and a manual clock."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgehub.clock import ManualClock
from edgehub.message import NEVER_MS, UPSTREAM, EndpointId, FailureKind, Priority
from edgehub.store import StoreOptions
from tests.support.stores import LAB, Harness, a_message, a_result, crash_copy, running

if TYPE_CHECKING:
    from edgehub.message import Row

EXAMPLES = 200 if os.environ.get("EDGEHUB_SOAK") else 6

pytestmark = [pytest.mark.integration, pytest.mark.scaled, pytest.mark.timeout(60 + 4 * EXAMPLES)]

QUEUES = [(UPSTREAM, Priority(0)), (UPSTREAM, Priority(7)), (LAB, Priority(2))]
DEVICES = ["a", "b", "c"]
Key = tuple[EndpointId, Priority]


@dataclass
class Copy:
    """One expected row."""

    body: bytes
    device: str
    expires_ms: int
    row: Row | None = None  # in flight
    attempts: int = 0


@dataclass
class Model:
    """What should be in the file, and what is in flight."""

    queues: dict[Key, list[Copy]] = field(default_factory=lambda: {key: [] for key in QUEUES})
    held: dict[Key, set[str]] = field(default_factory=lambda: {key: set() for key in QUEUES})
    gone: dict[Key, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))

    def ready(self, key: Key, now_ms: int) -> list[Copy]:
        """List the rows that a read may give, in order."""
        return [
            copy
            for copy in self.queues[key]
            if copy.row is None and copy.expires_ms > now_ms and copy.device not in self.held[key]
        ]

    def forget_session(self) -> None:
        """Drop what a restart forgets."""
        for key in QUEUES:
            self.held[key].clear()
            for copy in self.queues[key]:
                copy.row = None


class Run:
    """One history."""

    def __init__(self, directory: Path, seed: int, options: StoreOptions) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.options = options
        self.clock = ManualClock()
        self.model = Model()
        self.path = directory / "0" / "queue.db"
        self.generation = 0
        self.number = 0
        self.hub: Harness

    async def play(self, steps: int) -> None:
        """Do random things, comparing after each."""
        async with AsyncExitStack() as stack:
            self.stack = stack
            await self.open(stack)
            for _ in range(steps):
                action = self.random.choice(
                    [
                        *[self.append, self.read, self.settle] * 2,
                        *[self.hold, self.release, self.wait],
                        *[self.crash, self.restart, self.rest],
                    ]
                )
                await action()
                await self.compare()

    async def open(self, stack: AsyncExitStack) -> None:
        """Open the current file."""
        self.hub = await stack.enter_async_context(
            running(self.path, clock=self.clock, options=self.options)
        )

    async def append(self) -> None:
        """Hand in some messages, some of them for several endpoints."""
        for _ in range(self.random.choice([1, 3, 40, 700])):
            body = f"m{self.number}".encode()
            self.number += 1
            device = self.random.choice(DEVICES)
            targets = [QUEUES[self.random.randrange(2)]]
            if self.random.random() < 0.3:
                targets.append(QUEUES[2])
            ttls = [self.random.choice([None, 7, 30, 86_400]) for _ in targets]
            self.hub.send(
                a_message(device, body),
                *[
                    a_result(priority, ttl_s=ttl, endpoint_id=endpoint)
                    for (endpoint, priority), ttl in zip(targets, ttls, strict=True)
                ],
            )
            now = self.hub.store.hub_time.now_ms()
            for key, ttl in zip(targets, ttls, strict=True):
                expires = NEVER_MS if ttl is None else now + ttl * 1000
                self.model.queues[key].append(Copy(body, device, expires))
        await self.hub.store.writer.flush()

    async def read(self) -> None:
        """Read a batch: it must be the first ready rows, in order."""
        key = self.random.choice(QUEUES)
        queue = self.find(key)
        if queue is None:
            return
        count = self.random.choice([1, 5, 50, 500])
        expected = self.model.ready(key, self.hub.store.hub_time.now_ms())[:count]
        assert not expected or queue.has_ready()
        rows = await queue.read_batch(count, 1 << 30)
        assert [row.message.body for row in rows] == [copy.body for copy in expected]
        for copy, row in zip(expected, rows, strict=True):
            assert row.attempts == copy.attempts
            copy.row = row

    async def settle(self) -> None:
        """Let some rows in flight leave, come back, or go to the dead letters."""
        key = self.random.choice(QUEUES)
        queue = self.find(key)
        flying = [copy for copy in self.model.queues[key] if copy.row is not None]
        if queue is None or not flying:
            return
        chosen = self.random.sample(flying, self.random.randint(1, len(flying)))
        rows = [copy.row for copy in chosen if copy.row is not None]
        what = self.random.choice(["confirm", "confirm", "back", "tried", "expire", "dead"])
        if what == "confirm":
            queue.confirm(rows)
        elif what == "expire":
            queue.expire(rows)
        elif what == "dead":
            for row in rows:
                queue.dead_letter(row, FailureKind.REJECTED, "no")
        else:
            queue.give_back(rows, attempted=what == "tried")
            for copy in chosen:
                copy.row = None
                copy.attempts += what == "tried"
            return
        self.model.queues[key] = [copy for copy in self.model.queues[key] if copy not in chosen]

    async def hold(self) -> None:
        """Hold a sender back."""
        key = self.random.choice(QUEUES)
        queue = self.find(key)
        if queue is not None:
            device = self.random.choice(DEVICES)
            queue.hold(device)
            self.model.held[key].add(device)

    async def release(self) -> None:
        """Release a sender."""
        key = self.random.choice(QUEUES)
        queue = self.find(key)
        if queue is not None and self.model.held[key]:
            device = self.random.choice(sorted(self.model.held[key]))
            queue.release(device)
            self.model.held[key].discard(device)

    async def wait(self) -> None:
        """Let time pass, clean-up included."""
        await self.clock.advance(self.random.choice([0.02, 1, 6, 40]))
        await self.hub.store.writer.flush()

    async def rest(self) -> None:
        """Let everything be stored."""
        await self.hub.store.writer.flush()

    async def crash(self) -> None:
        """Go on with a copy of the files, taken without closing."""
        await self.hub.store.writer.flush()
        self.generation += 1
        copy = crash_copy(self.path, self.directory / str(self.generation))
        await self.stack.aclose()
        self.path = copy
        await self.open(self.stack)
        self.model.forget_session()

    async def restart(self) -> None:
        """Stop and start."""
        await self.stack.aclose()
        await self.open(self.stack)
        self.model.forget_session()

    async def compare(self) -> None:
        """Depth and bytes equal the rows in the file; the file holds what the model holds."""
        for queue in self.hub.store.queues.all():
            counted = await self.hub.count(queue)
            figures = queue.statistics()
            assert (figures.depth, figures.bytes) == counted
        await self.hub.store.writer.flush()
        now = self.hub.store.hub_time.now_ms()
        shared = 0
        for key in QUEUES:
            queue = self.find(key)
            if queue is None:
                assert not self.model.queues[key]
                continue
            figures = queue.statistics()
            assert (figures.depth, figures.bytes) == await self.hub.count(queue)
            live = {copy.body for copy in self.model.queues[key] if copy.expires_ms > now}
            sql = (
                "SELECT coalesce(q.body, b.body), q.expires_ms, q.offset, q.body_id IS NOT NULL"
                f" FROM q_{queue.number} q LEFT JOIN body b ON b.id = q.body_id ORDER BY q.offset"
            )
            rows = await self.hub.store.database.run(
                lambda conn, sql=sql: conn.execute(sql).fetchall()
            )
            assert {body for body, expires, *_ in rows if (expires or NEVER_MS) > now} == live
            shared += sum(row[3] for row in rows)
            assert figures.in_flight == sum(c.row is not None for c in self.model.queues[key])
            if rows:
                assert figures.checkpoint < rows[0][2]
        assert (await self.hub.scalar("SELECT coalesce(sum(refs), 0) FROM body")) == shared

    def find(self, key: Key):
        """Find a queue; None = nothing was ever stored in it."""
        queues = [q for q in self.hub.store.queues.of(key[0]) if q.priority == key[1]]
        return queues[0] if queues else None


@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 2**32),
    cache=st.sampled_from([1, 40_000, 16 << 20]),
    entire=st.booleans(),
)
def test_store_behaves_as_lists_do(seed: int, cache: int, entire: bool) -> None:
    """O-01: order, expiry, holds, attempts, references and gauges over crashes and restarts."""
    options = StoreOptions(cache_bytes_max=cache, check_entire_queue_on_cleanup=entire)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(Run(Path(directory), seed, options).play(40))


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32), linger=st.sampled_from([0, 5, 1000]))
def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(seed: int, linger: int) -> None:
    """With crashes at any moment: acknowledged = delivered or still there; FIFO; no repeats."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_at_least_once(Path(directory), random.Random(seed), linger))


async def _at_least_once(directory: Path, dice: random.Random, linger: int) -> None:
    path = directory / "0" / "queue.db"
    delivered: set[bytes] = set()
    acknowledged: set[bytes] = set()
    number = 0
    clock = ManualClock()
    for generation in range(1, 4):
        options = StoreOptions(commit_delay_ms=linger, cache_bytes_max=dice.choice([1, 1 << 20]))
        async with running(path, clock=clock, options=options) as hub:
            order: list[int] = []
            confirmed: set[bytes] = set()
            for _ in range(dice.randint(5, 40)):
                for _ in range(dice.choice([1, 7, 300])):
                    hub.send(a_message(body=str(number).encode()), a_result())
                    number += 1
                if dice.random() < 0.5:
                    await clock.advance(dice.choice([0.003, 0.3, 1.5]))
                await hub.store.database.run(lambda _conn: None)
                rows = await hub.queue().read_batch(dice.choice([1, 9, 400]), 1 << 30)
                order.extend(row.offset for row in rows)
                keep = dice.random() < 0.2
                if keep:
                    hub.queue().give_back(rows, attempted=False)
                    del order[len(order) - len(rows) :]
                else:
                    hub.queue().confirm(rows)
                    confirmed |= {row.message.body for row in rows}
            assert order == sorted(set(order))
            done = {hub.sent[token].body for token in hub.accepted}
            crashed = crash_copy(path, directory / str(generation))
        acknowledged |= done
        delivered |= confirmed
        path = crashed
    async with running(path, clock=clock) as hub:
        rows = []
        while batch := await hub.queue().read_batch(1000, 1 << 30):
            rows.extend(batch)
        left = [row.message.body for row in rows]
        assert len(left) == len(set(left))
        assert acknowledged <= delivered | set(left)
