"""Replaces a damaged database file by a new one with all rows that can be read.

Owns the names `<file>.damaged-<time>`, `.salvage` (an unfinished copy) and `.salvaged` (a complete
copy), and the key `damage` of table `meta`. Blocking code, under the lock of the file. Invariant:
at any moment the names determine the next step, so a start that is cut off is completed by the next
one; nothing is deleted but older damaged files.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec import Struct

from edgehub.errors import StartupError, StoreError
from edgehub.storage.damaged_database import put_in_place, remove_database, sibling
from edgehub.store.event_log import Depth, OffsetRange, store_losses
from edgehub.store.salvage.table_list import SUFFIX as TABLES_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)


class Damage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The losses by damage, while the file that was set aside exists.

    Attributes:
        reason: What was found wrong.
        file: Name of the file that was set aside, in the same folder.
        found: UTC by the machine's clock, in the form of RFC 3339.
        salvaged_rows: Rows that were saved.
        lost: Endpoint, priority, rows and bytes that are missing, by queue.
        offsets: Endpoint, priority, first and last offset: what is missing is among these.
        is_exact: False = more may be missing than `lost` says.
        tables: Other tables of which something is missing.
        is_new: It was found at this start.
    """

    reason: str
    file: str
    found: str
    salvaged_rows: int
    lost: list[Depth]
    offsets: list[OffsetRange] = []
    is_exact: bool
    tables: list[str]
    is_new: bool = False


class Missing(StrEnum):
    """What of the database was missing at the start, though a hub had left it."""

    FILE = "file"  # all of it, or it was empty
    LOG = "log"  # the last commits, after an end without a close


def stored_damage(connection: sqlite3.Connection) -> Damage | None:
    """Read the losses that are stored in a salvaged file."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'damage'").fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=Damage)


def finish_replacement(path: Path) -> None:
    """Complete a replacement that was cut off; do nothing otherwise."""
    salvaged = sibling(path, ".salvaged")
    if salvaged.exists():
        _put_in_place(path, salvaged, _name_aside(path, datetime.now(UTC)))


def replace_damaged(path: Path, reason: str, wall_ms: int, *, is_exact: bool = True) -> bool:
    """Save what can be read of `path`, set it aside and put a new file in its place.

    Args:
        path: The file.
        reason: What was found wrong.
        wall_ms: UTC by the machine's clock.
        is_exact: False = it has old pages in place of new ones, which cannot be recognised.

    Returns:
        False when nothing is wrong with the file after all; it stays.

    Raises:
        StartupError: The copy cannot be written, or the disk fails in other ways.
    """
    from edgehub.store.salvage.salvage import salvage  # noqa: PLC0415 - for a damaged file alone

    found = datetime.fromtimestamp(wall_ms / 1000, UTC)
    partial, salvaged = sibling(path, ".salvage"), sibling(path, ".salvaged")
    remove_database(partial, TABLES_SUFFIX)
    log.error("store.damage_found", path=str(path), reason=reason)
    aside = _name_aside(path, found)
    try:
        result = salvage(path, partial)
        if result.is_whole and is_exact:
            remove_database(partial, TABLES_SUFFIX)
            log.warning("store.damage_not_confirmed", path=str(path), rows=result.rows)
            return False
        damage = Damage(
            reason=reason,
            file=aside.name,
            found=found.isoformat(timespec="seconds"),
            salvaged_rows=result.rows,
            lost=result.lost,
            offsets=result.offsets,
            is_exact=result.is_exact and is_exact,
            tables=result.tables,
        )
        _note(partial, damage)
        partial.rename(salvaged)
        _put_in_place(path, salvaged, aside)
    except (OSError, sqlite3.Error, StoreError) as exc:
        remove_database(partial, TABLES_SUFFIX)
        raise StartupError(
            f"{path} is damaged ({reason}), and what can be read of it cannot be copied ({exc});"
            " free as much disk space as the file takes, or move it away to start empty"
        ) from exc
    log.error(
        "store.damage_set_aside",
        file=aside.name,
        salvaged_rows=result.rows,
        lost_rows=sum([rows for _, _, rows, _ in result.lost]),
        is_exact=damage.is_exact,
        tables=result.tables,
    )
    return True


def _note(path: Path, damage: Damage) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES ('damage', ?)",
            (msgspec.json.encode(damage).decode(),),
        )
        store_losses(connection, damage.lost)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _put_in_place(path: Path, salvaged: Path, aside: Path) -> None:
    for old in put_in_place(path, salvaged, aside, TABLES_SUFFIX):
        log.warning("store.damaged_file_deleted", file=old.name)


def _name_aside(path: Path, found: datetime) -> Path:
    base = sibling(path, f".damaged-{found:%Y%m%dT%H%M%SZ}")
    aside, number = base, 1
    while aside.exists():
        number += 1
        aside = sibling(base, f"-{number}")
    return aside
