"""How the routing table behaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.routes.tenant import Tenant


class TableOptions(Struct, frozen=True, kw_only=True):
    """Options of the routing table.

    Attributes:
        hub_id: The hub.
        instance: Names the running hub; the storage writes the same into its log.
        shared: Other hubs have the same table.
        check_s: Longest time until a missed change is noticed.
        compare_s: Time between two comparisons.
        routes_max: Routes of a tenant.
        tenants: Tenants that exist in addition to the default one, with their own number of routes;
            None = `routes_max`.
    """

    hub_id: str
    instance: str
    shared: bool = False
    check_s: float = 2.0
    compare_s: float = 300.0
    routes_max: int = 100_000
    tenants: Mapping[Tenant, int | None] = field(default_factory=dict)

    def quota(self, tenant: Tenant) -> int:
        """Return the number of routes that a tenant may have."""
        own = self.tenants.get(tenant)
        return self.routes_max if own is None else own
