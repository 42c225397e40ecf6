"""When a queue will be empty, or a row will leave: from backlogs, rates and what the link takes.

Pure. Strict priority: what better queues take in goes first, so a queue has the rest of the link.
Invariant: nothing is said that was not measured; a load that the link cannot carry is `never`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import QueueId


class DrainState(StrEnum):
    """What can be said; only `DRAINS` has a time."""

    EMPTY = "empty"  # nothing waits
    DRAINS = "drains"  # it will be empty
    NEVER = "never"  # what comes in exceeds what the link has left for it
    OFFLINE = "offline"  # the link is not there, so nothing leaves
    UNSERVED = "unserved"  # there is no link: no upstream is named, or the endpoint is not known
    UNKNOWN = "unknown"  # not measured yet


class Drain(Struct, frozen=True, kw_only=True):
    """When a queue will be empty.

    Attributes:
        state: What can be said.
        seconds: Time until then, None in all states but `DRAINS`; 0 in `EMPTY`.
    """

    state: DrainState
    seconds: float | None = None


class QueueLoad(Struct, frozen=True, kw_only=True):
    """One queue of an endpoint.

    Attributes:
        id: Its name.
        bytes: What waits, as the store counts it.
        inflow_bytes_s: What it takes in, None = not measured yet.
    """

    id: QueueId
    bytes: int
    inflow_bytes_s: float | None


class LinkRate(Struct, frozen=True, kw_only=True):
    """What an endpoint can carry.

    Attributes:
        is_up: Rows can leave now.
        bytes_s: Bytes per second, as the store counts them; None = not measured yet.
        is_served: A pump serves it.
    """

    is_up: bool
    bytes_s: float | None
    is_served: bool = True


EMPTY = Drain(state=DrainState.EMPTY, seconds=0.0)


def drains(loads: Sequence[QueueLoad], link: LinkRate) -> dict[QueueId, Drain]:
    """Return when each queue of an endpoint will be empty at the present rates.

    Args:
        loads: Best priority first.
        link: The endpoint.
    """
    found: dict[QueueId, Drain] = {}
    backlog = 0
    inflow: float | None = 0.0
    for load in loads:
        backlog += load.bytes
        inflow = _sum(inflow, load.inflow_bytes_s)
        found[load.id] = _drain(backlog, inflow, link) if load.bytes else EMPTY
    return found


def leaves(
    loads: Sequence[QueueLoad], queue_id: QueueId, before_bytes: int, link: LinkRate
) -> Drain:
    """Return when a row will leave: what better queues hold and take in goes before it.

    Args:
        loads: The queues of its endpoint, best priority first.
        queue_id: Its own queue.
        before_bytes: What stands before it in that queue, its own bytes included.
        link: The endpoint.
    """
    backlog = before_bytes
    inflow: float | None = 0.0
    for load in loads:
        if load.id == queue_id:
            break
        backlog += load.bytes
        inflow = _sum(inflow, load.inflow_bytes_s)
    return _drain(backlog, inflow, link)


def _sum(before: float | None, more: float | None) -> float | None:
    return None if before is None or more is None else before + more


def _drain(backlog: int, inflow: float | None, link: LinkRate) -> Drain:
    if not link.is_served:
        return Drain(state=DrainState.UNSERVED)
    if not link.is_up:
        return Drain(state=DrainState.OFFLINE)
    if inflow is None or not link.bytes_s:
        return Drain(state=DrainState.UNKNOWN)
    left = link.bytes_s - inflow
    if left <= 0:
        return Drain(state=DrainState.NEVER)
    return Drain(state=DrainState.DRAINS, seconds=backlog / left)
