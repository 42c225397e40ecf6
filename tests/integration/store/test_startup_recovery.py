"""Start-up: checkpoints and zones that contradict the rows, adoption, size of the backlog."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from edgehub.store.database import Database
from tests.support.stores import LAB, P0, P2, a_result, bodies, read_all, running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.integration


def tamper(path: Path, *statements: str, parameters: Sequence[object] = ()) -> None:
    """Change a stopped hub's file behind its back."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement, parameters)
    connection.commit()
    connection.close()


async def test_checkpoint_beyond_the_rows_is_repaired(tmp_path: Path) -> None:
    """R-08: a checkpoint ahead of the data is put back, logged and counted; all rows deliver."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(4, a_result(P0))
    tamper(path, "UPDATE queue SET checkpoint = checkpoint + 2000")
    with capture_logs() as logs:
        async with running(path) as hub:
            assert hub.store.statistics().checkpoint_repaired_total == 1
            await hub.stored(5, a_result(P0))
            rows = await read_all(hub.queue(P0))
            assert len(rows) == 9
            assert hub.queue(P0).statistics().checkpoint == rows[0].offset - 1
    (told,) = [line for line in logs if line["event"] == "store.checkpoint_repaired"]
    assert (told["log_level"], told["checkpoint_before"], told["priority"]) == ("warning", 2000, 0)
    async with running(path) as hub:
        assert hub.store.statistics().checkpoint_repaired_total == 0


async def test_checkpoint_of_an_emptied_queue_is_repaired(tmp_path: Path) -> None:
    """L-09: rows gone and the checkpoint kept: new rows are delivered, not waited past."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(3)
    tamper(path, "DELETE FROM q_1", "UPDATE queue SET checkpoint = 995", "DELETE FROM boot")
    with capture_logs() as logs:
        async with running(path) as hub:
            figures = hub.store.statistics()
            assert (figures.checkpoint_repaired_total, figures.zone_repaired_total) == (1, 1)
            assert (figures.rows, figures.bytes) == (0, 0)
            await hub.stored(3)
            rows = await read_all(hub.queue())
            assert len(rows) == 3
            hub.queue().confirm(rows)
            await hub.store.writer.flush()
            assert hub.queue().statistics().depth == 0
    (told,) = [line for line in logs if line["event"] == "store.checkpoint_repaired"]
    assert told["checkpoint_before"] == 995


async def test_missing_queue_table_is_made_again(tmp_path: Path) -> None:
    """L-09: a queue whose table is gone starts empty and works."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(3)
        await hub.stored(2, a_result(P0))
    tamper(path, "DROP TABLE q_1")
    with capture_logs() as logs:
        async with running(path) as hub:
            assert hub.store.statistics().damage is None
            assert hub.queue().statistics().depth == 0
            await hub.stored(3)
            assert len(await read_all(hub.queue())) == 3
            assert len(await read_all(hub.queue(P0))) == 2
    assert "store.queue_table_missing" in [line["event"] for line in logs]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM q_1 WHERE offset % 3 = 0",
        "DELETE FROM q_1 WHERE offset < 500",
        "DELETE FROM q_1 WHERE offset < 1500",
        "DELETE FROM zone WHERE zone = 1",
        "UPDATE zone SET rows = rows + 7",
        "UPDATE zone SET bytes = 1",
        "DELETE FROM zone",
    ],
)
async def test_zones_that_contradict_the_rows_are_rebuilt(tmp_path: Path, statement: str) -> None:
    """Rows are the truth: depth and bytes fit them after the start, and nothing is lost."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(2500, a_result(ttl_s=50))
    tamper(path, statement)
    async with running(path) as hub:
        queue = hub.queue()
        figures = queue.statistics()
        assert hub.store.statistics().zone_repaired_total == 1
        assert (figures.depth, figures.bytes) == await hub.count(queue)
        rows = await read_all(queue)
        assert len(rows) == figures.depth
        queue.confirm(rows)
        await hub.store.writer.flush()
        assert await hub.count(queue) == (0, 0)


async def test_high_water_mark_below_the_rows_is_raised(tmp_path: Path) -> None:
    """Offsets go on above every row, whatever the stored mark says."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(3, a_result(P2), a_result(P0, endpoint_id=LAB))
    tamper(path, "UPDATE boot SET high_water = 1")
    async with running(path) as hub:
        await hub.stored(1)
        rows = await read_all(hub.queue())
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})
        assert bodies(rows) == [b"body-0", b"body-1", b"body-2", b"body-0"]


async def test_figures_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """S-06: depth, bytes, oldest time and checkpoint are rebuilt from the file."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(1500)
        await hub.clock.advance(3)
        await hub.stored(1500)
        queue = hub.queue()
        queue.confirm(await queue.read_batch(1700, 1 << 30))
        await hub.store.writer.flush()
        before = queue.statistics()
        assert before.oldest_enqueued_ms == hub.store.hub_time.now_ms()
    async with running(path) as hub:
        after = hub.queue().statistics()
        for name in ("depth", "bytes", "oldest_enqueued_ms", "checkpoint"):
            assert getattr(after, name) == getattr(before, name)


class CountingDatabase(Database):
    """Counts what SQLite does until the first group can be committed."""

    steps = 0

    class connection_type(sqlite3.Connection):  # noqa: N801 - stands in for an attribute
        """Has SQLite report every thousand steps of its machine."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            CountingDatabase.steps = 0
            self.set_progress_handler(self._count, 1000)

        def _count(self) -> int:
            CountingDatabase.steps += 1000
            return 0


async def test_start_does_not_read_the_rows(tmp_path: Path) -> None:
    """R-06: start-up cost does not depend on the backlog; memory neither."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(1)
    connection = sqlite3.connect(path)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 300999)"
        " INSERT INTO q_1 (offset, enqueued_ms, size, routes, header, body)"
        " SELECT i, 1, 100, 2, CAST('[\"d\",null,1]' AS BLOB), zeroblob(20) FROM n"
    )
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
        " INSERT INTO zone (queue, zone, min_expires_ms, max_expires_ms, fresh_until_ms,"
        " stale_from_ms, rows, bytes)"
        " SELECT 1, i, 1 << 62, 1 << 62, 1 << 62, 1 << 62, 1000, 100000 FROM n"
    )
    connection.commit()
    connection.close()
    async with running(path, database_type=CountingDatabase) as hub:
        # Thousands for the schema, 10 000 rows of one queue, and its zones; never all rows.
        assert CountingDatabase.steps < 150_000
        assert hub.queue().statistics().depth == 300_001
        assert hub.store.statistics().zone_repaired_total == 0
        rows = await hub.queue().read_batch(10, 1 << 20)
        assert [row.offset for row in rows[:3]] == [1, 1000, 1001]
        assert hub.store.statistics().cache_bytes < 1 << 20
