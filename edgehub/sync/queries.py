"""Views of the table as this hub knows it. Owns nothing."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.routes.tenant import RouteKey
from edgehub.sync.faults import RouteNotFoundError
from edgehub.sync.storage import StoredRow
from edgehub.sync.views import LISTED_MAX, RouteState, RouteView

if TYPE_CHECKING:
    from edgehub.routes.live import LiveRoutes
    from edgehub.routes.tenant import Tenant
    from edgehub.sync.reconciler import Reconciler

LIST_MAX: Final = 1_000
VIEWED_AT_ONCE: Final = 50
"""Routes that are described, some 10 microseconds each, before others get their turn."""


class Queries:
    """Views of the table as one hub knows it.

    Args:
        reconciler: Knows rows, contents and failures.
        live: Knows what runs.
    """

    def __init__(self, reconciler: Reconciler, live: LiveRoutes) -> None:
        self._reconciler = reconciler
        self._live = live
        self.file = ""
        """Manifest that routes of this hub come from."""

    async def page(self, tenant: Tenant, after: str | None, limit: int) -> dict[str, Any]:
        """Return some routes of a tenant, sorted by id, as the operation returns them."""
        # The applied revision, not the latest one: a manifest is applied to it.
        revision = self._reconciler.applied.revision
        shown, more = self._reconciler.index.page(tenant, after, max(1, min(limit, LIST_MAX)))
        routes: list[dict[str, Any]] = []
        for place, each in enumerate(shown, 1):
            # One that is deleted in between is left out.
            with contextlib.suppress(RouteNotFoundError):
                routes.append(self.view(RouteKey(tenant, each)).document())
            if place % VIEWED_AT_ONCE == 0:
                await between_slices()
        return {"routes": routes, "next": shown[-1] if more else None, "revision": revision}

    def has_catch_all(self) -> bool:
        """Return whether a route that runs takes all that devices of the default tenant send."""
        return self._live.table.has_catch_all()

    def view(self, key: RouteKey) -> RouteView:
        """Return one route.

        Raises:
            RouteNotFoundError: There is none.
        """
        row = self._reconciler.rows.get(key)
        if isinstance(row, StoredRow):
            return self._of_row(row)
        if row is not None:
            return self._view(key, row.raw[:64], {}, enabled=True)
        content = self._reconciler.file_routes.get(key)
        if content is None:
            raise RouteNotFoundError(key.id)
        view = self._view(key, content.hash, content.members, enabled=True)
        return replace(view, origin="manifest", file=self.file)

    def stored(self, row: StoredRow) -> RouteView:
        """Return a row that was just stored, as it is now if this hub has applied it since."""
        known = self._reconciler.rows.get(row.key)
        if isinstance(known, StoredRow) and known.revision >= row.revision:
            return self.view(row.key)
        return self._of_row(row)

    def _of_row(self, row: StoredRow) -> RouteView:
        content = self._reconciler.content(row)
        members = {} if content is None else content.members
        if content is None and row.text is not None:
            members = json.loads(row.text)
        return replace(
            self._view(row.key, row.hash, members, enabled=row.enabled),
            revision=row.revision,
            origin=row.origin,
            created_ms=row.created_ms,
            modified_ms=row.modified_ms,
        )

    def _view(
        self, key: RouteKey, content_hash: str, members: dict[str, Any], *, enabled: bool
    ) -> RouteView:
        """Return a view of what runs under a key, without what only a stored row has."""
        failure = self._reconciler.failures.get(key)
        live_hash = self._live.hash_of(key)
        if failure is not None:
            state = RouteState.FAILED
        elif not enabled:
            state = RouteState.DISABLED
        else:
            state = RouteState.RUNNING if live_hash == content_hash else RouteState.PENDING
        return RouteView(
            key=key,
            members=members,
            enabled=enabled,
            hash=content_hash,
            state=state,
            reason=None if failure is None else failure.reason,
            live_hash=live_hash,
            shared_with=self._live.sharing(key, LISTED_MAX),
        )
