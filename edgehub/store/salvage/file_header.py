"""The first 100 bytes of a database file, as this program makes them.

SQLite relies on them: with another page size or encoding it reads wrong data, and without the flags
of auto-vacuum it reuses pages that are in use. Checks only what never changes in a file of the hub.

Source: https://www.sqlite.org/fileformat2.html, section 1.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.migrations import APPLICATION_ID, SCRIPTS
from edgehub.store.salvage.pages import HEADER_BYTES, MAGIC
from edgehub.store.salvage.table_list import read_table_list

if TYPE_CHECKING:
    from pathlib import Path

FIXED: Final = (
    ("page size", 16, PAGE_BYTES.to_bytes(2)),
    ("reserved bytes and fractions", 20, bytes([0, 64, 32, 32])),
    ("vacuum mode", 64, (1).to_bytes(4)),
    ("application", 68, APPLICATION_ID.to_bytes(4)),
)
JOURNAL_MODES: Final = (bytes([1, 1]), bytes([2, 2]))
"""Bytes 18 and 19: the second with a write-ahead log."""
SCHEMA_MARKS: Final = ((bytes(4), bytes(4)), ((4).to_bytes(4), (1).to_bytes(4)))
"""Bytes 44 to 47 and 56 to 59: UTF-8."""


def header_fault(path: Path) -> str:
    """Return what is wrong with the header of a file that a hub has opened, empty = nothing."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as exc:
        return f"the header cannot be read: {exc.strerror}"
    if len(header) < HEADER_BYTES:
        return "the file is shorter than its header"
    if not header.startswith(MAGIC):
        return "the header is damaged"
    wrong = [
        name for name, place, content in FIXED if header[place : place + len(content)] != content
    ]
    if header[18:20] not in JOURNAL_MODES:
        wrong.append("journal mode")
    # Both are 0 until the first table is made, which may still stand in the log.
    if (header[44:48], header[56:60]) not in SCHEMA_MARKS:
        wrong.append("schema format or encoding")
    if header[52:56] == bytes(4):
        wrong.append("largest first page")
    if int.from_bytes(header[60:64]) > len(SCRIPTS):
        # A newer program would have left its number in the copy of the list of tables as well.
        listed = read_table_list(path)
        if listed is not None and listed.version <= len(SCRIPTS):
            wrong.append("schema version")
    return f"the header is damaged: {', '.join(wrong)}" if wrong else ""
