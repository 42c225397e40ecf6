"""Held segments after a start: what is found of them, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.journal.held import Held
from edgehub.journal.segments import HEADER, Segments

if TYPE_CHECKING:
    from pathlib import Path


def test_without_segments_nothing_is_reported_again(tmp_path: Path) -> None:
    """Their files were removed while their events were told again: the next ones begin anew."""
    segments = Segments(tmp_path, hub_id="gw-1", store_id="0123456789abcdef")
    held = Held(segments)
    entry = held.begin(100, 7, 360_000_000, [])
    held.append(entry, [b"line\n"], [(7, b"events")])
    documents = [entry.document()]
    assert Held(segments).resume(documents, rewriting=True) is False
    for file in tmp_path.rglob("*.events"):
        file.unlink()
    found = Held(segments)
    assert found.resume(documents, rewriting=True) is True
    assert (found.entries, found.rewriting) == ([], False)


def test_what_grew_before_a_failure_grows_no_more(tmp_path: Path) -> None:
    """The next events begin a segment: what they would join is cut, and known no more."""
    segments = Segments(tmp_path, hub_id="gw-1", store_id="0123456789abcdef")
    held = Held(segments)
    entry = held.begin(100, 7, 360_000_000, [])
    held.append(entry, [b"line\n"], [(7, b"events")])
    assert held.growing(100, 2**20) is entry
    held.resume([entry.document()], rewriting=False)
    assert held.growing(100, 2**20) is None
    assert [known.size for known in held.entries] == [entry.size]


@pytest.mark.parametrize("damaged", [False, True])
def test_damaged_lines_become_no_segment(tmp_path: Path, damaged: bool) -> None:
    """Whole ones are closed as they are, under the date `unknown`."""
    segments = Segments(tmp_path, hub_id="gw-1", store_id="0123456789abcdef")
    held = Held(segments)
    entry = held.begin(100, 7, 360_000_000, [])
    held.append(entry, [b'{"offset": 1}\n'], [(7, b"events")])
    held.resume([entry.document()], rewriting=False)
    file = held.lines_file(held.entries[0])
    content = file.read_bytes()
    if damaged:
        place = len(HEADER) + 5
        file.write_bytes(bytes([*content[:place], content[place] ^ 1, *content[place + 1 :]]))
    with capture_logs() as logs:
        held.give_up()
    assert held.entries == []
    assert [closed.date for closed in segments.closed()] == ([] if damaged else ["unknown"])
    assert [line["event"] for line in logs] == (["journal.segment_lost"] if damaged else [])
