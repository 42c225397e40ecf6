"""The pump's contract with a queue; implemented by the store's `Queue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import EndpointId, FailureKind, Priority, QueueId, Row


class OutOfTurn(Protocol):
    """Creations of a queue that are read by their offsets, ahead of their place."""

    def creates(self, offset: int) -> bool:
        """Return whether the queue holds a row of this offset that creates an entity."""

    def is_in_flight(self, offset: int) -> bool:
        """Return whether a row is in flight."""

    async def take(self, offsets: Sequence[int], bytes_max: int) -> list[Row]:
        """Read rows that are not in flight; one is returned even if larger than `bytes_max`.

        Only this method returns them from now on, also once they were given back.
        """

    def leave(self, offset: int) -> None:
        """Return a row to those that `read_batch` reads."""


class PumpQueue(Protocol):
    """The rows of one endpoint and one priority, oldest first."""

    @property
    def id(self) -> QueueId:
        """Its name."""

    @property
    def endpoint_id(self) -> EndpointId:
        """The endpoint of its rows."""

    @property
    def priority(self) -> Priority:
        """0 is the best."""

    @property
    def out_of_turn(self) -> OutOfTurn:
        """Access to its rows by their offsets."""

    def has_ready(self) -> bool:
        """Return whether some row is neither in flight nor held."""

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Read the oldest ready rows; they are in flight from here on.

        At least one row is returned when any is ready, even one larger than `bytes_max`.
        """

    def confirm(self, rows: Sequence[Row]) -> None:
        """Remove rows that were delivered."""

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """Return rows in flight to their place.

        Args:
            rows: The rows.
            attempted: Count a refused send for each.
            refusal: Why they were refused for now, None = they were not.
        """

    def expire(self, rows: Sequence[Row]) -> None:
        """Remove rows in flight whose time to live has ended."""

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Make a row in flight a dead letter."""

    def hold(self, who: str | int) -> None:
        """Hold the rows of a sender back, or the one row of an offset, until released."""

    def release(self, who: str | int) -> None:
        """End `hold`."""
