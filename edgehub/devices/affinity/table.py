"""Which hub owns which device, on disk: flags, reading position, and a ledger of changes.

Owns the tables `affinity` and `affinity_ledger`. A change joins the group commit of the message
that caused it.
Invariants: no caller waits for them, and none fails by them; a position is never in the file
without the flags that the notices up to it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from edgehub.devices.affinity.flags import Flag, Ownership, StoredAffinity
from edgehub.store.row_changes import RowChanges

if TYPE_CHECKING:
    import sqlite3

    from edgehub.devices.affinity.flags import OwnershipChange
    from edgehub.store.store import Store

LEDGER_ROWS_MAX: Final = 10_000
"""As the schema's trigger has it."""

_POSITION: Final = "affinity_position"
_KEEP: Final = "INSERT OR REPLACE INTO affinity (device_id, ownership, epoch) VALUES (?, ?, ?)"
_FORGET: Final = "DELETE FROM affinity WHERE device_id = ?"
_PLACE: Final = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
_RECORD: Final = (
    "INSERT INTO affinity_ledger (device_id, at_ms, ownership, former, cause, other, epoch)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class LedgerRow(NamedTuple):
    """One change of ownership.

    Attributes:
        number: Order of the changes.
        device_id: Id of the device.
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


class AffinityTable:
    """The tables of flags and ledger; implements `AffinityStore`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = RowChanges(store.writer, "store.affinity_not_stored")

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
        """Keep a flag."""
        values = (device_id, flag.ownership.value, flag.epoch)
        self._changes.add(device_id, (_KEEP, values))

    def forget_flag(self, device_id: str) -> None:
        """Remove a flag."""
        self._changes.add(device_id, (_FORGET, (device_id,)))

    def save_position(self, position: str) -> None:
        """Keep the position in the notices."""
        self._changes.add(None, (_PLACE, (_POSITION, position)))

    def record(self, change: OwnershipChange) -> None:
        """Append a change to the ledger."""
        flag, at_ms = change.flag, self._store.hub_time.now_ms()
        words = (flag.ownership.value, change.former.value, change.cause.value, change.other)
        # Each is a row of its own.
        self._changes.add(object(), (_RECORD, (change.device_id, at_ms, *words, flag.epoch)))

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
