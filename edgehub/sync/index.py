"""The sorted ids of each tenant; sorting thousands after each change would delay messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgehub.routes.tenant import RouteKey, Tenant


class KeyIndex:
    """Ids by tenant."""

    def __init__(self) -> None:
        self._ids: dict[Tenant, list[str]] = {}

    def add(self, key: RouteKey) -> None:
        """Add a key, unless it exists."""
        ids = self._ids.setdefault(key.tenant, [])
        at = bisect_left(ids, key.id)
        if at == len(ids) or ids[at] != key.id:
            ids.insert(at, key.id)

    def discard(self, key: RouteKey) -> None:
        """Remove a key, if it exists."""
        ids = self._ids.get(key.tenant, [])
        at = bisect_left(ids, key.id)
        if at < len(ids) and ids[at] == key.id:
            del ids[at]

    def page(self, tenant: Tenant, after: str | None, limit: int) -> tuple[list[str], bool]:
        """Return some ids of a tenant, and whether there are more behind them.

        Args:
            tenant: Tenant of the routes.
            after: Id behind which they begin, None = with the first.
            limit: At most so many.
        """
        ids = self._ids.get(tenant, [])
        start = 0 if after is None else bisect_right(ids, after)
        return ids[start : start + limit], len(ids) > start + limit
