"""The journal's contract with the store; implemented by the store's `JournalFeed`."""

from __future__ import annotations

from typing import Protocol


class EventSource(Protocol):
    """Stored blobs of events, oldest first."""

    @property
    def state(self) -> bytes | None:
        """The state that `forget` stored last, None = there is none yet."""

    @property
    def bytes_waiting(self) -> int:
        """Bytes of blobs that wait."""

    @property
    def recorded_total(self) -> int:
        """Events of rows written since the start."""

    @property
    def waiting_ms(self) -> int:
        """Milliseconds for which the oldest blob has waited, 0 = there is none."""

    @property
    def clock_trusted(self) -> bool:
        """Whether UTC is known to be right."""

    def hub_now_ms(self) -> int:
        """Return hub time."""

    def utc_now_ms(self) -> int:
        """Return the best known UTC."""

    async def read(self) -> list[tuple[int, bytes]]:
        """Read some of the oldest blobs with the numbers of their commits."""

    async def forget(self, number: int, state: bytes, written_ms: int) -> None:
        """Delete the blobs up to `number` and store `state`, in one transaction."""

    async def settled(self) -> None:
        """Wait for the transaction of a `forget` whose caller may have been cancelled."""

    def record_refused(self) -> None:
        """Commit the counts of refused messages, if there are any."""

    def passed_midnight(self) -> None:
        """Record that the date has changed, so that a commit begins the new day."""
