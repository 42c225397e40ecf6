"""What is written to the routing table: checked, stored, and run here before the answer.

Owns the checks that come before the storage. Invariants: an answer that is an error means that
nothing was stored, unless it says that the outcome is unknown; a change that was stored runs on
this hub when its caller is answered, or the answer has the reason why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ManifestFault
from edgehub.routes.catch_all import LOST_OF_TABLE, lost_warnings
from edgehub.routes.content import AT_ONCE_CHARS, InvalidRouteError, read_body
from edgehub.routes.live import BuildError
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.faults import (
    OwnedByManifestError,
    RouteNotFoundError,
    TableLostError,
    UnknownTenantError,
)
from edgehub.sync.storage import Change, StoredRow
from edgehub.sync.views import Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.routes.content import RouteContent, SubmittedRoute
    from edgehub.routes.live import RouteHost
    from edgehub.routes.tenant import Tenant
    from edgehub.sync.follower import Follower
    from edgehub.sync.options import TableOptions
    from edgehub.sync.presence import Presence
    from edgehub.sync.queries import Queries
    from edgehub.sync.rebuild import Rebuild
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import TableStorage, WriteResult

ROUTE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


class Mutations:
    """The writing half of `RoutingTable`.

    Args:
        storage: Where the rows are.
        host: Says whether a route could run here.
        options: See `TableOptions`.
        reconciler: Runs what was stored.
        rebuild: Puts back what the storage has lost.
        follower: Notified of own writes.
        presence: Knows what the other hubs have applied.
        queries: Builds the answers.
    """

    def __init__(
        self,
        storage: TableStorage,
        host: RouteHost,
        options: TableOptions,
        *,
        reconciler: Reconciler,
        rebuild: Rebuild,
        follower: Follower,
        presence: Presence,
        queries: Queries,
    ) -> None:
        self._storage = storage
        self._host = host
        self._options = options
        self._reconciler = reconciler
        self._rebuild = rebuild
        self._follower = follower
        self._presence = presence
        self._queries = queries
        # Writes of a hub of its own and reloads of its manifest wait for one another, since both
        # ask who owns an id. In a shared table the storage decides.
        self._writing = asyncio.Lock()

    # In addition to the errors that are named, each raises UnknownTenantError, OwnedByManifestError
    # and StorageUnavailableError.

    async def add(
        self,
        body: object,
        *,
        tenant: Tenant = DEFAULT_TENANT,
        wait: bool = False,
        timeout_s: float = 5.0,
    ) -> Written:
        """Add a route, or update the one that has its id.

        Args:
            body: JSON value; its `id`, else its hash is the route's id.
            tenant: Whose route it is.
            wait: Also wait for the other hubs.
            timeout_s: Longest wait.

        Raises:
            InvalidRouteError: With all faults.
            QuotaError: The tenant has too many routes.
        """
        read = await _read(body, tenant)
        key = RouteKey(tenant, read.route_id or read.content.hash)
        return await self._put(key, read, None, wait, timeout_s)

    async def put(
        self,
        route_id: str,
        body: object,
        *,
        tenant: Tenant = DEFAULT_TENANT,
        if_match: int | None = None,
        if_none_match: bool = False,
        wait: bool = False,
        timeout_s: float = 5.0,
    ) -> Written:
        """Add or update a route under an id; see `add`.

        Args:
            route_id: The id.
            body: JSON value.
            tenant: Whose route it is.
            if_match: Revision that the route must have, None = any, or none.
            if_none_match: It must not exist.
            wait: Also wait for the other hubs.
            timeout_s: Longest wait.

        Raises:
            InvalidRouteError: With all faults.
            PreconditionError: It has another revision, or exists.
            QuotaError: The tenant has too many routes.
        """
        read = await _read(body, tenant)
        if read.route_id not in {None, route_id}:
            reason = f"is {read.route_id!r}, but the request is for {route_id!r}"
            raise InvalidRouteError([ManifestFault(path="id", message=reason)])
        expected = 0 if if_none_match else if_match
        key = RouteKey(tenant, route_id)
        return await self._put(key, read, expected, wait, timeout_s)

    async def delete(
        self,
        route_id: str,
        *,
        tenant: Tenant = DEFAULT_TENANT,
        if_match: int | None = None,
        wait: bool = False,
        timeout_s: float = 5.0,
    ) -> Written:
        """Remove a route; one that does not exist is no fault. Arguments as in `put`.

        Raises:
            PreconditionError: It has another revision.
        """
        key = self._changeable(tenant, route_id)
        change = Change(key=key, delete=True, expected=if_match)
        return await self._change(change, wait=wait, timeout_s=timeout_s)

    async def enable(self, route_id: str, **how: Any) -> Written:
        """Enable a route. Arguments as in `delete`.

        Raises:
            RouteNotFoundError: There is none.
            InvalidRouteError: It could not run on this hub.
            PreconditionError: It has another revision.
        """
        return await self._switch(route_id, enabled=True, **how)

    async def disable(self, route_id: str, **how: Any) -> Written:
        """Keep a route and do not have it run. Arguments and errors as in `enable`."""
        return await self._switch(route_id, enabled=False, **how)

    async def _put(
        self,
        key: RouteKey,
        read: SubmittedRoute,
        expected: int | None,
        wait: bool,
        timeout_s: float,
    ) -> Written:
        self._changeable(key.tenant, key.id)
        if ROUTE_ID.fullmatch(key.id) is None and key not in self._reconciler.rows:
            reason = "want 1 to 128 letters, digits and . _ : @ -, the first a letter or digit"
            raise InvalidRouteError([ManifestFault(path="id", message=reason)])
        if read.enabled:
            self._could_run(read.content)
        change = Change(
            key=key,
            hash=read.content.hash,
            text=read.content.text,
            enabled=read.enabled,
            expected=expected,
            quota=self._options.quota(key.tenant),
        )
        warnings = tuple(map(str, read.warnings))
        return await self._change(change, wait=wait, timeout_s=timeout_s, warnings=warnings)

    async def _switch(
        self,
        route_id: str,
        *,
        enabled: bool,
        tenant: Tenant = DEFAULT_TENANT,
        if_match: int | None = None,
        wait: bool = False,
        timeout_s: float = 5.0,
    ) -> Written:
        key = self._changeable(tenant, route_id)
        row = self._reconciler.rows.get(key)
        content = self._reconciler.content(row) if isinstance(row, StoredRow) else None
        if enabled and content is not None:
            self._could_run(content)
        change = Change(key=key, enabled=enabled, expected=if_match)
        return await self._change(change, wait=wait, timeout_s=timeout_s)

    async def _change(
        self, change: Change, *, wait: bool, timeout_s: float, warnings: tuple[str, ...] = ()
    ) -> Written:
        had_catch_all = self._queries.has_catch_all()
        result = await self._write([change], timeout_s=timeout_s)
        (stored,) = result.stored
        applied = None
        if wait:
            applied = await self._presence.applied([change.key], result, timeout_s)
        view = None
        if stored.row is not None and self._reconciler.awaits(change.key):
            view = self._queries.stored(stored.row)
        elif stored.row is not None:
            # It may have been deleted since.
            with contextlib.suppress(RouteNotFoundError):
                view = self._queries.view(change.key)
        has_catch_all = self._queries.has_catch_all()
        warnings = (*warnings, *lost_warnings(had_catch_all, has_catch_all, LOST_OF_TABLE))
        return Written(
            view=view,
            created=stored.created,
            changed=stored.changed,
            revision=result.revision,
            applied=applied,
            warnings=warnings,
        )

    async def _write(
        self, changes: Sequence[Change], *, timeout_s: float, expected: int | None = None
    ) -> WriteResult:
        """Store changes, and wait until they run here."""
        if self._options.shared:
            return await self._write_now(changes, timeout_s, expected)
        # Until they are known here: a reload that asks whose an id is waits as well.
        async with self._writing:
            for change in changes:
                # A reload may have come in between.
                self._changeable(change.key.tenant, change.key.id)
            return await self._write_now(changes, timeout_s, expected)

    async def _write_now(
        self, changes: Sequence[Change], timeout_s: float, expected: int | None
    ) -> WriteResult:
        session = uuid.uuid4().hex
        try:
            result = await self._stored(changes, session, expected)
        finally:
            # Also after an error: it may have been stored all the same.
            self._reconciler.look(change.key for change in changes)
        self._follower.wrote(session, result)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._options.shared:
                    # Created again in between: only now this hub's rows belong to that table.
                    await self._follower.caught_up(result.epoch)
                await self._reconciler.settled()
        return result

    async def _stored(
        self, changes: Sequence[Change], session: str, expected: int | None
    ) -> WriteResult:
        try:
            return await self._storage.write(changes, session=session, expected=expected)
        except TableLostError:
            # Nothing was stored; what is written into a table stands on all that was in it.
            await self._rebuild.put_back(await self._storage.position())
            return await self._storage.write(changes, session=session, expected=expected)

    def _known(self, tenant: Tenant) -> None:
        if tenant != DEFAULT_TENANT and tenant not in self._options.tenants:
            raise UnknownTenantError(str(tenant))

    def _changeable(self, tenant: Tenant, route_id: str) -> RouteKey:
        """Return the key of a route that may be changed."""
        self._known(tenant)
        key = RouteKey(tenant, route_id)
        if key in self._reconciler.file_routes:
            raise OwnedByManifestError(route_id, self._queries.file)
        return key

    def _could_run(self, content: RouteContent) -> None:
        try:
            self._host.check(content)
        except BuildError as error:
            fault = error.fault or ManifestFault(path="route", message=str(error))
            raise InvalidRouteError([replace(fault, path="route", route=None)]) from error


async def _read(body: object, tenant: Tenant) -> SubmittedRoute:
    text = body.get("route") if isinstance(body, dict) else body
    if isinstance(text, str) and len(text) > AT_ONCE_CHARS:
        return await asyncio.to_thread(read_body, body, tenant)
    return read_body(body, tenant)
