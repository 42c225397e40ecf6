"""Damaged write-ahead logs: what was committed behind the damage is kept, what is lost is told."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.hub.status import store_warnings
from edgehub.storage.sqlite_log import (
    FRAME_BYTES,
    FRAME_HEADER,
    LOG_HEADER,
    find_log_damage,
    replace_log,
)
from edgehub.storage.state_file import StateFile
from edgehub.store.salvage.damage import replace_damaged, stored_damage
from tests.support.database_damage import queue_rows
from tests.support.stores import P0, P2, a_result, bodies, crash_copy, read_all, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.database_damage import Content

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
STEP = 99 if SOAK else 996
"""In full size the three masks together take every byte."""
FOUND = datetime(2026, 11, 28, tzinfo=UTC)


@dataclass
class Log:
    """A file whose hub was killed, with a log of three transactions and older ones behind them.

    Attributes:
        path: Where it is put again and again.
        files: Contents by suffix of the name.
        ends: Where each transaction ends in the log.
        rows: What all of it holds, see `queue_rows`.
    """

    path: Path
    files: dict[str, bytes]
    ends: list[int]
    rows: dict[tuple[str, int], dict[int, Content]]

    @property
    def log(self) -> bytes:
        """The content of the log."""
        return self.files["-wal"]

    def put(self, log: bytes) -> Path:
        """Put the file where it was, with another log."""
        for old in self.path.parent.iterdir():
            old.unlink()
        for suffix, content in (self.files | {"-wal": log}).items():
            self.path.with_name(self.path.name + suffix).write_bytes(content)
        return self.path

    def rows_with(self, log: bytes) -> dict[tuple[str, int], dict[int, Content]]:
        """Read what SQLite sees with a log."""
        return queue_rows(self.put(log))

    def flipped(self, place: int, mask: int) -> bytes:
        """Return the log with a byte changed."""
        return self.log[:place] + bytes([self.log[place] ^ mask]) + self.log[place + 1 :]


@pytest.fixture
async def three(tmp_path: Path) -> Log:
    """Make a file with a log of three transactions."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(40, a_result(P2))
        await hub.stored(60, a_result(P0))
        await hub.store._wal.checkpoint()  # noqa: SLF001 - a moment that tests cannot wait for
        for count in (25, 30, 20):
            await hub.stored(count, a_result(P2), a_result(P0))
        copy = crash_copy(hub.path, tmp_path / "crash")
    files = {
        suffix: copy.with_name(copy.name + suffix).read_bytes()
        for suffix in ("", "-wal", ".lock", ".tables")
    }
    log = files["-wal"]
    ends = []
    for place in range(LOG_HEADER.size, len(log), FRAME_BYTES):
        _, pages, *salts, _, _ = FRAME_HEADER.unpack_from(log, place)
        if pages and salts == list(LOG_HEADER.unpack_from(log)[4:6]):
            ends.append(place + FRAME_BYTES)
    assert len(ends) == 3
    assert len(log) > ends[-1] + FRAME_BYTES
    (tmp_path / "work").mkdir()
    found = Log(tmp_path / "work" / "q.db", files, ends, {})
    found.rows = found.rows_with(log)
    assert sum(map(len, found.rows.values())) == 250
    return found


def outcome(three: Log, log: bytes) -> str:
    """Do with a damaged log what a start does; say what came of it, having checked it."""
    path = three.put(log)
    total = sum(map(len, three.rows.values()))
    damage = find_log_damage(path)
    if damage is None:
        found = queue_rows(path)
        if found == three.rows:
            return "unharmed"
        assert found == three.rows_with(log[: three.ends[1]])
        return "without the last"
    replace_log(path, damage, FOUND)
    assert path.with_name("q.db-wal.damaged-20261128T000000Z").read_bytes() == log
    if damage.is_restored:
        assert find_log_damage(path) is None
        found = queue_rows(path)
        if found == three.rows:
            return "restored"
        assert found == three.rows_with(three.log[: three.ends[1]])
        return "restored without the last"
    if not replace_damaged(path, damage.reason, 0, is_exact=damage.is_exact):
        assert damage.is_exact
        assert queue_rows(path) == three.rows
        return "restored"
    found = queue_rows(path)
    with closing(sqlite3.connect(path)) as connection:
        told = stored_damage(connection)
    assert told is not None
    for queue, rows in found.items():
        assert rows.items() <= three.rows[queue].items()
        gone = three.rows[queue].keys() - rows.keys()
        ranges = [range(each[2], each[3] + 1) for each in told.offsets if each[:2] == queue]
        if told.is_exact:
            assert len(gone) == sum(each[2] for each in told.lost if each[:2] == queue)
            assert all(any(offset in span for span in ranges) for offset in gone)
    assert found.keys() == three.rows.keys()
    return "told" if told.is_exact or sum(map(len, found.values())) < total else "told in vain"


@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80] if SOAK else [0xFF])
def test_any_byte_of_the_log_may_be_flipped(three: Log, mask: int) -> None:
    """All that was committed is there, or what is lost is told: never less, and never silently.

    The last transaction alone may be left out whole: nothing tells it from one that was not synced.
    """
    places = {*range(LOG_HEADER.size), *range(LOG_HEADER.size + mask % 3, three.ends[-1], STEP)}
    for start in range(LOG_HEADER.size, three.ends[-1], FRAME_BYTES):
        places |= {*range(start, start + FRAME_HEADER.size, 1 if SOAK else 5)}
    for place in sorted(places):
        with capture_logs() as logs:
            found = outcome(three, three.flipped(place, mask))
        if place < three.ends[1]:
            assert found in {"restored", "told", "told in vain"}, place
        elif found == "without the last":
            assert [line["event"] for line in logs] == ["store.log_end_not_whole"], place
        else:
            assert found in {"restored", "told", "told in vain"}, place


@pytest.mark.parametrize("size", [512, 4096, 12288])
@pytest.mark.parametrize("seed", range(3))
def test_any_block_of_the_log_may_be_lost(three: Log, size: int, seed: int) -> None:
    """As it is with blocks of zeros or of anything, the first with the header of the log too."""
    rng = random.Random(seed)
    starts = range(0, three.ends[1] - FRAME_BYTES - size, size)
    for start in {0, *rng.choices(starts, k=8)}:
        content = rng.choice([bytes(size), rng.randbytes(size), b"\xff" * size])
        log = three.log[:start] + content + three.log[start + size :]
        if log != three.log:
            assert outcome(three, log) in {"restored", "told", "told in vain"}, start


@pytest.mark.parametrize("seed", range(4))
def test_a_transaction_that_was_not_synced_is_no_damage(three: Log, seed: int) -> None:
    """After a power cut any sectors of it may be missing; so with those that begin a new round."""
    rng = random.Random(seed)
    for _ in range(40):
        first = three.ends[1] if rng.random() < 0.7 else LOG_HEADER.size
        last = three.ends[2] if first > LOG_HEADER.size else three.ends[0]
        old = three.log if first == LOG_HEADER.size else bytes(three.ends[2])
        log = bytearray(three.log[:last])
        share = rng.choice([0.1, 0.5, 0.9])
        for start in range(first - first % 512, last, 512):
            if rng.random() < share:
                begin, end = max(start, first), min(start + 512, last)
                content = [bytes(end - begin), old[begin - 512 : end - 512]]
                log[begin:end] = rng.choice(content)
        if log == three.log[:last]:
            continue
        assert find_log_damage(three.put(bytes(log))) is None


def test_what_is_left_of_a_failed_transaction_is_no_damage(three: Log) -> None:
    """A shorter one was written over its beginning, in the same round of the log."""
    path = three.put(three.log[: three.ends[2] - FRAME_BYTES])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("INSERT INTO meta (key, value) VALUES ('short', '1')")
        log = path.with_name("q.db-wal").read_bytes()
    assert three.log[three.ends[1] : three.ends[1] + FRAME_BYTES] not in log
    assert three.log[three.ends[2] - 2 * FRAME_BYTES : three.ends[2] - FRAME_BYTES] in log
    assert find_log_damage(three.put(log)) is None


def test_a_log_is_looked_through_where_sqlite_has_no_index(
    three: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has no room for it: frames are checked one by one, with the same result."""
    monkeypatch.setattr("edgehub.storage.sqlite_log._frames_accepted", lambda _: 0)
    assert find_log_damage(three.put(three.log)) is None
    assert outcome(three, three.flipped(three.ends[0] + 100, 0x10)) == "restored"


async def test_a_flipped_bit_does_not_cost_what_was_stored_later(tmp_path: Path) -> None:
    """The hub starts with all later messages, says what is lost, and goes on above its offsets."""
    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(1)
        for _ in range(25):
            await hub.stored(20, a_result(P2))
        copy = crash_copy(path, tmp_path / "crash")
        next_offset = hub.store.statistics().next_offset
    log = bytearray(copy.with_name("q.db-wal").read_bytes())
    # In the last content of its page that the log holds.
    log[log.rindex(b"body-100") + 4] ^= 1
    copy.with_name("q.db-wal").write_bytes(log)
    async with running(copy) as hub:
        rows = await read_all(hub.queue())
        missing = {*range(501)} - {int(body[5:]) for body in bodies(rows)}
        damage = hub.store.damage
        assert damage is not None
        assert damage.is_exact
        assert [each[:3] for each in damage.lost] == [("upstream", 2, len(missing))]
        assert 100 in missing
        assert len(missing) < 100
        # Message n has offset n + 1.
        assert damage.offsets == [("upstream", 2, min(missing) + 1, max(missing) + 1)]
        assert hub.store.statistics().next_offset > next_offset
        told, about_log = store_warnings(hub.store.statistics())
        assert f"{len(missing)} of upstream_Pri2 between offsets {min(missing) + 1} and" in told
        assert "q.db-wal.damaged-" in about_log
        await hub.stored(1)


async def test_a_log_that_was_restored_is_reported_of_until_the_old_one_is_deleted(
    three: Log,
) -> None:
    """Nothing is lost, and the disk may spoil more: the warning lasts over restarts."""
    three.put(three.flipped(LOG_HEADER.size + 9, 0x10))
    for _ in range(2):
        async with running(three.path) as hub:
            (warning,) = store_warnings(hub.store.statistics())
            assert "look at the disk" in warning
            assert hub.store.damage is None
            assert hub.store.statistics().rows == 250
    for old in three.path.parent.glob("*.damaged-*"):
        old.unlink()
    async with running(three.path) as hub:
        assert store_warnings(hub.store.statistics()) == []


SCRIPT = "CREATE TABLE IF NOT EXISTS one (a INTEGER PRIMARY KEY, b TEXT) STRICT"


@pytest.mark.parametrize(
    "flip",
    [
        pytest.param(lambda _: 17, id="header"),
        pytest.param(lambda _: LOG_HEADER.size + 9, id="salts"),
        pytest.param(lambda log: log.index(b"value-50"), id="page"),
    ],
)
async def test_the_log_of_the_state_file_is_restored_as_well(
    tmp_path: Path, flip: Callable[[bytes], int]
) -> None:
    """What the hub could learn again is not thrown away for one bit either, and it is told."""
    path = tmp_path / "state.db"
    file = await StateFile.open(path, [SCRIPT])
    for number in range(200):
        row = (number, f"value-{number}" + "x" * 400)
        await file.run(lambda conn, row=row: conn.execute("INSERT INTO one VALUES (?, ?)", row))
    copy = crash_copy(path, tmp_path / "crash")
    await file.close()
    log = bytearray(copy.with_name("state.db-wal").read_bytes())
    log[flip(bytes(log))] ^= 0x10
    copy.with_name("state.db-wal").write_bytes(log)
    file = await StateFile.open(copy, [SCRIPT])
    count = await file.run(lambda conn: conn.execute("SELECT count(*) FROM one").fetchone()[0])
    assert count >= 190
    assert any("state.db-wal.damaged-" in warning for warning in file.warnings())
    assert (count == 200) is (not file.damaged)
    await file.close()
