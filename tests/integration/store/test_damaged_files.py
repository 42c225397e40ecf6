"""Damaged files: set aside, what can be read is saved, the hub starts and says what is lost."""

from __future__ import annotations

import os
import random
import sqlite3
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.errors import StartupError, StoreCorruptError
from edgehub.heads.mqtt.session_table import SessionTable
from edgehub.hub.status import store_warnings
from edgehub.message import FailureKind
from edgehub.storage.damaged_database import KEPT_MAX
from edgehub.store import Store, StoreOptions
from edgehub.store.offsets import OFFSETS_SKIPPED
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
    FaultPlan,
    a_message,
    a_result,
    bodies,
    crash_copy,
    dead_letters_of,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from edgehub.store import Damage

pytestmark = pytest.mark.integration

PAGE_BYTES = 4096
ROWS = 5000
WITHOUT_SHARED = ROWS + 299
ALL_ROWS = WITHOUT_SHARED + 100


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short queues be opened as long ones are: without a look at each row."""
    monkeypatch.setattr("edgehub.store.recovery.COUNTED_ROWS_MAX", 0)


def spoil(path: Path, number: int, content: bytes = bytes(PAGE_BYTES)) -> None:
    """Overwrite one page, the first is number 1."""
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE_BYTES)
        file.write(content)


def page_with(path: Path, text: bytes) -> int:
    """Find the page on which `text` stands."""
    return path.read_bytes().index(text) // PAGE_BYTES + 1


def root_page(path: Path, name: str) -> int:
    """Find the first page of a table or index."""
    connection = sqlite3.connect(path)
    page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,))
    number: int = page.fetchone()[0]
    connection.close()
    return number


def set_aside(path: Path) -> list[str]:
    """List the files that were set aside, without what lay beside them."""
    found = path.parent.glob(f"{path.name}.damaged-*")
    return sorted(each.name for each in found if not each.name.endswith(("-wal", ".tables")))


async def filled(path: Path) -> None:
    """Fill two queues, a shared one, a session and the dead letters, and close the file."""
    async with running(path) as hub:
        await hub.stored(300, a_result(P0))
        await hub.stored(50, a_result(P7), a_result(P7, endpoint_id=LAB))
        await hub.stored(ROWS, a_result(P2, ttl_s=900))
        await SessionTable(hub.store).save("client", {"a/#": 1})
        queue = hub.queue(P0)
        (row,) = await queue.read_batch(1, 1 << 20)
        queue.dead_letter(row, FailureKind.REJECTED, "no")
        await hub.store.writer.flush()


async def meets_damage(path: Path) -> None:
    """Run a hub on the file, read all of it, and see it end."""

    async def read_everything() -> None:
        async with running(path) as hub:
            for queue in hub.store.queues.all():
                await read_all(queue)

    with pytest.raises(ExceptionGroup) as caught:
        await read_everything()
    assert caught.group_contains(StoreCorruptError)


def are_bodies(found: Iterable[bytes], first: int, last: int) -> set[int]:
    """Return the numbers that are missing; what is there must be in order."""
    numbers = [int(body.removeprefix(b"body-")) for body in found]
    assert numbers == sorted(set(numbers))
    return set(range(first, last)) - set(numbers)


@pytest.mark.usefixtures("uncounted")
async def test_a_bad_page_costs_the_rows_on_it(tmp_path: Path) -> None:
    """The hub ends when it meets the page; the next start saves the rest, counts what is lost."""
    path = tmp_path / "q.db"
    await filled(path)
    async with running(path) as hub:
        ids = {row.offset: row.message.message_id for row in await read_all(hub.queue())}
        before = hub.store.statistics()
    spoil(path, page_with(path, b"body-2500"), os.urandom(PAGE_BYTES))
    await meets_damage(path)
    async with running(path) as hub:
        damage = hub.store.damage
        assert damage is not None
        assert damage.is_new
        assert damage.is_exact
        assert damage.tables == []
        ((endpoint, priority, lost, size),) = damage.lost
        assert (endpoint, priority) == ("upstream", 2)
        assert 1 < lost < 120
        assert damage.salvaged_rows == before.rows - lost == hub.store.statistics().rows
        assert before.bytes - size == hub.store.statistics().bytes
        rows = await read_all(hub.queue())
        assert len(are_bodies(bodies(rows), 350, 350 + ROWS)) == lost
        assert all(row.message.message_id == ids[row.offset] for row in rows)
        assert len(await read_all(hub.queue(P0))) == 299
        assert len(await read_all(hub.queue(P7, LAB))) == 50
        assert [letter.message.body for letter in await dead_letters_of(hub.store)] == [b"body-0"]
        assert (await SessionTable(hub.store).load()).keys() == {"client"}
        assert hub.store.statistics().next_offset >= before.next_offset + OFFSETS_SKIPPED
        assert hub.queue().statistics().checkpoint == rows[0].offset - 1
    assert len(set_aside(path)) == 1
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("uncounted")
async def test_status_says_what_is_lost_until_the_old_file_is_gone(tmp_path: Path) -> None:
    """The warning lasts over restarts, and ends when somebody has dealt with the file."""
    path = tmp_path / "q.db"
    await filled(path)
    spoil(path, page_with(path, b"body-2500"))
    await meets_damage(path)
    for is_new in (True, False):
        async with running(path) as hub:
            (warning,) = store_warnings(hub.store.statistics())
            assert "of upstream_Pri2 between offsets " in warning
            assert f"; {set_aside(path)[0]} holds the old file" in warning
            assert hub.store.damage is not None
            assert hub.store.damage.is_new is is_new
    (path.parent / set_aside(path)[0]).unlink()
    for _ in range(2):
        async with running(path) as hub:
            assert store_warnings(hub.store.statistics()) == []
            assert hub.store.damage is None


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
async def test_a_truncated_file_keeps_what_is_before_the_cut(tmp_path: Path, share: float) -> None:
    """The file is set aside at the start, the rows on whole pages are there, the others counted."""
    path = tmp_path / "q.db"
    await filled(path)
    os.truncate(path, int(path.stat().st_size * share))
    async with running(path) as hub:
        damage = hub.store.damage
        assert damage is not None
        assert damage.is_exact
        rows = [row for queue in hub.store.queues.all() for row in await read_all(queue)]
        assert len(rows) == damage.salvaged_rows
        assert len(rows) + sum(entry[2] for entry in damage.lost) == ALL_ROWS
        await hub.stored(3)
    async with running(path) as hub:
        assert hub.store.statistics().rows == len(rows) + 3


async def test_a_file_that_is_no_database_any_more_is_set_aside(tmp_path: Path) -> None:
    """Where nothing can be read, the hub starts empty, says that more may be lost, and works."""
    path = tmp_path / "q.db"
    await filled(path)
    path.write_bytes(os.urandom(path.stat().st_size))
    path.with_name("q.db.tables").unlink()
    async with running(path) as hub:
        damage = hub.store.damage
        assert damage is not None
        assert not damage.is_exact
        [warning] = store_warnings(hub.store.statistics())
        assert "0 messages saved, 0 and perhaps more lost" in warning
        await hub.stored(3)
        assert len(await read_all(hub.queue())) == 3
    assert (path.parent / set_aside(path)[0]).stat().st_size > 100_000


@pytest.mark.parametrize("table", ["queue", "zone", "label", "boot", "meta", "body", "session"])
async def test_a_lost_table_costs_no_more_than_it_held(tmp_path: Path, table: str) -> None:
    """Rows of queues outlive the tables around them; shared ones need their body."""
    path = tmp_path / "q.db"
    await filled(path)
    spoil(path, root_page(path, table), os.urandom(PAGE_BYTES))
    if table in ("body", "session"):
        path.with_name("q.db.lock").write_text('{"state":"open","damage":"met by the last hub"}')
    async with running(path) as hub:
        assert hub.store.damage is not None
        shared = 0 if table == "body" else 100
        queues = hub.store.queues.all()
        rows = {queue.id: await read_all(queue) for queue in queues}
        assert sum(map(len, rows.values())) == WITHOUT_SHARED + shared
        offsets = {row.offset for each in rows.values() for row in each}
        await hub.stored(1)
        (fresh,) = await read_all(hub.queue())
        assert fresh.offset > max(offsets)
        assert sorted(damaged for damaged in hub.store.damage.tables) == (
            [] if table in ("queue", "zone") else [table]
        )


@pytest.mark.parametrize("seed", range(8))
async def test_any_page_may_be_spoilt(tmp_path: Path, seed: int) -> None:
    """Whatever page it is, within two more starts the hub works, and every row is accounted for."""
    rng = random.Random(seed)
    path = tmp_path / "q.db"
    await filled(path)
    page = rng.randint(2, path.stat().st_size // PAGE_BYTES)
    spoil(path, page, rng.choice([bytes(PAGE_BYTES), rng.randbytes(PAGE_BYTES)]))
    try:
        found, damage = await _life(path)
    except* StoreCorruptError:
        found, damage = await _life(path)
    lost = sum(entry[2] for entry in damage.lost) if damage else 0
    assert found + lost == ALL_ROWS or (damage is not None and not damage.is_exact)


async def _life(path: Path) -> tuple[int, Damage | None]:
    async with running(path) as hub:
        found = 0
        for queue in hub.store.queues.all():
            rows = await read_all(queue)
            found += len(rows)
            queue.confirm(rows)
        await hub.stored(3)
        await dead_letters_of(hub.store)
        await SessionTable(hub.store).load()
        return found, hub.store.damage


async def test_rows_of_a_queue_without_a_name_are_parked(tmp_path: Path) -> None:
    """Where nobody knows any more for whom rows are, they wait under a name of their own."""
    path = tmp_path / "q.db"
    await filled(path)
    spoil(path, root_page(path, "queue"))
    spoil(path, root_page(path, "sqlite_autoindex_queue_1"))
    path.with_name("q.db.tables").unlink()
    async with running(path) as hub:
        names = {queue.id: queue.statistics().depth for queue in hub.store.queues.all()}
        assert names == {"salvaged-1": 299, "salvaged-2": 50, "salvaged-3": 50, "salvaged-4": ROWS}


@pytest.mark.usefixtures("uncounted")
async def test_a_row_whose_header_is_damaged_goes_alone(tmp_path: Path) -> None:
    """Bytes that SQLite cannot check: the row that cannot be read is lost, no other."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        for number in range(100):
            hub.send(a_message(f"device-{number}", b"body-%d" % number))
        await hub.store.writer.flush()
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"device-41"', b'"device-41\x01'))
    await meets_damage(path)
    async with running(path) as hub:
        assert hub.store.damage is not None
        assert [entry[:3] for entry in hub.store.damage.lost] == [("upstream", 2, 1)]
        assert are_bodies(bodies(await read_all(hub.queue())), 0, 100) == {41}


async def test_a_file_that_turns_out_whole_stays(tmp_path: Path) -> None:
    """Damage that was met once and is not in the file costs nothing but the look."""
    path = tmp_path / "q.db"
    await filled(path)
    plan = FaultPlan()
    store = await Store.open(
        path,
        clock=ManualClock(),
        options=StoreOptions(),
        database_type=faulty_database(plan),
    )
    plan.fail("SELECT q.offset", "SQLITE_CORRUPT")
    with pytest.raises(StoreCorruptError):
        await read_all(store.queues.all()[0])
    await store.close()
    for _ in range(2):
        async with running(path) as hub:
            assert hub.store.damage is None
            assert hub.store.statistics().rows == ALL_ROWS
    assert set_aside(path) == []


async def test_a_torn_log_loses_its_last_commit_at_most(tmp_path: Path) -> None:
    """R-09: the log is cut back to the last whole commit, and no offset is used again."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        for _ in range(20):
            await hub.stored(1)
        copy = crash_copy(path, tmp_path / "crash")
        next_offset = hub.store.statistics().next_offset
    log = copy.with_name("q.db-wal")
    os.truncate(log, log.stat().st_size - 37)
    async with running(copy) as hub:
        assert hub.store.damage is None
        assert are_bodies(bodies(await read_all(hub.queue())), 0, 20) <= {19}
        assert hub.store.statistics().next_offset >= next_offset


async def test_a_lost_log_is_reported_and_uses_no_offset_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that were in the log alone are gone; new ones must not pass for them."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(20)
        await hub.store._wal.checkpoint()  # noqa: SLF001 - a moment that tests cannot wait for
        await hub.stored(20)
        copy = crash_copy(path, tmp_path / "crash")
        next_offset = hub.store.statistics().next_offset
        copy.with_name("q.db.lock").write_bytes(path.with_name("q.db.lock").read_bytes())
    copy.with_name("q.db-wal").unlink()
    async with running(copy) as hub:
        assert are_bodies(bodies(await read_all(hub.queue())), 0, 40) == set(range(20, 40))
        assert hub.store.statistics().next_offset >= next_offset
        (warning,) = store_warnings(hub.store.statistics())
        assert "the newest messages are lost" in warning
    assert "store.log_missing" in capsys.readouterr().out
    async with running(copy) as hub:
        assert store_warnings(hub.store.statistics()) == []


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("was_closed", [False, True])
async def test_a_file_that_is_gone_is_reported_and_uses_no_offset_again(
    tmp_path: Path, *, is_empty: bool, was_closed: bool
) -> None:
    """A hub has left one: that it is not there, or empty, is no first start."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        assert store_warnings(hub.store.statistics()) == []
        await hub.stored(20)
        copy = crash_copy(path, tmp_path / "crash")
        lock = path.with_name("q.db.lock").read_bytes()
        next_offset = hub.store.statistics().next_offset
    if was_closed:
        lock = path.with_name("q.db.lock").read_bytes()
    copy.with_name("q.db.lock").write_bytes(lock)
    for each in ("q.db-wal", "q.db"):
        copy.with_name(each).unlink(missing_ok=True)
    if is_empty:
        copy.touch()
    async with running(copy) as hub:
        (warning,) = store_warnings(hub.store.statistics())
        assert "what waited in it is lost" in warning
        assert hub.store.statistics().next_offset >= next_offset
    async with running(copy) as hub:
        assert store_warnings(hub.store.statistics()) == []


async def test_the_index_of_the_log_may_go(tmp_path: Path) -> None:
    """A deleted -shm is made again from the log; nothing is lost."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(20)
        copy = crash_copy(path, tmp_path / "crash")
    assert not copy.with_name("q.db-shm").exists()
    async with running(copy) as hub:
        assert len(await read_all(hub.queue())) == 20


@pytest.mark.usefixtures("uncounted")
async def test_a_damaged_file_that_still_has_a_log_is_saved_with_it(tmp_path: Path) -> None:
    """What the log holds counts as part of the file, and is set aside with it."""
    path = tmp_path / "q.db"
    await filled(path)
    async with running(path) as hub:
        await hub.stored(30, a_result(P0))
        copy = crash_copy(path, tmp_path / "crash")
    spoil(copy, page_with(copy, b"body-2500"))
    await meets_damage(crash_copy(copy, tmp_path / "other"))
    copy.with_name("q.db.lock").write_text('{"state":"open","damage":"met by the last hub"}')
    async with running(copy) as hub:
        assert len(await read_all(hub.queue(P0))) == 329
    (name,) = set_aside(copy)
    assert copy.with_name(f"{name}-wal").exists()


@pytest.mark.usefixtures("uncounted")
async def test_a_start_cut_off_while_it_replaces_is_gone_on_with(tmp_path: Path) -> None:
    """Whole copies are put in place by the next start, half ones are made anew."""
    path = tmp_path / "q.db"
    await filled(path)
    spoil(path, page_with(path, b"body-2500"))
    await meets_damage(path)
    async with running(path) as hub:
        rows = hub.store.statistics().rows
    path.rename(path.with_name("q.db.salvaged"))
    path.with_name("q.db.salvage").write_bytes(b"half")
    async with running(path) as hub:
        assert hub.store.statistics().rows == rows
    assert not path.with_name("q.db.salvaged").exists()


async def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    """A disk that goes on failing is not filled with what it has spoilt."""
    path = tmp_path / "q.db"
    for _ in range(KEPT_MAX + 2):
        async with running(path) as hub:
            await hub.stored(5)
        spoil(path, 1)
    async with running(path):
        assert len(set_aside(path)) == KEPT_MAX


async def test_no_room_for_the_copy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that cannot save the rows leaves the file alone and says what to do."""
    path = tmp_path / "q.db"
    await filled(path)
    os.truncate(path, path.stat().st_size // 2)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgehub.store.salvage.salvage.salvage", full)
    before = path.read_bytes()
    with pytest.raises(StartupError, match="free as much disk space as the file takes"):
        await Store.open(path, clock=ManualClock(), options=StoreOptions())
    assert path.read_bytes() == before
    monkeypatch.undo()
    async with running(path) as hub:
        assert hub.store.damage is not None


async def test_memory_only_must_be_asked_for_and_shows(tmp_path: Path) -> None:
    """R-04: by default all is on disk; in memory it is gone after a stop, and status says so."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(12)
        assert hub.store.statistics().durable
    async with running(path, options=StoreOptions(durable=False)) as hub:
        assert not hub.store.statistics().durable
        assert "durable: no" in store_warnings(hub.store.statistics())[0]
        await hub.stored(5, a_result(P2))
        rows = await read_all(hub.queue())
        assert len(rows) == 5
        hub.queue().confirm(rows)
        await hub.store.writer.flush()
        assert hub.store.statistics().rows == 0
    async with running(path) as hub:
        assert bodies(await read_all(hub.queue())) == [b"body-%d" % number for number in range(12)]
