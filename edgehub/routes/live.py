"""Live routes: the running routes, their ids, and the sources and endpoints that they use.

Owns two maps, hash to live route and key to hash, and the counts of the sources and endpoints that
live routes share. Invariants: every key has one live route and every live route has a key; a source
or an endpoint is open while, and only while, a live route uses it; added routes are built before
removed ones are closed; a route that cannot be built changes nothing. One task at a time calls
`change`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.errors import EdgeHubError
from edgehub.routes.table import RouteTable, TableEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.errors import ManifestFault
    from edgehub.message import EndpointId
    from edgehub.routes.content import RouteContent
    from edgehub.routes.source import Source
    from edgehub.routes.spec import Manifest
    from edgehub.routes.tenant import RouteKey, Tenant

BUILT_AT_ONCE: Final = 100
"""Routes that are opened before other tasks run."""

log = structlog.get_logger(__name__)


class BuildError(EdgeHubError):
    """A route cannot run on this hub; the text says why.

    Attributes:
        fault: The same with its place in the route text, None = it has none.
    """

    def __init__(self, reason: str, fault: ManifestFault | None = None) -> None:
        super().__init__(reason)
        self.fault = fault


class RouteHost:
    """Opens and closes sources and endpoints of live routes, at the first and the last use."""

    def check(self, content: RouteContent) -> None:
        """Check that the route can be opened here.

        Raises:
            BuildError: It cannot.
        """

    def open_source(self, tenant: Tenant, source: Source) -> None:
        """Open a source: its first route is about to run.

        Raises:
            BuildError: It cannot be.
        """

    def close_source(self, tenant: Tenant, source: Source) -> None:
        """Close a source: its last route was removed."""

    def open_endpoint(self, endpoint_id: EndpointId) -> None:
        """Open an endpoint.

        Raises:
            BuildError: It cannot be.
        """

    def close_endpoint(self, endpoint_id: EndpointId) -> None:
        """Close an endpoint to which no route sends any more."""

    def put_in_force(self, table: RouteTable) -> None:
        """Put another table in force."""

    def started(self, content: RouteContent) -> None:
        """Record that a live route runs."""

    def stopped(self, content: RouteContent) -> None:
        """Record that a live route has ended."""


class LiveRoute(Struct, kw_only=True):
    """One route that runs.

    Attributes:
        content: Its content.
        slot: Its place in the table.
        names: Names of its keys, sorted; never empty between two changes.
    """

    content: RouteContent
    slot: int
    names: tuple[str, ...]

    def entry(self, names: Sequence[str]) -> TableEntry:
        """Return its entry in the table under some names."""
        tenant = self.content.tenant.label
        return TableEntry(tenant=tenant, spec=self.content.spec, names=tuple(names))


class LiveRoutes:
    """All live routes of a hub.

    Args:
        host: See `RouteHost`.
        manifest: File, version, warnings and global time to live that hold for all routes.
        hub_id: Device id of the hub itself.
    """

    def __init__(self, host: RouteHost, manifest: Manifest, *, hub_id: str) -> None:
        self._host = host
        self._head = manifest
        self._by_hash: dict[str, LiveRoute] = {}
        self._by_key: dict[RouteKey, str] = {}
        self._sources: Counter[tuple[Tenant, Source]] = Counter()
        self._endpoints: Counter[EndpointId] = Counter()
        self._free: list[int] = []
        self._slots = 0
        self._touched: set[str] = set()
        self.table = RouteTable(replace(manifest, routes=()), hub_id)
        """The table in force."""
        self.started_total = 0
        self.stopped_total = 0

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def source_count(self) -> int:
        """Return the number of open sources."""
        return len(self._sources)

    @property
    def endpoint_count(self) -> int:
        """Return the number of endpoints that routes send to."""
        return len(self._endpoints)

    @property
    def live_count(self) -> int:
        """Return the number of running routes; several keys may share one."""
        return len(self._by_hash)

    def ids(self) -> dict[RouteKey, str]:
        """Return the hash of the live route of each key."""
        return dict(self._by_key)

    def hash_of(self, key: RouteKey) -> str | None:
        """Return the hash of the live route of a key, None = it has none."""
        return self._by_key.get(key)

    def content(self, content_hash: str) -> RouteContent | None:
        """Return the content of a live route, None = none has that hash."""
        live = self._by_hash.get(content_hash)
        return None if live is None else live.content

    def sharing(self, key: RouteKey, limit: int) -> tuple[str, ...]:
        """Return the first ids, sorted, of others that share the live route of a key."""
        live = self._by_hash.get(self._by_key.get(key, ""))
        names = () if live is None else live.names[: limit + 1]
        # All are of one tenant, with which each name begins, unless it is the default one.
        own, start = key.name, len(key.name) - len(key.id)
        return tuple(name[start:] for name in names if name != own)[:limit]

    async def change(
        self, wanted: Mapping[RouteKey, RouteContent | None], *, head: Manifest | None = None
    ) -> dict[RouteKey, str]:
        """Change the routes of keys, in one step of the table.

        Args:
            wanted: New content of each key, None = remove its route.
            head: Another manifest's file, version, warnings and global time to live; None = as is.

        Returns:
            Keys that could not be changed, with the reason; they keep their routes.
        """
        failed = await self._open({c.hash: c for c in wanted.values() if c is not None})
        faults: dict[RouteKey, str] = {}
        moves: dict[RouteKey, RouteContent | None] = {}
        for key, content in wanted.items():
            if content is not None and content.hash in failed:
                faults[key] = failed[content.hash]
            elif self._by_key.get(key) != (None if content is None else content.hash):
                moves[key] = content
        if head is not None:
            self._head = head
        if moves or head is not None:
            await self._switch(moves)
        self._close_unused()
        return faults

    async def _open(self, contents: Mapping[str, RouteContent]) -> dict[str, str]:
        """Build routes that do not run yet; return the hashes that cannot be, with the reason."""
        failed: dict[str, str] = {}
        for count, (content_hash, content) in enumerate(contents.items(), 1):
            if content_hash in self._by_hash:
                continue
            try:
                self._build(content)
            except BuildError as error:
                failed[content_hash] = str(error)
            if count % BUILT_AT_ONCE == 0:
                await between_slices()
        return failed

    def _build(self, content: RouteContent) -> None:
        self._host.check(content)
        source = (content.tenant, content.spec.route.source)
        endpoint_id = content.spec.route.sink.endpoint_id
        if not self._endpoints[endpoint_id]:
            self._host.open_endpoint(endpoint_id)
        self._endpoints[endpoint_id] += 1
        try:
            if not self._sources[source]:
                self._host.open_source(*source)
        except BuildError:
            self._count_down(endpoint_id)
            raise
        self._sources[source] += 1
        slot = self._free.pop() if self._free else self._slots
        self._slots = max(self._slots, slot + 1)
        self._by_hash[content.hash] = LiveRoute(content=content, slot=slot, names=())
        self._touched.add(content.hash)

    async def _switch(self, moves: Mapping[RouteKey, RouteContent | None]) -> None:
        """Move keys to their live routes, and put the table of that in force."""
        after = self._names_after(moves)
        changes: dict[int, TableEntry | None] = {}
        for content_hash, names in after.items():
            live = self._by_hash[content_hash]
            changes[live.slot] = live.entry(names) if names else None
        table = self.table.derive(changes, self._head)
        for _ in table.cold_code():
            # A piece takes some milliseconds; messages are handled in between.
            await between_slices()
        # No await from here on: neither a reader nor a cancellation meets half of the change.
        started: list[RouteContent] = []
        for content_hash, names in after.items():
            live = self._by_hash[content_hash]
            if names and not live.names:
                started.append(live.content)
            live.names = tuple(names)
            self._touched.add(content_hash)
        for key, content in moves.items():
            if content is None:
                self._by_key.pop(key, None)
            else:
                self._by_key[key] = content.hash
        self.table = table
        self._host.put_in_force(table)
        self.started_total += len(started)
        for content in started:
            source = str(content.spec.route.source)
            log.debug("routes.live_started", hash=content.hash, source=source)
            self._host.started(content)

    def _names_after(self, moves: Mapping[RouteKey, RouteContent | None]) -> dict[str, list[str]]:
        """Return the names that each live route concerned will have, sorted."""
        after: dict[str, list[str]] = {}

        def of(content_hash: str) -> list[str]:
            if content_hash not in after:
                after[content_hash] = list(self._by_hash[content_hash].names)
            return after[content_hash]

        for key, content in moves.items():
            # Kept in order: thousands of names may share a route, and most changes are of one.
            if (before := self._by_key.get(key)) is not None:
                names = of(before)
                del names[bisect_left(names, key.name)]
            if content is not None:
                insort(of(content.hash), key.name)
        return after

    def _close_unused(self) -> None:
        """Close live routes without keys."""
        unused = [self._by_hash[each] for each in self._touched if not self._by_hash[each].names]
        self._touched.clear()
        for live in unused:
            content = live.content
            del self._by_hash[content.hash]
            self._free.append(live.slot)
            self.stopped_total += 1
            log.debug("routes.live_stopped", hash=content.hash)
            self._host.stopped(content)
            source = (content.tenant, content.spec.route.source)
            self._sources[source] -= 1
            if not self._sources[source]:
                del self._sources[source]
                self._host.close_source(*source)
            self._count_down(content.spec.route.sink.endpoint_id)

    def _count_down(self, endpoint_id: EndpointId) -> None:
        self._endpoints[endpoint_id] -= 1
        if not self._endpoints[endpoint_id]:
            del self._endpoints[endpoint_id]
            self._host.close_endpoint(endpoint_id)
