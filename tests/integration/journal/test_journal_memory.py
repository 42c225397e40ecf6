"""Segments are gone over piece by piece: as text a whole one is a hundred megabytes and more."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from edgehub.journal.segments import Segment, Segments

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

LINES = 400_000
MIB_MAX = 8


def test_a_large_segment_is_resumed_in_little_memory(tmp_path: Path) -> None:
    """50 MB of text, as after a time of load: resumed and closed, it is what one hub wrote."""
    segments = Segments(tmp_path, hub_id="gw", store_id="0123456789abcdef")
    segment = segments.begin(20_000, 480_000, 1)
    for start in range(0, LINES, 10_000):
        texts = [
            b'{"commit":%d,"row":%d,"x":"%b"}\n' % (start, row, b"y" * 100) for row in range(10_000)
        ]
        segments.append(segment, texts)
    documents = [segment.document()]
    tracemalloc.start()
    (resumed,) = Segments(tmp_path, hub_id="gw", store_id="0123456789abcdef").resume(documents)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB_MAX * 2**20
    assert _sums(resumed) == _sums(segment)


def _sums(segment: Segment) -> bytes:
    return segment.end()[-8:]
