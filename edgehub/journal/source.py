"""What the journal asks of the store; the store's `JournalFeed` has this shape.

The journal knows the store by this contract alone, so that its tests can put memory in its place.
"""

from __future__ import annotations

from typing import Protocol


class EventSource(Protocol):
    """Blobs of events, oldest first, until they are forgotten."""

    @property
    def state(self) -> bytes | None:
        """What `forget` stored last, None = nothing yet."""

    @property
    def bytes_waiting(self) -> int:
        """Bytes of blobs that wait."""

    @property
    def recorded_total(self) -> int:
        """Events of rows written since the start."""

    @property
    def waiting_ms(self) -> int:
        """For how long the oldest blob has waited, 0 = there is none."""

    @property
    def clock_trusted(self) -> bool:
        """Whether UTC is known to be right."""

    def hub_now_ms(self) -> int:
        """Return hub time."""

    def utc_now_ms(self) -> int:
        """Return UTC, as well as it is known."""

    async def read(self) -> list[tuple[int, bytes]]:
        """Read some of the oldest blobs with the numbers of their commits."""

    async def forget(self, number: int, state: bytes, told_ms: int) -> None:
        """Delete the blobs up to `number` and store `state`, in one transaction."""

    async def settled(self) -> None:
        """Wait until what `forget` began is decided, though its caller may have been cancelled."""

    def record_refused(self) -> None:
        """Bring about a commit, if messages were refused since the last one."""

    def passed_midnight(self) -> None:
        """Bring about a commit, so that the new day begins."""
