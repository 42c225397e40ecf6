"""The newest lines that fit: by event, queue, time and number, from the newest segment back."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.journal.search import BYTES_MAX, FoundLines, LineQuery, search

if TYPE_CHECKING:
    from pathlib import Path


def a_line(number: int, event: str = "expired", **keys: Any) -> dict[str, Any]:
    """Return a line of the minute of its number."""
    time_ = f"2026-11-28T{number // 60:02}:{number % 60:02}:00.000Z"
    return {"v": 1, "time": time_, "event": event, "endpoint": "upstream", **keys}


def written(folder: Path, *files: list[dict[str, Any]]) -> list[Path]:
    """Write segments and return them, newest first."""
    paths = []
    for number, lines in enumerate(files):
        path = folder / f"{number}.jsonl.gz"
        text = [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]
        path.write_bytes(gzip.compress("".join(text).encode()))
        paths.append(path)
    return paths[::-1]


def asked(
    files: list[Path],
    *,
    event: str | None = "expired",
    queue: tuple[str, int | None] | None = None,
    since: int = 0,
    lines_max: int = 100,
    seconds_max: float = 60,
) -> FoundLines:
    """Search with a minute as the time since when."""
    query = LineQuery(event=event, queue=queue, since=a_line(since)["time"], lines_max=lines_max)
    return search(files, query, seconds_max=seconds_max, monotonic=time.monotonic)


def test_lines_of_an_event_come_oldest_first(tmp_path: Path) -> None:
    """Over segments; other events, and texts that look like one, do not fit."""
    odd = a_line(2, "sent", reason='"event":"expired"')
    first = [a_line(1), odd, a_line(3)]
    files = written(tmp_path, first, [a_line(4, "sent"), a_line(5)])
    answer = asked(files)
    assert [line["time"][11:16] for line in answer.lines] == ["00:01", "00:03", "00:05"]
    assert (answer.found, answer.complete) == (3, True)
    assert len(asked(files, event=None).lines) == 5


def test_lines_of_a_queue(tmp_path: Path) -> None:
    """By endpoint and priority; the default priority is absent in lines."""
    files = written(tmp_path, [a_line(1, priority=3), a_line(2), a_line(3, endpoint="lab")])
    assert [line["time"][11:16] for line in asked(files, queue=("upstream", 3)).lines] == ["00:01"]
    assert [line["time"][11:16] for line in asked(files, queue=("upstream", None)).lines] == [
        "00:02"
    ]


def test_older_lines_do_not_fit_and_older_segments_are_not_read(tmp_path: Path) -> None:
    """A segment that ends before the time that is asked for ends the search."""
    files = written(tmp_path, [a_line(1)], [a_line(2), a_line(3)], [a_line(4)])
    assert [line["time"][11:16] for line in asked(files, since=3).lines] == ["00:03", "00:04"]
    # The oldest one has a line that would fit, where none can be.
    files = written(tmp_path, [a_line(9)], [a_line(2), a_line(3)], [a_line(4)])
    assert [line["time"][11:16] for line in asked(files, since=4).lines] == ["00:04"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param((b'{"v":1', b"{,v:1"), id="no-json"),
        pytest.param((b"2026-11-28T00:02", b"2026-11-28T00:\xff2"), id="time-not-utf8"),
        pytest.param((b'"endpoint":"upstream"', b'"endpoint":"up\xffream"'), id="text-not-utf8"),
    ],
)
@pytest.mark.parametrize("queue", [None, ("upstream", None)])
def test_damaged_lines_are_passed_by(
    tmp_path: Path, damage: tuple[bytes, bytes], queue: tuple[str, int | None] | None
) -> None:
    """A line that a flipped bit has spoilt costs that line, not the answer."""
    files = written(tmp_path, [a_line(1), a_line(2), a_line(3)])
    first, second, third = gzip.decompress(files[0].read_bytes()).splitlines(keepends=True)
    spoilt = second.replace(*damage)
    assert spoilt != second
    files[0].write_bytes(gzip.compress(first + spoilt + third))
    answer = asked(files, queue=queue)
    assert [line["time"][11:16] for line in answer.lines] == ["00:01", "00:03"]
    assert answer.found == 2


@pytest.mark.parametrize("damage", ["cut short", "flipped", "removed"])
def test_a_segment_that_cannot_be_read_is_reported(tmp_path: Path, damage: str) -> None:
    """Other segments go on; the answer says that lines are missing. A growing one has no end."""
    files = written(tmp_path, [a_line(1)], [a_line(2)], [a_line(3)])
    growing = files[0].rename(tmp_path / "growing.open")
    growing.write_bytes(growing.read_bytes()[:-8])
    files[0] = growing
    assert (asked(files).complete, asked(files).unread_segments) == (True, 0)
    content = bytearray(files[1].read_bytes())
    content[-6] ^= 1
    if damage == "cut short":
        files[1].write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        files[1].write_bytes(content)
    else:
        files[1].unlink()
    answer = asked(files)
    assert {line["time"][11:16] for line in answer.lines} >= {"00:01", "00:03"}
    assert (answer.complete, answer.unread_segments) == (False, 1)


def test_the_newest_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    """Whatever the number of segments."""
    files = written(tmp_path, [a_line(n) for n in range(50)], [a_line(n) for n in range(50, 60)])
    answer = asked(files, lines_max=12)
    assert [line["time"] for line in answer.lines] == [a_line(n)["time"] for n in range(48, 60)]
    assert answer.found == 60


def test_an_answer_has_bounded_bytes(tmp_path: Path) -> None:
    """However long the lines are."""
    lines = [a_line(n, reason="x" * 100_000) for n in range(30)]
    answer = asked(written(tmp_path, lines[:15], lines[15:]))
    assert answer.found == 30
    assert 0 < len(json.dumps(answer.lines)) <= BYTES_MAX
    assert answer.lines[-1]["time"] == lines[-1]["time"]


def test_a_search_holds_little_in_memory(tmp_path: Path) -> None:
    """A segment is read in pieces, also one that is packed three hundred times as small."""
    line = json.dumps(a_line(1, "sent", reason="x" * 1000), separators=(",", ":")).encode() + b"\n"
    path = tmp_path / "large.jsonl.gz"
    path.write_bytes(gzip.compress(line * 40_000))
    tracemalloc.start()
    try:
        answer = asked([path], event="sent")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.found == 40_000
    assert path.stat().st_size < 200_000
    assert peak < 12 * 2**20


def test_a_search_that_takes_too_long_says_so(tmp_path: Path) -> None:
    """What was found by then is the answer."""
    files = written(tmp_path, [a_line(1)], [a_line(2)])
    answer = asked(files, seconds_max=0)
    assert [line["time"][11:16] for line in answer.lines] == ["00:02"]
    assert not answer.complete
