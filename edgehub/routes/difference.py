"""The difference between two manifests, route by route.

Pure: compares two checked manifests. A route keeps its identity by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.message import EndpointId, Priority
    from edgehub.routes.spec import Manifest, RouteSpec

Value = str | int | None


class RouteLine(Struct, frozen=True, kw_only=True):
    """One route as it is shown.

    Attributes:
        name: Its name.
        text: The route text.
        endpoint_id: Where it sends.
        priority: 0 is the best.
        ttl_ms: Its own time to live or the global one, None = never ends.
    """

    name: str
    text: str
    endpoint_id: EndpointId
    priority: Priority
    ttl_ms: int | None
    fallback_priority: Priority | None = None


class ChangedRoute(Struct, frozen=True, kw_only=True):
    """A route that differs between both manifests.

    Attributes:
        name: Its name.
        before: As it is.
        after: As it would be.
        changes: Name of each part that differs, with old and new value.
    """

    name: str
    before: RouteLine
    after: RouteLine
    changes: dict[str, tuple[Value, Value]]

    @property
    def takes_the_same(self) -> bool:
        """Return whether source and condition are the same."""
        return not self.changes.keys() & {"source", "condition"}


class ManifestDifference(Struct, frozen=True, kw_only=True):
    """The changes from one manifest to another."""

    added: tuple[RouteLine, ...]
    removed: tuple[RouteLine, ...]
    changed: tuple[ChangedRoute, ...]
    unchanged: tuple[RouteLine, ...]


def route_lines(manifest: Manifest) -> list[RouteLine]:
    """Return all routes in the order of the manifest."""
    return [_line(manifest, spec) for spec in manifest.routes]


def compare(before: Manifest, after: Manifest) -> ManifestDifference:
    """Compare two manifests."""
    old = {spec.name: spec for spec in before.routes}
    new = {spec.name: spec for spec in after.routes}
    changed: list[ChangedRoute] = []
    unchanged: list[RouteLine] = []
    for name, spec in new.items():
        if name not in old:
            continue
        was, will = _parts(before, old[name]), _parts(after, spec)
        changes = {part: (was[part], will[part]) for part in was if was[part] != will[part]}
        if changes:
            changed.append(
                ChangedRoute(
                    name=name,
                    before=_line(before, old[name]),
                    after=_line(after, spec),
                    changes=changes,
                )
            )
        else:
            unchanged.append(_line(after, spec))
    return ManifestDifference(
        added=tuple(_line(after, spec) for name, spec in new.items() if name not in old),
        removed=tuple(_line(before, spec) for name, spec in old.items() if name not in new),
        changed=tuple(changed),
        unchanged=tuple(unchanged),
    )


def _line(manifest: Manifest, spec: RouteSpec) -> RouteLine:
    return RouteLine(
        name=spec.name,
        text=spec.route.text,
        endpoint_id=spec.route.sink.endpoint_id,
        priority=spec.priority,
        ttl_ms=manifest.ttl_ms(spec),
        fallback_priority=None if spec.recency is None else spec.recency.fallback_priority,
    )


def _parts(manifest: Manifest, spec: RouteSpec) -> dict[str, Value]:
    ttl_ms = manifest.ttl_ms(spec)
    recency, rules = spec.recency, spec.rules
    return {
        "source": str(spec.route.source),
        "condition": spec.route.condition.text,
        "sink": spec.route.sink.endpoint_id,
        "priority": spec.priority,
        "ttl_s": None if ttl_ms is None else ttl_ms // 1000,
        "recency_s": None if recency is None else recency.seconds,
        "recency_fallback": None if recency is None else recency.fallback_priority,
        "order": rules.order,
        "max_attempts": rules.max_attempts,
        "max_age_s": rules.max_age_s,
    }
