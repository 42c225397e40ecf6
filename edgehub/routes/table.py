"""The compiled route table: which endpoints a message goes to, at which priority, for how long.

Owns the hot path of routing. A table is an immutable snapshot that is replaced as a whole; another
one is derived from it at the cost of what changes. Its caches (the routes of a source, the results
of a set of routes, and of a header where no body is read) are bounded. Invariant: `evaluate` never
raises and gives at most one result per endpoint, that of the best matching route.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from edgehub.errors import ManifestError
from edgehub.message import NEVER_MS, EndpointId, RouteResult
from edgehub.mqtt.topic_filter import is_topic
from edgehub.routes.catch_all import CATCH_ALL_KEYS
from edgehub.routes.chunks import Chunks, Condition
from edgehub.routes.named import unknown_endpoints
from edgehub.routes.query.body import NOT_READ
from edgehub.routes.query.text import upper
from edgehub.routes.source import MQTT_PREFIX, MqttSource, PathSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from edgehub.message import Message, Recency
    from edgehub.routes.query.codegen import Predicates
    from edgehub.routes.query.syntax import Expression
    from edgehub.routes.spec import Manifest, RouteRules, RouteSpec

_CACHED_MAX: Final = 4_096
"""Entries of each cache; then all are dropped at once."""

_CACHED_CHARS_MAX: Final = 512
"""Longer sources, which only a broker's topics can be, are not cached."""

SourceKey = tuple[str, str | MqttSource]
"""Tenant, and the prefix in comparable form or the topic filter."""


class TableEntry(Struct, frozen=True, kw_only=True):
    """One live route in the table, with all its names.

    Attributes:
        tenant: Tenant whose messages it takes; empty = the default tenant.
        spec: Its rules; the name in it is not used.
        names: Its names, sorted; never empty.
    """

    tenant: str
    spec: RouteSpec
    names: tuple[str, ...]

    @property
    def source_key(self) -> SourceKey:
        """Return its tenant and source."""
        source = self.spec.route.source
        return (self.tenant, source.key if isinstance(source, PathSource) else source)

    @property
    def condition(self) -> Expression | None:
        """Return its condition, None = always."""
        return self.spec.route.condition.expression

    def same_code(self, other: TableEntry) -> bool:
        """Return whether both are compiled to the same."""
        return self.tenant == other.tenant and self.spec.route is other.spec.route


class RouteTable:
    """A compiled set of routes; see `compile` and `derive`."""

    def __init__(self, manifest: Manifest, hub_id: str) -> None:
        self.hub_id = hub_id
        """Device id of the hub itself."""
        self._head = manifest
        self._entries: dict[int, TableEntry] = {}
        self._groups: dict[SourceKey, Chunks] = {}
        self._slots: dict[str, int] = {}
        self._uses: Counter[EndpointId] = Counter()
        # The best first: the slot is the bit number, and small numbers are quick.
        ranked = sorted(manifest.routes, key=lambda spec: (*self._rank(spec), spec.name))
        self._take(
            {
                slot: TableEntry(tenant="", spec=spec, names=(spec.name,))
                for slot, spec in enumerate(ranked)
            }
        )
        self._index()
        self._manifest: Manifest | None = manifest

    @classmethod
    def compile(
        cls, manifest: Manifest, *, endpoints: Collection[EndpointId], hub_id: str = ""
    ) -> RouteTable:
        """Compile a manifest.

        Args:
            manifest: See `parse_manifest`.
            endpoints: Named endpoints that exist, for `Endpoint("...")`.
            hub_id: Device id of the hub itself, for `$edgeHubOriginInterface`.

        Raises:
            ManifestError: If routes name endpoints that do not exist; all of them are reported.
        """
        faults = unknown_endpoints(manifest.routes, endpoints)
        if faults:
            raise ManifestError(manifest.file, faults)
        return cls(manifest, hub_id)

    def derive(self, changes: Mapping[int, TableEntry | None], manifest: Manifest) -> Self:
        """Return a table in which some live routes differ; the rest is shared with this one.

        Args:
            changes: Entry by slot, None = the slot becomes free. A name is in one entry only.
            manifest: File, version, warnings and global time to live; of its routes the order in
                which they are shown.
        """
        made = copy(self)
        made._change(changes, manifest)  # noqa: SLF001 - a new object of this class
        return made

    def cold_code(self) -> Iterator[Any]:
        """Compile missing functions, one by one; else the first message compiles them.

        Yields:
            After each piece, a few milliseconds of work.
        """
        for group in self._groups.values():
            yield from group.compile()

    def evaluate(self, message: Message) -> Sequence[RouteResult]:
        """Return the best result per endpoint, best priority first; empty = no route takes it."""
        tenant, header = message.tenant, message.header
        if not tenant:
            known = self._of_header.get(header)
            if known is not None:
                return known
        memo: list[Any] = [NOT_READ]
        mask = 0
        for group in self._groups_of(tenant, message.source):
            mask |= group(message, memo)
        results = self._results.get(mask)
        if results is None:
            results = self._assemble(mask)
        if header and memo[0] is NOT_READ and not tenant:
            # Nothing but the header decides, and the next message with it need not be evaluated.
            if len(self._of_header) >= _CACHED_MAX:
                self._of_header.clear()
            self._of_header[header] = results
        return results

    @property
    def manifest(self) -> Manifest:
        """Return all routes by their names, as in a manifest."""
        if self._manifest is None:
            places = {spec.name: place for place, spec in enumerate(self._head.routes)}
            names = sorted(self._slots, key=lambda name: (places.get(name, len(places)), name))
            named = ((name, self._entries[self._slots[name]].spec) for name in names)
            specs = (replace(spec, name=name, path=f"routes.{name}") for name, spec in named)
            self._manifest = replace(self._head, routes=tuple(specs))
        return self._manifest

    @property
    def mqtt_filters(self) -> tuple[str, ...]:
        """Return the topic filters of routes."""
        return tuple(
            dict.fromkeys(key.filter for _, key in self._groups if isinstance(key, MqttSource))
        )

    def has_catch_all(self) -> bool:
        """Return whether a route takes every message of the default tenant's devices."""
        groups = (self._groups.get(("", key)) for key in CATCH_ALL_KEYS)
        return any(group is not None and group.takes_everything for group in groups)

    def delivery_rules(self, route: str) -> RouteRules:
        """Return the delivery rules of a route by its name.

        Raises:
            KeyError: If the table has no such route.
        """
        return self._entries[self._slots[route]].spec.rules

    def ttl_ms(self, spec: RouteSpec) -> int | None:
        """Return the own or the global time to live of a route in milliseconds, None = endless."""
        return self._head.ttl_ms(spec)

    def _rank(self, spec: RouteSpec) -> tuple[int, int]:
        ttl_ms = self.ttl_ms(spec)
        return (spec.priority, -(NEVER_MS if ttl_ms is None else ttl_ms))

    def _change(self, changes: Mapping[int, TableEntry | None], manifest: Manifest) -> None:
        self._head, self._manifest = manifest, None
        self._entries, self._groups = dict(self._entries), dict(self._groups)
        self._slots, self._uses = dict(self._slots), Counter(self._uses)
        self._take(changes)
        self._index()

    def _take(self, changes: Mapping[int, TableEntry | None]) -> None:
        """Change entries and their names."""
        self._recompile(changes)
        added: list[tuple[int, set[str]]] = []
        for slot, entry in changes.items():
            before = self._entries.pop(slot, None)
            old = set() if before is None else set(before.names)
            new = set() if entry is None else set(entry.names)
            if before is not None:
                self._uses[before.spec.route.sink.endpoint_id] -= 1
            if entry is not None:
                self._entries[slot] = entry
                self._uses[entry.spec.route.sink.endpoint_id] += 1
            for name in old - new:
                del self._slots[name]
            added.append((slot, new - old))
        for slot, names in added:  # also names that another entry had before
            self._slots |= dict.fromkeys(names, slot)

    def _recompile(self, changes: Mapping[int, TableEntry | None]) -> None:
        """Change those groups whose code will differ."""
        removed: dict[SourceKey, set[int]] = {}
        added: dict[SourceKey, list[Condition]] = {}
        for slot, entry in changes.items():
            before = self._entries.get(slot)
            if before is not None and entry is not None and before.same_code(entry):
                continue
            if before is not None:
                removed.setdefault(before.source_key, set()).add(slot)
            if entry is not None:
                added.setdefault(entry.source_key, []).append((slot, entry.condition))
        for key in dict.fromkeys((*removed, *added)):
            group = self._groups.get(key) or Chunks((), self.hub_id)
            group = group.changed(removed.get(key, set()), added.get(key, ()))
            if group.empty:
                self._groups.pop(key, None)
            else:
                self._groups[key] = group

    def _index(self) -> None:
        """Build the indexes of a changed table."""
        self.endpoints = frozenset(each for each, count in self._uses.items() if count)
        self._exact: dict[tuple[str, str], Chunks] = {}
        self._wild: dict[str, list[tuple[MqttSource, Chunks]]] = {}
        for (tenant, key), group in self._groups.items():
            if isinstance(key, MqttSource):
                if is_topic(key.filter):
                    self._exact[tenant, key.filter] = group
                else:
                    self._wild.setdefault(tenant, []).append((key, group))
        self._by_source: dict[str, tuple[Predicates, ...]] = {}
        self._results: dict[int, tuple[RouteResult, ...]] = {0: ()}
        self._of_header: dict[bytes, tuple[RouteResult, ...]] = {}

    def _groups_of(self, tenant: str, source: str) -> tuple[Predicates, ...]:
        """Return the functions of all routes of a source, and cache them."""
        name = f"{tenant}\0{source}" if tenant else source
        cached = self._by_source.get(name)
        if cached is not None:
            return cached
        functions: list[Predicates] = []
        for group in self._listening(tenant, source):
            functions += group.functions()
        if len(self._by_source) >= _CACHED_MAX:
            self._by_source.clear()
        if len(source) <= _CACHED_CHARS_MAX:
            self._by_source[name] = tuple(functions)
        return tuple(functions)

    def _listening(self, tenant: str, source: str) -> Iterable[Chunks]:
        text = upper(source if source.endswith("/") else source + "/")
        for prefix in _prefixes(text):
            group = self._groups.get((tenant, prefix))
            if group is not None:
                yield group
        if source.startswith(MQTT_PREFIX):
            topic = source[len(MQTT_PREFIX) :]
            exact = self._exact.get((tenant, topic))
            if exact is not None:
                yield exact
            for each, group in self._wild.get(tenant, ()):
                if each.matches(topic):
                    yield group

    def _assemble(self, mask: int) -> tuple[RouteResult, ...]:
        """Build the results of a set of matching routes, and cache them."""
        matching: list[tuple[tuple[int, int], str, RouteSpec]] = []
        rest, slot = mask, 0
        while rest:
            low = (rest & -rest).bit_length()
            slot += low
            rest >>= low
            entry = self._entries[slot - 1]
            rank = self._rank(entry.spec)
            matching += [(rank, name, entry.spec) for name in entry.names]
        by_endpoint: dict[EndpointId, list[tuple[str, RouteSpec]]] = {}
        for _, name, spec in sorted(matching, key=itemgetter(0, 1)):
            by_endpoint.setdefault(spec.route.sink.endpoint_id, []).append((name, spec))
        results = tuple(
            RouteResult(
                endpoint_id=endpoint_id,
                priority=specs[0][1].priority,
                ttl_ms=self.ttl_ms(specs[0][1]),
                routes=tuple(name for name, _ in specs),
                recency=_effective(specs[0][1]),
            )
            for endpoint_id, specs in by_endpoint.items()
        )
        if len(self._results) >= _CACHED_MAX:
            self._results.clear()
        self._results[mask] = results
        return results


def _prefixes(path: str) -> Iterator[str]:
    """Return every prefix of a path that ends with a slash; the one of `/` is a slash."""
    end = path.find("/")
    while end >= 0:
        yield path[: end + 1]
        end = path.find("/", end + 1)


def _effective(spec: RouteSpec) -> Recency | None:
    # Its own priority as the fallback is allowed, with a warning, and changes nothing.
    if spec.recency is not None and spec.recency.fallback_priority == spec.priority:
        return None
    return spec.recency
