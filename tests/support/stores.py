"""Stores on real files for tests: builders, a harness that counts acknowledgements, faults."""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from edgehub.clock import ManualClock
from edgehub.message import UPSTREAM, EndpointId, Message, Priority, Recency, RouteResult
from edgehub.store import Store, StoreOptions
from edgehub.store.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from edgehub.message import Refusal, Row
    from edgehub.store import DeadLetter, Queue

P0 = Priority(0)
P2 = Priority(2)
P7 = Priority(7)
LAB = EndpointId("lab")


def a_message(
    device: str = "dev-1",
    body: bytes = b"payload",
    *,
    module: str | None = None,
    properties: dict[str, str | None] | None = None,
    system: dict[str, str | None] | None = None,
    expiry_ms: int | None = None,
) -> Message:
    """Build a message."""
    return Message(
        device, module, "/messages/", dict(properties or {}), dict(system or {}), body, expiry_ms
    )


def a_result(
    priority: Priority = P2,
    *,
    ttl_s: float | None = None,
    endpoint_id: EndpointId = UPSTREAM,
    routes: tuple[str, ...] = ("route",),
    recency: Recency | None = None,
    predecessor: int | None = None,
    creation: bool = False,
) -> RouteResult:
    """Build a route result."""
    return RouteResult(
        endpoint_id=endpoint_id,
        priority=priority,
        ttl_ms=None if ttl_s is None else round(ttl_s * 1000),
        routes=routes,
        recency=recency,
        predecessor=predecessor,
        creation=creation,
    )


async def dead_letters_of(store: Store) -> list[DeadLetter]:
    """Read all dead letters with their bodies."""
    letters: list[DeadLetter] = []
    while page := await store.inspection.dead_letters(letters[-1].id if letters else 0):
        for listed in page:
            letter = await store.inspection.dead_letter(listed.id)
            assert letter is not None
            letters.append(letter)
    return letters


class Harness:
    """A running store with a manual clock, and what it has acknowledged."""

    def __init__(self, store: Store, clock: ManualClock, path: Path) -> None:
        self.store = store
        self.clock = clock
        self.path = path
        self.settled: list[tuple[int, Refusal | None]] = []
        self.sent: list[Message] = []
        self._changed = asyncio.Event()

    def send(self, message: Message | None = None, *results: RouteResult) -> Message:
        """Hand in one message; its token is its place in `sent`."""
        message = message or a_message(body=f"body-{len(self.sent)}".encode())
        self.sent.append(message)
        self.store.appender.append(
            message, results or (a_result(),), self._settle, len(self.sent) - 1
        )
        return message

    def send_many(self, count: int, *results: RouteResult, device: str = "dev-1") -> None:
        """Hand in messages with bodies that tell them apart."""
        for _ in range(count):
            self.send(a_message(device, f"body-{len(self.sent)}".encode()), *results)

    async def stored(self, count: int, *results: RouteResult, device: str = "dev-1") -> None:
        """Hand in messages and wait until they are on disk."""
        self.send_many(count, *results, device=device)
        await self.store.writer.flush()

    async def until_settled(self, count: int) -> None:
        """Wait until so many messages have their answer."""
        while len(self.settled) < count:
            self._changed.clear()
            await self._changed.wait()

    async def until(
        self, condition: Callable[[], bool], *, tick_s: float = 0.0, within_s: float = math.inf
    ) -> None:
        """Wait for background work; each turn is a round trip to the store's thread.

        Args:
            condition: Is waited for.
            tick_s: Hub time that passes in each turn.
            within_s: More of it must not pass.
        """
        end_s = self.clock.monotonic() + within_s
        while not condition():
            assert self.clock.monotonic() <= end_s, "it took too much of hub time"
            if tick_s:
                await self.clock.advance(tick_s)
            await self.store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())

    @property
    def accepted(self) -> list[int]:
        """Tokens that were acknowledged, in order."""
        return [token for token, refusal in self.settled if refusal is None]

    def queue(self, priority: Priority = P2, endpoint_id: EndpointId = UPSTREAM) -> Queue:
        """Find one queue."""
        return next(q for q in self.store.queues.of(endpoint_id) if q.priority == priority)

    async def count(self, queue: Queue) -> tuple[int, int]:
        """Count rows and bytes of a queue in the file."""
        sql = f"SELECT count(*), coalesce(sum(size), 0) FROM q_{queue.number}"
        result: tuple[int, int] = await self.store.database.run(
            lambda conn: conn.execute(sql).fetchone()
        )
        return result

    async def scalar(self, sql: str) -> Any:
        """Read one value."""
        return (await self.store.database.run(lambda conn: conn.execute(sql).fetchone()))[0]

    def _settle(self, token: int, refusal: Refusal | None) -> None:
        self.settled.append((token, refusal))
        self._changed.set()


@asynccontextmanager
async def running(
    path: Path,
    *,
    clock: ManualClock | None = None,
    options: StoreOptions | None = None,
    database_type: type[Database] = Database,
) -> AsyncIterator[Harness]:
    """Open and run a store; closes it at the end."""
    clock = clock or ManualClock()
    store = await Store.open(
        path, clock=clock, options=options or StoreOptions(), database_type=database_type
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(store.run())
            yield Harness(store, clock, path)
            task.cancel()
    finally:
        await store.close()


def crash_copy(path: Path, directory: Path) -> Path:
    """Copy database, log and what else lies beside them as a power cut would leave them."""
    directory.mkdir(parents=True, exist_ok=True)
    for suffix in ("", "-wal", ".lock", ".tables"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, directory / source.name)
    return directory / path.name


async def read_all(queue: Queue, *, rows_max: int = 100) -> list[Row]:
    """Read a queue to its end."""
    rows: list[Row] = []
    while batch := await queue.read_batch(rows_max, 1 << 20):
        rows.extend(batch)
    return rows


def bodies(rows: Sequence[Row]) -> list[bytes]:
    """Return the bodies of rows."""
    return [row.message.body for row in rows]


def sqlite_error(name: str) -> sqlite3.OperationalError:
    """Build the error that SQLite would raise."""
    error = sqlite3.OperationalError(f"injected {name}")
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


class FaultPlan:
    """Which statements fail, and how often."""

    def __init__(self) -> None:
        self._faults: list[tuple[Callable[[str], bool], str, int]] = []
        self.raised = 0
        self.statements: list[str] = []

    def fail(self, start: str, name: str = "SQLITE_FULL", times: int = 1) -> None:
        """Let the next `times` statements that begin with `start` fail."""
        # What is moved from table to table was small enough before.
        spared = " SELECT " if name == "SQLITE_TOOBIG" and start.startswith("INSERT") else "\0"
        self._faults.append((lambda sql: sql.startswith(start) and spared not in sql, name, times))

    def heal(self) -> None:
        """Let everything succeed again."""
        self._faults.clear()

    @property
    def is_armed(self) -> bool:
        """Return whether a statement may still fail."""
        return bool(self._faults)

    def check(self, sql: str) -> None:
        """Raise when it is the turn of this statement."""
        self.statements.append(sql)
        for index, (matches, name, times) in enumerate(self._faults):
            if matches(sql):
                if times == 1:
                    del self._faults[index]
                else:
                    self._faults[index] = (matches, name, times - 1)
                self.raised += 1
                raise sqlite_error(name)


class Pause:
    """A statement that waits.

    Attributes:
        reached: It has begun.
        may_end: It may go on.
    """

    def __init__(self, start: str) -> None:
        self.start = start
        self.reached = threading.Event()
        self.may_end = threading.Event()

    async def wait(self) -> None:
        """Wait until it has begun."""
        await asyncio.to_thread(self.reached.wait)


class PausingPlan(FaultPlan):
    """Lets statements wait until they may go on, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self._pauses: list[Pause] = []

    def pause(self, start: str) -> Pause:
        """Let the next statement that begins with `start` wait."""
        self._pauses.append(Pause(start))
        return self._pauses[-1]

    @override
    def check(self, sql: str) -> None:
        for pause in self._pauses:
            if sql.startswith(pause.start):
                self._pauses.remove(pause)
                pause.reached.set()
                pause.may_end.wait()
                break
        super().check(sql)


def faulty_database(plan: FaultPlan) -> type[Database]:
    """Make a database adapter whose statements fail as planned; the file is real."""

    class FaultyConnection(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            plan.check(sql)
            return super().execute(sql, *args)

        def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
            plan.check(sql)
            return super().executemany(sql, *args)

    class FaultyDatabase(Database):
        connection_type: ClassVar[type[sqlite3.Connection]] = FaultyConnection

    return FaultyDatabase
