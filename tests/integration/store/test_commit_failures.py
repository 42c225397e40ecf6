"""Groups that fail: retry, deletes first, halving to the bad row, damage, a cut-off writer."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.errors import StartupError, StoreCorruptError, StoreError
from edgehub.message import Refusal
from edgehub.store import QueueState, Store, StoreOptions
from edgehub.store.database import Database
from edgehub.store.migrations import APPLICATION_ID
from edgehub.store.wal import BYTES_MIN, COMMIT_PAGES, FRAME_BYTES
from tests.support.stores import (
    LAB,
    P0,
    P2,
    FaultPlan,
    a_message,
    a_result,
    bodies,
    crash_copy,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def _sqlite(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()


def _newer(path: Path) -> None:
    _sqlite(
        path,
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99; CREATE TABLE a (b)",
    )


@pytest.mark.parametrize(
    "start", ["BEGIN IMMEDIATE", "INSERT INTO q_", "INSERT INTO boot", "COMMIT"]
)
@pytest.mark.parametrize(
    "code",
    [
        "SQLITE_FULL",
        "SQLITE_IOERR",
        "SQLITE_BUSY",
        "SQLITE_LOCKED",
        "SQLITE_READONLY",
        "SQLITE_CANTOPEN",
    ],
)
async def test_failed_commit_is_tried_again_before_any_outcome(
    tmp_path: Path, start: str, code: str
) -> None:
    """The disk's errors roll the group back whole; it follows once they are over."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(3)
        plan.fail(start, code, times=2)
        hub.send_many(4)
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 1)
        figures = hub.store.statistics()
        assert len(hub.settled) == 3
        assert (figures.rows, hub.queue().statistics().depth) == (3, 3)
        assert await hub.count(hub.queue()) == (3, figures.bytes)
        assert code in str(figures.failing)
        await hub.clock.advance(0.06)
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 2)
        assert len(hub.settled) == 3
        await hub.clock.advance(0.2)
        await hub.until_settled(7)
        assert hub.accepted == list(range(7))
        figures = hub.store.statistics()
        assert (figures.failing, figures.commit_failures_total) == (None, 2)
        assert bodies(await read_all(hub.queue())) == [f"body-{n}".encode() for n in range(7)]


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "no descriptor")])
async def test_what_python_or_the_system_refuses_is_tried_again(
    tmp_path: Path, error: Exception
) -> None:
    """NOMEM arrives as MemoryError, the system's refusals as OSError; neither ends the store."""

    class Exhausted(sqlite3.Connection):
        left: ClassVar[int] = 0

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.startswith("INSERT INTO q_") and Exhausted.left:
                Exhausted.left -= 1
                raise error
            return super().execute(sql, *args)

    class ExhaustedDatabase(Database):
        connection_type: ClassVar[type[sqlite3.Connection]] = Exhausted

    async with running(tmp_path / "q.db", database_type=ExhaustedDatabase) as hub:
        Exhausted.left = 1
        hub.send()
        await hub.until(lambda: hub.store.statistics().failing is not None)
        await hub.clock.advance(1)
        await hub.until_settled(1)
        assert hub.accepted == [0]


async def test_back_off_doubles_to_five_seconds_and_logs_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C-02: a store error backs off and is reported at a bounded rate."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        plan.fail("BEGIN", "SQLITE_BUSY", times=1000)
        hub.send()
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 1)
        elapsed = 0.0
        while elapsed < 20:
            before = plan.raised
            step = min(0.05 * 2.0 ** (before - 1), 5.0)
            await hub.clock.advance(step * 0.9)
            assert plan.raised == before
            await hub.clock.advance(step * 0.11)
            await hub.until(
                lambda before=before: hub.store.statistics().commit_failures_total == before + 1
            )
            elapsed += step
        assert plan.raised <= 12
        plan.heal()
        await hub.clock.advance(5.1)
        await hub.until_settled(1)
    assert 2 <= capsys.readouterr().out.count("store.commit_") <= 5


async def test_real_full_disk_takes_deletes_first_and_recovers(tmp_path: Path) -> None:
    """A file at its limit: confirmed rows leave, their space takes the new ones."""
    async with running(tmp_path / "q.db", options=StoreOptions(cache_bytes_max=1)) as hub:
        for number in range(400):
            hub.send(a_message(body=bytes([number % 256]) * 4000))
        await hub.store.writer.flush()
        queue = hub.queue()
        pages = await hub.scalar("PRAGMA page_count")
        await hub.scalar(f"PRAGMA max_page_count = {pages + 2}")
        for _ in range(40):
            hub.send(a_message(body=b"n" * 4000))
        await hub.until(lambda: hub.store.statistics().failing is not None)
        assert "SQLITE_FULL" in str(hub.store.statistics().failing)
        assert len(hub.settled) == 400
        rows = await queue.read_batch(100, 1 << 20)
        queue.confirm(rows)
        await hub.until(lambda: len(hub.settled) == 440, tick_s=1)
        assert len(hub.accepted) == 440
        assert hub.store.statistics().failing is None
        assert queue.statistics().depth == 340 == (await hub.count(queue))[0]


async def test_deletes_go_without_new_rows_while_those_do_not_fit(tmp_path: Path) -> None:
    """While new rows fail, results are stored in transactions of their own."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(10)
        queue = hub.queue()
        rows = await queue.read_batch(10, 1 << 20)
        plan.fail("INSERT INTO q_", times=10**6)
        hub.send()
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 1)
        queue.confirm(rows)
        await hub.until(lambda: queue.statistics().sent_total == 10, tick_s=0.2)
        assert await hub.count(queue) == (0, 0)
        assert queue.statistics().depth == 0
        assert hub.store.statistics().failing is not None
        plan.heal()
        await hub.until(lambda: len(hub.settled) == 11, tick_s=1)


async def test_delivered_rows_are_not_sent_again_while_deletes_fail(tmp_path: Path) -> None:
    """What was delivered is remembered in memory until its deletion can be stored."""
    plan = FaultPlan()
    path = tmp_path / "q.db"
    async with running(path, database_type=faulty_database(plan)) as hub:
        await hub.stored(30)
        queue = hub.queue()
        plan.fail("BEGIN", times=10**6)
        for _ in range(3):
            queue.confirm(await queue.read_batch(10, 1 << 20))
            await hub.clock.advance(0.5)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        assert await read_all(queue) == []
        assert queue.statistics().depth == 30
        copy = crash_copy(path, tmp_path / "crash")
        plan.heal()
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=1)
        assert queue.statistics().sent_total == 30
        assert await hub.count(queue) == (0, 0)
    async with running(copy) as hub:
        assert hub.queue().statistics().depth == 30


@pytest.mark.parametrize("bad", [{0}, {511}, {1023}, {3, 4}, {17, 300, 301, 900}])
async def test_only_the_row_that_cannot_be_stored_is_refused(tmp_path: Path, bad: set[int]) -> None:
    """An error of a value splits the group in halves until the row is found; order holds."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(5)
        done = hub.queue()
        done.confirm(await read_all(done))
        await hub.store.database.run(
            lambda conn: conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        )
        for number in range(1024):
            body = b"x" * (30_000 if number in bad else 10)
            results = (a_result(P2),)
            if number % 5 == 0:
                results = (a_result(P2), a_result(P0, endpoint_id=LAB))
            hub.send(a_message(body=body), *results)
        await hub.until_settled(1029)
        assert [token for token, _ in hub.settled] == list(range(1029))
        refused = {token - 5 for token, refusal in hub.settled if refusal is Refusal.INVALID}
        assert refused == bad
        await hub.store.writer.flush()
        for queue in hub.store.queues.all():
            figures = queue.statistics()
            assert (figures.depth, figures.bytes) == await hub.count(queue)
        assert hub.queue().statistics().sent_total == 5
        assert hub.store.statistics().pending_bytes == 0
        assert await hub.scalar("SELECT count(*) FROM body") == sum(
            number % 5 == 0 and number not in bad for number in range(1024)
        )


async def test_text_body_is_refused_by_the_table(tmp_path: Path) -> None:
    """A body of the wrong type would come back as something else; the table refuses it."""
    async with running(tmp_path / "q.db") as hub:
        hub.send()
        hub.send(a_message(body="text"))  # type: ignore[arg-type]
        hub.send()
        await hub.until_settled(3)
        assert hub.settled == [(0, None), (1, Refusal.INVALID), (2, None)]


async def test_bad_first_row_of_a_queue_leaves_the_queue_usable(tmp_path: Path) -> None:
    """A queue whose first row was refused is made with its next row."""
    async with running(tmp_path / "q.db") as hub:
        await hub.store.database.run(
            lambda conn: conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        )
        hub.send(a_message(body=b"x" * 30_000))
        await hub.until_settled(1)
        assert hub.queue().statistics().depth == 0
        await hub.stored(1)
        assert len(await read_all(hub.queue())) == 1


async def test_operation_survives_the_refusal_of_its_group(tmp_path: Path) -> None:
    """What joined the transaction of a refused message is stored all the same."""
    async with running(tmp_path / "q.db") as hub:
        await hub.store.database.run(
            lambda conn: conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        )
        hub.send(a_message(body=b"x" * 30_000))
        await hub.store.writer.transact(
            lambda conn: conn.execute("INSERT INTO meta VALUES ('a', 1)")
        )
        assert hub.settled == [(0, Refusal.INVALID)]
        assert await hub.scalar("SELECT value FROM meta WHERE key = 'a'") == 1


async def test_operation_is_repeated_with_its_transaction(tmp_path: Path) -> None:
    """A disk error inside an operation concerns the whole transaction."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        hub.send()
        plan.fail("INSERT INTO meta VALUES ('a'", "SQLITE_IOERR")
        task = asyncio.ensure_future(
            hub.store.writer.transact(lambda conn: conn.execute("INSERT INTO meta VALUES ('a', 1)"))
        )
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 1)
        assert hub.settled == []
        await hub.clock.advance(1)
        await task
        assert hub.accepted == [0]


@pytest.mark.parametrize("code", ["SQLITE_CORRUPT", "SQLITE_NOTADB"])
async def test_damage_ends_the_store_and_acknowledges_nothing(tmp_path: Path, code: str) -> None:
    """A damaged file stops the writer at once; who waited is told that the hub closes."""
    plan = FaultPlan()
    store = await Store.open(
        tmp_path / "q.db",
        clock=ManualClock(),
        options=StoreOptions(),
        database_type=faulty_database(plan),
    )
    done: list[Refusal | None] = []
    plan.fail("COMMIT", code, times=10)
    store.appender.append(
        a_message(), (a_result(),), lambda _token, refusal: done.append(refusal), 0
    )
    with pytest.raises(ExceptionGroup) as caught:
        await store.run()
    assert caught.group_contains(StoreCorruptError)
    assert done == [Refusal.CLOSED]
    await store.close()
    assert done == [Refusal.CLOSED]


async def test_close_gives_up_on_a_disk_that_stays_full(tmp_path: Path) -> None:
    """A stop does not wait for ever: what cannot be stored is refused, not acknowledged."""
    plan = FaultPlan()
    path = tmp_path / "q.db"
    async with running(path, database_type=faulty_database(plan)) as hub:
        await hub.stored(2)
        plan.fail("BEGIN", times=10**6)
        hub.send()
        await hub.until(lambda: hub.store.statistics().commit_failures_total == 1)
        waiting = asyncio.ensure_future(hub.store.writer.transact(lambda _conn: None))
        await hub.store.close()
        assert hub.settled[-1] == (2, Refusal.CLOSED)
        with pytest.raises(StoreError):
            await waiting
        with pytest.raises(StoreError):
            await hub.store.writer.transact(lambda _conn: None)
    async with running(path) as hub:
        assert hub.queue().statistics().depth == 2


async def test_cancelled_writer_finishes_its_commit(tmp_path: Path) -> None:
    """A commit in flight is awaited and settled before the cancellation goes on."""
    store = await Store.open(tmp_path / "q.db", clock=ManualClock(), options=StoreOptions())
    done: list[Refusal | None] = []
    for _ in range(3000):
        store.appender.append(
            a_message(), (a_result(),), lambda _token, refusal: done.append(refusal), 0
        )
    task = asyncio.ensure_future(store.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(done) in (0, 1024)
    await store.close()
    assert done == [None] * 3000


async def test_cancelled_back_off_keeps_the_group(tmp_path: Path) -> None:
    """A writer cancelled while it backs off has lost nothing; close stores it."""
    plan = FaultPlan()
    store = await Store.open(
        tmp_path / "q.db",
        clock=ManualClock(),
        options=StoreOptions(),
        database_type=faulty_database(plan),
    )
    done: list[Refusal | None] = []
    plan.fail("BEGIN")
    store.appender.append(
        a_message(), (a_result(),), lambda _token, refusal: done.append(refusal), 0
    )
    task = asyncio.ensure_future(store.run())
    while not plan.raised:
        await store.database.run(lambda _conn: None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    assert done == [None]


async def test_read_error_pauses_the_queue_and_passes(tmp_path: Path) -> None:
    """C-02: an unreadable moment delays the queue for a second and wakes its reader after."""
    plan = FaultPlan()
    options = StoreOptions(cache_bytes_max=1)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(40)
        await hub.stored(40)
        queue = hub.queue()
        woken: list[QueueState] = []
        hub.store.queues.watch(queue.endpoint_id, lambda queue: woken.append(queue.state))
        plan.fail("SELECT q.offset", "SQLITE_IOERR")
        rows = await queue.read_batch(80, 1 << 20)
        assert not queue.has_ready()
        queue.give_back(rows, attempted=False)
        assert queue.state is QueueState.DELAYED
        await hub.clock.advance(1.1)
        assert woken == [QueueState.WAITING]
        assert len(await read_all(queue)) == 80


async def test_cancelled_read_loses_no_row(tmp_path: Path) -> None:
    """A reader cancelled in mid-read gives back what it had taken."""
    options = StoreOptions(cache_bytes_max=30_000)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(500)
        await hub.stored(500)
        queue = hub.queue()
        task = asyncio.ensure_future(queue.read_batch(1000, 1 << 30))
        await asyncio.sleep(0)
        assert queue.statistics().in_flight == 500
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.statistics().in_flight == 0
        assert bodies(await read_all(queue)) == [f"body-{n}".encode() for n in range(1000)]


async def test_lock_of_another_program_is_waited_for(tmp_path: Path) -> None:
    """C-02: a foreign lock on the file for a while delays commits and nothing else."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(1)
        other = await asyncio.to_thread(
            sqlite3.connect, path, isolation_level=None, check_same_thread=False
        )
        await asyncio.to_thread(other.execute, "BEGIN EXCLUSIVE")
        hub.send_many(10)
        for _ in range(20):
            await hub.clock.advance(1)
            await hub.store.database.run(lambda _conn: None)
        assert len(hub.settled) == 1
        assert "SQLITE_BUSY" in str(hub.store.statistics().failing)
        await asyncio.to_thread(other.execute, "ROLLBACK")
        await asyncio.to_thread(other.close)
        await hub.until(lambda: len(hub.settled) == 11, tick_s=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "cannot be opened"),
        (lambda path: _sqlite(path, "CREATE TABLE other (a)"), "another program"),
        (_newer, "schema version 99"),
    ],
)
async def test_file_that_cannot_be_used_says_why(tmp_path: Path, make: Any, words: str) -> None:
    """A start on a file that is not ours or newer fails with what to do."""
    path = tmp_path / "q.db"
    await asyncio.to_thread(make, path)
    for _ in range(2):
        with pytest.raises(StartupError, match=words):
            await Store.open(path, clock=ManualClock(), options=StoreOptions())


async def test_a_log_that_cannot_be_emptied_is_tried_again_now_and_then(tmp_path: Path) -> None:
    """Once in so many commits, not with each of them, and reported once."""
    plan = FaultPlan()
    options = StoreOptions(wal_bytes_max=BYTES_MIN)
    database = faulty_database(plan)
    async with running(tmp_path / "q.db", options=options, database_type=database) as hub:
        plan.fail("PRAGMA wal_checkpoint", times=1000)
        with capture_logs() as logs:
            for _ in range(2 * BYTES_MIN // (COMMIT_PAGES * FRAME_BYTES) + 4):
                await hub.stored(1)
        assert plan.raised == 2
        assert [line["event"] for line in logs] == ["store.wal_checkpoint_failed"]
        plan.heal()
