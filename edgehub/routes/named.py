"""Faults of routes whose endpoint is not in the settings.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.errors import ManifestFault
from edgehub.routes.hints import near_miss

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from edgehub.message import EndpointId
    from edgehub.routes.spec import RouteSpec


def unknown_endpoints(
    specs: Iterable[RouteSpec], endpoints: Collection[EndpointId]
) -> list[ManifestFault]:
    """Return a fault for each route whose endpoint is not in the settings."""
    return [
        unknown_endpoint(spec, endpoints)
        for spec in specs
        if spec.route.sink.named and spec.route.sink.endpoint_id not in endpoints
    ]


def unknown_endpoint(spec: RouteSpec, endpoints: Collection[EndpointId]) -> ManifestFault:
    """Return the fault of a route whose endpoint is not in the settings."""
    sink = spec.route.sink
    close = near_miss(sink.endpoint_id, endpoints)
    known = f"; known are: {', '.join(sorted(endpoints))}" if endpoints else ""
    hint = f'did you mean "{close}"?' if close else f"add [endpoints.{sink.endpoint_id}]{known}"
    return ManifestFault(
        path=spec.path,
        route=spec.name,
        line=sink.line,
        column=sink.column,
        message=f'there is no endpoint "{sink.endpoint_id}" in the settings',
        hint=hint,
    )
