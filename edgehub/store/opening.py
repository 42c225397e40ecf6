"""Opens a locked database file, and repairs or replaces it where it is damaged.

Damage that is found here, or that the last hub found, is handled first. Invariant: offsets go on
above all that may have been used, also where the end of the log is lost.
"""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from edgehub.errors import StartupError, StoreCorruptError, StoreError
from edgehub.storage.sqlite_log import damaged_logs, find_log_damage, log_path, replace_log
from edgehub.store.database import StoreBusyError, StoreValueError, open_hint
from edgehub.store.offsets import OFFSETS_SKIPPED
from edgehub.store.recovery import Recovered, recover
from edgehub.store.salvage.damage import Missing, finish_replacement, replace_damaged
from edgehub.store.salvage.file_header import header_fault
from edgehub.store.salvage.table_list import TableListKeeper

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.store.database import Database
    from edgehub.store.lock import DatabaseLock
    from edgehub.store.salvage.damage import Damage

log = structlog.get_logger(__name__)

_UNREADABLE: Final = (sqlite3.Error, StoreValueError, ValueError, TypeError, LookupError)


async def open_file(
    lock: DatabaseLock, database_type: type[Database], clock: Clock
) -> tuple[Database, Recovered]:
    """Open the file, and repair or replace it where it is damaged.

    Raises:
        StartupError: It cannot be opened, or not be replaced; the text says what to do.
    """
    await asyncio.to_thread(finish_replacement, lock.path)
    # Read now: it changes below.
    was_closed, log_missing = lock.was_closed, lock.log_missing
    is_exact = await asyncio.to_thread(_restore_log, lock, clock)
    missing = None
    if lock.file_missing:
        missing = Missing.FILE
        log.error("store.file_missing", path=str(lock.path))
    elif log_missing and not lock.is_new:
        missing = Missing.LOG
        log.error("store.log_missing", path=f"{lock.path}-wal")
    database, recovered, is_replaced = await _open_or_replace(
        lock, database_type, clock, is_exact=is_exact
    )
    try:
        high_water = max(recovered.high_water, lock.high_water)
        began = lock.is_new and not lock.file_missing
        if is_replaced or not (was_closed or began):
            high_water += OFFSETS_SKIPPED
        await asyncio.to_thread(lock.opened, high_water)
        await database.run(TableListKeeper(lock.path).keep)
        damage = await _damage_shown(lock, database, recovered.damage, is_new=is_replaced)
    except BaseException:
        # Its thread would keep the process alive.
        await database.close()
        raise
    return database, replace(
        recovered,
        high_water=high_water,
        damage=damage,
        missing=missing,
        is_start_recorded=lock.is_start_recorded,
        damaged_logs=await asyncio.to_thread(damaged_logs, lock.path),
    )


def _restore_log(lock: DatabaseLock, clock: Clock) -> bool:
    """Replace a damaged log by its valid part; mark the file as damaged where pages are lost.

    Returns:
        False when pages with unknown contents are lost.
    """
    try:
        damage = find_log_damage(lock.path)
        if damage is None:
            return True
        if not damage.is_restored:
            lock.damaged(damage.reason)
        found = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        aside = replace_log(lock.path, damage, found)
    except OSError as exc:
        raise StartupError(
            f"{log_path(lock.path)} cannot be checked for damage, or not be replaced ({exc}); free"
            " as much disk space as it takes, and let the hub read and write its folder"
        ) from exc
    log.error(
        "store.log_damaged",
        reason=damage.reason,
        file=aside,
        lost_pages=len(damage.lost),
        is_exact=damage.is_exact,
    )
    return damage.is_exact


async def _damage_shown(
    lock: DatabaseLock, database: Database, damage: Damage | None, *, is_new: bool
) -> Damage | None:
    """Return the losses by damage, while the file that was set aside exists."""
    if damage is None:
        return None
    if await asyncio.to_thread(lock.path.with_name(damage.file).exists):
        return replace(damage, is_new=is_new)
    try:
        await database.run(
            lambda connection: connection.execute("DELETE FROM meta WHERE key = 'damage'")
        )
    except StoreBusyError as exc:
        # A later start deletes it.
        log.warning("store.commit_failed", error=str(exc))
    return None


async def open_in_memory(
    lock: DatabaseLock, database_type: type[Database]
) -> tuple[Database, Recovered]:
    """Open an empty database that lasts as long as the process."""
    log.warning("store.not_durable", ignored=None if lock.is_new else str(lock.path))
    database = await database_type.open_in_memory(lock)
    try:
        return database, await database.run(recover)
    except BaseException:
        await database.close()
        raise


async def _open_or_replace(
    lock: DatabaseLock, database_type: type[Database], clock: Clock, *, is_exact: bool
) -> tuple[Database, Recovered, bool]:
    reason = lock.damage
    if not reason and lock.is_known and not lock.is_new:
        reason = await asyncio.to_thread(header_fault, lock.path)
    if not reason:
        try:
            return *await _open(lock, database_type), False
        except StoreCorruptError as exc:
            reason = str(exc)
    is_replaced = await asyncio.to_thread(
        replace_damaged, lock.path, reason, clock.wall_ms(), is_exact=is_exact
    )
    await asyncio.to_thread(lock.repaired)
    try:
        return *await _open(lock, database_type), is_replaced
    except StoreCorruptError as exc:
        raise StartupError(open_hint(lock.path, exc)) from exc


async def _open(lock: DatabaseLock, database_type: type[Database]) -> tuple[Database, Recovered]:
    database = await database_type.open(lock)
    try:
        return database, await database.run(recover)
    except BaseException as exc:
        await database.close()
        if isinstance(exc, _UNREADABLE):
            # The file is not as this program made it.
            raise StoreCorruptError(str(exc)) from exc
        if isinstance(exc, StoreError) and not isinstance(exc, StoreCorruptError):
            raise StartupError(open_hint(lock.path, exc)) from exc
        raise
