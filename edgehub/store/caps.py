"""Limits of rows, bytes and disk as the settings have them; `limits.py` enforces them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Overflow(StrEnum):
    """What happens to a message that finds a cap reached."""

    BY_VALUE = "by_value"  # expired rows, then the oldest of the worst priority are evicted
    DROP_OLDEST = "drop_oldest"  # the oldest rows are evicted, whatever their priority
    DROP_NEWEST = "drop_newest"  # it is acknowledged, dropped and counted
    REJECT_NEW = "reject_new"  # its sender is refused


class Cap(StrEnum):
    """The caps; their values are texts of status and log."""

    HUB_ROWS = "hub rows"
    HUB_BYTES = "hub bytes"
    DISK = "free disk space"
    QUEUE_ROWS = "queue rows"
    QUEUE_BYTES = "queue bytes"


class Caps(Struct, frozen=True, kw_only=True):
    """The caps in force; 0 = none.

    Attributes:
        rows: Of the whole hub.
        bytes: Of the whole hub: rows, and events that wait for the journal.
        bytes_percent: The same as a part of the volume's size; the lower one holds.
        queue_rows: Of each queue.
        queue_bytes: Of each queue.
        free_bytes_min: The volume's free space that rows do not take; of a small volume a tenth.
        free_percent: The same as a part of the volume's size; the higher one holds.
        overflow: See `Overflow`.
    """

    rows: int = 0
    bytes: int = 0
    bytes_percent: int = 0
    queue_rows: int = 0
    queue_bytes: int = 0
    free_bytes_min: int = 0
    free_percent: int = 0
    overflow: Overflow = Overflow.BY_VALUE

    def exceeded_by(self, rows: int, size: int) -> list[Cap]:
        """Return the caps of a single queue that so many rows and bytes exceed."""
        wanted = (
            (Cap.QUEUE_ROWS, rows, self.queue_rows),
            (Cap.QUEUE_BYTES, size, self.queue_bytes),
        )
        return [cap for cap, taken, limit in wanted if limit and taken > limit]
