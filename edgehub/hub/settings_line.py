"""What decides when rows leave, as the journal's line `settings` has it.

Pure. Invariant: no secrets, addresses, conditions or names of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.journal.lines import shown_priority
from edgehub.message import UPSTREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.routes.spec import Manifest, RouteSpec
    from edgehub.settings import Settings

ROUTES_MAX: Final = 500
"""Of more routes only the number is written."""

_ENDPOINT_KEYS: Final = (
    "rate_bytes_s_max",
    "in_flight_max",
    "head_of_line_ms",
    "aging_s",
    "order",
    "max_attempts",
    "max_age_s",
)
_WINDOW_KEYS: Final = ("open_at", "open_for_s", "urgent_priority")
_CAP_KEYS: Final = ("rows_max", "bytes_max", "queue_rows_max", "queue_bytes_max", "overflow")


def settings_line(settings: Settings, manifest: Manifest) -> dict[str, Any]:
    """Return the members of the line.

    Args:
        settings: Those in force.
        manifest: The routes in force.
    """
    line: dict[str, Any] = {
        "route_count": len(manifest.routes),
        "endpoints": _endpoints(settings),
        "caps": {key: getattr(settings.store, key) for key in _CAP_KEYS},
    }
    if len(manifest.routes) <= ROUTES_MAX:
        line["manifest"] = manifest.fingerprint
        line["route_table"] = [_route(manifest, spec) for spec in manifest.routes]
    return line


def _route(manifest: Manifest, spec: RouteSpec) -> dict[str, Any]:
    route: dict[str, Any] = {
        "name": spec.name,
        "endpoint": spec.route.sink.endpoint_id,
        "priority": shown_priority(spec.priority),
        "ttl_ms": manifest.ttl_ms(spec),
        "ttl_from": "store" if spec.ttl_ms is None else "route",
    }
    if spec.recency is not None:
        route["recency_s"] = spec.recency.seconds
        route["fallback_priority"] = shown_priority(spec.recency.fallback_priority)
    return _without_none(route)


def _endpoints(settings: Settings) -> dict[str, Any]:
    named = dict(settings.endpoints)
    if settings.upstream is not None:
        named[UPSTREAM] = settings.upstream
    shown = {}
    for name, options in named.items():
        keys = (*_ENDPOINT_KEYS, *(_WINDOW_KEYS if options.open_at else ()))
        shown[name] = _without_none({key: getattr(options, key, None) for key in keys})
    return shown


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
