"""What segments tell of one message: newest first, growing and damaged ones too, in time."""

from __future__ import annotations

import itertools
import json
import zlib
from typing import TYPE_CHECKING

import pytest

from edgehub.journal.trace import LINES_MAX, Passed, trace

if TYPE_CHECKING:
    from pathlib import Path

ID = "abc-1f"


def a_line(event: str, message: str = ID, offset: int = 31, **more: object) -> dict[str, object]:
    """Build a line in the order of keys that the journal has."""
    base = {"v": 1, "event": event, "endpoint": "upstream", "priority": 7, "offset": offset}
    return {**base, "message": message, **more}


def write(path: Path, lines: list[dict[str, object]], *, whole: bool = True) -> Path:
    """Write a segment; one that is not whole lacks its end, as a growing one does."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    packer = zlib.compressobj(2, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    content = packer.compress(text.encode()) + packer.flush(
        zlib.Z_FINISH if whole else zlib.Z_SYNC_FLUSH
    )
    path.write_bytes(content)
    return path


def test_lines_come_in_order_and_the_search_ends_at_the_beginning(tmp_path: Path) -> None:
    """The oldest segment is not read once the message's enqueue was found."""
    files = [
        write(tmp_path / "3.open", [a_line("sent", commit=9)], whole=False),
        write(tmp_path / "2", [a_line("enqueued"), a_line("retried"), a_line("sent", "abc-1")]),
        write(tmp_path / "1", [a_line("enqueued", commit=1)]),
    ]
    found = trace(files, ID, passed=(), seconds_max=9, monotonic=lambda: 0.0)
    assert [line["event"] for line in found.lines] == ["enqueued", "retried", "sent"]
    assert found.complete


def test_who_has_overtaken_a_row_is_counted(tmp_path: Path) -> None:
    """Rows of its endpoint that came later and were sent, by priority."""
    lines = [
        a_line("enqueued"),
        a_line("sent", "abc-20", 32),
        a_line("sent", "abc-21", 33) | {"priority": 0},
        a_line("sent", "abc-1e", 30),
        a_line("sent", "abc-22", 34) | {"endpoint": "lab"},
        {k: v for k, v in a_line("sent", "abc-23", 35).items() if k != "priority"},
    ]
    file = write(tmp_path / "1", lines)
    passed = [Passed(endpoint_id="upstream", offset=31)]
    found = trace([file], ID, passed=passed, seconds_max=9, monotonic=lambda: 0.0)
    assert found.overtakers == [{7: 1, 0: 1, None: 1}]


@pytest.mark.parametrize("damage", [b"", b"junk", b"\x1f\x8b\x08junkjunkjunk"])
def test_damaged_and_missing_segments_are_passed_by(tmp_path: Path, damage: bytes) -> None:
    """Others go on, and nobody claims that all was seen."""
    bad = tmp_path / "2"
    bad.write_bytes(damage)
    files = [bad, tmp_path / "gone", write(tmp_path / "1", [a_line("sent")])]
    found = trace(files, ID, passed=(), seconds_max=9, monotonic=lambda: 0.0)
    assert len(found.lines) == 1
    assert not found.complete


def test_lines_behind_the_beginning_that_are_lost_are_no_whole_story(tmp_path: Path) -> None:
    """A newer segment that was cut short may have told of the message too."""
    newer = write(tmp_path / "2", [a_line("retried")])
    files = [newer, write(tmp_path / "1", [a_line("enqueued")])]
    assert trace(files, ID, passed=(), seconds_max=9, monotonic=lambda: 0.0).complete
    newer.write_bytes(newer.read_bytes()[:-9])
    assert not trace(files, ID, passed=(), seconds_max=9, monotonic=lambda: 0.0).complete


def test_a_damaged_line_is_passed_by(tmp_path: Path) -> None:
    """Text that is no JSON under a checksum that fits, and an offset of thousands of digits."""
    file = write(tmp_path / "1", [a_line("retried"), a_line("sent", "other", offset=40)])
    text = zlib.decompress(file.read_bytes(), zlib.MAX_WBITS | 16)
    text = text.replace(b'"offset":40', b'"offset":' + b"9" * 5_000)
    text += b'{"event":"sent","message":"%s",,}\n' % ID.encode()
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    file.write_bytes(packer.compress(text) + packer.flush())
    passed = [Passed(endpoint_id="upstream", offset=31)]
    found = trace([file], ID, passed=passed, seconds_max=9, monotonic=lambda: 0.0)
    assert [line["event"] for line in found.lines] == ["retried"]
    assert found.overtakers == [{7: 1}]


def test_of_more_lines_than_are_shown_the_latest_are(tmp_path: Path) -> None:
    """A message that is tried for days: its last tries and its end, over all segments."""
    count = LINES_MAX * 3 // 4
    files = [
        write(
            tmp_path / str(first),
            [a_line("retried", commit=commit) for commit in range(first, first + count)],
        )
        for first in (count, 0)
    ]
    found = trace(files, ID, passed=(), seconds_max=9, monotonic=lambda: 0.0)
    commits = [line["commit"] for line in found.lines]
    assert commits == list(range(2 * count - LINES_MAX, 2 * count))


def test_time_ends_the_search(tmp_path: Path) -> None:
    """What was found until then is given, as incomplete."""
    files = [write(tmp_path / str(n), [a_line("retried")]) for n in range(50)]
    ticks = itertools.count()
    found = trace(files, ID, passed=(), seconds_max=20, monotonic=lambda: float(next(ticks)))
    assert 1 <= len(found.lines) < 50
    assert not found.complete
