"""The contract between the pump and whatever takes rows away.

An endpoint owns its link and what it has handed to it, nothing else: queues, retries, priorities
and windows belong to the pump. Invariant: every row given to `send_batch` is settled exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import EndpointId, Row, SendResult

    Settle = Callable[[Row, SendResult], None]


class EndpointListener(Protocol):
    """What an endpoint tells the pump about its link, on the loop's thread."""

    def link_up(self, *, rows_max: int | None) -> None:
        """Say that rows can be handed over; `rows_max` = unconfirmed rows the peer allows."""

    def link_down(self, reason: str, *, parked: bool) -> None:
        """Say that the link is gone; rows in flight have been settled. Parked = needs a person."""


class Endpoint(Protocol):
    """One destination."""

    @property
    def id(self) -> EndpointId:
        """Its name in queue ids, status and metrics."""

    @property
    def state(self) -> str:
        """One word for status: `connecting`, `up`, `down`, `parked`, `closed`."""

    @property
    def retry_in_s(self) -> float | None:
        """Seconds until the next try to connect, None = none is due."""

    @property
    def row_bytes_max(self) -> int | None:
        """Largest packet that the peer takes, None = not known."""

    def wire_bytes(self, row: Row) -> int:
        """Return the bytes that `row` takes on the link, for windows and limits."""

    def unsent_bytes(self) -> int:
        """Return bytes handed over that have not left this machine: ours plus the kernel's."""

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Hand rows to the link without waiting; `settle` is called once per row, maybe at once.

        Called only between `link_up` and `link_down`. Rows leave in the order given.
        """

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; connects again by itself, with back-off."""

    def retry_now(self) -> None:
        """Cut a running connect back-off short (reload, operator); harmless while up."""

    def retry_within(self, seconds: float) -> None:
        """Cut a running connect back-off to at most `seconds`; harmless while up or parked."""

    async def close(self) -> None:
        """Let go of the link; rows still in flight are settled as disconnected."""
