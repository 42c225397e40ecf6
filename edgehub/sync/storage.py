"""The routing table's contract with its storage, and the values that both use.

The storage assigns every change the next revision of the table, atomically with the row itself and
the entry of its log that the other hubs read. Its epoch changes when it is created again, its
server when another process answers; a hub's position is all three.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, Final, Protocol, Self

from msgspec import Meta, Struct

from edgehub.routes.tenant import RouteKey, Tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence


IMPORT: Final = "import"
RESTORE: Final = "restore"
"""Sessions of writes that no operator asked for."""

DEFAULTS: Final = RouteKey(Tenant("$", "$"), "defaults")
"""Key of a row that is no route: what holds for all routes of a shared table.

No tenant can be called so, and a manifest may name its routes as it likes.
"""

Number = Annotated[int, Meta(ge=0, lt=10**15)]
"""Of as many digits as Lua holds exactly."""

_RAW: Final = re.compile(r"([0-9]{1,15}) ([^ ]*) ([01]) ([^ ]*) ([0-9]{1,15}) ([0-9]{1,15})")
"""Numbers of more digits would not fit into databases and answers."""


class Begun(Struct, frozen=True, kw_only=True):
    """How a table was created.

    Attributes:
        epoch: Of the table before it that a hub put back; 0 = there was none.
        revision: Likewise.
        first: Revision of the first entry of its log.
        root: Epoch of the table that was begun from nothing and put back ever since.
    """

    epoch: int
    revision: int
    first: int
    root: int


class Position(Struct, frozen=True, kw_only=True):
    """The position of a table.

    Attributes:
        epoch: Milliseconds since 1970 when it was begun; 0 = it never was.
        server: Names the process that answers; empty = there is but one.
        revision: Of the latest change.
        rows: Their number.
        begun: What it was begun with, None = not known.
    """

    epoch: int = 0
    server: str = ""
    revision: int = 0
    rows: int = 0
    begun: Begun | None = None

    def continues(self, earlier: Position) -> bool:
        """Return whether this is the same table, at most further on."""
        return (
            self.epoch == earlier.epoch
            and self.server == earlier.server
            and self.revision >= earlier.revision
        )

    @property
    def root(self) -> int:
        """Return the epoch of the table from which this one comes, itself if it comes from none."""
        return self.epoch if self.begun is None else self.begun.root

    def lacks(self, held: Position) -> bool:
        """Return whether this table has lost what a hub holds.

        It has if it is empty as a new one, or if it was created again without that version or a
        later
        one: by the manifest of a hub without a copy, or from an older copy. Of two tables created
        from nothing the earlier one counts, since the later one is such an accident. A table that
        was emptied in its epoch, or that an operator restored from a backup, has lost nothing.
        """
        if not held.epoch:
            return False
        if not self.epoch:
            return not self.rows
        if self.begun is None or self.epoch <= held.epoch:
            return False
        if self.root != held.root:
            return self.root > held.root
        return (self.begun.epoch, self.begun.revision) < (held.epoch, held.revision)


class StoredRow(Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        key: What it is called.
        revision: Of its latest change.
        hash: Hash of its content.
        enabled: Whether it is to run.
        origin: `api` or `manifest`.
        created_ms: UTC, by the storage's clock.
        modified_ms: Likewise.
        text: Canonical text of its content, None = not read along.
    """

    key: RouteKey
    revision: int
    hash: str
    enabled: bool
    origin: str
    created_ms: int
    modified_ms: int
    text: str | None = None

    @property
    def raw(self) -> str:
        """Return the form in which it is stored."""
        return (
            f"{self.revision} {self.hash} {int(self.enabled)} {self.origin} "
            f"{self.created_ms} {self.modified_ms}"
        )

    @classmethod
    def parse(cls, key: RouteKey, raw: str, text: str | None = None) -> Self:
        """Parse the form of `raw`.

        Raises:
            ValueError: It is not of that form.
        """
        found = _RAW.fullmatch(raw)
        if found is None:
            raise ValueError("the row cannot be read")
        revision, content_hash, enabled, origin, created, modified = found.groups()
        return cls(
            key=key,
            revision=int(revision),
            hash=content_hash,
            enabled=enabled == "1",
            origin=origin,
            created_ms=int(created),
            modified_ms=int(modified),
            text=text,
        )


class BrokenRow(Struct, frozen=True, kw_only=True):
    """A row that cannot be read.

    Attributes:
        key: What it is called.
        raw: What is stored.
        reason: What is wrong.
    """

    key: RouteKey
    raw: str
    reason: str


Row = StoredRow | BrokenRow


class Change(Struct, frozen=True, kw_only=True):
    """One change that is wanted.

    Attributes:
        key: Of which route.
        hash: Of its new content, empty = the content stays; then it must exist.
        text: Canonical text of that content.
        delete: It is to go; one that does not exist is no fault.
        enabled: Whether it is to run, None = as before.
        origin: As `StoredRow.origin`.
        expected: Revision that it must have, 0 = it must not exist, None = whatever it has.
        quota: Routes that its tenant may have.
    """

    key: RouteKey
    hash: str = ""
    text: str = ""
    delete: bool = False
    enabled: bool | None = None
    origin: str = "api"
    expected: int | None = None
    quota: int = 1_000_000_000


class Stored(Struct, frozen=True, kw_only=True):
    """The result of one change.

    Attributes:
        row: The row as it is now, None = there is none.
        created: It was not there before.
        changed: Something was stored; False = it was like that before.
    """

    row: StoredRow | None
    created: bool
    changed: bool


class WriteResult(Struct, frozen=True, kw_only=True):
    """The result of a write.

    Attributes:
        epoch: Of the table.
        revision: Of the table after it.
        stored: One per change.
    """

    epoch: int
    revision: int
    stored: tuple[Stored, ...]


class LogEntry(Struct, frozen=True, kw_only=True):
    """One entry of the log: a key that has changed.

    Attributes:
        epoch: Of the table.
        revision: Of the change.
        key: What changed, None = the entry makes no sense.
        instance: Which hub wrote it.
        session: Which of its writes.
    """

    epoch: int
    revision: int
    key: RouteKey | None
    instance: str = ""
    session: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """The report of one hub.

    Attributes:
        instance: Names the running hub; another one after each start.
        hub_id: The hub.
        epoch: Of the table that it follows.
        revision: It has applied everything up to here.
        routes: Routes that run or fail there.
        failed: Key and reason of those that cannot run; at most `FAILED_SHOWN_MAX`.
        failed_total: Their number.
        stale: Why its table may be old, empty = it is not.
        age_ms: Age of the report when it was read.
    """

    instance: str
    hub_id: str
    epoch: Number
    revision: Number
    routes: Number
    failed: dict[str, str]
    failed_total: Number
    stale: str = ""
    age_ms: int = 0


FAILED_SHOWN_MAX: Final = 100


class Digest(Struct, frozen=True):
    """A sum over rows by which two tables are compared without reading them.

    The sum is of two numbers from the SHA-1 of each row, so it does not depend on the order; Redis
    computes the same in Lua. It protects against accidents, not against attacks.

    Attributes:
        count: Rows.
        high: Sum of the first numbers.
        low: Sum of the second ones.
    """

    count: int = 0
    high: int = 0
    low: int = 0

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str]]) -> Self:
        """Return the sum over keys and raw rows."""
        count = high = low = 0
        for key, raw in rows:
            mark = hashlib.sha1(f"{key}\n{raw}".encode(), usedforsecurity=False).hexdigest()
            count += 1
            high += int(mark[:8], 16)
            low += int(mark[8:16], 16)
        return cls(count, high, low)

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.count + other.count, self.high + other.high, self.low + other.low)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.count - other.count, self.high - other.high, self.low - other.low)


class TableStorage(Protocol):
    """Stores the rows; every method may raise `StorageUnavailableError`."""

    @property
    def kind(self) -> str:
        """Return its name in the settings."""

    async def position(self) -> Position:
        """Return the position of the table."""

    async def read(self, keys: Sequence[RouteKey]) -> list[Row | None]:
        """Read rows with their contents, each as it is now; None = there is none."""

    def scan(self) -> AsyncIterator[list[Row]]:
        """Read all rows without contents, page by page; a row may come twice."""

    async def digest(self) -> Digest:
        """Return the sum over all rows, computed where they are."""

    async def write(
        self, changes: Sequence[Change], *, session: str, expected: int | None = None
    ) -> WriteResult:
        """Apply all changes or none.

        Args:
            changes: Each of another key.
            session: Names this write in the log.
            expected: Revision that the table must have, None = any.

        Raises:
            PreconditionError, ConflictError, RouteNotFoundError, QuotaError: Refused.
            TableLostError: The storage lost a table that this hub knows.
        """

    async def restore(
        self,
        rows: Sequence[StoredRow],
        deleted: Sequence[RouteKey],
        *,
        at: Position,
        version: Position,
    ) -> bool:
        """Put back what the table has lost, in one step and above all revisions that there were.

        Args:
            rows: What is to be there again, with contents.
            deleted: Keys that must not exist.
            at: Where the table must stand; else nothing happens.
            version: What is put back.

        Returns:
            Whether it was done; False = the table has moved on.
        """

    async def asked_since(self, begun: Position) -> set[RouteKey] | None:
        """Return the keys that operators changed since the table was created; None = unknown."""

    def knows(self, epoch: int) -> None:
        """Record a table that this hub knows, so that no write creates another one unnoticed."""

    async def follow(self, after: Position, wait_s: float) -> list[LogEntry]:
        """Wait for entries of the log behind a position, at most `wait_s`."""

    async def report(self, report: Report, *, expires_s: float) -> str:
        """Store this hub's report in place of its last one; it expires.

        Returns:
            The instance of the last report under this hub's id, empty = there was none.
        """

    async def reports(self) -> list[Report]:
        """Read the reports that have not expired."""

    async def leave(self, hub_id: str) -> None:
        """Delete this hub's report: it stops."""

    async def close(self) -> None:
        """Close connections."""
