"""Files that older hubs left: opened, brought to the present schema, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.store import SessionTable
from edgehub.store.migrations import SCRIPTS
from tests.support.released import FOLDER, restore
from tests.support.stores import LAB, P0, P2, P7, bodies, read_all, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def test_every_schema_has_a_file() -> None:
    """Each version that was ever released is tried below."""
    assert {path.name for path in FOLDER.glob("*.sql")} == {
        f"schema_{version}.sql" for version in range(1, len(SCRIPTS) + 1)
    }


@pytest.mark.parametrize("version", range(1, len(SCRIPTS) + 1))
async def test_a_file_of_an_older_hub_is_taken_over(tmp_path: Path, version: int) -> None:
    """Rows, dead letters and sessions are there, in order, under the same ids; new ones join."""
    path = tmp_path / "q.db"
    restore(version, path)
    for joined in (0, 3):
        async with running(path, clock=ManualClock()) as hub:
            assert hub.store.damage is None
            assert await hub.scalar("PRAGMA user_version") == len(SCRIPTS)
            rows = await read_all(hub.queue(P2))
            stored = [b"body-1", b"body-2", b"body-4", b"body-5", b"body-6"]
            assert bodies(rows)[: len(stored)] == stored
            assert rows[0].attempts == 1
            assert len(rows) == len(stored) + joined
            assert [row.creation for row in rows[:5]] == [False, False, False, True, False]
            assert [row.predecessor for row in rows[:5]] == [None, None, None, None, 7]
            (fresh,) = await read_all(hub.queue(P0))
            assert fresh.message.properties == {"kind": "a", "none": None}
            assert fresh.expires_ms - fresh.enqueued_ms == 600_000
            (shared,) = await read_all(hub.queue(P7, LAB))
            assert shared.message.message_id == rows[2].message.message_id
            prefix = rows[0].message.message_id.rpartition("-")[0]
            assert prefix == await hub.scalar("SELECT value FROM meta WHERE key = 'store_id'")
            assert [letter.reason for letter in await hub.store.dead_letters()] == ["no"]
            sessions = await SessionTable(hub.store).load()
            assert sessions["client"].subscriptions == {"a/#": 1}
            for queue in hub.store.queues():
                assert (queue.statistics().depth, queue.statistics().bytes) == await hub.count(
                    queue
                )
            await hub.stored(3 - joined)
