"""A frozen snapshot of the journal."""

from __future__ import annotations

from msgspec import Struct


class JournalStatistics(Struct, frozen=True, kw_only=True):
    """The state of the journal.

    Attributes:
        journal_lag_seconds: Time for which the oldest event has waited for its line.
        waiting_bytes: Blobs in the database file.
        segments: Whole segments.
        segment_bytes: Sum of their sizes.
        not_exported: Those of them that went to no target yet.
        growing: The segment that grows, None = there is none.
        held_segments: Segments whose dates are unknown until the clock is trusted.
        held_bytes: Sum of their sizes.
        dropped_not_exported: Segments deleted by age or space before any export, since start.
        corrections: Starts at which the file held other rows than the journal had left.
        failing: Why lines cannot be written, None = they can.
    """

    journal_lag_seconds: float
    waiting_bytes: int
    segments: int
    segment_bytes: int
    not_exported: int
    growing: str | None
    held_segments: int
    held_bytes: int
    dropped_not_exported: int
    corrections: int
    failing: str | None

    def warnings(self) -> list[str]:
        """Return the warnings for the operator."""
        found = []
        if self.failing is not None:
            found.append(f"journal: its lines cannot be written: {self.failing}")
        if self.dropped_not_exported:
            found.append(
                f"journal: {self.dropped_not_exported} segments were deleted by age or space before"
                " any export"
            )
        return found
