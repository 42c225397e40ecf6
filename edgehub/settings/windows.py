"""What connection windows and times to live say about each other.

Pure; a warning never keeps a hub from starting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.endpoints.schedule import longest_closed_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgehub.routes.spec import Manifest
    from edgehub.settings import EndpointSettings


def window_warnings(
    named: Iterable[tuple[str, EndpointSettings]], manifest: Manifest
) -> Iterator[str]:
    """List the endpoints whose rows can expire between two windows by the global time to live.

    Args:
        named: Endpoints with the keys of their sections.
        manifest: The routes; where each has a time to live of its own, nothing is said.
    """
    ttl_ms, routes = manifest.global_ttl_ms, manifest.routes
    if ttl_ms is None or (routes and all(spec.ttl_ms is not None for spec in routes)):
        return
    for key, options in named:
        if not options.open_at:
            continue
        closed_s = longest_closed_s(options.open_at, options.open_for_s)
        if ttl_ms < closed_s * 1000:
            yield (
                f"{key}.open_at: closed for up to {closed_s:.0f} s at a time, and the global time "
                f"to live is {ttl_ms // 1000} s: rows can expire before the next connection window;"
                " open it more often, or set a longer timeToLiveSecs"
            )
