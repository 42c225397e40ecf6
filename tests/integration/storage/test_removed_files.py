"""Files that somebody takes away under a running hub: what is written to them is not kept."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.errors import StoreRemovedError
from edgehub.message import Refusal
from edgehub.storage.state_file import StateError, StateFile
from edgehub.store.recovery import Missing
from tests.support.stores import bodies, read_all, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration


def remove_folder(path: Path) -> None:
    """Take away everything."""
    shutil.rmtree(path.parent)


def remove(suffix: str) -> Callable[[Path], None]:
    """Take away one file."""
    return lambda path: path.with_name(path.name + suffix).unlink()


def replace(path: Path) -> None:
    """Put an older copy into its place, as a restored backup would."""
    path.rename(path.with_name("old.db"))
    shutil.copyfile(path.with_name("old.db"), path)


async def take_away(path: Path, fault: Callable[[Path], None]) -> list[Refusal | None]:
    """Store ten rows, take files away, hand in three more; gives the answers of those three."""
    answers: list[Refusal | None] = []
    with pytest.RaisesGroup(StoreRemovedError, flatten_subgroups=True):
        async with running(path) as hub:
            await hub.stored(10)
            fault(path)
            hub.send_many(2)
            try:
                async with asyncio.timeout(20):
                    await hub.until_settled(12)
            finally:
                hub.send_many(1)
                answers += [refusal for _, refusal in hub.settled[10:]]
    return answers


@pytest.mark.parametrize(
    ("fault", "kept", "missing"),
    [
        pytest.param(remove_folder, 0, None, id="folder"),
        pytest.param(remove(""), 0, Missing.FILE, id="database"),
        pytest.param(replace, 0, Missing.FILE, id="replaced"),
        pytest.param(remove("-wal"), 12, None, id="log"),
        pytest.param(remove(".lock"), 12, None, id="lock"),
    ],
)
async def test_nothing_is_acknowledged_that_no_start_would_find(
    tmp_path: Path, fault: Callable[[Path], None], kept: int, missing: Missing | None
) -> None:
    """Senders are refused at once, the store stops with the name of the file; the next one tells.

    Where only the log or the lock is gone, the stop saves all that there was.
    """
    path = tmp_path / "hub" / "q.db"
    with capture_logs() as logs:
        assert await take_away(path, fault) == [Refusal.CLOSED] * 3
    (told,) = [line for line in logs if line["event"] == "store.file_removed"]
    assert str(path) in told["error"]
    async with running(path) as hub:
        assert hub.store.statistics().missing is missing
        rows = [row for queue in hub.store.queues.all() for row in await read_all(queue)]
        assert bodies(rows) == [b"body-%d" % number for number in range(kept)]
        await hub.stored(1)
    async with running(path) as hub:
        assert hub.store.statistics().missing is None


async def test_a_folder_that_is_moved_back_is_none_that_was_lost(tmp_path: Path) -> None:
    """The hub stops; the next one finds the same file, all that was acknowledged, and says so."""
    path = tmp_path / "hub" / "q.db"

    def move(path: Path) -> None:
        path.parent.rename(tmp_path / "elsewhere")

    assert await take_away(path, move) == [Refusal.CLOSED] * 3
    (tmp_path / "elsewhere").rename(path.parent)
    async with running(path) as hub:
        assert hub.store.statistics().missing is None
        assert len(await read_all(hub.queue())) >= 10
    path.unlink()
    async with running(path) as hub:
        assert hub.store.statistics().missing is Missing.FILE


async def test_another_file_of_the_same_number_is_another_file(tmp_path: Path) -> None:
    """Deleted, and a backup put in its place: the file system may use the number again."""
    path = tmp_path / "hub" / "q.db"
    backup = tmp_path / "backup.db"

    def delete(path: Path) -> None:
        shutil.copyfile(path, backup)
        path.unlink()

    await take_away(path, delete)
    shutil.copyfile(backup, path)
    word = path.with_name(f"{path.name}.lock")
    content = json.loads(word.read_bytes())
    status = word.stat()
    word.write_text(json.dumps({**content, "inode": path.stat().st_ino}), "utf-8")
    os.utime(word, ns=(status.st_atime_ns, status.st_mtime_ns))
    async with running(path) as hub:
        assert hub.store.statistics().missing is Missing.FILE


async def test_an_idle_store_notices_too(tmp_path: Path) -> None:
    """Nothing is sent; the look at the volume, every five seconds, finds the file gone."""
    path = tmp_path / "hub" / "q.db"
    with pytest.RaisesGroup(StoreRemovedError, flatten_subgroups=True):
        async with running(path) as hub:
            await hub.stored(1)
            remove_folder(path)
            while True:
                await hub.clock.advance(1.0)
                await asyncio.sleep(0)


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_change_of_the_state_file_is_not_confirmed(tmp_path: Path, suffix: str) -> None:
    """A route that is added then is refused with the reason, not lost at the next start."""
    path = tmp_path / "state.db"
    file = await StateFile.open(path, ["CREATE TABLE IF NOT EXISTS one (a INTEGER) STRICT"])
    await file.run(lambda connection: connection.execute("INSERT INTO one VALUES (1)"))
    path.with_name(path.name + suffix).unlink()
    with pytest.raises(StateError, match=r"state\.db.* was removed while it was in use; restart"):
        await file.run(lambda connection: connection.execute("INSERT INTO one VALUES (2)"))
    await file.close()
