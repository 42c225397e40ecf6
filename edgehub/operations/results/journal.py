"""The journal, as operations return them."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class Nothing(TypedDict):
    """An empty object."""


class JournalClock(TypedDict):
    """Whether the wall clock is trusted, and why not."""

    trusted: bool
    reason: str


class JournalDocument(TypedDict):
    """The journal's figures, with `enabled`, and its targets."""

    enabled: bool
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
