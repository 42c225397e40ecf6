"""The contract of the routing table as the routes API uses it.

Owns nothing. Tenants are the table's own values, which this API passes on and does not look at;
errors are the table's own, which the application translates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Documented(Protocol):
    """A value of the table that JSON can hold."""

    def document(self) -> dict[str, Any]:
        """Give it as JSON has it."""


class Written(Documented, Protocol):
    """What became of a change."""

    @property
    def created(self) -> bool:
        """Say whether there was none before."""


class RouteTable(Protocol):
    """The routing table as this API uses it; tenants are the table's own values."""

    async def list(self, *, tenant: Any, after: str | None, limit: int) -> Documented:
        """Give one page of the routes."""

    async def get(self, route_id: str, *, tenant: Any) -> Documented:
        """Give one route."""

    async def add(self, body: object, *, tenant: Any, wait: bool, timeout_s: float) -> Written:
        """Add a route, or update the one with its id."""

    async def put(
        self,
        route_id: str,
        body: object,
        *,
        tenant: Any,
        if_match: int | None,
        if_none_match: bool,
        wait: bool,
        timeout_s: float,
    ) -> Written:
        """Write a route under its id."""

    async def delete(
        self, route_id: str, *, tenant: Any, if_match: int | None, wait: bool, timeout_s: float
    ) -> Written:
        """Remove a route."""

    async def enable(
        self, route_id: str, *, tenant: Any, if_match: int | None, wait: bool, timeout_s: float
    ) -> Written:
        """Let a route run."""

    async def disable(
        self, route_id: str, *, tenant: Any, if_match: int | None, wait: bool, timeout_s: float
    ) -> Written:
        """Keep a route from running."""

    async def route_status(self, route_id: str, *, tenant: Any) -> Sequence[Documented]:
        """Give a route's state on every hub."""

    async def instances(self) -> Sequence[Documented]:
        """Give the hubs that share the table."""

    async def drift(self, *, repair: bool) -> Documented:
        """Compare with the storage now."""
