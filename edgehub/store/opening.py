"""From a held file to an open database whose contents fit each other.

Damage that shows here, or that the last hub met, is dealt with before anything else. Invariant:
offsets go on above all that may have been handed out, also where the end of the log is gone.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.errors import StartupError, StoreCorruptError, StoreError
from edgehub.storage.sqlite_log import damaged_logs, find_log_damage, log_path, replace_log
from edgehub.store.database import StoreBusyError, StoreValueError, open_hint
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

OFFSETS_SKIPPED: Final = 1 << 20
"""More than rows fit into the log: it may have lost its end with a hub that was not closed."""


async def open_file(
    hold: DatabaseLock, database_type: type[Database], clock: Clock
) -> tuple[Database, Recovered]:
    """Open the file, and mend or replace it where it is damaged.

    Raises:
        StartupError: It cannot be opened, or not be replaced; the text says what to do.
    """
    await asyncio.to_thread(finish_replacement, hold.path)
    # Read now: what is met on the way changes it.
    was_closed, log_missing = hold.was_closed, hold.log_missing
    is_exact = await asyncio.to_thread(_restore_log, hold, clock)
    missing = None
    if hold.file_missing:
        missing = Missing.FILE
        log.error("store.file_missing", path=str(hold.path))
    elif log_missing and not hold.is_new:
        missing = Missing.LOG
        log.error("store.log_missing", path=f"{hold.path}-wal")
    database, recovered, is_replaced = await _open_or_replace(
        hold, database_type, clock, is_exact=is_exact
    )
    try:
        high_water = max(recovered.high_water, hold.high_water)
        began = hold.is_new and not hold.file_missing
        if is_replaced or not (was_closed or began):
            high_water += OFFSETS_SKIPPED
        await asyncio.to_thread(hold.opened, high_water)
        await database.run(TableListKeeper(hold.path).keep)
        damage = await _damage_shown(hold, database, recovered.damage, is_new=is_replaced)
    except BaseException:
        # Its thread would keep the process alive.
        await database.close()
        raise
    return database, replace(
        recovered,
        high_water=high_water,
        damage=damage,
        missing=missing,
        damaged_logs=await asyncio.to_thread(damaged_logs, hold.path),
    )


def _restore_log(hold: DatabaseLock, clock: Clock) -> bool:
    """Put a whole log in the place of a damaged one; the file is marked where that lost pages.

    Returns:
        False when pages are lost of which it is not known what was on them.
    """
    try:
        damage = find_log_damage(hold.path)
        if damage is None:
            return True
        if not damage.is_restored:
            hold.damaged(damage.reason)
        found = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        aside = replace_log(hold.path, damage, found)
    except OSError as exc:
        raise StartupError(
            f"{log_path(hold.path)} cannot be checked for damage, or not be replaced ({exc}); free"
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
    hold: DatabaseLock, database: Database, damage: Damage | None, *, is_new: bool
) -> Damage | None:
    """Return what damage has cost, as long as the file that was set aside is there."""
    if damage is None:
        return None
    if await asyncio.to_thread(hold.path.with_name(damage.file).exists):
        return replace(damage, is_new=is_new)
    try:
        await database.run(
            lambda connection: connection.execute("DELETE FROM meta WHERE key = 'damage'")
        )
    except StoreBusyError as exc:
        # A later start forgets it.
        log.warning("store.commit_failed", error=str(exc))
    return None


async def open_in_memory(
    hold: DatabaseLock, database_type: type[Database]
) -> tuple[Database, Recovered]:
    """Open an empty database that lasts as long as the process."""
    log.warning("store.not_durable", ignored=None if hold.is_new else str(hold.path))
    database = await database_type.open_in_memory(hold)
    try:
        return database, await database.run(recover)
    except BaseException:
        await database.close()
        raise


async def _open_or_replace(
    hold: DatabaseLock, database_type: type[Database], clock: Clock, *, is_exact: bool
) -> tuple[Database, Recovered, bool]:
    reason = hold.damage
    if not reason and hold.is_known and not hold.is_new:
        reason = await asyncio.to_thread(header_fault, hold.path)
    if not reason:
        try:
            return *await _open(hold, database_type), False
        except StoreCorruptError as exc:
            reason = str(exc)
    is_replaced = await asyncio.to_thread(
        replace_damaged, hold.path, reason, clock.wall_ms(), is_exact=is_exact
    )
    await asyncio.to_thread(hold.mended)
    try:
        return *await _open(hold, database_type), is_replaced
    except StoreCorruptError as exc:
        raise StartupError(open_hint(hold.path, exc)) from exc


async def _open(hold: DatabaseLock, database_type: type[Database]) -> tuple[Database, Recovered]:
    database = await database_type.open(hold)
    try:
        return database, await database.run(recover)
    except BaseException as exc:
        await database.close()
        if isinstance(exc, _UNREADABLE):
            # The file is not as this program made it.
            raise StoreCorruptError(str(exc)) from exc
        if isinstance(exc, StoreError) and not isinstance(exc, StoreCorruptError):
            raise StartupError(open_hint(hold.path, exc)) from exc
        raise
