"""Journal lines by hand: what a hub would write, for tests of its readers.

Owns keys, numbering and files as docs/reference/journal-format.md has them. Commit numbers rise
with each line unless a test wants others.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STORE = "9f3c21ab00112233"


class Segment(NamedTuple):
    """A file of lines, as the manifest of an export has it."""

    path: Path
    lines: int
    first_commit: int
    last_commit: int


def write_manifest(
    export: Path, hub: str, store: str, date: str, segments: Sequence[Segment]
) -> None:
    """Write the manifest of an export that copied these segments of one database file and date."""
    listed = []
    for path, *numbers in segments:
        packed = path.read_bytes()
        listed.append(
            {
                "path": str(path.relative_to(export)),
                "bytes": len(packed),
                "sha256": hashlib.sha256(packed).hexdigest(),
                **dict(zip(("lines", "first_commit", "last_commit"), numbers, strict=True)),
            }
        )
    manifest = {"v": 1, "hub": hub, "dates": [date], "segments": listed}
    folder = export / "_exports" / f"hub={hub}"
    folder.mkdir(parents=True, exist_ok=True)
    first = min(segment.first_commit for segment in segments)
    last = max(segment.last_commit for segment in segments)
    (folder / f"{first:012}-{last:012}-{store[:8]}.json").write_text(json.dumps(manifest))


class HandJournal:
    """One hub's lines of one date.

    Attributes:
        lines: The objects so far; a test may change them before `write`.
        start_ms: Hub time at 00:00 UTC of the date.
    """

    def __init__(self, date: str, hub: str = "gateway-7-a3f1", start_ms: int = 1_000_000_000):
        self.date = date
        self.hub = hub
        self.start_ms = start_ms
        self.lines: list[dict[str, Any]] = []
        self._commit = 4_711
        self._offset = 0

    def add(self, event: str, at: str, *, clock_s: float = 0.0, **keys: object) -> dict[str, Any]:
        """Write a line at `HH:MM:SS[.mmm]` of hub time; the wall clock is `clock_s` ahead.

        `24:00:00` is the end of the day. Row events get an offset, a size and an endpoint unless
        they are given.
        """
        since = _since_midnight(at)
        time = _midnight(self.date) + since + timedelta(seconds=clock_s)
        self._commit += 1
        line: dict[str, Any] = {
            "v": 2,
            "hub": self.hub,
            "store": STORE,
            "commit": self._commit,
            "seq": 0,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03}Z",
            "hub_ms": self.start_ms + round(since.total_seconds() * 1000),
            "event": event,
        }
        if event == "carried":
            line |= {"endpoint": "upstream", "bytes": 100 * _number(keys.get("rows", 0))}
        elif event in ("link", "traffic", "settings"):
            line |= {"endpoint": "upstream"}
        elif event not in ("refused", "dead_purged"):
            self._offset += 1
            line |= {"endpoint": "upstream", "offset": self._offset, "device": "press-1"}
            line |= {"bytes": 100 * _number(keys.get("count", 1))}
        line |= keys
        self.lines.append({key: value for key, value in line.items() if value is not None})
        return self.lines[-1]

    def left(self, event: str, at: str, **keys: Any) -> dict[str, Any]:
        """Write a line of a row that leaves, with its wait; parts that are not given are `rate`."""
        waited = keys.pop("waited_ms", 1000)
        parts = {name: keys.pop(name, 0) for name in ("offline_ms", "behind_ms", "retry_ms")}
        rate = waited - sum(parts.values())
        return self.add(event, at, waited_ms=waited, rate_ms=rate, **parts, **keys)

    def write(self, export: Path, name: str | None = None, *, extra: bytes = b"") -> Path:
        """Put all lines into one segment of an export and return its path."""
        folder = export / f"date={self.date}" / f"hub={self.hub}"
        folder.mkdir(parents=True, exist_ok=True)
        first = self.lines[0]["commit"] if self.lines else 0
        path = folder / (name or f"{first:012}-{STORE[:8]}.jsonl.gz")
        text = b"".join(json.dumps(line).encode() + b"\n" for line in self.lines) + extra
        path.write_bytes(gzip.compress(text, mtime=0))
        return path

    def list_segment(self, export: Path, path: Path) -> None:
        """Write the manifest of an export that copied a segment of all lines."""
        commits = [line["commit"] for line in self.lines]
        segment = Segment(path, len(self.lines), min(commits), max(commits))
        write_manifest(export, self.hub, self.lines[0]["store"], self.date, [segment])


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _midnight(date: str) -> datetime:
    return datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)


def _since_midnight(at: str) -> timedelta:
    hours, minutes, seconds = at.split(":")
    return timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
