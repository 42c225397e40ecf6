"""Files whose list of tables or upper pages are gone: every row on whole pages outlives that."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from edgehub.heads.mqtt.session_table import SessionTable
from edgehub.hub.status import store_warnings
from edgehub.message import EndpointId, FailureKind
from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.offsets import OFFSETS_SKIPPED
from edgehub.store.salvage.file_header import header_fault
from edgehub.store.salvage.page_owners import PageOwners
from edgehub.store.salvage.pages import PageFile
from edgehub.store.salvage.salvage import Salvaged, salvage
from edgehub.store.salvage.table_list import list_path, read_table_list
from tests.support.backlog import PLAIN, STALE, make_backlog
from tests.support.database_damage import Whole, map_of, queue_rows, roots_of, spoil, spoil_some
from tests.support.stores import LAB, P0, P2, P7, a_message, a_result, crash_copy, read_all, running

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.store import Store

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
SEEDS = 400 if SOAK else 10
BACKLOG = 4_000_000 if SOAK else 30_000
STALE_ROWS = 72
"""That stand on free pages of the file."""
HALF = PAGE_BYTES // 2
FIRST_PAGES = {
    "zeros": (bytes(PAGE_BYTES), 0),
    "ones": (b"\xff" * PAGE_BYTES, 0),
    "random": (random.Random(1).randbytes(PAGE_BYTES), 0),
    "first half": (bytes(HALF), 0),
    "second half": (random.Random(2).randbytes(HALF), HALF),
    "header": (random.Random(3).randbytes(100), 0),
    "tree": (random.Random(4).randbytes(16), 100),
    "page size": ((8192).to_bytes(2), 16),
    "journal mode": (b"\x07\x01", 18),
    "pages": ((3).to_bytes(4), 28),
    "encoding": ((2).to_bytes(4), 56),
    "schema version": ((77).to_bytes(4), 60),
    "vacuum mode": (bytes(16), 52),
    "application": (b"abcd", 68),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Whole]:
    """Fill a file, once."""
    path = tmp_path_factory.mktemp("carving") / "q.db"
    asyncio.run(fill(path))
    return path, Whole.of(path)


async def fill(path: Path) -> None:
    """Make queues that drained and filled again, shared and long bodies, and all else."""
    async with running(path) as hub:
        await hub.stored(4000, a_result(P2))
        rows = await read_all(hub.queue())
        hub.queue().confirm(rows[:3500])
        await hub.store.writer.flush()
        for number in range(1500):
            body = b"body-%d|" % number + bytes(number % 256 for _ in range(900))
            hub.send(a_message(body=body), a_result(P2))
            if not number % 3:
                hub.send(a_message("pump-2", body), a_result(P0, ttl_s=9e6))
            if not number % 50:
                long = b"long-%d|" % number + random.Random(number).randbytes(20_000)
                hub.send(a_message("cam-1", long), a_result(P7))
                hub.send(a_message("cam-1", long), a_result(P7), a_result(P7, endpoint_id=LAB))
        await hub.stored(400, a_result(P7), a_result(P2, endpoint_id=LAB))
        await SessionTable(hub.store).save("client", {"a/#": 1})
        queue = hub.queue(P0)
        (row,) = await queue.read_batch(1, 1 << 20)
        queue.dead_letter(row, FailureKind.REJECTED, "no")
        await hub.stored(2000, a_result(P2, endpoint_id=LAB))
        rows = await read_all(hub.queue(P2, LAB))
        hub.queue(P2, LAB).confirm(rows[400:])
        await hub.store.writer.flush()
        # Rows that were moved are, once more, where they were.
        for _ in range(300):
            hub.send(a_message(body=bytes(900)), a_result(P0, endpoint_id=LAB))
        await hub.store.writer.flush()
        await hub.store.purger.take_out(
            hub.queue(P0, LAB), hub.queue(P7, LAB), from_offset=0, through=1 << 40
        )
        # Half of them are delivered, and still stand there.
        rows = await read_all(hub.queue(P7, LAB))
        hub.queue(P7, LAB).confirm(rows[-300::2])
        await hub.store.writer.flush()


Copy = tuple["Path", Whole]


@pytest.fixture
def copy(template: Copy, tmp_path: Path) -> Copy:
    """Return a copy to be spoilt."""
    path, whole = template
    for suffix in ("", ".lock", ".tables"):
        shutil.copyfile(f"{path}{suffix}", tmp_path / f"q.db{suffix}")
    return tmp_path / "q.db", whole


def salvaged(path: Path, whole: Whole, spoilt: set[int]) -> Salvaged:
    """Salvage a file and hold what comes out against what must."""
    has_copy = list_path(path).exists()
    target = path.with_name("out.db")
    target.unlink(missing_ok=True)
    result = salvage(path, target)
    found = queue_rows(target)
    seen: set[int] = set()
    back: list[int] = []
    for queue, rows in found.items():
        assert not seen & rows.keys(), "in two queues"
        seen |= rows.keys()
        home = whole.rows.get(queue)
        for offset, row in rows.items():
            if offset not in whole.pages:
                # Without its map nobody can tell. It is parked, or a row near it is missed there.
                assert not result.is_exact, "a row that had left is back"
                back.append(offset)
                continue
            assert home is None or offset in home, "in a wrong queue"
            if not whole.pages[offset] & spoilt:
                assert row == next(r[offset] for r in whole.rows.values() if offset in r)
    for queue, rows in whole.rows.items():
        for offset in rows:
            if whole.must_survive(offset, spoilt):
                # Without the copy names may be lost as well; then it is parked.
                assert offset in (found.get(queue, {}) if has_copy else seen), (queue, offset)
    assert result.rows == len(seen)
    assert len(back) <= STALE_ROWS
    if result.is_exact:
        missing = {
            queue: len(rows) - len(found.get(queue, {}).keys() & rows.keys())
            for queue, rows in whole.rows.items()
        }
        told = {(endpoint, priority): rows for endpoint, priority, rows, _ in result.lost}
        if found.keys() <= whole.rows.keys():
            assert {queue: rows for queue, rows in missing.items() if rows} == told
        else:
            # Of queues that have lost their names the rows are there all the same.
            assert sum(told.values()) >= len(whole.pages) - len(seen)
    return result


def is_all_there(result: Salvaged, whole: Whole) -> bool:
    """Return whether nothing is missing, and the hub knows it."""
    rows = sum(len(rows) for rows in whole.rows.values())
    return (result.rows, result.lost, result.is_exact, result.tables) == (rows, [], True, [])


async def contents(store: Store) -> dict[int, tuple[object, ...]]:
    """Read all queues: queue, id, sender, source and body by offset."""
    return {
        row.offset: (queue.id, sent.message_id, sent.device_id, sent.source, sent.body)
        for queue in store.queues.all()
        for row in await read_all(queue)
        for sent in [row.message]
    }


@pytest.mark.parametrize("what", FIRST_PAGES)
async def test_the_first_page_may_go(copy: Copy, what: str) -> None:
    """The hub starts, sets the file aside, has every row, and says so; ids and places stay."""
    path, whole = copy
    async with running(path) as hub:
        before = await contents(hub.store)
        next_offset = hub.store.statistics().next_offset
    spoil(path, 1, *FIRST_PAGES[what])
    async with running(path) as hub:
        damage = hub.store.damage
        if damage is None:
            # The number of pages is not looked at in a file with a log.
            assert what == "pages"
        else:
            assert (damage.lost, damage.is_exact, damage.tables) == ([], True, [])
            assert damage.salvaged_rows == len(whole.pages)
            assert "messages saved, 0 lost" in store_warnings(hub.store.statistics())[0]
            assert (path.parent / f"{damage.file}.tables").exists()
            assert hub.store.statistics().next_offset >= next_offset + OFFSETS_SKIPPED
        assert await contents(hub.store) == before
        assert len(await hub.store.inspection.dead_letters()) == 1
        assert (await SessionTable(hub.store).load()).keys() == {"client"}
        await hub.stored(3)


async def test_it_may_go_without_the_copy_of_the_list(copy: Copy) -> None:
    """What is left of the list of tables, behind the first page, is enough; ids stay as well."""
    path, whole = copy
    list_path(path).unlink()
    spoil(path, 1)
    assert is_all_there(salvaged(path, whole, {1}), whole)


def test_the_file_is_believed_before_the_copy(copy: Copy) -> None:
    """One of another file, with its first pages and queues: what is left of the list is right."""
    path, whole = copy
    listed = read_table_list(path)
    assert listed is not None
    roots = listed.roots | {"q_1": listed.roots["q_2"], "q_2": listed.roots["q_1"], "body": 40}
    queues = [(number, "other", 3) for number, *_ in listed.queues]
    list_path(path).write_bytes(replace(listed, roots=roots, queues=queues).written())
    assert read_table_list(path) is not None
    spoil(path, 1)
    assert is_all_there(salvaged(path, whole, {1}), whole)


@pytest.mark.parametrize("content", [b"", b"{}\n00000000\n", None])
def test_a_copy_that_is_damaged_is_none(copy: Copy, content: bytes | None) -> None:
    """Its checksum tells, or that it is no list; the rows are there without it."""
    path, whole = copy
    listed = list_path(path)
    if content is None:
        whole_list = read_table_list(path)
        assert whole_list is not None
        root = whole_list.roots["q_1"]
        entry, other = f'"q_1":{root}', f'"q_1":{root + 1}'
        content = listed.read_bytes().replace(entry.encode(), other.encode())
        assert content != listed.read_bytes()
    listed.write_bytes(content)
    assert read_table_list(path) is None
    spoil(path, 1)
    assert is_all_there(salvaged(path, whole, {1}), whole)


@pytest.mark.parametrize("with_copy", [True, False])
@pytest.mark.parametrize("place", range(6))
def test_a_page_of_the_list_may_go(copy: Copy, place: int, *, with_copy: bool) -> None:
    """Each of them alone: the tables that stand on it are missed, and read all the same."""
    path, whole = copy
    with PageFile(path) as file:
        page = PageOwners(file, ()).of(1)[place]
    if not with_copy:
        list_path(path).unlink()
    spoil(path, page)
    assert is_all_there(salvaged(path, whole, {page}), whole)


@pytest.mark.parametrize("with_copy", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_further_pages_of_the_list_may_go(copy: Copy, *, with_copy: bool, first: bool) -> None:
    """All of them: then the copy tells, or the order in which tables are made and the zone rows."""
    path, whole = copy
    with PageFile(path) as file:
        spoilt = set(PageOwners(file, ()).of(1))
    assert len(spoilt) > 3
    spoilt -= set() if first else {1}
    if not with_copy:
        list_path(path).unlink()
    for page in spoilt:
        spoil(path, page)
    assert is_all_there(salvaged(path, whole, spoilt), whole)


def test_the_map_of_the_list_may_go_too(copy: Copy) -> None:
    """With the copy and the zone rows: what is left of the list is found by what it looks like."""
    path, whole = copy
    list_path(path).unlink()
    spoilt = {1, map_of(3), roots_of(path)["zone"]}
    for page in spoilt:
        spoil(path, page)
    salvaged(path, whole, spoilt)
    found = queue_rows(path.with_name("out.db"))
    assert {queue: rows.keys() for queue, rows in found.items() if queue in whole.rows} == {
        queue: rows.keys() for queue, rows in whole.rows.items()
    }


@pytest.mark.parametrize("root", ["q_1", "zone", "body", "queue"])
def test_the_first_page_of_a_table_may_go_too(copy: Copy, root: str) -> None:
    """With the first page of the file; a table with leaves of its own below it loses nothing."""
    path, whole = copy
    page = roots_of(path)[root]
    if root == "queue":
        list_path(path).unlink()
    spoil(path, 1)
    spoil(path, page, os.urandom(PAGE_BYTES))
    result = salvaged(path, whole, {1, page})
    assert result.is_exact is (root != "zone")
    assert result.tables == []
    assert result.rows == len(whole.pages)
    assert queue_rows(path.with_name("out.db")).keys() == whole.rows.keys()


@pytest.mark.parametrize("place", [3, -1])
def test_a_map_may_go_with_the_first_page_of_a_table(copy: Copy, place: int) -> None:
    """Shared bodies are found by what they look like; what else there was is not certain."""
    path, whole = copy
    spoilt = {map_of(place % whole.count), roots_of(path)["body"]}
    for page in spoilt:
        spoil(path, page)
    result = salvaged(path, whole, spoilt)
    assert (result.rows, result.lost, result.is_exact) == (len(whole.pages), [], True)
    assert result.tables == ["body"]


@pytest.mark.parametrize("root", [None, "q_5"])
def test_without_maps_the_zone_rows_show_what_was_delivered(copy: Copy, root: str | None) -> None:
    """Old rows on free pages are neither sent nor parked, though nothing else tells of these."""
    path, whole = copy
    spoilt = {1, map_of(3), map_of(whole.count)} | ({roots_of(path)[root]} if root else set())
    for page in spoilt:
        spoil(path, page)
    result = salvaged(path, whole, spoilt)
    assert (result.rows, result.lost, result.tables) == (len(whole.pages), [], [])
    # Where they had to be put by what is missed nobody can be certain.
    assert result.is_exact is (root is None)


def test_free_pages_are_known_without_their_map(copy: Copy) -> None:
    """As long as the first page leads to them: then nothing that was delivered is parked."""
    path, whole = copy
    spoilt = {map_of(3), map_of(whole.count), roots_of(path)["zone"]}
    for page in spoilt:
        spoil(path, page)
    result = salvaged(path, whole, spoilt)
    assert not result.is_exact
    assert result.rows == len(whole.pages)


async def test_message_ids_outlive_the_table_that_they_begin_in(copy: Copy) -> None:
    """The first half of each is in the copy as well."""
    path, _ = copy
    async with running(path) as hub:
        before = await contents(hub.store)
    spoil(path, roots_of(path)["meta"])
    async with running(path) as hub:
        assert hub.store.damage is not None
        assert hub.store.damage.tables == ["meta"]
        assert await contents(hub.store) == before


def test_a_page_of_rows_costs_the_rows_on_it(copy: Copy) -> None:
    """With the first page of the file: these are lost, counted, and no others."""
    path, whole = copy
    offset = random.Random(5).choice([*whole.rows["upstream", 2]])
    (page,) = whole.pages[offset]
    spoil(path, 1)
    spoil(path, page)
    result = salvaged(path, whole, {1, page})
    gone = sum(page in pages for pages in whole.pages.values())
    assert [entry[:3] for entry in result.lost] == [("upstream", 2, gone)]
    assert 1 <= gone < 20


@pytest.mark.parametrize("with_copy", [True, False])
def test_the_beginning_of_the_file_may_go(copy: Copy, *, with_copy: bool) -> None:
    """Every first page and the map of the first 820 pages: what was delivered does not come back.

    Rows of which nobody knows the queue any more are parked; those behind the next map have theirs.
    """
    path, whole = copy
    if not with_copy:
        list_path(path).unlink()
    spoilt = set(range(1, 65))
    for page in spoilt:
        spoil(path, page)
    result = salvaged(path, whole, spoilt)
    assert not result.is_exact
    assert result.rows > len(whole.pages) // 4


@pytest.mark.parametrize(
    "size", [0, 50, 100, PAGE_BYTES, PAGE_BYTES + 1, 40 * PAGE_BYTES, 0.5, 0.9]
)
async def test_a_file_may_be_cut(copy: Copy, size: float) -> None:
    """Wherever the cut is, the hub starts and works; what is before it is there."""
    path, whole = copy
    cut = int(size if size > 1 or not size else size * path.stat().st_size)
    os.truncate(path, cut)
    if cut:
        salvaged(path, whole, set(range(cut // PAGE_BYTES + 1, whole.count + 1)))
    async with running(path) as hub:
        assert (hub.store.damage is None) is (cut == 0)
        names = {queue.id for queue in hub.store.queues.all()}
        assert not cut or names >= {"upstream_Pri0", "upstream_Pri2", "upstream_Pri7", "lab_Pri7"}
        await hub.stored(3)
        assert len(await read_all(hub.queue())) >= 3


async def test_the_log_counts_as_part_of_the_file(copy: Copy, tmp_path: Path) -> None:
    """Rows and a queue that are in the log alone outlive the first page; freed rows stay away."""
    path, _ = copy
    async with running(path) as hub:
        rows = await read_all(hub.queue())
        hub.queue().confirm(rows[:300])
        await hub.stored(200, a_result(P2))
        await hub.stored(5, a_result(endpoint_id=EndpointId("new")))
        crashed = crash_copy(path, tmp_path / "crash")
    whole = Whole.of(path)
    assert crashed.with_name("q.db-wal").stat().st_size > 20 * PAGE_BYTES
    spoil(crashed, 1)
    assert is_all_there(salvaged(crashed, whole, {1}), whole)


async def test_a_new_file_has_a_whole_header(tmp_path: Path) -> None:
    """At once, and so does one that was killed before its log was emptied."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        crashed = [crash_copy(path, tmp_path / "new")]
        await hub.stored(1)
        crashed.append(crash_copy(path, tmp_path / "later"))
    for copy in crashed:
        assert header_fault(copy) == ""
        async with running(copy) as hub:
            assert hub.store.damage is None


async def test_the_copy_is_never_older_than_the_file(copy: Copy) -> None:
    """It is written before a changed list of tables leaves the log, when opened and at the end."""
    path, _ = copy
    list_path(path).unlink()
    async with running(path) as hub:
        before = read_table_list(path)
        assert before is not None
        await hub.stored(1, a_result(endpoint_id=EndpointId("new")))
        assert read_table_list(path) == before
        await hub.store._wal.checkpoint()  # noqa: SLF001 - a moment that tests cannot wait for
        assert read_table_list(path).roots == roots_of(path)
        await hub.stored(1, a_result(endpoint_id=EndpointId("newer")))
    listed = read_table_list(path)
    assert listed is not None
    assert listed.roots == roots_of(path)
    assert [name for _, name, _ in listed.queues][-2:] == ["new", "newer"]


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_pages_may_be_spoilt(copy: Copy, seed: int) -> None:
    """Whole rows are there, in their queues; nothing is there that had left; the sums are right."""
    path, whole = copy
    rng = random.Random(seed)
    if rng.random() < 0.3:
        list_path(path).unlink()
    spoilt = spoil_some(path, rng, whole.count)
    salvaged(path, whole, spoilt)


SALVAGE = """
import pathlib, re, sys
from edgehub.store.salvage.salvage import salvage
def kibibytes(name):
    return int(re.search(name + r":\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = kibibytes("VmRSS")
result = salvage(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(result.rows, kibibytes("VmHWM") - before)
"""


@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 60)
async def test_a_long_backlog_takes_little_memory(tmp_path: Path) -> None:
    """The rows stream from file to file: 1 GiB in full size, in less than 50 MB beside the rest."""
    path = tmp_path / "q.db"
    await make_backlog(path, BACKLOG, PLAIN, STALE)
    spoil(path, 1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SALVAGE, path, tmp_path / "out.db", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    rows, kibibytes = map(int, output.split())
    print(path.stat().st_size, rows, kibibytes)
    assert rows == BACKLOG
    assert kibibytes < 50_000
