"""Starvation windows and states of links by plain loops over each hub's lines in their order.

Shares nothing with the report but the definition in docs/reference/report.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    better: dict[int, int] = field(default_factory=dict)
    """Better priorities, and when each was served first."""


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
        for line in self.lines:
            self._step(line)
        end_ms = _end_ms(self.lines)
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
            if line["left"]:
                self._leave(key, line)
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
                    spell.better.setdefault(served[1], now)

    def _close(self, key: tuple[str, int], now: int) -> None:
        spell, self.queues[key].spell = self.queues[key].spell, None
        if spell is None or now - spell.start_ms < LIMIT_MS:
            return
        idle_ms = spell.idle_ms + _pause(now - spell.last_ms)
        better = sorted(priority for priority, at_ms in spell.better.items() if at_ms < now)
        kind = "starved" if better else "held_back" if spell.retried else "idle"
        if not better and not idle_ms:
            return
        names = ("hub", "endpoint", "priority", "kind", "length_ms", "idle_ms", "served")
        values = (
            self.name,
            *key,
            kind,
            now - spell.start_ms,
            idle_ms,
            better or None,
        )
        window = dict(zip(names, values, strict=True))
        window |= {"rows": spell.rows, "bytes": spell.size, "expired": spell.expired}
        self.windows.append(window | {"retried": spell.retried})


def _pause(length_ms: int) -> int:
    return length_ms if length_ms >= LIMIT_MS else 0


def _end_ms(lines: list[Line]) -> int:
    """Return the hub time of the end of a hub's day."""
    ends = [x["hub_ms"] - x["day_ms"] + DAY_MS for x in lines if x["edge"] == "out"]
    return max(ends, default=max(line["hub_ms"] for line in lines))


def windows_of(lines: list[Line]) -> list[Line]:
    """Find the windows of all hubs.

    Args:
        lines: As `tests.support.report.export_lines` has them, with what was left behind.
    """
    return [window for name, own in _by_hub(lines) for window in _Hub(name, own).run()]


def links_of(lines: list[Line]) -> list[Line]:
    """Return the table `links`.

    Args:
        lines: As `tests.support.report.export_lines` has them.
    """
    return [row for name, own in _by_hub(lines) for row in _links(name, own)]


def _by_hub(lines: list[Line]) -> Iterable[tuple[str, list[Line]]]:
    hubs: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        hubs[line["hub"]].append(line)
    return hubs.items()


def _links(hub: str, lines: list[Line]) -> Iterator[Line]:
    first_ms = min(line["hub_ms"] for line in lines if line["endpoint"])
    end_ms = _end_ms(lines)
    of_hub = [line for line in lines if line["edge"] in ("start", "stop")]
    for endpoint in {line["endpoint"] for line in lines if line["endpoint"]}:
        own = [line for line in lines if line["event"] == "link" and line["endpoint"] == endpoint]
        changes = sorted(
            of_hub + own, key=lambda line: (line["hub_ms"], line["commit"], line["seq"])
        )
        before: dict[bool, bool] = {}
        for line in changes:
            before.setdefault(
                line["event"] == "link", line["state"] != "up" and line["edge"] != "start"
            )
        up, running = before.get(True, True), before.get(False, True)
        sums = {"known_ms": end_ms - first_ms, "running_ms": 0}
        downs = [0]
        at_ms = first_ms
        for line in [*changes, {"hub_ms": end_ms, "event": None, "edge": None}]:
            length_ms = max(0, line["hub_ms"] - at_ms)
            at_ms = line["hub_ms"]
            if running:
                sums["running_ms"] += length_ms
            if running and not up:
                downs[-1] += length_ms
            elif downs[-1]:
                downs.append(0)
            if line["event"] == "link":
                up = line["state"] == "up"
            elif line["edge"]:
                running = line["edge"] == "start"
        times = [length for length in downs if length]
        yield {
            "hub": hub,
            "endpoint": endpoint,
            **sums,
            "down_ms": sum(times),
            "downs": len(times),
            "longest_down_ms": max(times, default=0),
        }
