"""The pump's contract with what knows which creation must be confirmed before a row is sent.

A predecessor is the offset of a row that creates an entity at the peer; a later row may replace it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import EndpointId, Row


class PendingCreation(Protocol):
    """A row that creates an entity."""

    @property
    def offset(self) -> int:
        """Its offset."""

    @property
    def needs(self) -> int | None:
        """Its own predecessor, None = it has none."""


class DependencyTracker(Protocol):
    """Knows predecessors and whether they are confirmed."""

    @property
    def is_busy(self) -> bool:
        """Whether there is any creation that is not confirmed."""

    def must_wait(self, endpoint_id: EndpointId, predecessor: int) -> bool:
        """Return whether rows of an endpoint with this predecessor may not be sent yet."""

    def next_of(self, predecessor: int) -> PendingCreation | None:
        """Return the row to send for a predecessor, None = there is none for now."""

    def confirmed(self, row: Row) -> Sequence[int]:
        """Record that a creation was delivered; return the predecessors that it confirms."""

    def dead(self, row: Row, reason: str) -> None:
        """Record that a creation became a dead letter."""

    def watch(self, changed: Callable[[EndpointId], None]) -> None:
        """Call `changed` when predecessors are confirmed, or may be sent, not by a delivery."""

    def unwatch(self, changed: Callable[[EndpointId], None]) -> None:
        """End a `watch`."""
