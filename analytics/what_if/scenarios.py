"""Scenarios: what would have been different, in the words of manifests and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analytics import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from analytics.what_if.windows import DayWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """What is different of one route; None = as it was.

    Attributes:
        priority: Another priority.
        ttl_ms: Another time to live.
        recency_ms: Rows younger than this wait in the route's priority, older ones in `fallback`.
        fallback: The priority of older rows.
    """

    priority: int | None = None
    ttl_ms: int | None = None
    recency_ms: int | None = None
    fallback: int = schemas.DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question.

    Attributes:
        name: What answers are named by.
        routes: Changed routes by name.
        factors: How much faster the link is, by endpoint; less than 1 = slower.
        windows: When the link is open, by endpoint.
        limits: Other limits than those in force, by their names in the settings.
    """

    name: str
    routes: Mapping[str, RouteChange] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    windows: Mapping[str, DayWindows] = field(default_factory=dict)
    limits: Mapping[str, int | str] = field(default_factory=dict)

    def fragment(self) -> dict[str, Any]:
        """Return the members of the manifest's routes that differ."""
        return {name: _members(change) for name, change in self.routes.items()}


def _members(change: RouteChange) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if change.priority is not None:
        members["priority"] = change.priority
    if change.ttl_ms is not None:
        members["timeToLiveSecs"] = change.ttl_ms // 1000
    if change.recency_ms is not None:
        members["Recency"] = {
            "Seconds": change.recency_ms // 1000,
            "FallbackPriority": change.fallback,
        }
    return members
