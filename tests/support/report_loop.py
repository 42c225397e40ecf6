"""Starvation windows by a plain loop: each hub's lines in their order, one queue's state at a time.

Shares nothing with the report but the definition in docs/reference/report.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

LIMIT_MS = 60_000
DAY_MS = 86_400_000
INTO = ("enqueued", "requeued")
OUT = ("sent", "expired", "dropped", "dead_lettered", "purged", "lost", "moved")

Line = dict[str, Any]


@dataclass
class _Spell:
    start_ms: int
    rows: int
    size: int
    last_ms: int
    idle_ms: int = 0
    expired: int = 0
    retried: int = 0
    better: set[int] = field(default_factory=set)


@dataclass
class _Queue:
    rows: int = 0
    size: int = 0
    spell: _Spell | None = None


class _Hub:
    def __init__(self, name: str, lines: list[Line]) -> None:
        self.name = name
        self.lines = sorted(lines, key=lambda line: (line["hub_ms"], line["commit"], line["seq"]))
        self.queues: dict[tuple[str, int], _Queue] = defaultdict(_Queue)
        edges = [line["edge"] for line in self.lines if line["edge"] in ("start", "stop")]
        self.running = not edges or edges[0] == "stop"
        self.links: dict[str, bool] = defaultdict(lambda: True)
        for line in reversed(self.lines):
            if line["event"] == "link":
                self.links[line["endpoint"]] = line["state"] != "up"
        self.windows: list[Line] = []

    def run(self) -> list[Line]:
        ends = [x["hub_ms"] - x["day_ms"] + DAY_MS for x in self.lines if x["edge"] == "out"]
        for line in self.lines:
            self._step(line)
        end_ms = max(ends, default=self.lines[-1]["hub_ms"])
        for key in list(self.queues):
            self._close(key, end_ms)
        return self.windows

    def _step(self, line: Line) -> None:
        now, event = line["hub_ms"], line["event"]
        key = (line["endpoint"], line["priority"])
        if event == "link":
            self.links[line["endpoint"]] = line["state"] == "up"
            self._settle(now)
        elif line["edge"] in ("start", "stop"):
            self.running = line["edge"] == "start"
            self._settle(now)
        elif event in INTO or line["edge"] == "in":
            at = now - line["day_ms"] if line["edge"] == "in" else now
            self._add(key, at, line["n"], line["bytes"])
        elif event == "retried":
            if spell := self.queues[key].spell:
                spell.retried += line["n"]
        elif event in OUT:
            self._leave(key, line)
            if event == "moved":
                self._add((line["to_endpoint"], line["to_priority"]), now, line["n"], line["bytes"])

    def _settle(self, now: int) -> None:
        for key, queue in self.queues.items():
            up = self.running and self.links[key[0]]
            if queue.spell and not up:
                self._close(key, now)
            elif not queue.spell and up:
                self._open(key, now)

    def _open(self, key: tuple[str, int], now: int) -> None:
        queue = self.queues[key]
        if queue.rows > 0 and self.running and self.links[key[0]]:
            queue.spell = _Spell(now, queue.rows, queue.size, now)

    def _add(self, key: tuple[str, int], now: int, rows: int, size: int) -> None:
        queue = self.queues[key]
        queue.rows += rows
        queue.size += size
        if queue.spell:
            queue.spell.rows += rows
            queue.spell.size += size
        else:
            self._open(key, now)

    def _leave(self, key: tuple[str, int], line: Line) -> None:
        queue, now = self.queues[key], line["hub_ms"]
        queue.rows -= line["n"]
        queue.size -= line["bytes"]
        if queue.spell and line["event"] == "expired":
            queue.spell.expired += line["n"]
        if line["event"] == "sent":
            self._serve(key, now)
        if line["event"] == "sent" or queue.rows <= 0:
            self._close(key, now)
            self._open(key, now)

    def _serve(self, served: tuple[str, int], now: int) -> None:
        for key, queue in self.queues.items():
            spell = queue.spell
            if spell and key != served and key[0] == served[0] and now > spell.start_ms:
                spell.idle_ms += _pause(now - spell.last_ms)
                spell.last_ms = now
                if served[1] < key[1]:
                    spell.better.add(served[1])

    def _close(self, key: tuple[str, int], now: int) -> None:
        spell, self.queues[key].spell = self.queues[key].spell, None
        if spell is None or now - spell.start_ms < LIMIT_MS:
            return
        idle_ms = spell.idle_ms + _pause(now - spell.last_ms)
        kind = "starved" if spell.better else "held_back" if spell.retried else "idle"
        if not spell.better and not idle_ms:
            return
        names = ("hub", "endpoint", "priority", "kind", "length_ms", "idle_ms", "served")
        values = (
            self.name,
            *key,
            kind,
            now - spell.start_ms,
            idle_ms,
            sorted(spell.better) or None,
        )
        window = dict(zip(names, values, strict=True))
        window |= {"rows": spell.rows, "bytes": spell.size, "expired": spell.expired}
        self.windows.append(window | {"retried": spell.retried})


def _pause(length_ms: int) -> int:
    return length_ms if length_ms >= LIMIT_MS else 0


def windows_of(lines: list[Line]) -> list[Line]:
    """Find the windows of all hubs.

    Args:
        lines: As `tests.support.report.export_lines` has them.
    """
    hubs: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        hubs[line["hub"]].append(line)
    return [window for name, own in hubs.items() for window in _Hub(name, own).run()]
