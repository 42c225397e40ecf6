"""The contract between the pump and the destinations of rows.

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
    """Receives the changes of an endpoint's link, on the loop's thread."""

    def link_up(self, *, rows_max: int | None) -> None:
        """Record that rows can be sent; `rows_max` = unconfirmed rows that the peer allows."""

    def link_down(self, reason: str, *, parked: bool) -> None:
        """Record that the link is down; rows in flight were settled. Parked = needs an operator."""


class Endpoint(Protocol):
    """One destination."""

    @property
    def id(self) -> EndpointId:
        """Return its name in queue ids, status and metrics."""

    @property
    def state(self) -> str:
        """Return the state: `connecting`, `up`, `down`, `parked` or `closed`."""

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until the next connection attempt, None = none is due."""

    @property
    def row_bytes_max(self) -> int | None:
        """Return the largest packet that the peer takes, None = not known."""

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, for windows and limits.

        What is made for it is kept for a `send_batch` of the same rows that follows.
        """

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once.

        Called only between `link_up` and `link_down`. Rows leave in the order given.
        """

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""

    def retry_now(self) -> None:
        """Stop a running connect back-off (reload, operator); harmless while up."""

    def retry_within(self, seconds: float) -> None:
        """Shorten a running connect back-off to `seconds`; harmless while up or parked."""

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
