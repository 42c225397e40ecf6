"""The journal after damage of the database file: what is lost has its lines, once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.message import DEFAULT_PRIORITY
from edgehub.store import Store, StoreOptions
from tests.support.database_damage import roots_of, spoil
from tests.support.journal import journaling, state_copy
from tests.support.journal_format import check_equation, queue_of, read_folder
from tests.support.stores import LAB, P0, P2, P7, a_result, crash_copy, read_all, running

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.store import Damage

pytestmark = pytest.mark.integration

PAGE_BYTES = 4096
DAY_S = 86_400


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short queues be opened as long ones are: without a look at each row."""
    monkeypatch.setattr("edgehub.store.recovery.COUNTED_ROWS_MAX", 0)


def spoil_page_with(path: Path, text: bytes) -> None:
    """Overwrite the page on which `text` stands."""
    page = path.read_bytes().index(text) // PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(os.urandom(PAGE_BYTES))


async def damaged(path: Path, clock: ManualClock) -> None:
    """Fill three queues, tell of it, end in order; then a page of one of them is damaged."""
    async with journaling(path, clock=clock) as it:
        await it.hub.stored(300, a_result(P0))
        await it.hub.stored(2000, a_result(P2, ttl_s=900_000))
        await it.hub.stored(50, a_result(P7, endpoint_id=LAB))
        await it.end()
    spoil_page_with(path, b"body-1500")
    with pytest.raises(ExceptionGroup):
        await _read_everything(path, clock)


async def _read_everything(path: Path, clock: ManualClock) -> None:
    async with running(path, clock=clock, options=StoreOptions(journal=True)) as hub:
        for queue in hub.store.queues.all():
            await read_all(queue)


def cost(damage: Damage | None) -> tuple[int, int]:
    """Return rows and bytes that a damage of one queue has cost."""
    assert damage is not None
    ((*_, rows, size),) = damage.lost
    return rows, size


async def test_what_is_lost_has_a_line_and_the_equation_closes(tmp_path: Path) -> None:
    """Per queue, with number and bytes; on the date of the start that found it, over a midnight."""
    path, clock = tmp_path / "queue.db", ManualClock(wall_ms=1_700_002_800_000)
    await damaged(path, clock)
    await clock.advance(DAY_S)
    async with journaling(path, clock=clock) as it:
        rows, size = cost(it.hub.store.damage)
        await it.end()
        await it.journal.write_out(close=True)
        assert it.journal.statistics().corrections == 0
        depths = it.depths()
    lines = read_folder(it.folder)
    (lost,) = [line for line in lines if line["event"] == "lost"]
    assert (queue_of(lost), lost["count"], lost["bytes"]) == (("upstream", 2), rows, size)
    assert lost["time"].startswith("2023-11-15")
    assert {queue: figures for (_, queue), figures in check_equation(lines).items()} == depths


@pytest.mark.parametrize("names_too", [False, True])
async def test_the_equation_closes_without_the_list_of_tables(
    tmp_path: Path, *, names_too: bool
) -> None:
    """Nothing is lost then; rows whose queue is not known any more leave it, and join another."""
    path, clock = tmp_path / "queue.db", ManualClock()
    async with journaling(path, clock=clock) as it:
        await it.hub.stored(300, a_result(P0))
        await it.hub.stored(50, a_result(P7, endpoint_id=LAB))
        await it.end()
        depths = it.depths()
    roots = roots_of(path)
    spoil(path, 1)
    if names_too:
        path.with_name("queue.db.tables").unlink()
        for name in ("queue", "sqlite_autoindex_queue_1"):
            spoil(path, roots[name])
    async with journaling(path, clock=clock) as it:
        assert it.hub.store.damage is not None
        assert it.hub.store.damage.salvaged_rows == 350
        await it.end()
        await it.journal.write_out(close=True)
        assert it.journal.statistics().corrections == 0
        now = {
            (name, None if priority == DEFAULT_PRIORITY else priority): figures
            for (name, priority), figures in it.depths().items()
        }
    lines = read_folder(it.folder)
    lost = {queue_of(line): line["count"] for line in lines if line["event"] == "lost"}
    if names_too:
        assert lost == {queue: rows for queue, (rows, _) in depths.items()}
        assert sorted(rows for rows, _ in now.values()) == [50, 300]
    else:
        assert lost == {}
        assert now == depths
    assert {queue: figures for (_, queue), figures in check_equation(lines).items()} == now


async def test_losses_are_reported_once_over_a_crash_of_that_start(tmp_path: Path) -> None:
    """Killed before the commit that tells of them, or after it: one line in the end."""
    path, clock = tmp_path / "a" / "queue.db", ManualClock()
    await damaged(path, clock)
    store = await Store.open(path, clock=clock, options=StoreOptions(journal=True))
    rows, _ = cost(store.damage)
    before = state_copy(path, tmp_path / "before")
    await store.close()
    async with journaling(path, clock=clock) as it:
        await it.hub.store.writer.flush()
        after = state_copy(path, tmp_path / "after")
    for copy in (before, after):
        for _ in range(2):
            async with journaling(copy, clock=clock) as it:
                await it.hub.store.writer.flush()
                await it.journal.write_out(close=True)
                assert it.journal.statistics().corrections == 0
        lines = read_folder(it.folder)
        assert [line["count"] for line in lines if line["event"] == "lost"] == [rows]
        check_equation(lines)


async def test_losses_that_cannot_be_counted_are_what_is_missing(tmp_path: Path) -> None:
    """The counts of the file are gone too: the journal's own figures say how many there were."""
    path, clock = tmp_path / "a" / "queue.db", ManualClock()
    async with journaling(path, clock=clock) as it:
        await it.hub.stored(2000, a_result(P2))
        await it.end()
    spoil_page_with(path, b"body-1500")
    copy = crash_copy(path, tmp_path / "b")
    (path.parent / "journal").rename(copy.parent / "journal")
    async with journaling(copy, clock=clock) as it:
        await it.hub.store.writer.transact(lambda conn: conn.execute("DELETE FROM zone").close())
    async with journaling(copy, clock=clock) as it:
        assert it.hub.store.damage is not None
        await it.hub.store.writer.flush()
        left = it.hub.queue(P2).statistics().depth
        assert 0 < left < 2000
        await it.journal.write_out(close=True)
    lines = read_folder(it.folder)
    (lost,) = [line for line in lines if line["event"] == "lost"]
    assert lost["count"] == 2000 - left
    assert [rows for rows, _ in check_equation(lines).values()] == [left]


async def test_losses_are_no_news_where_the_journal_was_off(tmp_path: Path) -> None:
    """A hub without a journal starts after the damage; with a journal again, figures go on."""
    path, clock = tmp_path / "queue.db", ManualClock()
    await damaged(path, clock)
    async with running(path, clock=clock) as hub:
        rows, _ = cost(hub.store.damage)
        await hub.store.writer.flush()
    async with journaling(path, clock=clock) as it:
        await it.hub.store.writer.flush()
        await it.journal.write_out(close=True)
        assert it.journal.statistics().corrections == 1
        assert it.hub.queue(P2).statistics().depth == 2000 - rows
    assert not [line for line in read_folder(it.folder) if line["event"] == "lost"]
