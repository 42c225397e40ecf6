"""How long whole segments stay: bounds of age and space, exported ones go first.

Those without a known date go by space alone. Plain blocking code, called on a worker thread.
Invariants: the folder holds at most its bound, plus what grows; whatever is deleted without having
been exported is counted; a clock that jumps years ahead, as one did that counts weeks in ten bits,
costs a date for each look and not all of them.
"""

from __future__ import annotations

from shutil import disk_usage
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.journal.lines import day_text

if TYPE_CHECKING:
    from edgehub.journal.exports import ExportBook
    from edgehub.journal.segments import Segments

VOLUME_SHARE: Final = 10


class Bounds(Struct, frozen=True, kw_only=True):
    """Bounds of the journal's folder.

    Attributes:
        keep_days: Segments of dates further back go.
        bytes_max: Sum of the sizes of whole segments.
    """

    keep_days: int
    bytes_max: int

    def bytes_on(self, volume_bytes: int) -> int:
        """Return the space on a volume of some size: at most a share, for rows need the rest."""
        return min(self.bytes_max, volume_bytes // VOLUME_SHARE)


class Tidied(Struct, frozen=True, kw_only=True):
    """The result of one clean-up of the folder.

    Attributes:
        kept: Sizes of the whole segments by path, oldest first.
        exported: Those that went to some target.
        not_exported: Segments deleted before any export.
        not_exported_bytes: Sum of their sizes.
        bytes_max: The bound of space on this volume.
    """

    kept: dict[str, int]
    exported: set[str]
    not_exported: int
    not_exported_bytes: int
    bytes_max: int


def drop_segments(
    segments: Segments, book: ExportBook, bounds: Bounds, *, today: int | None, held_bytes: int = 0
) -> Tidied:
    """Delete what is beyond the bounds; by age one date, the oldest, at a time.

    Args:
        segments: The folder.
        book: Knows what was exported.
        bounds: See `Bounds`.
        today: UTC date, days since 1970; None = it is not known, so none goes by age.
        held_bytes: What held segments take of the space.

    Raises:
        OSError: The folder cannot be read or changed.
    """
    exported = book.exported()
    closed = segments.closed()
    kept_from = "" if today is None else day_text(today - bounds.keep_days)
    aged = min([segment.date for segment in closed if segment.date < kept_from], default=None)
    folder = segments.folder if segments.folder.exists() else segments.folder.parent
    bytes_max = bounds.bytes_on(disk_usage(folder).total)
    over = sum([segment.bytes for segment in closed]) + held_bytes - bytes_max
    removed: set[str] = set()
    lost = lost_bytes = 0
    for segment in sorted(closed, key=lambda segment: segment.path not in exported):
        if segment.date != aged and over <= 0:
            continue
        segments.remove(segment.path)
        over -= segment.bytes
        removed.add(segment.path)
        if segment.path not in exported:
            lost += 1
            lost_bytes += segment.bytes
    return Tidied(
        kept={segment.path: segment.bytes for segment in closed if segment.path not in removed},
        exported=exported - removed,
        not_exported=lost,
        not_exported_bytes=lost_bytes,
        bytes_max=bytes_max,
    )
