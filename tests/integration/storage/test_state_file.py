"""The state file: one connection, whole jobs, and files that are not ours."""

import asyncio
import sqlite3

import pytest

from edgehub.errors import StartupError
from edgehub.storage.state_file import StateError, StateFile

SCRIPT = """CREATE TABLE IF NOT EXISTS one (a INTEGER PRIMARY KEY) STRICT

CREATE TABLE IF NOT EXISTS two (b TEXT NOT NULL) STRICT"""


def insert(*numbers: int):
    """Write a job that puts numbers in."""
    return lambda connection: connection.executemany(
        "INSERT INTO one (a) VALUES (?)", [(number,) for number in numbers]
    )


def count(connection: sqlite3.Connection) -> int:
    """Count the numbers."""
    return connection.execute("SELECT count(*) FROM one").fetchone()[0]


async def test_what_was_written_is_there_after_a_restart(tmp_path):
    """Its tables are made once, by whoever brings them."""
    path = tmp_path / "state.db"
    for number in range(3):
        file = await StateFile.open(path)
        await file.add(SCRIPT)
        await file.run(insert(number))
        assert await file.run(count) == number + 1
        await file.close()


async def test_a_job_that_fails_leaves_nothing(tmp_path):
    """Whether the database refuses, or the job itself does; the next one goes on."""
    file = await StateFile.open(tmp_path / "state.db", [SCRIPT])
    with pytest.raises(StateError):
        await file.run(insert(1, 2, 1))
    with pytest.raises(StateError):
        await file.run(insert(2**70))

    def fail(connection: sqlite3.Connection) -> None:
        insert(5)(connection)
        raise KeyError

    with pytest.raises(KeyError):
        await file.run(fail)
    assert await file.run(count) == 0
    await file.close()


async def test_jobs_run_one_after_the_other_whoever_waits(tmp_path):
    """A caller that goes away does not cut its job."""
    file = await StateFile.open(tmp_path / "state.db", [SCRIPT])
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            task = tasks.create_task(file.run(insert(number)))
            await asyncio.sleep(0)
            if number % 2:
                task.cancel()
    assert await file.run(count) == 20
    await file.close()


async def test_another_programs_file_is_left_alone(tmp_path):
    """It is refused at the start, with a hint."""
    path = tmp_path / "state.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StartupError, match="another program"):
        await StateFile.open(path)


@pytest.mark.parametrize("spoil", ["garbage", "header", "half", "words"])
async def test_a_damaged_file_is_set_aside_and_the_hub_starts(tmp_path, spoil):
    """It costs what was in it, not the start; status says so until the old file is gone."""
    path = tmp_path / "state.db"
    file = await StateFile.open(path, [SCRIPT])
    await file.run(insert(*range(5000)))
    await file.close()
    assert not file.warnings()
    content = await asyncio.to_thread(path.read_bytes)
    spoilt = {
        "garbage": b"no database at all" * 100,
        "header": content[:100],
        "half": content[: len(content) // 2],
        # SQLite quotes it, and then that cannot be read.
        "words": content.replace(b"CREATE TABLE", b"CREATE \xe9ABLE"),
    }[spoil]
    await asyncio.to_thread(path.write_bytes, spoilt)
    for _ in range(2):
        file = await StateFile.open(path, [SCRIPT])
        (name,) = file.damaged
        assert name.startswith("state.db.damaged-")
        assert name in file.warnings()[0]
        await file.close()
    aside = path.with_name(name)
    assert await asyncio.to_thread(aside.read_bytes) == spoilt
    await asyncio.to_thread(aside.unlink)
    file = await StateFile.open(path, [SCRIPT])
    assert not file.warnings()
    await file.run(insert(9999))
    await file.close()


@pytest.mark.parametrize("page", [4, 6, 9])
async def test_rows_around_a_bad_page_are_kept(tmp_path, page):
    """A table is read from both ends; the other tables are whole."""
    path = tmp_path / "state.db"
    file = await StateFile.open(path, [SCRIPT])
    await file.run(insert(*range(5000)))
    await file.run(lambda connection: connection.execute("INSERT INTO two (b) VALUES ('kept')"))
    await file.close()

    def spoil():
        with path.open("r+b") as raw:
            raw.seek(page * 4096)
            assert len(raw.read(4096)) == 4096
            raw.seek(page * 4096)
            raw.write(bytes(4096))

    await asyncio.to_thread(spoil)
    file = await StateFile.open(path, [SCRIPT])
    assert file.damaged
    assert 3000 < await file.run(count) < 5000
    assert await file.run(
        lambda connection: connection.execute("SELECT b FROM two").fetchall()
    ) == [("kept",)]
    await file.close()


async def test_a_replacement_that_was_cut_off_is_gone_on_with(tmp_path):
    """Between the two names nothing is lost: the copy that was whole takes its place."""
    path = tmp_path / "state.db"
    file = await StateFile.open(path, [SCRIPT])
    await file.run(insert(1, 2, 3))
    await file.close()
    await asyncio.to_thread(path.rename, path.with_name("state.db.salvaged"))
    file = await StateFile.open(path, [SCRIPT])
    assert await file.run(count) == 3
    await file.close()
