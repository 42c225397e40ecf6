"""What happens in the demonstration: who sends what, which routes decide, when the link breaks.

Pure data, no state. Invariant: the offered load is more than the link can carry while the devices
send, and less than it can carry over a whole round, so that every round starts with empty queues.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

LINK_BIT_S: Final = 64_000
LINK_DELAY_S: Final = 0.02

GATEWAY: Final = "gateway"
PARENT: Final = "parent"
COLLECTOR: Final = "collector"
COLLECTOR_INPUT: Final = "all"


class Kind(StrEnum):
    """What a simulated device sends; an application property that the routes look at."""

    ALARM = "alarm"
    STATUS = "status"
    RAW = "raw"
    BULK = "bulk"


class Traffic(Struct, frozen=True, kw_only=True):
    """The messages of one kind.

    Attributes:
        kind: Their kind.
        priority: Priority of their route, 0 is the best.
        ttl_s: Time to live of their route, None = never expires.
        devices: How many devices send them.
        period_s: Mean time between two messages of one device.
        body_bytes: Size of a message.
        is_vital: Sent to the end of a round; must all arrive.
    """

    kind: Kind
    priority: int
    ttl_s: int | None
    devices: int
    period_s: float
    body_bytes: int
    is_vital: bool


TRAFFIC: Final[Sequence[Traffic]] = (
    Traffic(
        kind=Kind.ALARM,
        priority=0,
        ttl_s=None,
        devices=3,
        period_s=2.0,
        body_bytes=80,
        is_vital=True,
    ),
    Traffic(
        kind=Kind.STATUS,
        priority=2,
        ttl_s=None,
        devices=2,
        period_s=2.0,
        body_bytes=120,
        is_vital=True,
    ),
    Traffic(
        kind=Kind.RAW,
        priority=7,
        ttl_s=6,
        devices=8,
        period_s=0.5,
        body_bytes=200,
        is_vital=False,
    ),
    Traffic(
        kind=Kind.BULK,
        priority=7,
        ttl_s=None,
        devices=12,
        period_s=0.7,
        body_bytes=200,
        is_vital=False,
    ),
)
PRIORITIES: Final = tuple(sorted({traffic.priority for traffic in TRAFFIC}))


class Step(StrEnum):
    """A turn of events inside a round."""

    CUT = "link cut"
    RESTORE = "link back"
    BULK_ENDS = "bulk telemetry pauses, the backlog drains"
    VITAL_ENDS = "all devices pause"


TIMELINE: Final[Sequence[tuple[float, Step]]] = (
    (0.30, Step.CUT),
    (0.45, Step.RESTORE),
    (0.65, Step.BULK_ENDS),
    (0.94, Step.VITAL_ENDS),
)
"""Share of the round, and what happens then."""


def gateway_manifest() -> dict[str, Any]:
    """Return the routes of the gateway: the kind of a message decides its priority."""
    routes = {}
    for traffic in TRAFFIC:
        route: dict[str, Any] = {
            "route": f"FROM /messages/* WHERE kind = '{traffic.kind}' INTO $upstream",
            "priority": traffic.priority,
        }
        if traffic.ttl_s is not None:
            route["timeToLiveSecs"] = traffic.ttl_s
        routes[traffic.kind.value] = route
    return _manifest(routes)


def parent_manifest() -> dict[str, Any]:
    """Return the route of the parent hub: everything to the collector module."""
    sink = f'BrokeredEndpoint("/modules/{COLLECTOR}/inputs/{COLLECTOR_INPUT}")'
    return _manifest({"collect": {"route": f"FROM /messages/* INTO {sink}"}})


def _manifest(routes: dict[str, Any]) -> dict[str, Any]:
    # -1: a route without a time to live of its own keeps its messages for ever.
    return {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": -1},
    }
