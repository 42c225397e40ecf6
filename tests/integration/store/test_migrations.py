"""Files that older hubs left: opened, brought to the present schema, nothing lost."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.device_bound.table import DeviceMessageTable
from edgehub.heads.mqtt.local.tables import LocalTable
from edgehub.heads.mqtt.session_table import SessionTable
from edgehub.store.migrations import SCRIPTS
from tests.support.released_schemas import FOLDER, restore
from tests.support.stores import LAB, P0, P2, P7, bodies, read_all, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

QOS_2 = 2
"""The first schema with QoS 2."""

DEVICE_MESSAGES = 3
"""The first schema with messages to devices."""


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
            assert [letter.reason for letter in await hub.store.inspection.dead_letters()] == ["no"]
            sessions = await SessionTable(hub.store).load()
            assert sessions["client"].subscriptions == {"a/#": 1}
            assert sessions["client"].number == (1 if version < QOS_2 else 3)
            assert sessions["client"].received == (() if version < QOS_2 else (7,))
            local = await LocalTable(hub.store, hub.clock).load()
            waiting = [
                (each.message.body, each.qos, each.packet_id, each.is_received, each.identifiers)
                for each in local.queued.get("client", [])
            ]
            assert waiting == ([] if version < QOS_2 else [(b"waits", 2, 9, False, b"")])
            down = await DeviceMessageTable(hub.store).load()
            shown = [(each.target, each.order, each.message_id, each.deliveries) for each in down]
            assert shown == ([] if version < DEVICE_MESSAGES else [("d/m", (2, 7), "m-1", 3)])
            for queue in hub.store.queues.all():
                assert (queue.statistics().depth, queue.statistics().bytes) == await hub.count(
                    queue
                )
            await hub.stored(3 - joined)


async def test_local_messages_of_the_first_schema_wait_on(tmp_path: Path) -> None:
    """They had QoS 1 and no packet ids, and their sessions get numbers of their own."""
    path = tmp_path / "q.db"
    restore(1, path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO local_message VALUES (5, 'te/a', 'dev', NULL, x'', x'31')")
        for client_id in ("client", "other"):
            connection.execute("INSERT INTO local_queue VALUES (?, 5, 1, 1)", (client_id,))
        connection.execute("INSERT INTO session VALUES ('other', x'7b7d', NULL, NULL)")
    connection.close()
    async with running(path, clock=ManualClock()) as hub:
        local = await LocalTable(hub.store, hub.clock).load()
        for client_id in ("client", "other"):
            (each,) = local.queued[client_id]
            assert (each.message.body, each.retain, each.is_sent) == (b"1", True, True)
            assert (each.qos, each.packet_id, each.is_received) == (1, 0, False)
        sessions = await SessionTable(hub.store).load()
        assert {name: each.number for name, each in sessions.items()} == {"client": 1, "other": 2}
