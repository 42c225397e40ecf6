"""Documents of the routes API, as its OpenAPI document describes them.

Owns the schemas, which say what the routing table gives and takes. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field


class RouteView(BaseModel):
    """One route of the table."""

    model_config = ConfigDict(extra="allow")

    id: str
    route: str | None = Field(
        default=None,
        description="Its text, such as `FROM /messages/* INTO $upstream`; absent = it cannot be "
        "read.",
    )
    enabled: bool
    hash: str = Field(description="SHA-256 of its canonical content.")
    revision: int = Field(description="Also the entity tag; 0 = a file keeps it.")
    origin: str = Field(description="`api` or `manifest`.")
    file: str | None = Field(description="The manifest that it belongs to.")
    created: str | None = Field(description="RFC 3339, UTC.")
    modified: str | None = Field(description="RFC 3339, UTC.")
    state: str = Field(description="On this hub: `running`, `failed`, `disabled` or `pending`.")
    reason: str | None = Field(description="Why it does not run.")
    live_hash: str | None = Field(description="Hash of what runs under the id.")
    shared_with: list[str] = Field(description="Other ids with the same content.")


class RoutesView(BaseModel):
    """One page of the routes, by id."""

    routes: list[RouteView]
    next: str | None = Field(description="Give it as `after` for the next page; null = the end.")
    revision: int = Field(description="Of the table.")


class FailedView(BaseModel):
    """A hub that cannot build the route."""

    instance: str
    reason: str


class AppliedView(BaseModel):
    """How far a change has come."""

    result: str = Field(description="`complete`, `timeout` or `failed`.")
    by: list[str] = Field(description="Instances that have applied it.")
    behind: list[str] = Field(description="Instances that have not yet.")
    failed: list[FailedView]


class WrittenView(BaseModel):
    """What became of a change."""

    route: RouteView | None = Field(description="As it is now; null = it is gone.")
    created: bool
    changed: bool = Field(description="False: the content was the same, nothing was stored.")
    revision: int = Field(description="Of the table after it.")
    applied: AppliedView | None = Field(description="With `wait=applied` only.")
    warnings: list[str] = Field(description="What is allowed but hardly meant.")


class RouteStatusView(BaseModel):
    """A route on one hub."""

    instance: str
    hub_id: str
    state: str = Field(description="`running`, `failed`, `disabled` or `behind`.")
    reason: str | None


class RouteStatusesView(BaseModel):
    """A route on every hub."""

    instances: list[RouteStatusView]


class InstanceView(BaseModel):
    """One hub of those that share the table."""

    model_config = ConfigDict(extra="allow")

    instance: str
    hub_id: str
    revision: int = Field(description="That it has applied.")
    epoch: int
    routes: int
    failed: int = Field(description="Routes that cannot run there.")
    stale: str = Field(description="Why its table may be old, empty = it is not.")
    age_s: float = Field(description="Since it said so.")
    own: bool = Field(description="It is the one that was asked.")


class InstancesView(BaseModel):
    """All hubs that share the table."""

    instances: list[InstanceView]


class DriftView(BaseModel):
    """What differed from the storage."""

    model_config = ConfigDict(extra="allow")

    compared: int
    revision: int
    missing: list[str] = Field(description="At most 100 ids, as in the other lists.")
    extra: list[str]
    changed: list[str]
    failed: list[str] = Field(description="Cannot be built; they were tried again.")
    total: int = Field(description="Of missing, extra and changed.")
    repaired: int
    restored: int = Field(description="Rows put back since the last time: the storage lost them.")


_DEFINITION: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["route"],
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"},
        "route": {"type": "string", "description": "Text of the route."},
        "priority": {"type": "integer", "minimum": 0, "maximum": 9},
        "timeToLiveSecs": {"type": "integer", "minimum": 0},
        "Recency": {
            "type": "object",
            "required": ["Seconds"],
            "properties": {
                "Seconds": {"type": "integer", "minimum": 1},
                "FallbackPriority": {"type": "integer", "minimum": 0, "maximum": 9},
            },
        },
        "order": {"enum": ["strict", "skip"]},
        "maxAttempts": {"type": "integer", "minimum": 0},
        "maxAgeSecs": {"type": "integer", "minimum": 0},
        "description": {"type": "string"},
        "enabled": {"type": "boolean", "default": True},
    },
}

ROUTE_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "description": "As an entry of a manifest: its text, or an object.",
                    "oneOf": [{"type": "string"}, _DEFINITION],
                },
                "examples": {
                    "text": {"value": "FROM /messages/* INTO $upstream"},
                    "object": {
                        "value": {
                            "route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
                            "priority": 0,
                            "timeToLiveSecs": 3600,
                        }
                    },
                },
            }
        },
    }
}
"""Body of a request that writes a route."""
