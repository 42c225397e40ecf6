"""Limits, recency and creation rows against lists: what gives way, what moves, what is refused.

The model looks at the file before each message and says which rows may be in it afterwards; so it
needs to know neither when the background tasks run nor how they go about it.
"""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgehub.clock import ManualClock
from edgehub.message import NEVER_MS, UPSTREAM, EndpointId, FailureKind, Priority, Recency, Refusal
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.stores import LAB, Harness, a_message, a_result, crash_copy, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import Row

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
Key = tuple[EndpointId, Priority]
TARGETS: list[Key] = [
    (UPSTREAM, Priority(0)),
    (UPSTREAM, Priority(4)),
    (UPSTREAM, Priority(7)),
    (LAB, Priority(2)),
]
FALLBACK = {Priority(0): Priority(4), Priority(4): Priority(7), Priority(2): Priority(7)}
TIDY_S = 13
"""Two rounds of clean-up and demotion for the times that are used here, and a second."""
CAPS: list[dict[str, int]] = [
    {"rows": 12},
    {"queue_rows": 5},
    {"bytes": 1800},
    {"rows": 15, "queue_rows": 6},
    {"queue_bytes": 900, "rows": 20},
    {},
]
_ROWS = (
    "SELECT coalesce(q.body, b.body), q.offset, q.size, q.attempts, q.creation"
    " FROM q_{} q LEFT JOIN body b ON b.id = q.body_id ORDER BY q.offset"
)
POLICY_REFUSES = {Overflow.REJECT_NEW, Overflow.DROP_NEWEST}


@dataclass(slots=True)
class Copy:
    """One row that is in the file, or was.

    Attributes:
        home: The queue of its route.
        stale_ms: From then on it belongs to `fallback`.
    """

    name: str
    home: Key
    expires_ms: int
    stale_ms: int
    creation: bool
    fallback: Key | None
    row: Row | None = None
    attempts: int = 0


@dataclass(slots=True)
class Found:
    """One row of the file."""

    key: Key
    offset: int
    size: int
    copy: Copy


@dataclass(slots=True)
class Contents:
    """All rows of the file, and what a message may do to them."""

    rows: list[Found]
    now_ms: int
    caps: Caps
    gone: list[Found] = field(default_factory=list)

    def of(self, key: Key) -> list[Found]:
        """List the rows of a queue."""
        return [found for found in self.rows if found.key == key]

    def full(self, key: Key, size: int) -> bool:
        """Return whether a queue has no room for a row."""
        rows, caps = self.of(key), self.caps
        more_bytes = sum(found.size for found in rows) + size
        return (bool(caps.queue_rows) and len(rows) + 1 > caps.queue_rows) or (
            bool(caps.queue_bytes) and more_bytes > caps.queue_bytes
        )

    def hub_full(self, rows: Sequence[Found], count: int, size: int) -> bool:
        """Return whether the hub has no room for so many rows beside some."""
        caps = self.caps
        more_bytes = sum(found.size for found in rows) + count * size
        return (bool(caps.rows) and len(rows) + count > caps.rows) or (
            bool(caps.bytes) and more_bytes > caps.bytes
        )

    def admit(self, keys: Sequence[Key], size: int, *, creation: bool) -> list[Key] | None:
        """Say which copies of a message join, None = it is refused; who gives way is in `gone`."""
        full = [key for key in keys if self.full(key, size)]
        is_over = self.hub_full(self.rows, len(keys), size)
        if not full and not is_over:
            return list(keys)
        overflow = self.caps.overflow
        if overflow is Overflow.DROP_NEWEST and not creation:
            joining = [key for key in keys if key not in full]
            return [] if self.hub_full(self.rows, len(joining), size) else joining
        if overflow in POLICY_REFUSES:
            return None
        before = list(self.rows)
        if not self._make_room(keys, size):
            self.rows = before
            return None
        self.gone = [found for found in before if found not in self.rows]
        return list(keys)

    def _make_room(self, keys: Sequence[Key], size: int) -> bool:
        best = min(priority for _, priority in keys)
        oldest_first = self.caps.overflow is Overflow.DROP_OLDEST
        may_go = [
            found
            for found in self.rows
            if found.copy.row is None
            and not found.copy.creation
            and (oldest_first or found.key[1] >= best)
        ]
        left = [found for found in self.rows if found not in may_go]
        for key in keys:
            stays = [found for found in self.of(key) if found.copy.row or found.copy.creation]
            if Contents(stays, self.now_ms, self.caps).full(key, size):
                return False
        if self.hub_full(left, len(keys), size):
            return False
        self._clean(keys, size)
        for key in keys:
            while self.full(key, size):
                self.rows.remove(next(found for found in self.of(key) if found in may_go))
        rank = {found.offset: 0 if oldest_first else -found.key[1] for found in may_go}
        order = sorted(may_go, key=lambda found: (rank[found.offset], found.offset))
        while self.hub_full(self.rows, len(keys), size):
            self.rows.remove(next(found for found in order if found in self.rows))
        return True

    def _clean(self, keys: Sequence[Key], size: int) -> None:
        """Let what has expired go first, the worst priorities before others, until it suffices."""
        for key in sorted({found.key for found in self.rows}, key=lambda key: (-key[1], key)):
            if not self.hub_full(self.rows, len(keys), size) and not any(
                self.full(each, size) for each in keys
            ):
                return
            self.rows = [
                found
                for found in self.rows
                if found.key != key or found.copy.row or found.copy.expires_ms > self.now_ms
            ]


class Run:
    """One history."""

    def __init__(self, directory: Path, seed: int, options: StoreOptions) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.options = options
        self.clock = ManualClock()
        self.path = directory / "0" / "queue.db"
        self.generation = 0
        self.number = 0
        self.copies: dict[tuple[EndpointId, str], Copy] = {}
        self.hub: Harness
        self.stack: AsyncExitStack

    async def play(self, steps: int) -> None:
        """Do random things, comparing after each."""
        async with AsyncExitStack() as self.stack:
            await self.open()
            actions = [*[self.append] * 5, *[self.read, self.settle, self.wait] * 2]
            for _ in range(steps):
                await self.random.choice([*actions, self.crash, self.restart])()
                await self.contents()

    async def open(self) -> None:
        """Open the current file."""
        self.hub = await self.stack.enter_async_context(
            running(self.path, clock=self.clock, options=self.options)
        )
        for copy in self.copies.values():
            copy.row = None

    @property
    def now_ms(self) -> int:
        """Hub time."""
        return self.hub.store.hub_time.now_ms()

    async def contents(self) -> Contents:
        """Look into the file; every row must be where it may be, and counted."""
        await self.rest()
        queues = [queue for queue in self.hub.store.queues.all() if queue.registered]
        stored = await self.hub.store.database.run(
            lambda conn: [conn.execute(_ROWS.format(queue.number)).fetchall() for queue in queues]
        )
        rows: list[Found] = []
        for queue, records in zip(queues, stored, strict=True):
            key = (queue.endpoint_id, queue.priority)
            figures = queue.statistics()
            assert (figures.depth, figures.bytes) == (len(records), sum(row[2] for row in records))
            assert (queue.rows_taken, queue.bytes_taken) == (figures.depth, figures.bytes)
            assert not records or figures.checkpoint < records[0][1]
            for body, offset, size, attempts, creation in records:
                copy = self.copies[queue.endpoint_id, body.decode().rstrip("x")]
                moved = key == copy.fallback and copy.stale_ms <= self.now_ms
                assert key == copy.home or moved, f"{copy} is in {key}"
                assert (attempts, bool(creation)) == (copy.attempts, copy.creation), copy
                rows.append(Found(key, offset, size, copy))
        rows.sort(key=lambda found: found.offset)
        return Contents(rows, self.now_ms, self.options.caps)

    async def rest(self) -> None:
        """Let what the clock has woken come to its end."""
        quiet = 0
        while quiet < 3:
            before = [queue.statistics() for queue in self.hub.store.queues.all()]
            await self.hub.store.writer.flush()
            await self.hub.store.database.run(lambda _: None)
            after = [queue.statistics() for queue in self.hub.store.queues.all()]
            quiet = quiet + 1 if before == after else 0

    async def append(self) -> None:
        """Hand in some messages one after another, some of them for two endpoints."""
        for _ in range(self.random.choice([1, 2, 4, 9])):
            name = f"m{self.number}."
            self.number += 1
            keys = [TARGETS[self.random.randrange(3)]]
            if self.random.random() < 0.3:
                keys.append(TARGETS[3])
            creation = self.random.random() < 0.1
            ttl_s = self.random.choice([None, None, 7, 60])
            seconds = self.random.choice([0, 0, 8, 30])
            results = [
                a_result(
                    priority,
                    ttl_s=ttl_s,
                    endpoint_id=endpoint,
                    recency=_recency(priority, seconds),
                    creation=creation,
                )
                for endpoint, priority in keys
            ]
            body = name.ljust(self.random.choice([1, 60, 150]), "x")
            before = await self.contents()
            message = a_message(body=body.encode())
            for key in keys:
                self.copies[key[0], name] = self._copy(name, key, ttl_s, seconds, creation)
            self.hub.send(message, *results)
            await self.hub.store.writer.flush()
            size = len(body) + 64 + len(b'["dev-1",null,1]')
            joining = before.admit(keys, size, creation=creation)
            _, refusal = self.hub.settled[-1]
            assert refusal is (Refusal.LIMIT if joining is None else None), (joining, refusal)
            await self.expect(before, [(key, name) for key in joining or ()])

    def _copy(self, name: str, key: Key, ttl_s: int | None, seconds: int, creation: bool) -> Copy:
        is_recent = bool(seconds) and key[1] in FALLBACK and not creation
        return Copy(
            name,
            key,
            NEVER_MS if ttl_s is None or creation else self.now_ms + ttl_s * 1000,
            self.now_ms + seconds * 1000 if is_recent else NEVER_MS,
            creation,
            (key[0], FALLBACK[key[1]]) if is_recent else None,
        )

    async def expect(self, before: Contents, joined: list[tuple[Key, str]]) -> None:
        """Compare the file with what is left of it and what has joined."""
        after = await self.contents()
        there = {(found.key[0], found.copy.name) for found in after.rows}
        live = {
            (found.key[0], found.copy.name)
            for found in before.rows
            if found.copy.row or found.copy.expires_ms > self.now_ms
        } | {(key[0], name) for key, name in joined}
        expired = {(found.key[0], found.copy.name) for found in before.rows} - live
        assert live <= there, f"{live - there} are lost"
        assert there <= live | expired, f"{there - live - expired} stay"
        caps = self.options.caps
        assert not caps.rows or len(after.rows) <= caps.rows
        assert not caps.bytes or sum(found.size for found in after.rows) <= caps.bytes

    async def read(self) -> None:
        """Read a batch: the first rows that have expired neither nor become stale, in order."""
        queues = [queue for queue in self.hub.store.queues.all() if queue.registered]
        if not queues:
            return
        queue = self.random.choice(queues)
        key = (queue.endpoint_id, queue.priority)
        before = await self.contents()
        count = self.random.choice([1, 3, 20])
        expected = [
            found.copy
            for found in before.of(key)
            if found.copy.row is None
            and found.copy.expires_ms > self.now_ms
            and (key != found.copy.home or found.copy.stale_ms > self.now_ms)
        ][:count]
        rows = await queue.read_batch(count, 1 << 30)
        names = [row.message.body.decode().rstrip("x") for row in rows]
        assert names == [copy.name for copy in expected]
        for copy, row in zip(expected, rows, strict=True):
            copy.row = row

    async def settle(self) -> None:
        """Let rows in flight leave, come back, or go to the dead letters."""
        flying = [found for found in (await self.contents()).rows if found.copy.row]
        for found in self.random.sample(flying, self.random.randint(0, len(flying))):
            queue = self.hub.queue(found.key[1], found.key[0])
            row = found.copy.row
            assert row is not None
            match self.random.choice(["confirm", "back", "tried", "dead"]):
                case "confirm":
                    queue.confirm([row])
                case "dead":
                    queue.dead_letter(row, FailureKind.REJECTED, "no")
                case what:
                    queue.give_back([row], attempted=what == "tried")
                    found.copy.attempts += what == "tried"
                    found.copy.row = None
        await self.hub.store.writer.flush()

    async def wait(self) -> None:
        """Let time pass; after two rounds nothing expired or stale stays where it was."""
        seconds = self.random.choice([1, 6, 9, TIDY_S])
        since_ms = self.now_ms
        await self.clock.advance(seconds)
        after = await self.contents()
        for found in after.rows if seconds == TIDY_S else ():
            copy = found.copy
            assert copy.row or copy.expires_ms > since_ms, f"{copy} has expired and stays"
            assert copy.row or found.key != copy.home or copy.stale_ms > since_ms, f"{copy} stays"

    async def crash(self) -> None:
        """Go on with a copy of the files, taken without closing."""
        await self.hub.store.writer.flush()
        self.generation += 1
        copy = crash_copy(self.path, self.directory / str(self.generation))
        await self.stack.aclose()
        self.path = copy
        await self.open()

    async def restart(self) -> None:
        """Stop and start."""
        await self.stack.aclose()
        await self.open()


def _recency(priority: Priority, seconds: int) -> Recency | None:
    if not seconds or priority not in FALLBACK:
        return None
    return Recency(seconds=seconds, fallback_priority=FALLBACK[priority])


@pytest.mark.scaled
@pytest.mark.timeout(3600 if SOAK else 60)
@settings(
    max_examples=500 if SOAK else 6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32),
    overflow=st.sampled_from(Overflow),
    caps=st.sampled_from(CAPS),
    cache=st.sampled_from([1, 16 << 20]),
)
def test_limits_and_recency_are_those_of_lists(
    seed: int, overflow: Overflow, caps: dict[str, int], cache: int
) -> None:
    """All four policies, fallback priorities and rows that stay, over crashes and restarts."""
    options = StoreOptions(cache_bytes_max=cache, caps=Caps(overflow=overflow, **caps))
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(Run(Path(directory), seed, options).play(25))
