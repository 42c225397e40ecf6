"""Reads the file at start, and repairs what contradicts the rows.

Zone rows and checkpoints are made to fit the rows, never the other way round.
Start-up cost does not depend on the number of rows: it reads zone rows and both ends of each
queue. Runs as one job.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.message import EndpointId, Priority
from edgehub.storage.sqlite_transaction import in_transaction
from edgehub.store.boots import BOOT_COLUMNS, StoredBoot
from edgehub.store.creations import Creations
from edgehub.store.event_log import StoredEvents, stored_losses
from edgehub.store.maintenance.ageing import Ageing, stored_ageing
from edgehub.store.queue import QueueRecord
from edgehub.store.salvage.damage import Damage, Missing, stored_damage
from edgehub.store.transaction import create_queue_table, lowest_row, rebuild_zones
from edgehub.store.zones import ZONE_OFFSETS, Zones

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from edgehub.store.event_log import Depth

log = structlog.get_logger(__name__)

COUNTED_ROWS_MAX: Final = 10_000
"""Queues up to this depth are counted at start; longer ones are judged by their ends."""


class Recovered(Struct, frozen=True, kw_only=True):
    """The contents of the file.

    Attributes:
        boots: All that are stored, oldest first; none = the file is new.
        high_water: Highest offset that was ever used.
        unreported_losses: Losses by damage that no commit has reported to the journal yet.
        missing: What was missing, None = nothing.
        damaged_logs: Names of damaged logs that were set aside and still exist.
        is_start_recorded: A start that follows a crash of this hub skips offsets.
    """

    store_id: str
    boots: list[StoredBoot]
    labels: list[tuple[int, str]]
    queues: list[QueueRecord]
    high_water: int
    dead_letters: list[Depth]
    checkpoints_repaired: int
    zones_repaired: int
    events: StoredEvents
    unreported_losses: list[Depth] | None
    ageing: Ageing | None
    damage: Damage | None
    suspects: list[tuple[int, int, int, int]]
    missing: Missing | None = None
    damaged_logs: Sequence[str] = ()
    is_start_recorded: bool = True


def recover(connection: sqlite3.Connection) -> Recovered:
    """Read all but the rows themselves, and repair what does not fit them."""
    boots = [
        StoredBoot(*record)
        for record in connection.execute(f"SELECT {BOOT_COLUMNS} FROM boot ORDER BY seq")  # noqa: S608 - our names
    ]
    records = connection.execute(
        "SELECT number, endpoint_id, priority, checkpoint FROM queue ORDER BY number"
    ).fetchall()
    queues: list[QueueRecord] = []
    zones_repaired = 0
    for number, endpoint_id, priority, checkpoint in records:
        record = QueueRecord(number, EndpointId(endpoint_id), Priority(priority), checkpoint)
        zones_repaired += _load(connection, record)
        queues.append(record)
    high_water = max(
        max([boot.high_water for boot in boots], default=0),
        max([record.highest for record in queues], default=0),
        _largest(connection, "SELECT max(offset) FROM dead_letter"),
        _largest(connection, "SELECT max(id) FROM body"),
    )
    repaired = sum([_repair_checkpoint(connection, record, high_water) for record in queues])
    dead_letters = connection.execute(
        "SELECT endpoint_id, priority, count(*), sum(size) FROM dead_letter GROUP BY 1, 2"
    ).fetchall()
    return Recovered(
        store_id=_store_id(connection),
        boots=boots,
        labels=connection.execute("SELECT id, text FROM label").fetchall(),
        queues=queues,
        high_water=high_water,
        dead_letters=dead_letters,
        checkpoints_repaired=repaired,
        zones_repaired=zones_repaired,
        events=StoredEvents(connection),
        unreported_losses=stored_losses(connection),
        ageing=stored_ageing(connection),
        damage=stored_damage(connection),
        suspects=connection.execute(
            "SELECT offset, closes, alone, cleared FROM suspect ORDER BY offset"
        ).fetchall(),
    )


def _load(connection: sqlite3.Connection, record: QueueRecord) -> bool:
    """Read ends and zones of one queue; return whether the zones had to be rebuilt."""
    number = record.number
    if not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (f"q_{number}",)
    ).fetchone():
        log.error("store.queue_table_missing", endpoint=record.endpoint_id, queue=number)
        in_transaction(connection, lambda conn: create_queue_table(conn, number))
    record.lowest = lowest_row(connection, number)
    record.highest = _largest(connection, f"SELECT max(offset) FROM q_{number}")  # noqa: S608 - our number
    record.creations = Creations(
        connection.execute(
            f"SELECT offset, size FROM q_{number} WHERE creation IS NOT NULL"  # noqa: S608 - our number
        )
    )
    record.zones = Zones(
        connection.execute(
            "SELECT zone, min_expires_ms, max_expires_ms, fresh_until_ms, rows, bytes,"
            " stale_from_ms FROM zone WHERE queue = ? ORDER BY zone",
            (number,),
        )
    )
    if _fits(connection, record):
        return False
    before = record.zones.depth
    record.zones = Zones(in_transaction(connection, lambda conn: rebuild_zones(conn, number)))
    log.error(
        "store.zones_rebuilt",
        endpoint=record.endpoint_id,
        priority=record.priority,
        depth_before=before,
        depth=record.zones.depth,
    )
    return True


def _fits(connection: sqlite3.Connection, record: QueueRecord) -> bool:
    zones = record.zones
    if record.lowest is None or not zones.depth:
        return record.lowest is None and not zones.depth
    first, last = zones.span()
    if (record.lowest[0] // ZONE_OFFSETS, record.highest // ZONE_OFFSETS) != (first, last):
        return False
    if zones.depth > COUNTED_ROWS_MAX:
        return True
    # LIMIT: a wrong zone row must not turn this into a scan of millions.
    counted: tuple[int, int] = connection.execute(
        f"SELECT count(*), sum(size) FROM (SELECT size FROM q_{record.number} LIMIT ?)",  # noqa: S608 - our number
        (zones.depth + 1,),
    ).fetchone()
    return counted == (zones.depth, zones.bytes)


def _repair_checkpoint(
    connection: sqlite3.Connection, record: QueueRecord, high_water: int
) -> bool:
    """Reset a checkpoint at or beyond an existing row, or beyond all offsets."""
    highest = high_water if record.lowest is None else record.lowest[0] - 1
    if record.checkpoint <= highest:
        return False
    log.warning(
        "store.checkpoint_repaired",
        endpoint=record.endpoint_id,
        priority=record.priority,
        checkpoint_before=record.checkpoint,
        checkpoint=highest,
    )
    record.checkpoint = highest
    connection.execute("UPDATE queue SET checkpoint = ? WHERE number = ?", (highest, record.number))
    return True


def _largest(connection: sqlite3.Connection, sql: str) -> int:
    value: int | None = connection.execute(sql).fetchone()[0]
    return value or 0


def _store_id(connection: sqlite3.Connection) -> str:
    stored = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
    if stored is not None:
        return str(stored[0])
    # 60 bits in 12 characters: message ids travel over thin links.
    store_id = base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]
    connection.execute("INSERT INTO meta (key, value) VALUES ('store_id', ?)", (store_id,))
    return store_id
