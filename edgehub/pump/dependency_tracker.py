"""Which row has to be confirmed before another one is sent: what the pump asks of who knows it.

The pump knows predecessors by this contract alone. A predecessor is named by the offset of a row
that creates an entity at the peer; another row may stand in for it.
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
        """Where it is."""

    @property
    def needs(self) -> int | None:
        """Its own predecessor, None = it has none."""


class DependencyTracker(Protocol):
    """Knows predecessors and what became of them."""

    @property
    def is_busy(self) -> bool:
        """Whether there is any creation that is not confirmed."""

    def must_wait(self, endpoint_id: EndpointId, predecessor: int) -> bool:
        """Return whether rows of an endpoint behind this predecessor may not be sent yet."""

    def next_of(self, predecessor: int) -> PendingCreation | None:
        """Return the row to send for a predecessor, None = there is none for now."""

    def confirmed(self, row: Row) -> Sequence[int]:
        """Take note that a creating row was delivered; gives the predecessors that are over."""

    def dead(self, row: Row, reason: str) -> None:
        """Take note that a creating row became a dead letter."""

    def watch(self, told: Callable[[EndpointId], None]) -> None:
        """Call `told` when predecessors are over, or may be sent, for causes beside delivery."""

    def unwatch(self, told: Callable[[EndpointId], None]) -> None:
        """End a `watch`."""
