"""The compiled route table: which endpoints a message goes to, at which priority, for how long.

Owns the hot path of routing. A table is an immutable snapshot of one manifest that is replaced as a
whole; what it remembers (which routes listen to a source, which results a set of routes gives) is
bounded and only saves time. Invariant: `evaluate` never raises and gives at most one result per
endpoint, that of the best matching route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ManifestError, ManifestFault
from edgehub.message import NEVER_MS, EndpointId, RouteResult
from edgehub.routes.explain import RouteVerdict, explain
from edgehub.routes.hints import near_miss
from edgehub.routes.query.body import NOT_READ
from edgehub.routes.query.codegen import compile_predicates
from edgehub.routes.query.text import upper
from edgehub.routes.source import MQTT_PREFIX, MqttSource, PathSource

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from edgehub.message import Message, Recency
    from edgehub.routes.manifest import DeliveryRules, Manifest, RouteSpec
    from edgehub.routes.query.codegen import Predicates

_REMEMBERED_MAX: Final = 4_096
"""Sources, and sets of matching routes, that are remembered; then all are forgotten at once."""

_REMEMBERED_CHARS_MAX: Final = 512
"""Longer sources, which only a broker's topics can be, are looked at anew each time."""


class RouteTable:
    """One manifest, compiled. Made by `compile`."""

    __slots__ = (
        "_by_source",
        "_filters",
        "_hub_id",
        "_prefixes",
        "_ranked",
        "_results",
        "endpoints",
        "manifest",
    )

    def __init__(self, manifest: Manifest, hub_id: str) -> None:
        self.manifest = manifest
        self.endpoints = frozenset(spec.route.sink.endpoint_id for spec in manifest.routes)
        self._hub_id = hub_id
        # Best first, so that the first of an endpoint is its winner. The rank is the bit number.
        self._ranked = tuple(sorted(manifest.routes, key=self._rank))
        self._prefixes, self._filters = self._compile()
        self._by_source: dict[str, tuple[Predicates, ...]] = {}
        self._results: dict[int, tuple[RouteResult, ...]] = {0: ()}

    @classmethod
    def compile(
        cls, manifest: Manifest, *, endpoints: Collection[EndpointId], hub_id: str = ""
    ) -> RouteTable:
        """Compile a manifest.

        Args:
            manifest: What `parse_manifest` gave.
            endpoints: Named endpoints that exist, for `Endpoint("...")`.
            hub_id: Device id of the hub itself, for `$edgeHubOriginInterface`.

        Raises:
            ManifestError: If routes name endpoints that do not exist; all of them are reported.
        """
        faults = [
            _unknown_endpoint(spec, endpoints)
            for spec in manifest.routes
            if spec.route.sink.named and spec.route.sink.endpoint_id not in endpoints
        ]
        if faults:
            raise ManifestError(manifest.file, faults)
        return cls(manifest, hub_id)

    def evaluate(self, message: Message) -> Sequence[RouteResult]:
        """Give the best result per endpoint, best priority first; empty = no route takes it."""
        groups = self._by_source.get(message.source)
        if groups is None:
            groups = self._groups_of(message.source)
        memo: list[Any] = [NOT_READ]
        mask = 0
        for group in groups:
            mask |= group(message, memo)
        results = self._results.get(mask)
        return self._assemble(mask) if results is None else results

    def explain(self, message: Message) -> list[RouteVerdict]:
        """Say of each route, in the manifest's order, whether it takes the message, and why not."""
        return explain(self, message)

    @property
    def mqtt_filters(self) -> tuple[str, ...]:
        """Topic filters that routes listen to."""
        return tuple(source.filter for source, _ in self._filters)

    @property
    def hub_id(self) -> str:
        """Device id of the hub itself."""
        return self._hub_id

    def delivery_rules(self, route: str) -> DeliveryRules:
        """Give the delivery rules of a route by its name.

        Raises:
            KeyError: If the table has no such route.
        """
        for spec in self.manifest.routes:
            if spec.name == route:
                return spec.rules
        raise KeyError(route)

    def ttl_ms(self, spec: RouteSpec) -> int | None:
        """Give a route's time to live in milliseconds, its own or the global one, None = never."""
        return self.manifest.ttl_ms(spec)

    def _rank(self, spec: RouteSpec) -> tuple[int, int, str]:
        ttl_ms = self.ttl_ms(spec)
        return (spec.priority, -(NEVER_MS if ttl_ms is None else ttl_ms), spec.name)

    def _compile(self) -> tuple[dict[str, Predicates], list[tuple[MqttSource, Predicates]]]:
        """Make one function per distinct source."""
        by_prefix: dict[str, list[Any]] = {}
        by_filter: dict[MqttSource, list[Any]] = {}
        for rank, spec in enumerate(self._ranked):
            entry = (1 << rank, spec.route.condition.expression)
            source = spec.route.source
            if isinstance(source, PathSource):
                by_prefix.setdefault(source.key, []).append(entry)
            else:
                by_filter.setdefault(source, []).append(entry)
        prefixes = {
            prefix: compile_predicates(entries, self._hub_id)
            for prefix, entries in by_prefix.items()
        }
        filters = [
            (source, compile_predicates(entries, self._hub_id))
            for source, entries in by_filter.items()
        ]
        return prefixes, filters

    def _groups_of(self, source: str) -> tuple[Predicates, ...]:
        """Find the functions of all routes that listen to a source, and remember them."""
        text = upper(source if source.endswith("/") else source + "/")
        groups = [group for prefix, group in self._prefixes.items() if text.startswith(prefix)]
        if source.startswith(MQTT_PREFIX):
            topic = source[len(MQTT_PREFIX) :]
            groups += [group for each, group in self._filters if each.matches(topic)]
        if len(self._by_source) >= _REMEMBERED_MAX:
            self._by_source.clear()
        if len(source) <= _REMEMBERED_CHARS_MAX:
            self._by_source[source] = tuple(groups)
        return tuple(groups)

    def _assemble(self, mask: int) -> tuple[RouteResult, ...]:
        """Build the results of a set of matching routes, and remember them."""
        by_endpoint: dict[EndpointId, list[RouteSpec]] = {}
        for rank, spec in enumerate(self._ranked):
            if mask >> rank & 1:
                by_endpoint.setdefault(spec.route.sink.endpoint_id, []).append(spec)
        results = tuple(
            RouteResult(
                endpoint_id=endpoint_id,
                priority=specs[0].priority,
                ttl_ms=self.ttl_ms(specs[0]),
                routes=tuple(spec.name for spec in specs),
                recency=_effective(specs[0]),
            )
            for endpoint_id, specs in by_endpoint.items()
        )
        if len(self._results) >= _REMEMBERED_MAX:
            self._results.clear()
        self._results[mask] = results
        return results


def _effective(spec: RouteSpec) -> Recency | None:
    # Its own priority as the fallback is allowed, with a warning, and changes nothing.
    if spec.recency is not None and spec.recency.fallback_priority == spec.priority:
        return None
    return spec.recency


def _unknown_endpoint(spec: RouteSpec, endpoints: Collection[EndpointId]) -> ManifestFault:
    sink = spec.route.sink
    close = near_miss(sink.endpoint_id, endpoints)
    known = ", ".join(sorted(endpoints))
    hint = f'did you mean "{close}"?' if close else f"known are: {known}" if known else ""
    return ManifestFault(
        path=spec.path,
        route=spec.name,
        line=sink.line,
        column=sink.column,
        message=f'there is no endpoint "{sink.endpoint_id}" in the settings',
        hint=hint or "add it to the settings",
    )
