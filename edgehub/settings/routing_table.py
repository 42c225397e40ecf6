"""Settings of the routing table and of tenants.

Owns those sections of the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from edgehub.routes.tenant import tenant_name
from edgehub.settings.values import Real, Section, Whole

TenantName = Annotated[str, AfterValidator(tenant_name)]


class RoutingTableSettings(Section):
    """`[routing_table]`: routes that are kept by the hub, next to or instead of a manifest's."""

    storage: Literal["sqlite", "redis", "memory"] = Field(
        default="sqlite",
        description="sqlite = this hub's own; redis = shared by all hubs of that server and "
        "prefix; memory = forgotten at a stop.",
    )
    routes_max: Whole = Field(
        default=100_000, ge=1, le=1_000_000, description="Routes of each tenant."
    )
    check_s: Real = Field(
        default=2,
        gt=0,
        le=60,
        description="Longest time until a missed change is noticed; larger values save traffic.",
    )
    compare_s: Real = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Time between two comparisons with the storage, a tenth more or less.",
    )
    log_entries: Whole = Field(
        default=10_000,
        ge=100,
        le=10_000_000,
        description="Changes that Redis keeps for hubs that were disconnected.",
    )


class TenantSettings(Section):
    """`[tenants."organisation/application"]`: who shares the hub without seeing one another."""

    routes_max: Whole | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Routes; absent = as routing_table.routes_max.",
        examples=[100],
    )
    event_rate_max: Real | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="Messages per second that each hub takes; absent = no limit.",
        examples=[500],
    )
