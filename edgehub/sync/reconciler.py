"""Makes live routes match the rows: one worker, one row at a time, whatever asked it to look.

Owns what this hub knows of the table: rows as they were last read, their contents, and which could
not be built. No caller says what to do with a row, only that it look at it; so a notice that comes
twice, late or in another order changes nothing, and an old snapshot cannot undo what is newer.
Invariants: rows are read in the order in which they are applied; a row that cannot be read or built
leaves what runs under its key, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.errors import EdgeHubError, ManifestFault
from edgehub.routes.content import (
    AT_ONCE_CHARS,
    InvalidRouteError,
    content_hash,
    read_stored,
)
from edgehub.routes.tenant import DEFAULT_TENANT
from edgehub.sync.faults import StorageUnavailableError, TableLostError
from edgehub.sync.index import KeyIndex
from edgehub.sync.storage import DEFAULTS, BrokenRow, Digest, Position, Row, StoredRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from edgehub.clock import Clock
    from edgehub.routes.content import RouteContent
    from edgehub.routes.live import LiveRoutes
    from edgehub.routes.spec import Manifest
    from edgehub.routes.tenant import RouteKey
    from edgehub.sync.storage import TableStorage

PARSED_AT_ONCE: Final = 20
"""Routes whose text is parsed, half a millisecond each, before others get their turn."""

READ_AT_ONCE: Final = 2_000
SORTED_MAX: Final = 1_000
RETRY_S: Final = (1.0, 60.0)
"""First and longest wait before a route that could not be built is tried again."""

SECONDS_MAX: Final = 2**31 - 1
"""Longest time to live, as in a manifest."""

AWAY_S: Final = 0.25
"""Wait before rows are read again that the storage did not give."""

log = structlog.get_logger(__name__)


class Failure(Struct, frozen=True, kw_only=True):
    """A row that does not run as it should.

    Attributes:
        hash: What it should run.
        reason: Why it does not.
        tries: How often it was tried.
        retry_at: Monotonic seconds of the next time.
    """

    hash: str
    reason: str
    tries: int
    retry_at: float


class Reconciler:
    """Makes live routes match the rows of the table.

    Args:
        storage: Where rows are read.
        live: What is made to match; changed by nothing else.
        clock: For waits.
        manifest: What holds for all routes until a row says otherwise.
    """

    def __init__(
        self, storage: TableStorage, live: LiveRoutes, clock: Clock, manifest: Manifest
    ) -> None:
        self.rows: dict[RouteKey, Row] = {}
        self.failures: dict[RouteKey, Failure] = {}
        self.file_routes: dict[RouteKey, RouteContent] = {}
        """Routes of this hub's manifest, which are kept in its file and not in the storage."""
        self.digest = Digest()
        """The sum over `rows`, kept as they change; to count again would hold up messages."""
        self.index = KeyIndex()
        """The ids of `rows` and `file_routes`."""
        self.taken_total = 0
        """Times that rows were applied."""
        self.applied = Position()
        """Everything up to here has been looked at."""
        self.on_applied: list[Callable[[frozenset[RouteKey]], None]] = []
        """Called after each step with the rows that it has changed."""
        self._storage = storage
        self._live = live
        self._clock = clock
        self.head = manifest
        """What holds for all routes."""
        self._contents: dict[str, RouteContent] = {}
        self._defaults_text: str | None = None
        self._dirty: set[RouteKey] = set()
        self._looking: set[RouteKey] = set()
        self._changed: set[RouteKey] = set()
        self._seen = Position()
        self._work = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._changing = asyncio.Lock()
        self._stepping = asyncio.Lock()

    def look(self, keys: Iterable[RouteKey]) -> None:
        """Request a look at rows."""
        self._dirty.update(keys)
        self._work.set()

    def awaits(self, key: RouteKey) -> bool:
        """Return whether a row is still to be looked at, as while the storage is unreachable."""
        return key in self._dirty or key in self._looking

    @property
    def busy(self) -> bool:
        """Whether rows wait to be looked at, or are being looked at."""
        return bool(self._dirty) or self._work.is_set() or self._stepping.locked()

    def seen(self, position: Position) -> None:
        """Record that all keys changed up to here have been handed to `look`."""
        self._seen = position
        self._work.set()

    def let_go(self) -> None:
        """Accept the table of the storage, whatever this hub holds of an earlier one."""
        self.applied = self._seen = Position()

    async def settled(self, keys: Iterable[RouteKey] = ()) -> None:
        """Wait until these rows, and all that were handed to `look` before, have been looked at."""
        self.look(keys)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def retry_failed(self, *, at_once: bool = True) -> None:
        """Try again what could not be built.

        Args:
            at_once: Also what is not due yet.
        """
        now = self._clock.monotonic()
        due = [key for key, each in self.failures.items() if at_once or each.retry_at <= now]
        if due:
            self.look(due)

    def content(self, row: StoredRow) -> RouteContent | None:
        """Return the content of a row, None = it cannot be read or was never needed."""
        return self._contents.get(row.hash)

    def text(self, row: StoredRow) -> str | None:
        """Return the canonical text of a row's content, None = it is not known."""
        if row.key == DEFAULTS:
            text = self._defaults_text or ""
            return text if content_hash(text, DEFAULT_TENANT) == row.hash else None
        content = self._contents.get(row.hash)
        return None if content is None else content.text

    def wanted(self, key: RouteKey) -> str | None:
        """Return the hash that should run under a key, None = nothing should."""
        row = self.rows.get(key)
        if isinstance(row, StoredRow):
            return row.hash if row.enabled and key != DEFAULTS else None
        own = self.file_routes.get(key)
        if row is None and own is not None:
            return own.hash
        # What runs under a row that cannot be read stays.
        return self._live.hash_of(key) if row is not None else None

    async def run(self) -> None:
        """Look at rows whenever asked, until cancelled."""
        while True:
            await self._work.wait()
            if not await self.step():
                await self._clock.sleep(AWAY_S)
                self._work.set()

    async def step(self) -> bool:
        """Look at what is to be looked at; False = the storage did not answer, it stays to do."""
        async with self._stepping:
            return await self._step()

    async def _step(self) -> bool:
        self._work.clear()
        keys, self._dirty = self._dirty, set()
        self._looking = keys
        waiters, self._waiters = self._waiters, []
        seen = self._seen
        # In their order where that costs nothing; thousands are sorted while messages wait.
        waiting = sorted(keys) if len(keys) <= SORTED_MAX else list(keys)
        try:
            for start in range(0, len(waiting), READ_AT_ONCE):
                page = waiting[start : start + READ_AT_ONCE]
                rows = dict(zip(page, await self._storage.read(page), strict=True))
                await self._check_missing(rows)
                await self.take(rows)
                keys.difference_update(page)
        except (StorageUnavailableError, asyncio.CancelledError) as error:
            self._dirty |= keys
            self._waiters += waiters
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        self.applied = seen
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        changed, self._changed = frozenset(self._changed), set()
        for notify in self.on_applied:
            notify(changed)
        return True

    async def _check_missing(self, rows: Mapping[RouteKey, Row | None]) -> None:
        """Accept that known rows are missing, or older, only if the table is not another one.

        Raises:
            StorageUnavailableError: It is, and what it lacks will be put back.
        """
        if any(_is_older(row, self.rows.get(key)) for key, row in rows.items()):
            now = await self._storage.position()
            if now.lacks(self.applied):
                raise TableLostError

    async def step_or_raise(self) -> None:
        """Look at what is to be looked at.

        Raises:
            StorageUnavailableError: The storage did not answer.
        """
        if not await self.step():
            raise StorageUnavailableError("it became unreachable while it was read")

    async def take(self, rows: Mapping[RouteKey, Row | None]) -> None:
        """Apply rows as they were just read; a snapshot is one step of the table."""
        async with self._changing:
            wanted: dict[RouteKey, RouteContent | None] = {}
            faults: dict[RouteKey, str] = {}
            head: Manifest | None = None
            for count, (key, row) in enumerate(rows.items(), 1):
                if key == DEFAULTS:
                    head = self._take_defaults(row)
                    continue
                self._note(key, row)
                if row is None or (isinstance(row, StoredRow) and not row.enabled):
                    wanted[key] = self.file_routes.get(key) if row is None else None
                try:
                    content = await self._read(row)
                except InvalidRouteError as error:
                    faults[key] = str(error)
                else:
                    if content is not None and isinstance(row, StoredRow) and row.enabled:
                        wanted[key] = content
                if count % PARSED_AT_ONCE == 0:
                    await between_slices()
            faults |= await self._live.change(wanted, head=head)
            self._judge(rows, faults)
            self._forget()
            self.taken_total += 1

    async def take_file(self, manifest: Manifest, routes: Mapping[RouteKey, RouteContent]) -> None:
        """Put the routes of this hub's own manifest in the place of those of the one before.

        Raises:
            EdgeHubError: A route cannot be built; nothing has changed.
        """
        async with self._changing:
            # A row of the same key counts, whatever the file said.
            removed = self.file_routes.keys() - routes.keys() - self.rows.keys()
            wanted: dict[RouteKey, RouteContent | None] = {**routes, **dict.fromkeys(removed)}
            faults = await self._live.change(wanted, head=manifest)
            for key in self.file_routes.keys() - self.rows.keys():
                self.index.discard(key)
            for key in routes:
                self.index.add(key)
            self.file_routes = dict(routes)
            self.head = manifest
            for key, reason in faults.items():
                log.error("sync.route_failed", route=key.name, reason=reason)
            if faults:
                raise EdgeHubError("; ".join(f"{key.name}: {why}" for key, why in faults.items()))

    async def stop_all(self) -> None:
        """Stop every live route and let go of all that they share; the storage is not touched."""
        async with self._changing:
            await self._live.change(dict.fromkeys(self._live.ids()))

    def _note(self, key: RouteKey, row: Row | None) -> None:
        before = self.rows.pop(key, None)
        if (before and before.raw) != (row and row.raw):
            self._changed.add(key)
        if before is not None:
            self.digest -= Digest.of([(str(key), before.raw)])
        if row is not None:
            self.rows[key] = replace(row, text=None) if isinstance(row, StoredRow) else row
            self.digest += Digest.of([(str(key), row.raw)])
            self.index.add(key)
        elif key not in self.file_routes:
            self.index.discard(key)

    async def _read(self, row: Row | None) -> RouteContent | None:
        """Return the content of a row that was read."""
        if row is None:
            return None
        if isinstance(row, BrokenRow):
            raise InvalidRouteError([_fault(row.reason)])
        known = self._contents.get(row.hash)
        if known is not None:
            return known
        tenant = row.key.tenant
        if row.text is None:
            raise InvalidRouteError([_fault("its content is not in the storage")])
        if content_hash(row.text, tenant) != row.hash:
            raise InvalidRouteError([_fault("its content does not fit its hash")])
        if len(row.text) > AT_ONCE_CHARS:
            content = await asyncio.to_thread(read_stored, row.text, tenant)
        else:
            content = read_stored(row.text, tenant)
        if content.hash != row.hash:
            raise InvalidRouteError([_fault("its content is not in canonical form")])
        self._contents[row.hash] = content
        return content

    def _take_defaults(self, row: Row | None) -> Manifest | None:
        self._note(DEFAULTS, row)
        if not isinstance(row, StoredRow) or row.text is None:
            return None
        try:
            seconds = json.loads(row.text)["timeToLiveSecs"]
        except (ValueError, TypeError, KeyError, RecursionError):
            seconds = 0
        if type(seconds) is not int or not 0 < abs(seconds) <= SECONDS_MAX:
            log.error("sync.defaults_unreadable", text=row.text[:100])
            return None
        self._defaults_text = row.text
        ttl_ms = None if seconds < 0 else seconds * 1000
        self.head = replace(self.head, global_ttl_ms=ttl_ms, routes=())
        return self.head

    def _judge(self, rows: Mapping[RouteKey, Row | None], faults: Mapping[RouteKey, str]) -> None:
        """Record what failed, and what does not any more."""
        for key, row in rows.items():
            before = self.failures.get(key)
            if key not in faults:
                if before is not None:
                    del self.failures[key]
                    log.info("sync.route_recovered", route=key.name)
                continue
            content_id = row.hash if isinstance(row, StoredRow) else ""
            again = before is not None and before.hash == content_id
            tries = before.tries + 1 if before is not None and again else 1
            first, longest = RETRY_S
            wait_s = min(first * 2.0 ** min(tries - 1, 10), longest)
            # The latest come last: a report that cannot show all shows those.
            self.failures.pop(key, None)
            self.failures[key] = Failure(
                hash=content_id,
                reason=faults[key],
                tries=tries,
                retry_at=self._clock.monotonic() + wait_s,
            )
            if not again:
                log.error("sync.route_failed", route=key.name, reason=faults[key])

    def _forget(self) -> None:
        """Remove contents that no row has."""
        if len(self._contents) > 2 * len(self.rows) + PARSED_AT_ONCE:
            used = {row.hash for row in self.rows.values() if isinstance(row, StoredRow)}
            self._contents = {h: each for h, each in self._contents.items() if h in used}


def _is_older(row: Row | None, known: Row | None) -> bool:
    if row is None or not isinstance(known, StoredRow):
        return row is None and known is not None
    return isinstance(row, StoredRow) and row.revision < known.revision


def _fault(reason: str) -> ManifestFault:
    return ManifestFault(path="", message=reason)
