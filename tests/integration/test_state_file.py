"""The state file: one connection, whole jobs, and files that are not ours."""

import asyncio
import sqlite3

import pytest

from edgehub.errors import StartupError
from edgehub.state_file import StateError, StateFile

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


async def test_what_is_no_database_is_refused_with_a_hint(tmp_path):
    """The hub says which file, and what to do."""
    path = tmp_path / "state.db"
    await asyncio.to_thread(path.write_bytes, b"no database at all" * 100)
    with pytest.raises(StartupError, match=r"state\.db cannot be opened"):
        await StateFile.open(path)
