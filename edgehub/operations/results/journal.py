"""The journal, as operations return them."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class Nothing(TypedDict):
    """An empty object."""


class JournalClock(TypedDict):
    """Whether the wall clock is trusted, and why not."""

    trusted: bool
    reason: str


class JournalDocument(TypedDict):
    """The journal's figures and its targets.

    Attributes:
        enabled: Whether there is a journal; without one the figures are absent.
        journal_lag_seconds: Time for which the oldest event has waited for its line.
        waiting_bytes: Of events that have no line yet.
        segments: Whole segments.
        segment_bytes: Sum of their sizes.
        not_exported: Those of them that went to no target yet.
        growing: The segment that grows, null = there is none.
        held_segments: Segments whose dates are unknown until the clock is trusted.
        held_bytes: Sum of their sizes.
        dropped_not_exported: Segments deleted before any export, since the start.
        corrections: Starts at which the database held other rows than the journal had left.
        failing: Why lines cannot be written, null = they can.
        targets: That got something, the one used last at the end.
    """

    enabled: bool
    journal_lag_seconds: NotRequired[float]
    waiting_bytes: NotRequired[int]
    segments: NotRequired[int]
    segment_bytes: NotRequired[int]
    not_exported: NotRequired[int]
    growing: NotRequired[str | None]
    held_segments: NotRequired[int]
    held_bytes: NotRequired[int]
    dropped_not_exported: NotRequired[int]
    corrections: NotRequired[int]
    failing: NotRequired[str | None]
    folder: str
    targets: list[str]
    clock: JournalClock


class ExportPlan(TypedDict):
    """What is to be exported.

    Attributes:
        segments: Paths in the folder.
        complete: All events have their lines.
        growing: A segment is still written.
        held_segments: Segments held until the clock is trusted.
    """

    folder: str
    hub_id: str
    segments: list[str]
    complete: bool
    growing: bool
    held_segments: int
    clock: JournalClock
