"""What docs/reference/journal-format.md promises, checked on real segments."""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Line = dict[str, Any]
Figures = tuple[int, int]

BASE = {
    "v": int,
    "hub": str,
    "store": str,
    "commit": int,
    "seq": int,
    "time": str,
    "hub_ms": int,
    "event": str,
}
IN = {"enqueued", "requeued"}
OUT = {"sent", "expired", "dropped", "dead_lettered", "purged", "lost"}
ROWS = IN | OUT | {"moved", "retried"}
TIMED = OUT | {"moved", "retried"}
TRIED = {"sent", "retried", "dead_lettered", "expired"}
REASONED = {"dropped", "dead_lettered", "retried"}
WAITS = ("offline_ms", "behind_ms", "retry_ms", "rate_ms")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UNKNOWN = "unknown"
PATH = re.compile(r"date=(\d{4}-\d\d-\d\d|unknown)/hub=([^/]+)/(\d{12})-([0-9a-f]{8})\.jsonl\.gz")


def read_segment(path: Path) -> list[Line]:
    """Read a whole segment and check every line."""
    with gzip.open(path, "rb") as file:
        content = file.read()
    assert content.endswith(b"\n")
    return [_read_line(line) for line in content.splitlines()]


@functools.lru_cache(maxsize=1 << 15)
def _read_line(text: bytes) -> Line:
    # States of one disk, which are read one after the other, have most lines in common.
    line: Line = json.loads(text)
    check_line(line)
    return line


def read_folder(folder: Path, dates: str = "[0-9]*") -> list[Line]:
    """Read the whole segments of dates, check each, and give the lines in the order of commits."""
    lines: list[Line] = []
    for path in folder.glob(f"date={dates}/hub=*/*.jsonl.gz"):
        match = PATH.fullmatch(path.relative_to(folder).as_posix())
        assert match is not None, path
        part = read_segment(path)
        check_segment(part, *match.groups())
        lines += part
    lines.sort(key=lambda line: (line["store"], line["commit"], line["seq"]))
    keys = [(line["store"], line["commit"], line["seq"]) for line in lines]
    assert len(keys) == len(set(keys)), "a line stands twice"
    return lines


def check_segment(lines: list[Line], date: str, hub: str, first: str, store: str) -> None:
    """Check name, date and order."""
    assert lines
    places = [(line["commit"], line["seq"]) for line in lines]
    assert places == sorted(places)
    assert places[0][0] == int(first)
    for line in lines:
        assert line["hub"] == hub
        assert line["store"].startswith(store)
        assert date == UNKNOWN or line["time"].startswith(date), (line, date)


def check_line(line: Line) -> None:
    """Keys and their types; no key that the page does not have for this event."""
    left = dict(line)
    for key, kind in BASE.items():
        _take(left, key, kind, line)
    assert line["v"] == 2
    assert re.fullmatch("[0-9a-f]{16}", line["store"])
    assert TIME.fullmatch(line["time"])
    event = line["event"]
    if event in ROWS:
        _check_row(line, left)
    elif event == "carried":
        _check_carried(line, left)
    elif event == "link":
        _take(left, "endpoint", str, line)
        assert left.pop("state") in {"up", "down", "unserved"}
    else:
        _check_other(event, line, left)
    assert not left, (line, left)


def _check_other(event: str, line: Line, left: Line) -> None:
    if event == "traffic":
        _take(left, "endpoint", str, line)
        _take(left, "bytes", int, line)
        assert line["bytes"] > 0
    elif event == "settings":
        for key, kind in {"route_count": int, "endpoints": dict, "caps": dict}.items():
            _take(left, key, kind, line)
        if "manifest" in left:
            _take(left, "manifest", str, line)
            assert len(left.pop("route_table")) == line["route_count"]
    elif event == "dead_purged":
        _check_queue(left, line)
        _take(left, "count", int, line)
        _take(left, "bytes", int, line)
        assert left.pop("reason") in {"bounds", "command", "requeued"}
    elif event == "refused":
        for key, kind in {"count": int, "bytes": int, "reason": str}.items():
            _take(left, key, kind, line)
        left.pop("device", None)
        left.pop("message", None)
    else:
        raise AssertionError(line)


def _check_carried(line: Line, left: Line) -> None:
    _check_queue(left, line)
    _take(left, "rows", int, line)
    _take(left, "bytes", int, line)
    edge = left.pop("edge")
    assert edge in {"in", "out", "start", "stop"}
    if edge == "in":
        _take(left, "age_step_ms", int, line)
        ages = left.pop("ages")
        assert sum(rows for _, rows in ages) == line["rows"], line
        assert [age for age, _ in ages] == sorted((age for age, _ in ages), reverse=True)
        assert all(age >= 0 and rows > 0 for age, rows in ages), line


def _check_row(line: Line, left: Line) -> None:
    event = line["event"]
    _check_queue(left, line)
    _take(left, "bytes", int, line)
    if event == "moved":
        _take(left, "to_endpoint", str, line)
        assert 0 <= left.pop("to_priority", 0) <= 9, line
        assert left.pop("reason") in {"recency", "command"}, line
    if "count" in left:
        assert left.pop("count") >= 1
        return
    for key, kind in {"offset": int, "message": str, "device": str, "routes": list}.items():
        _take(left, key, kind, line)
    if "ttl_ms" in left:
        _take(left, "ttl_ms", int, line)
    if event in TRIED and "attempts" in left:
        assert left.pop("attempts") >= 1
    if event in TIMED:
        for key in ("waited_ms", *WAITS):
            _take(left, key, int, line)
            assert line[key] >= 0, line
        assert line["waited_ms"] == sum(line[key] for key in WAITS), line
    if event == "sent":
        _take(left, "attempt_ms", int, line)
        assert line["attempt_ms"] >= 0, line
    if event in REASONED:
        _take(left, "reason", str, line)


def _check_queue(left: Line, line: Line) -> None:
    _take(left, "endpoint", str, line)
    if "priority" in left:
        assert 0 <= left.pop("priority") <= 9, line


def _take(left: Line, key: str, kind: type, line: Line) -> None:
    value = left.pop(key, None)
    assert type(value) is kind, (key, value, line)


def queue_of(line: Line) -> tuple[str, int | None]:
    """Return endpoint and priority."""
    return line["endpoint"], line.get("priority")


def check_equation(lines: Iterable[Line]) -> dict[tuple[str, tuple[str, int | None]], Figures]:
    """Let the equation close per date and queue, in rows and bytes.

    Returns:
        What is left over by date and queue: empty, but for the last date, if that is open.
    """
    left: dict[tuple[str, Any], list[int]] = defaultdict(lambda: [0, 0])
    edges: dict[tuple[str, Any], dict[str, Figures]] = defaultdict(dict)
    last_date = ""
    for line in lines:
        date = line["time"][:10]
        assert date >= last_date, line
        last_date = date
        event = line["event"]
        sign = (event in IN) - (event in OUT)
        count = line.get("count", 1)
        if event == "carried":
            sign = {"in": 1, "out": -1}.get(line["edge"], 0)
            count = line["rows"]
            edges[line["edge"], date][str(queue_of(line))] = (line["rows"], line["bytes"])
        changes = [(queue_of(line), sign)] if sign else []
        if event == "moved":
            to = (line["to_endpoint"], line.get("to_priority"))
            changes = [(queue_of(line), -1), (to, 1)]
        for queue, change in changes:
            total = left[date, queue]
            total[0] += change * count
            total[1] += change * line["bytes"]
    for (edge, date), figures in edges.items():
        if edge == "out":
            following = min((d for e, d in edges if e == "in" and d > date), default=None)
            assert following is not None
            assert edges["in", following] == figures, (date, following)
    unbalanced = {key: (rows, size) for key, (rows, size) in left.items() if rows or size}
    assert all(date == last_date for date, _ in unbalanced), unbalanced
    return unbalanced


def check_copies(lines: Iterable[Line]) -> dict[int, list[str]]:
    """Let each copy be enqueued once, first, and leave at most once, last; gives their events.

    Dead letters may come back, and leave again.
    """
    told: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        if line["event"] in ROWS and "offset" in line:
            told[line["offset"]].append(line["event"])
    for offset, events in told.items():
        assert events[0] == "enqueued", (offset, events)
        assert events.count("enqueued") == 1, (offset, events)
        for event, following in pairwise(events):
            back = (event, following) == ("dead_lettered", "requeued")
            assert back or (event not in OUT and following not in IN), (offset, events)
    return told
