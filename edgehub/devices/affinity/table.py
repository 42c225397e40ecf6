"""Which hub owns which device, on disk: flags, reading position, and a ledger of changes.

Owns the tables `affinity` and `affinity_ledger`, and their changes that are not committed yet.
Changes of one turn of the loop join one group commit, that of the message that caused them.
Invariants: no caller waits for them, and none fails by them; a position is never in the file
without the flags that the notices up to it changed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from edgehub.devices.affinity.flags import Flag, Ownership, StoredAffinity
from edgehub.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

    from edgehub.devices.affinity.flags import OwnershipChange
    from edgehub.store.store import Store

log = structlog.get_logger(__name__)

LEDGER_ROWS_MAX: Final = 10_000
"""As the schema's trigger has it."""

_POSITION: Final = "affinity_position"


class LedgerRow(NamedTuple):
    """One change of ownership.

    Attributes:
        number: Order of the changes; 0 = not stored yet.
        device_id: Whose.
        at_ms: Hub time.
        ownership: What it became.
        former: What it was.
        cause: Why, one word.
        other: The other hub, "" = none.
        epoch: Number of the election, 0 = of none.
    """

    number: int
    device_id: str
    at_ms: int
    ownership: str
    former: str
    cause: str
    other: str
    epoch: int


@dataclass(slots=True)
class _Changes:
    flags: dict[str, Flag | None] = field(default_factory=dict)
    """None = it is removed."""
    position: str | None = None
    ledger: list[LedgerRow] = field(default_factory=list)


class AffinityTable:
    """The tables of flags and ledger; implements `AffinityStore`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = _Changes()
        self._is_due = False
        self._is_running = False

    async def load(self) -> StoredAffinity:
        """Read all flags, and the position, at the start."""

        def read(connection: sqlite3.Connection) -> StoredAffinity:
            rows = connection.execute("SELECT device_id, ownership, epoch FROM affinity").fetchall()
            found = connection.execute(
                "SELECT value FROM meta WHERE key = ?", (_POSITION,)
            ).fetchone()
            flags = {
                device_id: Flag(ownership=Ownership(ownership), epoch=epoch)
                for device_id, ownership, epoch in rows
            }
            return StoredAffinity(flags=flags, position="" if found is None else str(found[0]))

        return await self._store.database.run(read)

    def save_flag(self, device_id: str, flag: Flag) -> None:
        """Write the flag of a device with the next commit."""
        self._changes.flags[device_id] = flag
        self._changed()

    def forget_flag(self, device_id: str) -> None:
        """Remove the flag of a device with the next commit."""
        self._changes.flags[device_id] = None
        self._changed()

    def save_position(self, position: str) -> None:
        """Write the position with the next commit."""
        self._changes.position = position
        self._changed()

    def record(self, change: OwnershipChange) -> None:
        """Write a change into the ledger, with the time of this call."""
        row = LedgerRow(
            number=0,
            device_id=change.device_id,
            at_ms=self._store.hub_time.now_ms(),
            ownership=change.flag.ownership.value,
            former=change.former.value,
            cause=change.cause.value,
            other=change.other,
            epoch=change.flag.epoch,
        )
        self._changes.ledger.append(row)
        self._changed()

    async def ledger(
        self, device_id: str | None, *, since_ms: int = 0, limit: int = LEDGER_ROWS_MAX
    ) -> list[LedgerRow]:
        """Read the newest changes, oldest first.

        Args:
            device_id: Whose, None = of all devices.
            since_ms: Hub time of the oldest one.
            limit: How many at most.
        """

        def read(connection: sqlite3.Connection) -> list[LedgerRow]:
            rows = connection.execute(
                "SELECT number, device_id, at_ms, ownership, former, cause, other, epoch"
                " FROM affinity_ledger WHERE (?1 IS NULL OR device_id = ?1) AND at_ms >= ?2"
                " ORDER BY number DESC LIMIT ?3",
                (device_id, since_ms, limit),
            ).fetchall()
            return [LedgerRow(*row) for row in reversed(rows)]

        return await self._store.database.run(read)

    def _changed(self) -> None:
        if not self._is_due:
            self._is_due = True
            if not self._is_running:
                # At the end of this turn of the loop: all its changes are in one transaction.
                asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        self._is_due = False
        self._is_running = True
        changes, self._changes = self._changes, _Changes()
        future = self._store.writer.transact(partial(_write, changes))
        future.add_done_callback(self._committed)

    def _committed(self, future: asyncio.Future[None]) -> None:
        self._is_running = False
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, StoreError):
            # The flags in memory are valid; after a restart these devices are elected again.
            log.error("store.affinity_not_stored", error=str(error))
        if self._is_due:
            self._commit()


def _write(changes: _Changes, connection: sqlite3.Connection) -> None:
    # May run again when its transaction has to be repeated.
    connection.executemany(
        "INSERT OR REPLACE INTO affinity (device_id, ownership, epoch) VALUES (?, ?, ?)",
        [
            (device_id, flag.ownership.value, flag.epoch)
            for device_id, flag in changes.flags.items()
            if flag is not None
        ],
    )
    connection.executemany(
        "DELETE FROM affinity WHERE device_id = ?",
        [(device_id,) for device_id, flag in changes.flags.items() if flag is None],
    )
    if changes.position is not None:
        connection.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_POSITION, changes.position)
        )
    connection.executemany(
        "INSERT INTO affinity_ledger (device_id, at_ms, ownership, former, cause, other, epoch)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [row[1:] for row in changes.ledger],
    )
