"""Segments of the journal: what counts as written is on stable storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgehub.journal.segments import HEADER, Segments

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_counts_as_written_has_been_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines, the cut where a segment goes on, and its end."""
    synced: dict[int, int] = {}
    real = os.fsync

    def sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size
        real(descriptor)

    def is_synced(file: Path) -> bool:
        status = file.stat()
        return synced.pop(status.st_ino, None) == status.st_size

    monkeypatch.setattr(os, "fsync", sync)
    segments = Segments(tmp_path, hub_id="gw", store_id="0123456789abcdef")
    segment = segments.begin(20_000, 7, 1)
    for text in (b"first\n", b"second\n"):
        segments.append(segment, [text])
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert is_synced(file)
    with file.open("ab") as stream:
        stream.write(b"torn")
    (resumed,) = segments.resume([segment.document()])
    assert is_synced(file)
    segments.close(resumed)
    assert is_synced(tmp_path / segment.path)


def test_any_damaged_byte_of_a_growing_segment_is_noticed(tmp_path: Path) -> None:
    """Also one that still unpacks, to other text; what lies behind the position does not count."""
    segments = Segments(tmp_path, hub_id="gw", store_id="0123456789abcdef")
    segment = segments.begin(20_000, 7, 1)
    for number in range(20):
        line = b'{"event":"sent","offset":%d,"ms":%d}\n' % (number, number * 7919)
        segments.append(segment, [line])
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    content = file.read_bytes() + b"torn"
    for place in range(len(HEADER), segment.length):
        file.write_bytes(bytes([*content[:place], content[place] ^ 0xFF, *content[place + 1 :]]))
        assert segments.resume([segment.document()]) == [], place
    file.write_bytes(content)
    (resumed,) = segments.resume([segment.document()])
    assert resumed.document() == segment.document()


def test_a_position_of_a_version_without_checksums_is_gone_on_with(tmp_path: Path) -> None:
    """The next position has one."""
    segments = Segments(tmp_path, hub_id="gw", store_id="0123456789abcdef")
    segment = segments.begin(20_000, 7, 1)
    segments.append(segment, [b"first\n"])
    *older, checksum = segment.document()
    (resumed,) = segments.resume([older])
    assert resumed.document() == [*older, checksum]
