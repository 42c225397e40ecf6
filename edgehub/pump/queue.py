"""What the pump asks of a queue of the store; the store's `Queue` has this shape.

The pump knows queues by this contract alone, so that its tests can put an in-memory one in their
place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import EndpointId, FailureKind, Priority, QueueId, Row


class OutOfTurn(Protocol):
    """Rows of a queue that are taken by their offsets, before their turn; they create entities."""

    def creates(self, offset: int) -> bool:
        """Return whether a row is here and creates an entity."""

    def is_in_flight(self, offset: int) -> bool:
        """Return whether a row is in flight."""

    async def take(self, offsets: Sequence[int], bytes_max: int) -> list[Row]:
        """Take rows that are here and not in flight; one comes even if larger than `bytes_max`.

        They come from here alone from now on, also once they were given back.
        """

    def leave(self, offset: int) -> None:
        """Let a row come in its turn again."""


class PumpQueue(Protocol):
    """The rows of one endpoint and one priority, oldest first."""

    @property
    def id(self) -> QueueId:
        """Its name."""

    @property
    def endpoint_id(self) -> EndpointId:
        """Where its rows go."""

    @property
    def priority(self) -> Priority:
        """0 is the best."""

    @property
    def out_of_turn(self) -> OutOfTurn:
        """The way to its rows by their offsets."""

    def has_ready(self) -> bool:
        """Return whether some row is neither in flight nor held."""

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Take the oldest ready rows; they are in flight from here on.

        At least one row comes when any is ready, even one larger than `bytes_max`.
        """

    def confirm(self, rows: Sequence[Row]) -> None:
        """Take note that these rows were delivered; they leave the queue."""

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """Put rows back to their own place.

        `attempted` counts one refused send for each; `refusal` says why they were refused for now,
        None = they were not.
        """

    def expire(self, rows: Sequence[Row]) -> None:
        """Drop rows in flight whose time to live has ended."""

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Set a row in flight aside for a person."""

    def hold_sender(self, sender: str) -> None:
        """Keep this sender's rows back until released."""

    def release_sender(self, sender: str) -> None:
        """End `hold_sender`."""

    def hold_row(self, offset: int) -> None:
        """Keep one row back until released."""

    def release_row(self, offset: int) -> None:
        """End `hold_row`."""
